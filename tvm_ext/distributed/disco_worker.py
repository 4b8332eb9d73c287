"""What a process of a group does: the calls of TVM's Disco, on the program of its device.

``python -m tvm_ext.distributed.disco_worker`` is the entry point that ``DiscoGroup`` starts.
"""

import ctypes
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tvm_ffi

from tvm_ext.artifact.library import load_runtime
from tvm_ext.distributed.collective_functions import register_collectives, use_communicator
from tvm_ext.distributed.device_program import DeviceProgram, keep_copies, plain_error
from tvm_ext.distributed.group_memory import GroupMemory
from tvm_ext.errors import RunError
from tvm_ext.kept_tensors import KeptTensors

LOAD_FUNCTION, RUN_FUNCTION = "tvm_ext.distributed.load", "tvm_ext.distributed.run"
KEEP_FUNCTION = "tvm_ext.distributed.keep"


class DeviceWorker:
    """Answers the calls of a group, on one of its devices.

    A call never raises: what Disco's worker raises ends the process. The answer is left in the
    group's memory.

    Parameters
    ----------
    memory : GroupMemory
        What the processes of the group share.
    rank : int
        Which device this is.
    is_there : callable
        Whether the process that gives the calls is there.
    """

    def __init__(self, memory: GroupMemory, rank: int, is_there: Callable[[], bool]) -> None:
        self._memory, self._rank, self._is_there = memory, rank, is_there
        self._programs: list[DeviceProgram] = []
        # What the device keeps from run to run.
        self.kept: KeptTensors | None = None
        # The thread that answers, as the system counts it.
        self.thread = 0
        self._communicator = memory.communicator(rank, self._look)
        # The program and the shapes of the inputs of the last run, and its outputs.
        self._known: tuple[Any, list[tuple[str, str, tuple[int, ...]]]] | None = None

    def _look(self) -> None:
        if self._memory.is_given_up:
            raise RunError("another device has ended; expected all of them: run the model again")
        if not self._is_there():
            os._exit(1)

    def load(self, number: int, text: str) -> None:
        """Reads the programs of the device from files."""

        def answer() -> dict[str, Any]:
            keep_thread_state()
            self.thread = threading.get_native_id()
            given = json.loads(text)
            self._programs = [
                DeviceProgram.from_file(path, self._rank, given["threads"])
                for path in given["paths"]
            ]
            return {}

        self._answer(number, answer)

    def keep(self, number: int, text: str) -> None:
        """Has the device keep inputs that are in the group's memory."""

        def answer() -> dict[str, Any]:
            given = json.loads(text)
            arrays = self._memory.inputs.arrays(given["places"])
            self.kept = keep_copies(self._programs, arrays, given["changed"])
            self._known = None
            return {}

        self._answer(number, answer)

    def functions(self) -> dict[str, Callable[[int, str], None]]:
        """The calls that it answers, by name."""
        return {LOAD_FUNCTION: self.load, KEEP_FUNCTION: self.keep, RUN_FUNCTION: self.run}

    def end(self) -> None:
        """Lets go of the programs, and of what they kept."""
        self._programs, self.kept = [], None

    def run(self, number: int, text: str) -> None:
        """Runs one of the programs on the inputs in the group's memory."""
        self._answer(number, lambda: self._ran(*json.loads(text)))

    def _answer(self, number: int, action: Callable[[], dict[str, Any]]) -> None:
        try:
            answer = action()
        except BaseException as error:  # noqa: BLE001
            answer = {"error": plain_error(error)}
            self._memory.give_up()
        self._memory.answer(self._rank, number, json.dumps(answer))

    def _ran(
        self, place: int, inputs: Sequence[Sequence[Any]], cleared: Sequence[str]
    ) -> dict[str, Any]:
        program = self._programs[place]
        use_communicator(self._communicator)
        self._communicator.begin_run()
        begun = time.thread_time()
        arrays = self._memory.inputs.arrays(inputs)
        shapes = place, [array.shape for array in arrays.values()]
        results = self._memory.results[self._rank]
        if self._known is not None and self._known[0] == shapes:
            places = results.places(self._known[1])
            views = results.arrays(places)
            program.run(arrays, views, cleared)
        else:
            found = program.run(arrays, cleared=cleared)
            kinds = [(name, str(array.dtype), array.shape) for name, array in found.items()]
            places = results.places(kinds)
            for name, view in results.arrays(places).items():
                view[...] = found[name]
            self._known = shapes, kinds
        return {
            "outputs": places,
            "exchanged": dict(self._communicator.exchanged),
            "processor_seconds": time.thread_time() - begun,
        }


def keep_thread_state() -> None:
    """Has Python keep what the calling thread has of its own, such as its virtual machine.

    The first device is run by a thread of Disco, which Python otherwise takes for a new one at each
    call, and forgets behind it.
    """
    ctypes.pythonapi.PyGILState_Ensure()


def function_of(worker: Mapping[str, Callable[[int, str], None]], name: str) -> None:
    """Registers what a call of a group runs."""
    tvm_ffi.register_global_func(name, worker[name], override=True)


def main(arguments: Sequence[str]) -> None:
    """Serves one device until its group ends.

    ``arguments`` are what Disco hands to an entry point (the number of the worker and of all, the
    number of groups, the descriptors to read from and to write to), the process that starts it, and
    the descriptors of the group's memory.
    """
    rank, devices, groups, reader, writer, parent, *descriptors = map(int, arguments)
    # A key that interrupts the caller is the caller's to handle.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    load_runtime()
    memory = GroupMemory(devices, descriptors)
    worker = DeviceWorker(memory, rank, lambda: os.getppid() == parent)
    register_collectives(is_disco=True)
    functions = worker.functions()
    for name in functions:
        function_of(functions, name)
    try:
        tvm_ffi.get_global_func("runtime.disco.WorkerProcess")(
            rank, devices, groups, reader, writer
        )
    except RuntimeError:
        # The caller has ended, and its end of the pipe with it.
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
