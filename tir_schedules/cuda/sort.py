"""TopK, ArgSort and Sort on a GPU: blocks sort tiles in shared memory, further launches merge
them.

Of a few best elements each launch keeps those of its tiles, so that what is left shrinks by the
ratio of a tile to them: 100 of a million need four launches, which read little but the first.
The floor is that one read, and for whole sorts one read and one write for each doubling of
runs.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import s_tir, tirx

from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.tir_schedules.cuda.launch import (
    Arrays,
    ThreadArray,
    ThreadLine,
    bound,
    guarded,
    repeated,
    warp_barrier,
)
from tvm_ext.tir_schedules.cuda.sort_decision import (
    SortPlan,
    SortProblem,
    Tiling,
    Words,
    decide_sort,
    sort_of,
)
from tvm_ext.tir_schedules.cuda.warp_instructions import block_barrier, without_added_barriers
from tvm_ext.tir_schedules.statements import FlatViews, sequence
from tvm_ext.tir_schedules.template import Decisions

# Runs of a row merged by pairs: every element looks up its place in the other run of its pair.
#
# Of elements that are all different, the place in the merged run is the place in the own run and
# the number of better ones in the other (O. Green, R. McColl, D. Bader, "GPU Merge Path", ICS
# 2012, section 2, on merging by ranks). Neighbours look at the same elements for all but the last
# steps.


THREADS = 256

Store = Callable[[Any, Any, Sequence[Any]], tirx.Stmt]


class RunMerge(ThreadLine):
    """Launches that merge sorted runs.

    Parameters
    ----------
    rows, length : int
        Of what is sorted.
    words : Words
        What an element is.
    arrays : Arrays
        Gets what the kernels allocate.
    """

    def __init__(self, rows: int, length: int, words: Words, arrays: Arrays) -> None:
        super().__init__(THREADS, arrays)
        self.rows, self.length, self.words = rows, length, words

    def write(self, source: Sequence[Any], run: int, store: Store) -> tirx.Stmt:
        """One launch: pairs of runs of ``run`` elements, in flat arrays of words, row by row."""
        total = self.rows * self.length
        low, high = (self.arrays.allocated(n, [THREADS, 1], self.dtype, "local") for n in "lh")

        def block(index: Any) -> tirx.Stmt:
            def thread() -> tirx.Stmt:
                place = index * self.number(THREADS) + self.x
                ends = ThreadArray(low, (self.x,)), ThreadArray(high, (self.x,))
                code = self._element(source, run, store, place, ends)
                inside = None if total % THREADS == 0 else place < self.number(total)
                return guarded(inside, code)

            return self.threads(thread)

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


# Tiles of elements sorted by blocks of threads in shared memory, and the best of them written.
#
# Bitonic sort (K. E. Batcher, "Sorting Networks and Their Applications", AFIPS 1968), up to runs
# of the length that is wanted; then the better halves of pairs of runs until one is left (A.
# Shanbhag, H. Pirk, S. Madden, "Efficient Top-K Query Processing on GPUs", SIGMOD 2018, section
# 4.3).
#
# Elements less than 64 apart that are compared at a step belong to one warp, so that most steps
# wait for the warp only.


# Elements that the threads of a warp compare with one another.
_WARP_SPAN = 64

# The words of an element at a row and a position, and what stores those of a result.
Load = Callable[[Any, Any], Sequence[Any]]


class TileSort(ThreadLine):
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
    """

    def __init__(self, tiling: Tiling, rows: int, words: Words, arrays: Arrays) -> None:
        super().__init__(tiling.threads, arrays)
        self.tiling, self.row_count, self.words = tiling, rows, words
        size = tiling.rows * tiling.tile
        self.shared = [
            arrays.allocated(f"tile{i}", [size], word, "shared")
            for i, word in enumerate(words.dtypes)
        ]
        self.pairs = max(1, size // 2)
        self.each = -(-self.pairs // tiling.threads)
        shape = [tiling.threads, self.each]
        self.left, self.right = (
            [
                arrays.allocated(f"{side}{i}", shape, word, "local")
                for i, word in enumerate(words.dtypes)
            ]
            for side in ("left", "right")
        )
        self.block = self.number(0)

    def write(self, load: Load, store: Store) -> tirx.Stmt:
        """The grid; ``store`` is told the position among all that go out of the row."""
        tiling = self.tiling
        blocks = -(-self.row_count // tiling.rows) * tiling.tiles

        def block(index: tvm.ir.Expr) -> tirx.Stmt:
            self.block = index
            body = [self.threads(lambda: self._load(load)), block_barrier("shared")]
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
            body += [block_barrier("shared"), self.threads(lambda: self._store(store))]
            return without_added_barriers(sequence(body))

        return bound("blockIdx.x", blocks, self.dtype, block)

    def _tile(self) -> tuple[Any, Any]:
        """The block's first row, and its tile of the rows."""
        tiles, rows = self.number(self.tiling.tiles), self.number(self.tiling.rows)
        if self.tiling.tiles == 1:
            return self.block * rows, self.number(0)
        return tirx.floordiv(self.block, tiles) * rows, tirx.floormod(self.block, tiles)

    def _row_inside(self, row: tvm.ir.Expr) -> tvm.ir.Expr:
        whole = self.row_count % self.tiling.rows == 0
        return tirx.const(True, "bool") if whole else row < self.number(self.row_count)

    def _load(self, load: Load) -> tirx.Stmt:
        tiling = self.tiling
        first, tile = self._tile()
        size = self.number(tiling.tile)

        def iteration(_: tvm.ir.Expr, item: tvm.ir.Expr) -> tirx.Stmt:
            row = first + tirx.floordiv(item, size)
            position = tile * size + tirx.floormod(item, size)
            inside = tirx.And(position < self.number(tiling.length), self._row_inside(row))
            there = self._put(item, load(row, position))
            return tirx.IfThenElse(inside, there, self._put(item, self.words.nothing()))

        return self.dealt(tiling.rows * tiling.tile, iteration)

    def _store(self, store: Store) -> tirx.Stmt:
        tiling = self.tiling
        first, tile = self._tile()
        kept = self.number(tiling.kept)

        def iteration(_: tvm.ir.Expr, item: tvm.ir.Expr) -> tirx.Stmt:
            place, rank = tirx.floordiv(item, kept), tirx.floormod(item, kept)
            row, position = first + place, tile * kept + rank
            found = self._at(place * self.number(tiling.run) + rank)
            inside = tirx.And(position < self.number(tiling.result), self._row_inside(row))
            return guarded(inside, store(row, position, found))

        return self.dealt(tiling.rows * tiling.kept, iteration)

    def _at(self, place: tvm.ir.Expr) -> list[tvm.ir.Expr]:
        """The words of an element in shared memory."""
        return [tirx.BufferLoad(buffer, [place]) for buffer in self.shared]

    def _put(self, place: tvm.ir.Expr, words: Sequence[tvm.ir.Expr]) -> tirx.Stmt:
        pairs = zip(self.shared, words, strict=True)
        return sequence([tirx.BufferStore(buffer, word, [place]) for buffer, word in pairs])

    def _held(self, arrays: Sequence[tirx.Buffer], turn: tvm.ir.Expr) -> list[tvm.ir.Expr]:
        """The words of an element in registers of the thread."""
        return [ThreadArray(array, (self.x,)).at(turn) for array in arrays]

    def _hold(
        self, arrays: Sequence[tirx.Buffer], turn: tvm.ir.Expr, words: Sequence[tvm.ir.Expr]
    ) -> tirx.Stmt:
        pairs = zip(arrays, words, strict=True)
        return sequence([ThreadArray(a, (self.x,)).put(turn, word) for a, word in pairs])

    def _bitonic(self, size: int, pairs: int, alternating: bool) -> list[tirx.Stmt]:
        """Sorts bitonic runs of ``size`` elements: every second one backwards, or none."""
        first = size // 2
        steps = first.bit_length()
        within = min(steps, (_WARP_SPAN // 2).bit_length())
        far, statements = steps - within, []
        wait = block_barrier("shared")

        def compared(stride: tvm.ir.Expr, waits: bool) -> tirx.Stmt:
            def body() -> tirx.Stmt:
                compare = self._compare(size, stride, pairs, alternating)
                return sequence([compare, warp_barrier()]) if waits else compare

            return self.threads(body)

        def distant(step: tvm.ir.Expr) -> tirx.Stmt:
            return sequence([compared(self.number(first) >> step, False), wait])

        def near(step: tvm.ir.Expr) -> tirx.Stmt:
            return compared(self.number(first >> far) >> step, True)

        serial = tirx.ForKind.SERIAL
        if far:
            statements += [wait, repeated(far, self.dtype, distant, serial)]
        return [*statements, repeated(within, self.dtype, near, serial)]

    def _compare(self, size: int, stride: tvm.ir.Expr, pairs: int, alternating: bool) -> tirx.Stmt:
        """Puts the elements of each pair, ``stride`` apart, in order."""

        def iteration(turn: tvm.ir.Expr, pair: tvm.ir.Expr) -> tirx.Stmt:
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

        return self.dealt(pairs, iteration)

    def _better_halves(self, going: int) -> list[tirx.Stmt]:
        """Of pairs of runs, one sorted and one backwards, the better half, side by side."""
        run = self.number(self.tiling.run)

        def choose(turn: tvm.ir.Expr, item: tvm.ir.Expr) -> tirx.Stmt:
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

        def gather(turn: tvm.ir.Expr, item: tvm.ir.Expr) -> tirx.Stmt:
            return self._put(item, self._held(self.left, turn))

        wait = block_barrier("shared")
        return [
            wait,
            self.threads(lambda: self.dealt(going, choose)),
            wait,
            self.threads(lambda: self.dealt(going, gather)),
            wait,
        ]


_LARGEST_INT32 = 2**31 - 1


class Sort:
    """Sorts along one axis, whole or the best elements of it."""

    name = "sort"
    machine_type = CudaDescription

    def apply(
        self, func: tirx.PrimFunc, machine: CudaDescription, decisions: Decisions
    ) -> s_tir.Schedule:
        """See ``Template.apply``."""
        problem = sort_of(func)
        words = Words(problem.dtype, problem.ascending)
        plan = decide_sort(problem, words, machine, decisions)
        views = FlatViews()
        code = _SortCode(problem, words, plan, views)
        return s_tir.Schedule(views.kernel(func, code.write(), code.arrays.buffers))


class _SortCode:
    """The launches of a sort, and what they leave for one another."""

    def __init__(
        self, problem: SortProblem, words: Words, plan: SortPlan, views: FlatViews
    ) -> None:
        self.problem, self.words, self.plan, self.views = problem, words, plan, views
        largest = problem.rows * max(problem.length, *(t.result for t in plan.tilings))
        self.dtype = "int32" if 2 * largest < _LARGEST_INT32 else "int64"
        self.arrays = Arrays(self.dtype)

    def write(self) -> list[tirx.Stmt]:
        """All launches in their order."""
        problem, launches = self.problem, []
        load: Load = self._of_source
        left: list[Any] = []
        for number, tiling in enumerate(self.plan.tilings):
            last = number + 1 == len(self.plan.tilings) and not self.plan.merges
            store: Store = self._to_results
            if not last:
                left = self._workspace(f"best{number}", tiling.result)
                store = _storing(left, self.number(tiling.result))
            launch = TileSort(tiling, problem.rows, self.words, self.arrays)
            launches.append(launch.write(load, store))
            load = _loading(left, self.number(tiling.result))
        merge = RunMerge(problem.rows, problem.length, self.words, self.arrays)
        for number, run in enumerate(self.plan.merges):
            store, source = self._to_results, left
            if number + 1 < len(self.plan.merges):
                left = self._workspace(f"merged{number}", problem.length)
                store = _storing(left, self.number(problem.length))
            launches.append(merge.write(source, run, store))
        return launches

    def number(self, value: int) -> tvm.ir.Expr:
        """A constant of the type of the loops."""
        return tirx.const(value, self.dtype)

    def _workspace(self, name: str, length: int) -> list[Any]:
        """Flat arrays of words, ``length`` for each row."""
        size = self.number(self.problem.rows * length)
        return [
            self.views.of(tirx.decl_buffer([size], dtype, f"{name}_{i}"))
            for i, dtype in enumerate(self.words.dtypes)
        ]

    def _place(self, row: tvm.ir.Expr, position: tvm.ir.Expr, length: int) -> tvm.ir.Expr:
        """Where an element of a tensor is, ``length`` of them along the axis."""
        after, along = self.number(self.problem.after), self.number(length)
        if self.problem.after == 1:
            return row * along + position
        before = tirx.floordiv(row, after) * along + position
        return before * after + tirx.floormod(row, after)

    def _source(self, row: tvm.ir.Expr, position: tvm.ir.Expr) -> tvm.ir.Expr:
        place = self._place(row, position, self.problem.length)
        return tirx.BufferLoad(self.views.of(self.problem.source), [place])

    def _of_source(self, row: tvm.ir.Expr, position: tvm.ir.Expr) -> list[tvm.ir.Expr]:
        return self.words.of(self._source(row, position), position)

    def _to_results(
        self, row: tvm.ir.Expr, rank: tvm.ir.Expr, words: Sequence[tvm.ir.Expr]
    ) -> tirx.Stmt:
        """An element to its place, if it is one of those that are wanted."""
        problem = self.problem
        place = self._place(row, rank, problem.kept)
        position = self.words.position(words).astype(self.dtype)
        stores = []
        if problem.indices is not None:
            index = position.astype(str(problem.indices.dtype))
            stores.append(tirx.BufferStore(self.views.of(problem.indices), index, [place]))
        if problem.values is not None:
            value = self._source(row, position)
            stores.append(tirx.BufferStore(self.views.of(problem.values), value, [place]))
        return guarded(rank < self.number(problem.kept), sequence(stores))


def _loading(buffers: Sequence[Any], length: tvm.ir.Expr) -> Load:
    return lambda row, position: [tirx.BufferLoad(b, [row * length + position]) for b in buffers]


def _storing(buffers: Sequence[tirx.Buffer], length: Any) -> Store:
    def store(row: Any, position: Any, words: Sequence[Any]) -> tirx.Stmt:
        place = row * length + position
        pairs = zip(buffers, words, strict=True)
        return sequence([tirx.BufferStore(buffer, word, [place]) for buffer, word in pairs])

    return store
