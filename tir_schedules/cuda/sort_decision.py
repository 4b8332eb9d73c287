"""Into what launches a sort is cut: tiles that a block sorts, and what merges them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.tir_schedules.analysis.buffer_access import is_compact, nodes, static_extent
from tvm_ext.tir_schedules.cuda.vector_group import power_above
from tvm_ext.tir_schedules.template import DEFAULT_DECISIONS, Decisions

# Elements as integers that compare as their places in the result do.
#
# Of each element one or two integers are sorted: the first grows from better to worse, and holds
# the element's position in its lower half, or is followed by it. So no two are equal, and any way
# of sorting is stable. Floating-point numbers in the order of IEEE 754 (section 5.10), but -0
# equals 0, and NaN comes last whatever the order: it compares as better than nothing on a CPU
# either.


_HALF = 2**32

# Positions of no element, behind all others.
_NOWHERE = {"int64": 2**63 - 1, "int32": 2**31 - 1}


@dataclass(frozen=True)
class Words:
    """The integers of an element of a type.

    Attributes
    ----------
    dtype : str
        Of the elements.
    ascending : bool
        Whether the smallest is the best.
    """

    dtype: str
    ascending: bool

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Types of the integers, the one that counts most first."""
        return ("int64",) if self.dtype.endswith("32") else ("int64", "int32")

    @property
    def nbytes(self) -> int:
        """Of an element's integers together."""
        return 8 if len(self.dtypes) == 1 else 12

    def of(self, value: tvm.ir.Expr, position: tvm.ir.Expr) -> list[tvm.ir.Expr]:
        """The integers of an element at a position of its row."""
        key = self._key(value)
        if len(self.dtypes) == 1:
            half = tirx.const(_HALF, "int64")
            return [key.astype("int64") * half + position.astype("int64")]
        return [key, position.astype("int32")]

    def position(self, words: Sequence[tvm.ir.Expr]) -> tvm.ir.Expr:
        """The position of an element, of type int32."""
        return words[-1].astype("int32")

    def nothing(self) -> list[tvm.ir.Expr]:
        """What comes behind every element."""
        return [tirx.const(_NOWHERE[dtype], dtype) for dtype in self.dtypes]

    def is_worse(self, left: Sequence[tvm.ir.Expr], right: Sequence[tvm.ir.Expr]) -> tvm.ir.Expr:
        """Whether the first element comes behind the second one."""
        worse = left[-1] > right[-1]
        for a, b in list(zip(left, right, strict=True))[-2::-1]:
            worse = tirx.Or(a > b, tirx.And(a.equal(b), worse))
        return worse

    def _key(self, value: tvm.ir.Expr) -> tvm.ir.Expr:
        bits = 32 if self.dtype.endswith("32") else 64
        integer = f"int{bits}"
        if self.dtype.startswith("int"):
            return value if self.ascending else tirx.bitwise_not(value)
        raw = tirx.reinterpret(integer, value)
        highest = tirx.const(2 ** (bits - 1) - 1, integer)
        infinity = tirx.const(0x7F800000 if bits == 32 else 0x7FF << 52, integer)
        size = tirx.bitwise_and(raw, highest)
        zero = tirx.const(0, integer)
        # Negative numbers count backwards.
        key = tirx.Select(raw < zero, tirx.bitwise_xor(raw, highest), raw)
        key = tirx.Select(size.equal(zero), zero, key)
        key = key if self.ascending else tirx.bitwise_not(key)
        return tirx.Select(size > infinity, highest, key)


# What a kernel sorts, read from the call of TVM's sorting function for CPUs.


SORTED_TYPES = ("float32", "float64", "int32", "int64")

_FUNCTIONS = {"tvm.contrib.sort.topk", "tvm.contrib.sort.argsort", "tvm.contrib.sort.sort"}

# Positions are numbers of 31 bits, and the largest one is none.
_LONGEST = 2**31 - 2


@dataclass(frozen=True)
class SortProblem:
    """The best ``kept`` of every row, best first; of equals, the one that comes first.

    Attributes
    ----------
    source : buffer
        What is sorted.
    values, indices : buffer or None
        Where the sorted values go, and their places along the axis, if anybody wants them.
    before, length, after : int
        Sizes of the source in front of the axis, along it, and behind it.
    kept : int
        Elements of a row that are wanted.
    ascending : bool
        Whether the smallest is the best.
    """

    source: Any
    values: Any
    indices: Any
    before: int
    length: int
    after: int
    kept: int
    ascending: bool

    @property
    def rows(self) -> int:
        """How many rows are sorted."""
        return self.before * self.after

    @property
    def dtype(self) -> str:
        """Of what is sorted."""
        return str(self.source.dtype)


def can_sort(shape: Sequence[Any], axis: int, dtype: str) -> bool:
    """Whether tensors of a shape and a type are sorted along an axis by a kernel of ours."""
    sizes = [static_extent(size) for size in shape]
    if not sizes or any(not size for size in sizes) or dtype not in SORTED_TYPES:
        return False
    return (sizes[axis % len(sizes)] or 0) <= _LONGEST


def sort_of(func: tirx.PrimFunc) -> SortProblem:
    """What ``func`` sorts. Raises NotApplicable where it is no sort."""
    call = _sorting_call(func)
    if call is None:
        raise NotApplicable("the kernel sorts nothing")
    params = [param for param in func.params if isinstance(param.ty, tirx.BufferType)]
    if len(params) != len(func.params) or not all(is_compact(param) for param in params):
        raise NotApplicable("a tensor of the sort has a size of the run, or gaps")
    source, *results = params
    options = list(call.args[1 + len(params) :])
    numbers = [static_extent(option) for option in options]
    what = str(call.args[0].value).rsplit(".", 1)[-1]
    axis, ascending = numbers[1 if what == "topk" else 0], numbers[-1]
    sizes = [static_extent(size) or 0 for size in source.shape]
    if axis is None or ascending is None or not can_sort(sizes, axis, str(source.dtype)):
        raise NotApplicable("the sort is of a type or a shape that it is not written for")
    axis %= len(sizes)
    values, indices = _results(what, results)
    return SortProblem(
        source,
        values,
        indices,
        math.prod(sizes[:axis]),
        sizes[axis],
        math.prod(sizes[axis + 1 :]),
        static_extent(results[0].shape[axis]) or 0,
        bool(ascending),
    )


def _sorting_call(func: tirx.PrimFunc) -> Any:
    """The call that is all of the kernel."""
    if not isinstance(func.body, s_tir.SBlockRealize):
        return None
    calls = [
        call
        for call in nodes(func.body, tvm.ir.Call)
        if str(getattr(call.op, "name", "")).endswith("call_packed")
    ]
    if len(calls) != 1 or not isinstance(calls[0].args[0], tvm.ir.StringImm):
        return None
    return calls[0] if str(calls[0].args[0].value) in _FUNCTIONS else None


def _results(what: str, results: Sequence[tirx.Buffer]) -> tuple[Any, Any]:
    """The buffers of values and of places among a kernel's results."""
    if what == "sort":
        return results[0], None
    if what == "argsort":
        return None, results[0]
    if len(results) == 2:
        return results[0], results[1]
    raise ValueError("a TopK of values or of places alone")


_TILES = (512, 1024, 2048, 4096)

# Threads of a block: three such blocks fit on a multiprocessor without registers in memory.
_MOST_THREADS = 512

# Threads of a block that sorts several short rows at a time.
_SHORT_THREADS = 128


@dataclass(frozen=True)
class Tiling:
    """A launch in which every block sorts some tiles of elements.

    Attributes
    ----------
    length : int
        Elements of each row that come in.
    tile : int
        Elements of a tile, a power of two; behind the end of a row there is nothing.
    tiles : int
        Tiles of a row.
    rows : int
        Tiles of a block, each of another row.
    run : int
        Elements of a tile that are sorted among themselves before the better halves are taken: a
        power of two, ``tile`` when all are wanted.
    kept : int
        Elements of a tile that go out.
    threads : int
        Of a block.
    """

    length: int
    tile: int
    tiles: int
    rows: int
    run: int
    kept: int
    threads: int

    @property
    def result(self) -> int:
        """Elements of each row that go out."""
        return self.kept * self.tiles if self.kept < self.tile else self.length


@dataclass(frozen=True)
class SortPlan:
    """All launches of a sort.

    Attributes
    ----------
    tilings : tuple[Tiling, ...]
        The first one of the source, each other one of what the one before it left.
    merges : tuple[int, ...]
        Then, if the last one left several tiles: the lengths of the runs that each launch merges by
        pairs.
    """

    tilings: tuple[Tiling, ...]
    merges: tuple[int, ...]


def decide_sort(
    problem: SortProblem,
    words: Words,
    machine: CudaDescription,
    decisions: Decisions = DEFAULT_DECISIONS,
) -> SortPlan:
    """The best ones of each tile, of these again, until one tile is left; or sorted tiles, merged.

    Asks for ``tile`` and ``tiles_of_block``.
    """
    most = machine.shared_memory_bytes // words.nbytes
    options = [tile for tile in _TILES if tile <= most]
    # As many threads as elements are compared at a time; more elements where few can be left out.
    wanted = options[-1] if 4 * problem.kept > 2048 else 2048
    tile = decisions.pick("tile", options, max(n for n in options if n <= wanted))
    kept, length = problem.kept, problem.length
    tilings: list[Tiling] = []
    while True:
        row_tile = min(tile, power_above(length))
        selects = 2 * power_above(kept) <= row_tile
        tiles = -(-length // row_tile)
        run = power_above(kept) if selects else row_tile
        going = min(kept, row_tile) if selects or tiles == 1 else row_tile
        rows = _rows_of_block(problem, row_tile, machine, decisions) if not tilings else 1
        threads = min(_MOST_THREADS, max(machine.warp_size, rows * row_tile // 2))
        found = Tiling(length, row_tile, tiles, rows if tiles == 1 else 1, run, going, threads)
        tilings.append(found)
        if tiles == 1 or not selects:
            break
        length = found.result
    merges = []
    run = tilings[-1].tile
    while tiles > 1 and run < length:
        merges.append(run)
        run *= 2
    return SortPlan(tuple(tilings), tuple(merges))


def _rows_of_block(
    problem: SortProblem, tile: int, machine: CudaDescription, decisions: Decisions
) -> int:
    """Short rows share a block, as long as all multiprocessors have one."""
    options = [1 << n for n in range(8) if (tile << n) // 2 <= 4 * _SHORT_THREADS]
    busy = [
        n
        for n in options
        if n * tile // 2 <= _SHORT_THREADS and -(-problem.rows // n) >= 2 * machine.sms
    ]
    return decisions.pick("tiles_of_block", options or [1], max(busy, default=1))
