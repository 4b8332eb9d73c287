"""The program of one device, in the process that runs it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tvm_ext import errors
from tvm_ext.artifact import LoadedArtifact, read_artifact
from tvm_ext.compiled_model import CompiledModel
from tvm_ext.configs.sharding_record import ShardingRecord
from tvm_ext.kept_tensors import KeptTensors

# Of an error, in characters: an answer has to have room for it.
_LONGEST_TEXT = 4096

# What a device may answer with in the place of results.
_ANSWERED = (errors.ArtifactError, errors.InputError, errors.RunError, errors.TargetError)


class DeviceProgram:
    """What one device computes of a model.

    Parameters
    ----------
    artifact : LoadedArtifact
        The whole model.
    rank : int
        Which device this is.
    threads : int, optional
        How many threads run it.
    """

    def __init__(self, artifact: LoadedArtifact, rank: int, threads: int | None = None) -> None:
        sharded = artifact.sharded
        self._rank, self._devices = rank, sharded.devices
        part = artifact.part(sharded.programs[rank])
        self._model = CompiledModel.from_artifact(part, threads)
        names = [spec.name for spec in self._model.inputs]
        self._inputs = dict(zip(names, sharded.inputs, strict=True))
        self._kept: KeptTensors | None = None
        self._changed: tuple[str, ...] = ()

    @classmethod
    def from_file(cls, path: str | Path, rank: int, threads: int | None = None) -> "DeviceProgram":
        """The program of a device in a file; raises ArtifactError as ``load`` does."""
        return cls(read_artifact(path), rank, threads)

    def run(
        self,
        inputs: Mapping[str, np.ndarray],
        out: Mapping[str, np.ndarray] | None = None,
        cleared: Sequence[str] = (),
    ) -> dict[str, np.ndarray]:
        """What the device gives for the inputs of the whole model.

        Those of the kept inputs that are in ``cleared`` are zeros ahead of the run.
        """
        own = {name: self._own(name, array) for name, array in inputs.items()}
        if self._kept is None or self._kept.arrays.keys() <= own.keys():
            return self._model.run(own, out=out)
        self._kept.clear(cleared)
        made = self._model.run_in_place(own, self._kept.tensors)
        ahead = len(made) - len(self._changed)
        self._kept.replace(dict(zip(self._changed, list(made.values())[ahead:], strict=True)))
        results = dict(list(made.items())[:ahead])
        for name, array in (out or {}).items():
            array[...] = results[name]
        return results

    def keep(self, kept: KeptTensors, changed: Sequence[str]) -> None:
        """Has runs take these inputs, which they are then not given.

        The last results of a run are the next values of those in ``changed``.
        """
        self._kept, self._changed = kept, tuple(changed)

    def _own(self, name: str, array: np.ndarray) -> np.ndarray:
        axis = self._inputs.get(name)
        if axis is None:
            return array
        size = array.shape[axis] // self._devices
        place = (slice(None),) * axis + (slice(self._rank * size, (self._rank + 1) * size),)
        return np.ascontiguousarray(array[place])


def keep_copies(
    programs: Sequence[DeviceProgram],
    arrays: Mapping[str, np.ndarray],
    changed: Sequence[Sequence[str]],
) -> KeptTensors:
    """Has the programs of a device keep copies of inputs, which all of them share."""
    kept = KeptTensors({name: np.array(array, order="C") for name, array in arrays.items()})
    for program, names in zip(programs, changed, strict=True):
        program.keep(kept, names)
    return kept


def require_divisible(
    record: ShardingRecord, inputs: Mapping[str, np.ndarray], names: Sequence[str]
) -> None:
    """Refuses a batch, which a run decides, that the devices do not divide; raises InputError."""
    for name, axis in zip(names, record.inputs, strict=True):
        size = inputs[name].shape[axis] if axis is not None else 0
        if size % record.devices:
            raise errors.InputError(
                f"axis {axis} of input '{name}' has size {size}; expected a multiple of the "
                f"{record.devices} devices that share it: give a larger or a smaller batch"
            )


def assembled(parts: Sequence[np.ndarray], axis: int | None) -> np.ndarray:
    """An output of the whole model, of those of all devices."""
    return parts[0] if axis is None else np.concatenate(parts, axis=axis)


def plain_error(error: BaseException) -> tuple[str, str]:
    """The class and the text of an error, to be raised in another process."""
    return type(error).__name__, " ".join(str(error).split())[:_LONGEST_TEXT]


def raised(kind: str, text: str) -> errors.TvmExtError:
    """The error that ``plain_error`` took apart, of those that a user can cause."""
    known = {cls.__name__: cls for cls in _ANSWERED}
    if kind not in known:
        return errors.RunError(f"{errors.UNEXPECTED}: {errors.REPORT_IT}")
    return known[kind](text)
