"""A binary heap in the loops of a kernel: what selects the first few of many, one by one.

Williams, "Algorithm 232: Heapsort", Communications of the ACM 7(6), 1964.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm.script.ir_builder import tirx as T

from tvm_ext.onnx_frontend.converters.loops import local_array

# A key and the place that it has been read from.
_Entry = tuple[Any, Any]
# Whether the first of two entries is nearer to the root.
Order = Callable[[_Entry, _Entry], Any]

_HOLE, _CHILD = 0, 1


@dataclass(frozen=True)
class Heap:
    """Entries of a key and a place, one of which is the root: no other comes before it.

    The entries are those at ``at(0)``, ``at(1)``, ... of two buffers, of which the heap is a part.

    Attributes
    ----------
    keys, places : buffer
        Where the two halves of an entry are.
    at : callable
        The indices of an entry in both, by its number.
    before : Order
        Whether an entry comes before another one. Of equal keys the places have to decide.
    state : buffer
        Of the heap's own, int64[2].
    moving : tuple of buffers
        Of the heap's own: an entry that has no number yet.
    """

    keys: Any
    places: Any
    at: Callable[[Any], Sequence[Any]]
    before: Order
    state: Any
    moving: tuple[Any, Any]

    @classmethod
    def in_buffers(
        cls, keys: Any, places: Any, at: Callable[[Any], Sequence[Any]], before: Order
    ) -> "Heap":
        """One for an iteration of loops, which declares here what it keeps for itself."""
        moving = local_array(1, str(keys.dtype)), local_array(1, str(places.dtype))
        return cls(keys, places, at, before, local_array(2, "int64"), moving)

    @property
    def root(self) -> _Entry:
        """The entry that comes before all others."""
        return self.entry(0)

    def entry(self, number: Any) -> _Entry:
        """The entry of a number, whether it is in the heap or was moved out of it."""
        index = tuple(self.at(number))
        return self.keys[index], self.places[index]

    def order(self, count: Any) -> None:
        """Makes a heap of the first ``count`` entries, which are there in any order."""
        with T.serial(0, count // 2) as step:
            start = count // 2 - 1 - step
            self._lift(self.entry(start))
            self._settle(start, count)

    def replace_root(self, entry: _Entry, count: Any) -> None:
        """Puts ``entry`` into a heap of ``count`` entries in the place of its root."""
        self._lift(entry)
        self._settle(T.int64(0), count)

    def move_root(self, last: Any) -> None:
        """Takes the root out of a heap of ``last + 1`` entries, and stores it behind the others."""
        self._lift(self.entry(last))
        self._store(last, self.root)
        self._settle(T.int64(0), last)

    def _store(self, number: Any, entry: _Entry) -> None:
        index = tuple(self.at(number))
        self.keys[index], self.places[index] = entry

    def _lift(self, entry: _Entry) -> None:
        for kept, value in zip(self.moving, entry, strict=True):
            kept[0] = value

    def _settle(self, start: Any, count: Any) -> None:
        """Stores the entry that moves at ``start`` or below: entries before it move up."""
        state, moving = self.state, (self.moving[0][0], self.moving[1][0])
        hole, child = state[_HOLE], state[_CHILD]
        state[_HOLE] = start
        state[_CHILD] = start * 2 + 1
        with T.While(child < count):
            with T.If(child + 1 < count), T.Then():
                second, first = self.entry(child + 1), self.entry(child)
                with T.If(self.before(second, first)), T.Then():
                    state[_CHILD] = child + 1
            with T.If(self.before(self.entry(child), moving)):
                with T.Then():
                    self._store(hole, self.entry(child))
                    state[_HOLE] = child
                    state[_CHILD] = child * 2 + 1
                with T.Else():
                    state[_CHILD] = count
        self._store(hole, moving)
