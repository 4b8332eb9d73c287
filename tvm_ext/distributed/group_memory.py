"""What the processes of a group share: counters, answers, slots of collectives, and arrays."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Any

import ml_dtypes  # noqa: F401  (NumPy knows its types by name from then on)
import numpy as np

from tvm_ext.distributed.shared_memory import SharedCounters, SharedSegment
from tvm_ext.distributed.shared_memory_communicator import SharedMemoryCommunicator

_ALIGNMENT = 64
# Of an answer: the names and shapes of the outputs, or an error.
_ANSWER_BYTES = 1 << 18


class ArrayArea:
    """Arrays one after the other in shared memory.

    A place is the name, the element type, the shape and the offset of an array.
    """

    def __init__(self, segment: SharedSegment) -> None:
        self.segment = segment

    def places(self, kinds: Iterable[tuple[str, str, Sequence[int]]]) -> list[list[Any]]:
        """Where arrays of these names, types and shapes lie."""
        found: list[list[Any]] = []
        end = 0
        for name, dtype, shape in kinds:
            found.append([name, dtype, list(shape), end])
            nbytes = np.dtype(dtype).itemsize * prod(shape)
            end += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        return found

    def arrays(self, places: Sequence[Sequence[Any]]) -> dict[str, np.ndarray]:
        """Views of the memory of arrays, by name."""
        views = {}
        for name, dtype, shape, offset in places:
            nbytes = np.dtype(dtype).itemsize * prod(shape)
            memory = self.segment.bytes(offset + nbytes)
            views[name] = memory[offset : offset + nbytes].view(dtype).reshape(shape)
        return views

    def write(self, arrays: Mapping[str, np.ndarray]) -> list[list[Any]]:
        """Copies arrays there; returns their places."""
        places = self.places((name, str(a.dtype), a.shape) for name, a in arrays.items())
        for name, view in self.arrays(places).items():
            view[...] = arrays[name]
        return places


class GroupMemory:
    """The memory of a group of processes.

    Parameters
    ----------
    devices : int
        How many processes share it.
    descriptors : sequence of int
        Of the memory that the first process made; made anew without.
    """

    def __init__(self, devices: int, descriptors: Sequence[int] = ()) -> None:
        self._devices = devices
        given: list[int | None] = [*descriptors] or [None] * (2 + devices)
        segments = [SharedSegment(one) for one in given]
        self.descriptors = [segment.descriptor for segment in segments]
        self._segments = segments
        control, inputs, *results = segments
        self.inputs = ArrayArea(inputs)
        self.results = [ArrayArea(segment) for segment in results]
        # Of each process one that says how far it is in collectives, one for its answers; and one
        # for all of whether the group is given up.
        counters = SharedCounters.nbytes(2 * devices + 1)
        slots = SharedMemoryCommunicator.slots_nbytes(devices)
        memory = control.bytes(counters + slots + devices * _ANSWER_BYTES)
        self._counters = SharedCounters(memory[:counters])
        self._slots = memory[counters : counters + slots]
        self._answers = memory[counters + slots :].reshape(devices, _ANSWER_BYTES)

    def communicator(self, rank: int, look: Callable[[], None]) -> SharedMemoryCommunicator:
        """The collectives of a process."""
        return SharedMemoryCommunicator(rank, self._devices, self._counters, self._slots, look)

    @property
    def is_given_up(self) -> bool:
        """Whether a process has ended or failed, so that the others need not wait for it."""
        return self._counters.value(2 * self._devices) > 0

    def give_up(self) -> None:
        """Has all processes stop waiting for each other."""
        self._counters.set(2 * self._devices, 1)

    def answer(self, rank: int, number: int, text: str) -> None:
        """Leaves the answer of a process to a call."""
        content = text.encode()[: _ANSWER_BYTES - 8]
        area = self._answers[rank]
        area[:8].view(np.int64)[0] = len(content)
        area[8 : 8 + len(content)] = np.frombuffer(content, np.uint8)
        self._counters.set(self._devices + rank, number)

    def has_answered(self, rank: int, number: int) -> bool:
        """Whether a process has answered a call."""
        return self._counters.value(self._devices + rank) >= number

    def wait_for(self, rank: int, number: int, look: Callable[[], None]) -> dict[str, Any]:
        """The answer of a process; ``look`` is called meanwhile and may raise."""
        self._counters.wait(self._devices + rank, number, look)
        area = self._answers[rank]
        content = area[8 : 8 + int(area[:8].view(np.int64)[0])].tobytes()
        answer: dict[str, Any] = json.loads(content)
        return answer

    def close(self) -> None:
        """Closes the descriptors."""
        for segment in self._segments:
            segment.close()
