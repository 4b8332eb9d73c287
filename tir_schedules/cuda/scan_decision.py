"""How a scan is dealt to threads: along the scans or across them, and in how many parts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.tir_schedules.analysis.buffer_access import LoopAxis, is_load, nodes, static_extent
from tvm_ext.tir_schedules.analysis.loop_nest import substitute
from tvm_ext.tir_schedules.analysis.row_reader import result_strides, simplifier
from tvm_ext.tir_schedules.cuda.vector_group import powers_down, powers_up
from tvm_ext.tir_schedules.template import DEFAULT_DECISIONS, Decisions

# Reads a scan from loops: a value that is carried along one of them and combined at every step.


# Operators in any order of which the result is the same, but for rounding.
_OPERATIONS = (tirx.Add, tirx.Mul, tirx.Max, tirx.Min)


@dataclass(frozen=True)
class ScanKernel:
    """``carried = operation(carried, term)`` along one axis, for every row.

    Attributes
    ----------
    rows : tuple[LoopAxis, ...]
        The loops over independent scans, outermost first.
    position : LoopAxis
        The loop along which the value is carried.
    carried : buffer
        What holds the value, one element.
    start : tvm.ir.Expr
        Its value in front of the first step.
    operation : type
        The class of the operator.
    term : tvm.ir.Expr
        What a step adds, in the variables of the axes.
    before, after : tuple[tirx.BufferStore, ...]
        Results that see the value without, and with, the term of their own position.
    strides : tuple[int, ...]
        By how much the address of the first result moves with each of the rows and the position.
    """

    rows: tuple[LoopAxis, ...]
    position: LoopAxis
    carried: Any
    start: Any
    operation: Any
    term: Any
    before: tuple[tirx.BufferStore, ...]
    after: tuple[tirx.BufferStore, ...]
    strides: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of scans."""
        return math.prod(axis.extent for axis in self.rows)

    @property
    def length(self) -> int:
        """Steps of a scan."""
        return self.position.extent

    @property
    def dtype(self) -> str:
        """Of the carried value."""
        return str(self.carried.dtype)

    @property
    def index_dtype(self) -> str:
        """Of the variables of all loops."""
        return str(self.position.var.ty)

    @property
    def runs_across(self) -> bool:
        """Whether neighbours in memory belong to neighbouring scans, not to neighbouring steps."""
        *rows, position = self.strides
        return abs(position) != 1 and bool(rows) and rows[-1] == 1

    @property
    def identity(self) -> tvm.ir.Expr:
        """What the operation combines with any value without changing it."""
        if self.operation in (tirx.Max, tirx.Min):
            lowest = self.operation is tirx.Max
            if "float" in self.dtype:
                return tirx.const(-math.inf if lowest else math.inf, self.dtype)
            return (tirx.min_value if lowest else tirx.max_value)(self.dtype)
        return tirx.const(1 if self.operation is tirx.Mul else 0, self.dtype)


def scan_of(body: tirx.Stmt) -> ScanKernel:
    """The scan that ``body``, loops without blocks, computes. Raises NotApplicable for others."""
    rows, inner = _nest(body)
    if not isinstance(inner, tirx.SeqStmt) or len(inner.seq) != 3:
        raise NotApplicable("the kernel is no scan: it carries no value along a loop")
    alloc, first, loop = inner.seq
    if (
        not isinstance(alloc, tirx.AllocBuffer)
        or not isinstance(first, tirx.BufferStore)
        or not isinstance(loop, tirx.For)
        or not first.buffer.same_as(alloc.buffer)
    ):
        raise NotApplicable("the kernel is no scan: it carries no value along a loop")
    axes = [_axis(one) for one in (*rows, loop)]
    if math.prod(static_extent(size) or 0 for size in alloc.buffer.shape) != 1 or None in axes:
        raise NotApplicable("the sizes of the scan are known in the run only, or nothing")
    *outer, position = [axis for axis in axes if axis is not None]
    return _of_steps(tuple(outer), position, alloc.buffer, first, loop.body)


def _of_steps(
    rows: tuple[LoopAxis, ...],
    position: LoopAxis,
    carried: tirx.Buffer,
    first: tirx.BufferStore,
    body: tirx.Stmt,
) -> ScanKernel:
    steps = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    if not all(isinstance(step, tirx.BufferStore) for step in steps):
        raise NotApplicable("a step of the scan holds more than stores")
    places = [i for i, step in enumerate(steps) if step.buffer.same_as(carried)]
    if len(places) != 1 or len(steps) < 2:
        raise NotApplicable("the carried value changes several times in a step")
    (at,) = places
    update = steps[at].value
    sides = (update.a, update.b) if isinstance(update, _OPERATIONS) else ()
    terms = [side for side in sides if not _loads(side, carried)]
    if len(terms) != 1 or not all(is_load(s, carried) or s.same_as(terms[0]) for s in sides):
        raise NotApplicable("the carried value is not combined by one operator of any order")
    stores = [*steps[:at], *steps[at + 1 :]]
    written = [store.buffer for store in stores]
    if any(_loads(part, buffer) for part in (terms[0], first.value) for buffer in written):
        raise NotApplicable("the scan reads what it writes")
    found = [result_strides(store, [*rows, position]) for store in stores]
    if any(not _one_to_one(strides, [*rows, position]) for strides in found):
        raise NotApplicable("results of the scan are not one element for each step")
    simplify = simplifier([*rows, position])
    return ScanKernel(
        rows,
        position,
        carried,
        first.value,
        type(update),
        simplify(terms[0]),
        tuple(steps[:at]),
        tuple(steps[at + 1 :]),
        tuple(step or 0 for step in found[0]),
    )


def _nest(body: tirx.Stmt) -> tuple[list[tirx.For], tirx.Stmt]:
    loops: list[tirx.For] = []
    while isinstance(body, tirx.For):
        if static_extent(body.extent) == 1:
            body = substitute(body.body, {body.loop_var: body.min})
            continue
        loops.append(body)
        body = body.body
    return loops, body


def _axis(loop: tirx.For) -> LoopAxis | None:
    extent = static_extent(loop.extent)
    return LoopAxis(loop.loop_var, extent) if extent and static_extent(loop.min) == 0 else None


def _loads(value: tvm.ir.Expr, buffer: tirx.Buffer) -> bool:
    return any(load.source.same_as(buffer) for load in nodes(value, tvm.ir.TensorLoad))


def _one_to_one(steps: list[int | None], axes: Sequence[LoopAxis]) -> bool:
    """Whether every combination of steps has an address of its own."""
    strides = [step for step in steps if step is not None]
    if len(strides) < len(steps):
        return False
    reach = 1
    for stride, axis in sorted(zip(strides, axes, strict=True), key=lambda pair: abs(pair[0])):
        if axis.extent > 1 and abs(stride) < reach:
            return False
        reach += abs(stride) * (axis.extent - 1)
    return True


# Threads of a block that scans one row, as far as the row has so much work.
_BLOCK_THREADS = 256

# Threads of a multiprocessor that are at work at the same time.
_RESIDENT = 2048

# Blocks for each multiprocessor above which a third pass over memory costs more than it brings.
_ENOUGH_BLOCKS = 2

# Tiles of a block below which it is not worth a launch of its own to cut a row.
_FEWEST_TILES = 4

# Steps of a thread below which a column is not worth several threads.
_FEWEST_STEPS = 16

_POWERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True)
class ScanLaunch:
    """How blocks of threads work on scans.

    Attributes
    ----------
    across : bool
        Whether neighbouring threads work on neighbouring scans, each along it, instead of on
        neighbouring elements of one.
    parts : int
        Threads of one scan in a block, a power of two.
    rows : int
        Scans of a block.
    width : int
        Neighbouring elements that a thread takes at once.
    chunk : int
        Steps of a scan that one block does.
    chunks : int
        Blocks of a scan.
    """

    across: bool
    parts: int
    rows: int
    width: int
    chunk: int
    chunks: int


def decide_scan(
    kernel: ScanKernel,
    widest: int,
    machine: CudaDescription,
    decisions: Decisions = DEFAULT_DECISIONS,
) -> ScanLaunch:
    """The default heuristic; asks for ``width``, ``parts``, ``rows`` and ``chunks``.

    ``widest`` is how many neighbours vectors can move.
    """
    if kernel.runs_across:
        return _across(kernel, machine, decisions)
    return _along(kernel, widest, machine, decisions)


def _along(
    kernel: ScanKernel, widest: int, machine: CudaDescription, decisions: Decisions
) -> ScanLaunch:
    warp, most = machine.warp_size, machine.max_threads_per_block
    width = decisions.pick("width", powers_down(widest), widest)
    vectors = -(-kernel.length // width)
    options = [n for n in _POWERS if warp <= n <= most and n < 2 * max(vectors, warp)]
    wanted = _BLOCK_THREADS if kernel.count >= machine.sms or vectors > most else most
    parts = decisions.pick("parts", options, max(n for n in options if n <= wanted))
    counts = [n for n in _POWERS if n * parts <= most and n < 2 * kernel.count]
    busy = [
        n for n in counts if n * parts <= _BLOCK_THREADS and kernel.count // n >= 4 * machine.sms
    ]
    rows = decisions.pick("rows", counts, max(busy, default=1))
    tile = parts * width
    tiles = -(-kernel.length // tile)
    groups = -(-kernel.count // rows)
    resident = machine.sms * max(1, _RESIDENT // (parts * rows))
    wanted = max(1, min(-(-resident // groups), tiles // 2))
    if tiles <= _FEWEST_TILES or groups >= _ENOUGH_BLOCKS * machine.sms:
        wanted = 1
    options = [n for n in powers_up(tiles) if n == 1 or rows == 1]
    chunks = decisions.pick("chunks", options, max(n for n in options if n <= wanted))
    per_chunk = -(-tiles // chunks)
    return ScanLaunch(False, parts, rows, width, per_chunk * tile, -(-tiles // per_chunk))


def _across(kernel: ScanKernel, machine: CudaDescription, decisions: Decisions) -> ScanLaunch:
    warp, most = machine.warp_size, machine.max_threads_per_block
    groups = -(-kernel.count // warp)
    resident = machine.sms * _RESIDENT
    # Threads of a column until all multiprocessors are busy, each with steps enough.
    enough = max(1, resident // (groups * warp))
    useful = max(1, kernel.length // _FEWEST_STEPS)
    options = [n for n in _POWERS if n <= most // warp and n < 2 * kernel.length]
    parts = decisions.pick("parts", options, max(n for n in options if n <= min(enough, useful)))
    rows = decisions.pick("rows", [n for n in (32, 64, 128) if n * parts <= most], warp)
    tiles = -(-kernel.length // (parts * _FEWEST_STEPS))
    blocks = -(-kernel.count // rows)
    wanted = max(1, min(resident // (blocks * parts * rows), tiles // _FEWEST_TILES))
    options = powers_up(tiles)
    chunks = decisions.pick("chunks", options, max(n for n in options if n <= wanted))
    chunk = -(-kernel.length // chunks)
    return ScanLaunch(True, parts, rows, 1, chunk, -(-kernel.length // chunk))
