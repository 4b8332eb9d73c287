"""The processes of a model that ``mpiexec`` started, each of which runs one device."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tvm_ext.artifact import LoadedArtifact
from tvm_ext.artifact.library import load_runtime
from tvm_ext.configs.sharding_record import ShardingRecord
from tvm_ext.distributed.collective_functions import register_collectives, use_communicator
from tvm_ext.distributed.device_program import (
    DeviceProgram,
    assembled,
    keep_copies,
    plain_error,
    raised,
)
from tvm_ext.distributed.mpi_communicator import mpi_communicator
from tvm_ext.distributed.mpi_environment import mpi_size
from tvm_ext.errors import TargetError
from tvm_ext.kept_tensors import KeptTensors


class MpiGroup:
    """One process of a group, as ``DiscoGroup`` is all of one.

    An error of one process in a run ends all: the others wait for it in a collective.

    Parameters
    ----------
    artifact : LoadedArtifact
        The saved model.
    record : ShardingRecord
        What each device takes and gives.
    threads : int, optional
        Of each device.

    Raises
    ------
    TargetError
        MPI is missing, or there are more or fewer processes than devices.
    """

    is_open = True

    def __init__(
        self, artifact: LoadedArtifact, record: ShardingRecord, threads: int | None = None
    ) -> None:
        if mpi_size() != record.devices:
            raise TargetError(
                f"{artifact.path.name} is for {record.devices} devices, and mpiexec started "
                f"{mpi_size()} processes; expected one for each device: use "
                f"mpiexec -n {record.devices}, or compile the model again"
            )
        self._communicator = mpi_communicator()
        self._record = record
        load_runtime()
        register_collectives(is_disco=False)
        self._threads = threads
        self._programs = [DeviceProgram(artifact, self._communicator.rank, threads)]
        self.exchanged: dict[str, int] = {}
        self.processor_seconds: list[float] = []

    def load(self, path: Path) -> None:
        """Reads another model, which works on what the first one keeps."""
        program = DeviceProgram.from_file(path, self._communicator.rank, self._threads)
        self._programs.append(program)

    def run(
        self, inputs: Mapping[str, np.ndarray], place: int = 0, cleared: Sequence[str] = ()
    ) -> dict[str, np.ndarray]:
        """The outputs of a whole model, the one in this place, with zeros in ``cleared``."""
        try:
            return self._ran(inputs, place, cleared)
        except BaseException as error:  # noqa: BLE001  (the others would wait without end)
            print(f"error: {raised(*plain_error(error))}", file=sys.stderr, flush=True)
            self._communicator.world.Abort(1)
            # Where that comes back, this process has nothing more to say.
            os._exit(1)

    def keep(
        self, arrays: Mapping[str, np.ndarray], changed: Sequence[Sequence[str]]
    ) -> KeptTensors:
        """Has this device keep inputs, as ``keep_copies``."""
        return keep_copies(self._programs, arrays, changed)

    def _ran(
        self, inputs: Mapping[str, np.ndarray], place: int, cleared: Sequence[str]
    ) -> dict[str, np.ndarray]:
        use_communicator(self._communicator)
        self._communicator.begin_run()
        found = self._programs[place].run(inputs, cleared=cleared)
        self.exchanged = dict(self._communicator.exchanged)
        # What devices keep is not among the results.
        axes = zip(found.items(), self._record.outputs, strict=False)
        return {name: self._whole(array, axis) for (name, array), axis in axes}

    def _whole(self, array: np.ndarray, axis: int | None) -> np.ndarray:
        if axis is None:
            return array
        parts = np.empty((self._communicator.size, *array.shape), array.dtype)
        self._communicator.all_gather(np.ascontiguousarray(array), parts)
        return assembled(list(parts), axis)

    def close(self) -> None:
        """Does nothing: mpiexec ends the processes."""
