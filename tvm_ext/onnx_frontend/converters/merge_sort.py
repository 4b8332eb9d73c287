"""A stable merge sort in the loops of a kernel.

Runs are merged from one pair of buffers into another and back (Knuth, The Art of Computer
Programming, volume 3, algorithm 5.2.4S). No branch depends on an element, and none is lost where
NaN makes an order of no sense.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_ext.onnx_frontend.converters.loops import local_array
from tvm_ext.onnx_frontend.converters.runtime_sizes import wide

_WIDTH, _LEFT, _RIGHT = range(3)

# The keys and the places of elements.
Pair = tuple[Any, Any]


@dataclass(frozen=True)
class MergeSort:
    """Sorts ``size`` elements, which are those at ``at(0)``, ``at(1)``, ... of their buffers.

    Attributes
    ----------
    size : expression
        How many.
    at : callable
        The indices of an element by its number.
    before : callable
        Whether a key comes before another; of equal ones the first stays the first.
    """

    size: Any
    at: Callable[[Any], Sequence[Any]]
    before: Callable[[Any, Any], Any]

    def sort(self, read: Any, sorted_pair: Pair, other: Pair) -> None:
        """Leaves the keys of ``read`` and their places in ``sorted_pair``, in order."""
        state = local_array(3, "int64")
        self._order_twos(read, sorted_pair)
        state[_WIDTH] = T.int64(2)
        with T.While(state[_WIDTH] < wide(self.size)):
            self._merge(sorted_pair, other, state)
            self._merge(other, sorted_pair, state)

    def _order_twos(self, read: Any, into: Pair) -> None:
        size = wide(self.size)
        with T.serial(0, tirx.ceildiv(size, 2)) as pair:
            # The last one may be alone, and is written twice.
            both = [T.bind(pair * 2), T.bind(tirx.min(pair * 2 + 1, size - 1))]
            first, second = (read[self._index(place)] for place in both)
            is_turned = T.bind(self.before(second, first))
            for place, other in (both, reversed(both)):
                found = T.bind(tirx.Select(is_turned, other, place))
                into[0][self._index(place)] = read[self._index(found)]
                into[1][self._index(place)] = found

    def _merge(self, source: Pair, target: Pair, state: Any) -> None:
        """Pairs of runs of the width in the state, which is doubled."""
        size, width = wide(self.size), state[_WIDTH]
        with T.serial(0, tirx.ceildiv(size, width * 2)) as pair:
            start = pair * width * 2
            middle, end = (T.bind(tirx.min(start + width * n, size)) for n in (1, 2))
            state[_LEFT], state[_RIGHT] = start, middle

            def move(place: Any) -> None:
                # As many are written as have been taken from both runs.
                into = T.bind(state[_LEFT] + state[_RIGHT] - middle)
                for buffer, values in zip(target, source, strict=True):
                    buffer[self._index(into)] = values[self._index(place)]

            with T.While(tirx.all(state[_LEFT] < middle, state[_RIGHT] < end)):
                left, right = T.bind(state[_LEFT]), T.bind(state[_RIGHT])
                left_key, right_key = (source[0][self._index(place)] for place in (left, right))
                is_right = T.bind(self.before(right_key, left_key))
                move(tirx.Select(is_right, right, left))
                state[_LEFT] = left + tirx.Not(is_right).astype("int64")
                state[_RIGHT] = right + is_right.astype("int64")
            # One of the runs is at its end, and what is left of the other follows.
            for side, stop in ((_LEFT, middle), (_RIGHT, end)):
                with T.While(state[side] < stop):
                    move(state[side])
                    state[side] = state[side] + 1
        state[_WIDTH] = width * 2

    def _index(self, number: Any) -> tuple[Any, ...]:
        return tuple(self.at(number))
