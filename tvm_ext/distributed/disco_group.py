"""The processes of a model on one host: a session of TVM's Disco, and what watches over it."""

import atexit
import ctypes
import json
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, cast

import numpy as np
import tvm_ffi

import tvm_ext
from tvm_ext.artifact.library import load_runtime
from tvm_ext.configs.sharding_record import ShardingRecord
from tvm_ext.distributed.collective_functions import register_collectives
from tvm_ext.distributed.device_program import assembled, raised
from tvm_ext.distributed.disco_worker import (
    KEEP_FUNCTION,
    LOAD_FUNCTION,
    RUN_FUNCTION,
    DeviceWorker,
    function_of,
)
from tvm_ext.distributed.group_memory import GroupMemory
from tvm_ext.errors import RunError
from tvm_ext.kept_tensors import KeptTensors

_ENTRY_POINT = "tvm_ext.distributed.disco_worker"
_POOL_FUNCTION = "tvm_ext.distributed.create_process_pool"
# What a process that was told to end may take to do so.
_END_SECONDS = 5.0

# One group of a process is worker 0 of it at a time: Disco looks functions up by name.
_of_process = threading.RLock()


class _WorkerProcesses:
    """The processes of the workers but for the first, which is a thread of this process.

    Disco aborts the process that writes to a worker that has ended. Here the end that a worker
    reads from stays open in this process as well, so that there is always one.
    """

    def __init__(self, memory: GroupMemory) -> None:
        self._memory = memory
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        # By worker, the ends that Disco reads from and writes to, until it has them.
        self._pipes: dict[int, tuple[int, int]] = {}
        self._kept: list[int] = []

    def start(self, devices: int) -> None:
        """Starts all workers, which is before Disco, whose threads nothing ends; or none of them.

        Raises
        ------
        RunError
            A process cannot be started.
        """
        try:
            for worker in range(1, devices):
                self._start(worker, devices)
        except OSError as error:
            self.end(is_failed=True)
            raise RunError(
                f"the processes of {devices} devices cannot be started ({error.strerror}); "
                "expected room for them: end other programs, or use fewer devices"
            ) from error

    def create(self, _devices: int, _groups: int, _entry_point: str) -> Any:
        """What Disco calls to make a pool: returns a function from a worker to its pipe."""

        def pipe_of(worker: int) -> Any:
            return tvm_ffi.Shape(self._pipes.pop(worker)) if worker else None

        return tvm_ffi.convert(pipe_of)

    def _start(self, worker: int, devices: int) -> None:
        from_worker, writer = os.pipe()
        reader, to_worker = os.pipe()
        self._kept.append(reader)
        self._pipes[worker] = from_worker, to_worker
        groups = 1
        numbers = (worker, devices, groups, reader, writer, os.getpid(), *self._memory.descriptors)
        source = str(Path(tvm_ext.__file__).parents[1])
        paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
        try:
            self._processes[worker] = subprocess.Popen(
                [sys.executable, "-m", _ENTRY_POINT, *map(str, numbers)],
                pass_fds=(reader, writer, *self._memory.descriptors),
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            )
        finally:
            os.close(writer)

    def ended(self) -> dict[int, int]:
        """By worker, the exit status of those that have ended."""
        status = {worker: one.poll() for worker, one in self._processes.items()}
        return {worker: code for worker, code in status.items() if code is not None}

    @property
    def pids(self) -> list[int]:
        """The process identifiers of the workers."""
        return [one.pid for one in self._processes.values()]

    def end(self, is_failed: bool) -> None:
        """Waits for the processes, which have been told to end, or kills them."""
        for one in self._processes.values():
            if is_failed:
                one.kill()
            try:
                one.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                one.kill()
                one.wait()
        for descriptor in (*self._kept, *chain(*self._pipes.values())):
            os.close(descriptor)
        self._kept.clear()
        self._pipes.clear()


class DiscoGroup:
    """The processes that run a model together; they start with the group and end with it.

    Parameters
    ----------
    paths : sequence of Path
        The saved models: one, and those that work on what it keeps.
    record : ShardingRecord
        What each device takes and gives.
    threads : int, optional
        Of each device.

    Raises
    ------
    RunError
        A process cannot be started, or ends before it has its program.
    ArtifactError
        A device cannot load its program.
    """

    def __init__(
        self, paths: Sequence[Path], record: ShardingRecord, threads: int | None = None
    ) -> None:
        load_runtime()
        self._record, self._number = record, 0
        self._lock, self._closing = threading.Lock(), threading.Lock()
        self._memory = GroupMemory(record.devices)
        self._processes = _WorkerProcesses(self._memory)
        try:
            self._processes.start(record.devices)
        except RunError:
            self._memory.close()
            raise
        self._worker = DeviceWorker(self._memory, 0, lambda: True)
        register_collectives(is_disco=True)
        self.exchanged: dict[str, int] = {}
        # Of each device's thread in the last run.
        self.processor_seconds: list[float] = []
        self._is_open = True
        # A child of fork has the descriptors, but no part in the group.
        self._owner = os.getpid()
        own = self._worker.functions()
        with _of_process:
            tvm_ffi.register_global_func(_POOL_FUNCTION, self._processes.create, override=True)
            make = tvm_ffi.get_global_func("runtime.disco.SessionProcess")
            self._session = make(record.devices, 1, _POOL_FUNCTION, _ENTRY_POINT)
            _open_groups.add(self)
            self._functions = {}
            for name in own:
                function_of(own, name)
                find = tvm_ffi.get_global_func("runtime.disco.SessionGetGlobalFunc")
                self._functions[name] = find(self._session, name)
            files = [str(path) for path in paths]
            self._call(LOAD_FUNCTION, {"paths": files, "threads": threads})

    @property
    def pids(self) -> list[int]:
        """The process identifiers of the workers, of which the first device has none."""
        return self._processes.pids

    @property
    def is_open(self) -> bool:
        """Whether all processes are there."""
        return self._is_open

    def run(
        self, inputs: Mapping[str, np.ndarray], place: int = 0, cleared: Sequence[str] = ()
    ) -> dict[str, np.ndarray]:
        """The outputs of a whole model, the one in this place, with zeros in ``cleared``."""
        with self._lock:
            places = self._memory.inputs.write(inputs)
            answers = self._call(RUN_FUNCTION, [place, places, list(cleared)])
            self.exchanged = dict(answers[0]["exchanged"])
            self.processor_seconds = [answer["processor_seconds"] for answer in answers]
            return self._outputs([answer["outputs"] for answer in answers])

    def keep(
        self, arrays: Mapping[str, np.ndarray], changed: Sequence[Sequence[str]]
    ) -> KeptTensors:
        """Has each device keep inputs, as ``keep_copies``; returns those of the first."""
        with self._lock:
            places = self._memory.inputs.write(arrays)
            names = [list(own) for own in changed]
            self._call(KEEP_FUNCTION, {"places": places, "changed": names})
            return cast(KeptTensors, self._worker.kept)

    def _outputs(self, places: Sequence[Sequence[Sequence[Any]]]) -> dict[str, np.ndarray]:
        results = self._memory.results
        parts = [area.arrays(own) for area, own in zip(results, places, strict=True)]
        outputs = {}
        # What devices keep is not among the results.
        for (name, array), axis in zip(parts[0].items(), self._record.outputs, strict=False):
            found = assembled([part[name] for part in parts], axis)
            # The next run writes to the shared memory.
            outputs[name] = found.copy() if found is array else found
        return outputs

    def _call(self, name: str, arguments: Any) -> list[dict[str, Any]]:
        """The answers of all devices; ends the group where one fails."""
        self._number += 1
        call = tvm_ffi.get_global_func("runtime.disco.SessionCallPacked")
        try:
            call(self._session, 0, 0, self._functions[name], self._number, json.dumps(arguments))
            devices = range(self._record.devices)
            answers = [self._memory.wait_for(n, self._number, self._look) for n in devices]
        except BaseException:
            self.close(is_failed=True)
            raise
        failed = [answer["error"] for answer in answers if "error" in answer]
        if failed:
            self.close(is_failed=True)
            raise raised(*self._first_cause(failed))
        return answers

    def _first_cause(self, failed: Sequence[Sequence[str]]) -> Sequence[str]:
        """What the others stopped for."""
        return next((one for one in failed if "another device" not in one[1]), failed[0])

    def _look(self) -> None:
        ended = self._processes.ended()
        if ended:
            worker, code = next(iter(ended.items()))
            how = f"signal {-code}" if code < 0 else f"exit status {code}"
            raise RunError(
                f"the process of device {worker} of {self._record.devices} has ended ({how}); "
                "expected it to run: run the model again, which starts new processes"
            )

    def close(self, is_failed: bool = False) -> None:
        """Ends the processes; a later run starts others."""
        with self._closing:
            if not self._is_open or os.getpid() != self._owner:
                return
            self._is_open = False
        _open_groups.discard(self)
        self._memory.give_up()
        is_idle = self._first_is_idle()
        if is_idle:
            self._worker.end()
        if is_idle and not is_failed and self._first_has_ended():
            self._functions.clear()
            self._session = None
        else:
            # Taking a session apart waits for its threads, and writes to workers that are gone.
            _kept_for_good(self._session, *self._functions.values())
        self._processes.end(is_failed or not is_idle)
        if is_idle:
            # A thread that is not may still ask for more of the memory by its descriptors.
            self._memory.close()

    def _first_has_ended(self) -> bool:
        """Tells all workers to end, and waits for the thread of the first.

        It needs Python's lock, which is held while a session is taken apart.
        """
        tvm_ffi.get_global_func("runtime.disco.SessionShutdown")(self._session)
        own = Path(f"/proc/self/task/{self._worker.thread}")
        end = time.monotonic() + _END_SECONDS
        while own.exists() and time.monotonic() < end:
            time.sleep(0.001)
        return not own.exists()

    def _first_is_idle(self) -> bool:
        """Whether the thread of the first device has ended its call, which it does soon."""
        with suppress(RunError, TimeoutError):
            looks = iter(range(int(_END_SECONDS / 0.05)))

            def look() -> None:
                if next(looks, None) is None:
                    raise TimeoutError

            self._memory.wait_for(0, self._number, look)
        return self._memory.has_answered(0, self._number)


_open_groups: "weakref.WeakSet[DiscoGroup]" = weakref.WeakSet()


def _kept_for_good(*objects: Any) -> None:
    for one in objects:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))


@atexit.register
def _close_groups() -> None:
    for group in list(_open_groups):
        group.close()
