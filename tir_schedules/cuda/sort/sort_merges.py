"""Runs of a row merged by pairs: every element looks up its place in the other run of its pair.

Of elements that are all different, the place in the merged run is the place in the own run and the
number of better ones in the other (O. Green, R. McColl, D. Bader, "GPU Merge Path", ICS 2012,
section 2, on merging by ranks). Neighbours look at the same elements for all but the last steps.
"""

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx

from tvm_ext.tir_schedules.cuda.launch import Arrays, ThreadArray, bound, guarded, repeated
from tvm_ext.tir_schedules.cuda.sort.sort_words import Words
from tvm_ext.tir_schedules.statements import sequence

THREADS = 256

Store = Callable[[Any, Any, Sequence[Any]], tirx.Stmt]


class RunMerge:
    """Launches that merge sorted runs.

    Parameters
    ----------
    rows, length : int
        Of what is sorted.
    words : Words
        What an element is.
    arrays : Arrays
        Gets what the kernels allocate.
    dtype : str
        Of indices.
    """

    def __init__(self, rows: int, length: int, words: Words, arrays: Arrays, dtype: str) -> None:
        self.rows, self.length, self.words = rows, length, words
        self.arrays, self.dtype = arrays, dtype

    def number(self, value: int) -> Any:
        """A constant of the type of the loops."""
        return tirx.const(value, self.dtype)

    def write(self, source: Sequence[Any], run: int, store: Store) -> tirx.Stmt:
        """One launch: pairs of runs of ``run`` elements, in flat arrays of words, row by row."""
        total = self.rows * self.length
        low, high = (self.arrays.allocated(n, [THREADS, 1], self.dtype, "local") for n in "lh")

        def block(index: Any) -> tirx.Stmt:
            def thread(x: Any) -> tirx.Stmt:
                place = index * self.number(THREADS) + x
                code = self._element(
                    source, run, store, place, (ThreadArray(low, (x,)), ThreadArray(high, (x,)))
                )
                inside = None if total % THREADS == 0 else place < self.number(total)
                return guarded(inside, code)

            return bound("threadIdx.x", THREADS, self.dtype, thread)

        return bound("blockIdx.x", -(-total // THREADS), self.dtype, block)

    def _element(
        self,
        source: Sequence[Any],
        run: int,
        store: Store,
        place: Any,
        range_: tuple[ThreadArray, ThreadArray],
    ) -> tirx.Stmt:
        """Finds the place of one element by bisection of the other run, and stores it there."""
        low, high = range_
        zero, one, size = self.number(0), self.number(1), self.number(run)
        length = self.number(self.length)
        row, position = tirx.floordiv(place, length), tirx.floormod(place, length)
        number = tirx.floordiv(position, size)
        other = tirx.bitwise_xor(number, one) * size
        end = tirx.Max(tirx.Min(length - other, size), zero)
        words = [tirx.BufferLoad(buffer, [place]) for buffer in source]
        middle = tirx.floordiv(low.at(zero) + high.at(zero), self.number(2))
        looked = row * length + other + middle
        better = self.words.is_worse(
            words, [tirx.BufferLoad(buffer, [looked]) for buffer in source]
        )

        def halve(_: Any) -> tirx.Stmt:
            step = tirx.IfThenElse(better, low.put(zero, middle + one), high.put(zero, middle))
            return guarded(low.at(zero) < high.at(zero), step)

        pair = tirx.floordiv(number, self.number(2)) * self.number(2 * run)
        found = pair + tirx.floormod(position, size) + low.at(zero)
        return sequence(
            [
                low.put(zero, zero),
                high.put(zero, end),
                repeated(run.bit_length(), self.dtype, halve, tirx.ForKind.SERIAL),
                store(row, found, words),
            ]
        )
