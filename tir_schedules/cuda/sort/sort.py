"""TopK, ArgSort and Sort on a GPU: blocks sort tiles in shared memory, further launches merge them.

Of a few best elements each launch keeps those of its tiles, so that what is left shrinks by the
ratio of a tile to them: 100 of a million need four launches, which read little but the first. The
floor is that one read, and for whole sorts one read and one write for each doubling of runs.
"""

from collections.abc import Sequence
from typing import Any

from tvm import s_tir, tirx

from tvm_ext.hardware.description import GpuDescription
from tvm_ext.tir_schedules.cuda.elementwise import with_arrays
from tvm_ext.tir_schedules.cuda.launch import Arrays, guarded
from tvm_ext.tir_schedules.cuda.sort.sort_decision import SortPlan, decide_sort
from tvm_ext.tir_schedules.cuda.sort.sort_merges import RunMerge
from tvm_ext.tir_schedules.cuda.sort.sort_problem import SortProblem, sort_of
from tvm_ext.tir_schedules.cuda.sort.sort_tiles import Load, Store, TileSort
from tvm_ext.tir_schedules.cuda.sort.sort_words import Words
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions
from tvm_ext.tir_schedules.flat_views import FlatViews
from tvm_ext.tir_schedules.statements import sequence
from tvm_ext.tir_schedules.template import Machine, NotMine

_LARGEST_INT32 = 2**31 - 1


class Sort:
    """Sorts along one axis, whole or the best elements of it."""

    name = "sort"

    def apply(
        self, func: tirx.PrimFunc, machine: Machine, decisions: Decisions = CLOSED_FORM
    ) -> s_tir.Schedule | NotMine:
        """See ``Template.apply``."""
        if not isinstance(machine, GpuDescription):
            return NotMine("the target is not an NVIDIA GPU")
        problem = sort_of(func)
        if isinstance(problem, NotMine):
            return problem
        words = Words(problem.dtype, problem.ascending)
        plan = decide_sort(problem, words, machine, decisions)
        views = FlatViews()
        code = _SortCode(problem, words, plan, views)
        return s_tir.Schedule(with_arrays(func, views, code.write(), code.arrays))


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
            launch = TileSort(tiling, problem.rows, self.words, self.arrays, self.dtype)
            launches.append(launch.write(load, store))
            load = _loading(left, self.number(tiling.result))
        merge = RunMerge(problem.rows, problem.length, self.words, self.arrays, self.dtype)
        for number, run in enumerate(self.plan.merges):
            store, source = self._to_results, left
            if number + 1 < len(self.plan.merges):
                left = self._workspace(f"merged{number}", problem.length)
                store = _storing(left, self.number(problem.length))
            launches.append(merge.write(source, run, store))
        return launches

    def number(self, value: int) -> Any:
        """A constant of the type of the loops."""
        return tirx.const(value, self.dtype)

    def _workspace(self, name: str, length: int) -> list[Any]:
        """Flat arrays of words, ``length`` for each row."""
        size = self.number(self.problem.rows * length)
        return [
            self.views.of(tirx.decl_buffer([size], dtype, f"{name}_{i}"))
            for i, dtype in enumerate(self.words.dtypes)
        ]

    def _place(self, row: Any, position: Any, length: int) -> Any:
        """Where an element of a tensor is, ``length`` of them along the axis."""
        after, along = self.number(self.problem.after), self.number(length)
        if self.problem.after == 1:
            return row * along + position
        before = tirx.floordiv(row, after) * along + position
        return before * after + tirx.floormod(row, after)

    def _source(self, row: Any, position: Any) -> Any:
        place = self._place(row, position, self.problem.length)
        return tirx.BufferLoad(self.views.of(self.problem.source), [place])

    def _of_source(self, row: Any, position: Any) -> list[Any]:
        return self.words.of(self._source(row, position), position)

    def _to_results(self, row: Any, rank: Any, words: Sequence[Any]) -> tirx.Stmt:
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


def _loading(buffers: Sequence[Any], length: Any) -> Load:
    return lambda row, position: [tirx.BufferLoad(b, [row * length + position]) for b in buffers]


def _storing(buffers: Sequence[Any], length: Any) -> Store:
    def store(row: Any, position: Any, words: Sequence[Any]) -> tirx.Stmt:
        place = row * length + position
        pairs = zip(buffers, words, strict=True)
        return sequence([tirx.BufferStore(buffer, word, [place]) for buffer, word in pairs])

    return store
