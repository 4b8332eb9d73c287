"""A compiled model that several processes run together."""

import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tvm_ext.artifact import LoadedArtifact
from tvm_ext.compiled_model import CompiledModel
from tvm_ext.configs.atomic_file import check_writable, replacing
from tvm_ext.configs.sharding_record import ShardingRecord
from tvm_ext.distributed.device_program import require_divisible
from tvm_ext.distributed.disco_group import DiscoGroup
from tvm_ext.distributed.mpi_environment import mpi_rank
from tvm_ext.distributed.mpi_group import MpiGroup
from tvm_ext.errors import ArtifactError, RunError, TargetError
from tvm_ext.kept_tensors import KeptTensors
from tvm_ext.model_inputs import check_inputs, require_no_device
from tvm_ext.report.compile_report import CompileReport
from tvm_ext.report.profile import Profile


class ShardedModel(CompiledModel):
    """What ``tvm_ext.compile(..., devices=2)`` returns, and ``load`` for a file of such a model.

    It runs as ``CompiledModel`` does. The first run starts a process for each device but the first,
    which is a thread of this process; they end with ``close``, with the model, or with this
    process. Under ``mpiexec`` each process runs one device, all have to run the same inputs, and
    each gets all outputs.

    Attributes
    ----------
    inputs, outputs : tuple[TensorSpec, ...]
        Of the whole model.
    report : CompileReport
        What the compiler did for the first device; ``report.sharding`` says how the model is split
        and what the devices exchange.
    """

    def __init__(
        self, artifact: LoadedArtifact, threads: int | None = None, is_temporary: bool = False
    ) -> None:
        # Not that of CompiledModel: the programs are in other processes.
        manifest = artifact.manifest
        self.inputs, self.outputs = manifest.inputs, manifest.outputs
        self.report = CompileReport.from_json(artifact.report_json)
        self._target = manifest.target
        self._has_program, self._gpu, self._out_params = False, None, []
        cores = int(self.report.target.get("cores", 1))
        self._threads = cores if threads is None else self._checked_threads(threads)
        self._given_threads = threads
        # The file stays what it is, whatever becomes of its name.
        descriptor = os.open(artifact.path, os.O_RDONLY)
        self._closed = weakref.finalize(self, os.close, descriptor)
        self._file = Path(f"/proc/{os.getpid()}/fd/{descriptor}")
        if is_temporary:
            artifact.path.unlink()
        # Those that run on the processes of this one.
        self._joined: list[ShardedModel] = []
        self._group: DiscoGroup | MpiGroup | None = None
        # Ends the group with the model.
        self._ending: weakref.finalize | None = None
        # The processes that keep inputs, and which.
        self._kept_by: DiscoGroup | MpiGroup | None = None
        self._kept_names: frozenset[str] = frozenset()
        self._starting = threading.Lock()
        if mpi_rank() is not None:
            self._group = MpiGroup(artifact, self.sharding, threads)

    @property
    def sharding(self) -> ShardingRecord:
        """How the model is split over devices."""
        record = self.report.sharding
        if record is None:
            raise ArtifactError(
                f"{self.report.model_name} lacks a record of how it is split; expected one: "
                "compile it again"
            )
        return record

    @property
    def exchanged(self) -> dict[str, int]:
        """By collective, the bytes of the whole tensors that the last run exchanged."""
        return dict(self._group.exchanged) if self._group is not None else {}

    @property
    def processor_seconds(self) -> list[float]:
        """By device, the processor time of the thread that ran it last; empty under ``mpiexec``."""
        return list(self._group.processor_seconds) if self._group is not None else []

    def _started(self) -> "DiscoGroup | MpiGroup":
        with self._starting:
            if self._group is None or not self._group.is_open:
                if self._ending is not None:
                    # It has ended, and its memory is let go of.
                    self._ending.detach()
                files = [one._file for one in (self, *self._joined)]
                self._group = DiscoGroup(files, self.sharding, self._given_threads)
                self._ending = weakref.finalize(self, self._group.close)
            return self._group

    def _results(self, inputs: Mapping[str, Any], on_device: bool | None) -> dict[str, Any]:
        require_no_device(on_device)
        names = [spec.name for spec in self.inputs]
        arrays = dict(zip(names, check_inputs(self.inputs, inputs), strict=True))
        require_divisible(self.sharding, arrays, names)
        return self._started().run({name: np.asarray(array) for name, array in arrays.items()})

    def join(self, model: "ShardedModel") -> None:
        """Has the processes of this model, ahead of its first run, run another one as well.

        The other one is for as many devices, and works on what this one keeps.
        """
        self._joined.append(model)
        if isinstance(self._group, MpiGroup):
            self._group.load(model._file)

    def keep(
        self, arrays: Mapping[str, np.ndarray], changed: Sequence[Sequence[str]]
    ) -> KeptTensors:
        """Has each device keep copies of inputs, which ``run_kept`` is then not given.

        Parameters
        ----------
        arrays : mapping of name to array
            Inputs that are not split.
        changed : sequence of sequence of str
            Of this model and of each that joined it, those of them whose next values are the last
            outputs of a run.

        Returns
        -------
        KeptTensors
            Those of the first device, or of that of this process under ``mpiexec``.
        """
        group = self._started()
        self._kept_by, self._kept_names = group, frozenset(arrays)
        return group.keep(arrays, changed)

    def run_kept(
        self, inputs: Mapping[str, Any], place: int = 0, cleared: Sequence[str] = ()
    ) -> dict[str, np.ndarray]:
        """One run on the inputs that are not kept; the outputs without the next values.

        ``place`` is 0 for this model, and counts those that joined it from 1. Those of the kept
        arrays that are in ``cleared`` are zeros ahead of the run.

        Raises
        ------
        RunError
            A process has ended, or had ended before.
        """
        group = self._group
        if group is None or group is not self._kept_by or not group.is_open:
            raise RunError(
                f"the processes of {self.report.model_name} have ended, and what they kept with "
                "them; expected them to run: give it to them again, as resume does"
            )
        inputs_of = (self, *self._joined)[place].inputs
        given = [spec for spec in inputs_of if spec.name not in self._kept_names]
        arrays = zip((spec.name for spec in given), check_inputs(given, inputs), strict=True)
        return group.run({name: np.asarray(array) for name, array in arrays}, place, cleared)

    def is_fresh(self, output: str) -> bool:
        """Whether an output is made anew in each run: all are."""
        return True

    def warm_up(self) -> bool:
        """Does nothing: the first run starts the processes."""
        return False

    def link(self) -> None:
        """Does nothing: the processes link the programs."""

    def close(self) -> None:
        """Ends the processes. A later run starts others."""
        with self._starting:
            if self._group is not None:
                self._group.close()

    def profile(
        self, inputs: Mapping[str, Any], repeat: int = 10, *, measure_peaks: bool = False
    ) -> Profile:
        """Raises TargetError: kernels are measured of a model for one device."""
        raise TargetError(
            f"{self.report.model_name} runs on {self.sharding.devices} devices; expected a model "
            "for one to be profiled: compile it without devices"
        )

    def save(self, path: str | Path) -> None:
        """Writes the programs of all devices to one file, which is replaced whole or not at all.

        Raises
        ------
        OutputPathError
            The path cannot be written.
        """
        check_writable(path)
        with self._file.open("rb") as source, replacing(path) as file:
            shutil.copyfileobj(source, file)

    @classmethod
    def from_artifact(cls, artifact: LoadedArtifact, threads: int | None = None) -> "ShardedModel":
        """The model in a file that was read and checked."""
        return cls(artifact, threads)


def temporary_file() -> Path:
    """An empty file for a model that has no file yet."""
    descriptor, name = tempfile.mkstemp(suffix=".tvmx")
    os.close(descriptor)
    return Path(name)
