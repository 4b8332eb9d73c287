"""Tiles of elements sorted by blocks of threads in shared memory, and the best of them written.

Bitonic sort (K. E. Batcher, "Sorting Networks and Their Applications", AFIPS 1968), up to runs of
the length that is wanted; then the better halves of pairs of runs until one is left (A. Shanbhag,
H. Pirk, S. Madden, "Efficient Top-K Query Processing on GPUs", SIGMOD 2018, section 4.3).

Elements less than 64 apart that are compared at a step belong to one warp, so that most steps wait
for the warp only.
"""

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx

from tvm_ext.tir_schedules.cuda.launch import (
    Arrays,
    ThreadArray,
    bound,
    guarded,
    repeated,
    warp_barrier,
)
from tvm_ext.tir_schedules.cuda.sort.sort_decision import Tiling
from tvm_ext.tir_schedules.cuda.sort.sort_words import Words
from tvm_ext.tir_schedules.cuda.warp_code import block_barrier, without_added_barriers
from tvm_ext.tir_schedules.statements import sequence

# Elements that the threads of a warp compare with one another.
_WARP_SPAN = 64

# The words of an element at a row and a position, and what stores those of a result.
Load = Callable[[Any, Any], Sequence[Any]]
Store = Callable[[Any, Any, Sequence[Any]], tirx.Stmt]


class TileSort:
    """One launch that sorts tiles.

    Parameters
    ----------
    tiling : Tiling
        The tiles and the threads.
    rows : int
        Rows of the tensor.
    words : Words
        What an element is.
    arrays : Arrays
        Gets what the kernel allocates.
    dtype : str
        Of indices.
    """

    def __init__(self, tiling: Tiling, rows: int, words: Words, arrays: Arrays, dtype: str) -> None:
        self.tiling, self.row_count, self.words = tiling, rows, words
        self.arrays, self.dtype = arrays, dtype
        size = tiling.rows * tiling.tile
        self.shared = [
            arrays.allocated(f"tile{i}", [size], word, "shared")
            for i, word in enumerate(words.dtypes)
        ]
        self.pairs = max(1, size // 2)
        self.each = -(-self.pairs // tiling.threads)
        shape = [tiling.threads, self.each]
        self.left, self.right = (
            [arrays.allocated(f"{side}{i}", shape, word, "local") for i, word in enumerate(types)]
            for side, types in (("left", words.dtypes), ("right", words.dtypes))
        )
        self.x = self.block = self.number(0)

    def number(self, value: int) -> Any:
        """A constant of the type of the loops."""
        return tirx.const(value, self.dtype)

    def write(self, load: Load, store: Store) -> tirx.Stmt:
        """The grid; ``store`` is told the position among all that go out of the row."""
        tiling = self.tiling
        blocks = -(-self.row_count // tiling.rows) * tiling.tiles

        def block(index: Any) -> tirx.Stmt:
            self.block = index
            body = [self._threads(lambda: self._load(load)), block_barrier("shared")]
            size, runs = 2, tiling.tile // tiling.run
            while size <= tiling.run:
                body += self._bitonic(size, self.pairs, size < tiling.run or runs > 1)
                size *= 2
            while runs > 1:
                runs //= 2
                going = tiling.rows * runs * tiling.run
                body += self._better_halves(going)
                if tiling.run > 1:
                    body += self._bitonic(tiling.run, going // 2, runs > 1)
            body += [block_barrier("shared"), self._threads(lambda: self._store(store))]
            return without_added_barriers(sequence(body))

        return bound("blockIdx.x", blocks, self.dtype, block)

    def _threads(self, body: Callable[[], tirx.Stmt]) -> tirx.Stmt:
        """``body`` for all threads: what stands between two barriers."""

        def thread(x: Any) -> tirx.Stmt:
            self.x = x
            return body()

        return bound("threadIdx.x", self.tiling.threads, self.dtype, thread)

    def _dealt(self, count: int, body: Callable[[Any, Any], tirx.Stmt]) -> tirx.Stmt:
        """``body`` of a turn and an item, for the thread's share of ``count`` items."""
        threads = self.tiling.threads

        def one(turn: Any) -> tirx.Stmt:
            item = turn * self.number(threads) + self.x
            inside = None if count % threads == 0 else item < self.number(count)
            return guarded(inside, body(turn, item))

        return repeated(-(-count // threads), self.dtype, one)

    def _tile(self) -> tuple[Any, Any]:
        """The block's first row, and its tile of the rows."""
        tiles, rows = self.number(self.tiling.tiles), self.number(self.tiling.rows)
        if self.tiling.tiles == 1:
            return self.block * rows, self.number(0)
        return tirx.floordiv(self.block, tiles) * rows, tirx.floormod(self.block, tiles)

    def _row_inside(self, row: Any) -> Any:
        whole = self.row_count % self.tiling.rows == 0
        return tirx.const(True, "bool") if whole else row < self.number(self.row_count)

    def _load(self, load: Load) -> tirx.Stmt:
        tiling = self.tiling
        first, tile = self._tile()
        size = self.number(tiling.tile)

        def one(_: Any, item: Any) -> tirx.Stmt:
            row = first + tirx.floordiv(item, size)
            position = tile * size + tirx.floormod(item, size)
            inside = tirx.And(position < self.number(tiling.length), self._row_inside(row))
            there = self._put(item, load(row, position))
            return tirx.IfThenElse(inside, there, self._put(item, self.words.nothing()))

        return self._dealt(tiling.rows * tiling.tile, one)

    def _store(self, store: Store) -> tirx.Stmt:
        tiling = self.tiling
        first, tile = self._tile()
        kept = self.number(tiling.kept)

        def one(_: Any, item: Any) -> tirx.Stmt:
            place, rank = tirx.floordiv(item, kept), tirx.floormod(item, kept)
            row, position = first + place, tile * kept + rank
            found = self._at(place * self.number(tiling.run) + rank)
            inside = tirx.And(position < self.number(tiling.result), self._row_inside(row))
            return guarded(inside, store(row, position, found))

        return self._dealt(tiling.rows * tiling.kept, one)

    def _at(self, place: Any) -> list[Any]:
        """The words of an element in shared memory."""
        return [tirx.BufferLoad(buffer, [place]) for buffer in self.shared]

    def _put(self, place: Any, words: Sequence[Any]) -> tirx.Stmt:
        pairs = zip(self.shared, words, strict=True)
        return sequence([tirx.BufferStore(buffer, word, [place]) for buffer, word in pairs])

    def _held(self, arrays: Sequence[Any], turn: Any) -> list[Any]:
        """The words of an element in registers of the thread."""
        return [ThreadArray(array, (self.x,)).at(turn) for array in arrays]

    def _hold(self, arrays: Sequence[Any], turn: Any, words: Sequence[Any]) -> tirx.Stmt:
        pairs = zip(arrays, words, strict=True)
        return sequence([ThreadArray(a, (self.x,)).put(turn, word) for a, word in pairs])

    def _bitonic(self, size: int, pairs: int, alternating: bool) -> list[tirx.Stmt]:
        """Sorts bitonic runs of ``size`` elements: every second one backwards, or none."""
        first = size // 2
        steps = first.bit_length()
        within = min(steps, (_WARP_SPAN // 2).bit_length())
        far, statements = steps - within, []
        wait = block_barrier("shared")

        def compared(stride: Any, waits: bool) -> tirx.Stmt:
            def body() -> tirx.Stmt:
                compare = self._compare(size, stride, pairs, alternating)
                return sequence([compare, warp_barrier()]) if waits else compare

            return self._threads(body)

        def distant(step: Any) -> tirx.Stmt:
            return sequence([compared(self.number(first) >> step, False), wait])

        def near(step: Any) -> tirx.Stmt:
            return compared(self.number(first >> far) >> step, True)

        serial = tirx.ForKind.SERIAL
        if far:
            statements += [wait, repeated(far, self.dtype, distant, serial)]
        return [*statements, repeated(within, self.dtype, near, serial)]

    def _compare(self, size: int, stride: Any, pairs: int, alternating: bool) -> tirx.Stmt:
        """Puts the elements of each pair, ``stride`` apart, in order."""

        def one(turn: Any, pair: Any) -> tirx.Stmt:
            place = pair * self.number(2) - tirx.bitwise_and(pair, stride - self.number(1))
            other = place + stride
            left, right = self._held(self.left, turn), self._held(self.right, turn)
            swaps = self.words.is_worse(left, right)
            if alternating:
                # Nothing is as good as another element, but for what is behind the end.
                backwards = tirx.bitwise_and(place, self.number(size)) != self.number(0)
                swaps = swaps.astype("int32") != backwards.astype("int32")
            return sequence(
                [
                    self._hold(self.left, turn, self._at(place)),
                    self._hold(self.right, turn, self._at(other)),
                    guarded(swaps, sequence([self._put(place, right), self._put(other, left)])),
                ]
            )

        return self._dealt(pairs, one)

    def _better_halves(self, going: int) -> list[tirx.Stmt]:
        """Of pairs of runs, one sorted and one backwards, the better half, side by side."""
        run = self.number(self.tiling.run)

        def choose(turn: Any, item: Any) -> tirx.Stmt:
            offset = tirx.bitwise_and(item, run - self.number(1))
            place = item * self.number(2) - offset
            left, right = self._held(self.left, turn), self._held(self.right, turn)
            return sequence(
                [
                    self._hold(self.left, turn, self._at(place)),
                    self._hold(self.right, turn, self._at(place + run)),
                    guarded(self.words.is_worse(left, right), self._hold(self.left, turn, right)),
                ]
            )

        def gather(turn: Any, item: Any) -> tirx.Stmt:
            return self._put(item, self._held(self.left, turn))

        wait = block_barrier("shared")
        return [
            wait,
            self._threads(lambda: self._dealt(going, choose)),
            wait,
            self._threads(lambda: self._dealt(going, gather)),
            wait,
        ]
