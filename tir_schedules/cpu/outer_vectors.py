"""Loops written by hand whose innermost loop strides through memory, with vectors of another loop.

``outer vectorisation``: D. Nuzman and A. Zaks, "Outer-loop vectorization - revisited for short SIMD
architectures", PACT 2008. What an iteration keeps for itself becomes an array of vectors (scalar
expansion: R. Allen and K. Kennedy, "Optimizing Compilers for Modern Architectures", 2001).
"""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm_ffi import structural_map

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.analysis.buffer_access import buffer_bytes, depends, nodes, static_extent
from tvm_ext.tir_schedules.analysis.memory_access import CONTIGUOUS, MemoryAccess
from tvm_ext.tir_schedules.cpu.cache_traffic import LINE_BYTES
from tvm_ext.tir_schedules.cpu.memory_access import memory_accesses
from tvm_ext.tir_schedules.cpu.parallel_vectorize import worth_threads
from tvm_ext.tir_schedules.cpu.row_code import with_body
from tvm_ext.tir_schedules.cpu.row_decision import narrower, stretches
from tvm_ext.tir_schedules.lowered_kernel import lowered
from tvm_ext.tir_schedules.statements import sequence

_SERIAL = tirx.ForKind.SERIAL

# Vectors of neighbouring iterations that run at a time: they hide the latency of sums.
_VECTORS = 4

# The share of L1 for what an iteration keeps for itself, where memory is to be walked in long rows.
_SHARE_OF_L1 = 0.25

# So many times fewer cache lines have to be asked for, or the loops stay as they are.
LEAST_GAIN = 2.0


@dataclass(frozen=True)
class CoalescedKernel:
    """A kernel whose accesses were made contiguous.

    Attributes
    ----------
    func : tirx.PrimFunc
        The kernel.
    loop : str
        The loop whose iterations are in the lanes of vectors now.
    lines, lines_before : float
        Cache lines that its loads and stores ask for.
    """

    func: tirx.PrimFunc
    loop: str
    lines: float
    lines_before: float


def coalesced(func: tirx.PrimFunc, machine: CpuDescription) -> CoalescedKernel:
    """``func`` with vectors along the loop in which its tensors are contiguous.

    Raises
    ------
    NotApplicable
        Its loops are not written by hand, are contiguous already, or no loop is known to be free.
    """
    nest = _nest_of(func)
    before = _lines(func, machine)
    options = []
    for position in range(len(nest.loops)):
        if _is_free(nest, position):
            changed = _vectorized(func, nest, position, machine)
            options.append((_lines(changed, machine), position, changed))
    if not options:
        raise NotApplicable("no loop is known to be free of dependences")
    lines, position, changed = min(options, key=lambda option: option[:2])
    if lines * LEAST_GAIN > before:
        raise NotApplicable(
            f"vectors along another loop would ask for {lines:,.0f} cache lines, and not for "
            f"{before:,.0f}: that is no gain"
        )
    return CoalescedKernel(changed, str(nest.loops[position].loop_var.name), lines, before)


def _lines(func: tirx.PrimFunc, machine: CpuDescription) -> float:
    """Cache lines that all runs of the accesses to tensors ask for.

    What goes through a line element by element asks for it once.
    """
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    accesses: list[MemoryAccess] = memory_accesses(lowered(mod, machine), machine)
    return sum(one.runs * _lines_of(one) for one in accesses if one.memory == "global")


def _lines_of(access: MemoryAccess) -> float:
    in_a_row = access.pattern == CONTIGUOUS and access.lanes == 1
    return access.element_bytes / LINE_BYTES if in_a_row else access.units


@dataclass(frozen=True)
class _Nest:
    """Loops in one another, outermost first, and what the innermost of these does."""

    loops: tuple[tirx.For, ...]
    body: tirx.Stmt


def is_written_by_hand(func: tirx.PrimFunc) -> bool:
    """Whether a kernel is loops alone, some in others, in one block that no schedule reaches into.

    All of its loops are as they were written: schedules leave vectors, or blocks.
    """
    if not isinstance(func.body, s_tir.SBlockRealize):
        return False
    block = func.body.block
    if len(block.alloc_buffers) or nodes(block.body, s_tir.SBlockRealize):
        return False
    loops = nodes(block.body, tirx.For)
    return bool(loops) and all(one.kind in (_SERIAL, tirx.ForKind.PARALLEL) for one in loops)


def _nest_of(func: tirx.PrimFunc) -> _Nest:
    """The loops around all else in a kernel that is written by hand."""
    if not is_written_by_hand(func):
        raise NotApplicable("the kernel is not loops written by hand")
    loops: list[tirx.For] = []
    stmt = func.body.block.body
    while isinstance(stmt, tirx.For) and stmt.kind in (_SERIAL, tirx.ForKind.PARALLEL):
        loops.append(stmt)
        stmt = stmt.body
    if not loops:
        raise NotApplicable("there is no loop around all others")
    if any(loop.kind != _SERIAL for loop in nodes(stmt, tirx.For)):
        raise NotApplicable("loops within are scheduled already")
    return _Nest(tuple(loops), stmt)


def _is_free(nest: _Nest, position: int) -> bool:
    """Whether a loop's iterations are known not to depend on each other, and to be movable inside.

    They are where each tensor that is written has a dimension whose index is that loop's variable
    alone, in every load and store: each iteration then has a part of its own. Arrays that an
    iteration allocates are its own anyway.
    """
    loop = nest.loops[position]
    extent = static_extent(loop.extent)
    if extent is None or extent < 2 or static_extent(loop.min) != 0:
        return False
    inner = nest.loops[position + 1 :]
    if any(depends(bound, loop.loop_var) for one in inner for bound in (one.min, one.extent)):
        return False
    return _can_be_distributed(nest.body, loop.loop_var) and _has_own_parts(nest, loop.loop_var)


def _has_own_parts(nest: _Nest, var: tirx.Var) -> bool:
    own = [stmt.buffer for stmt in nodes(nest.body, tirx.AllocBuffer)]
    stores = nodes(nest.body, tirx.BufferStore)
    loads = nodes(nest.body, tvm.ir.TensorLoad)
    accesses = [(one.buffer, one.indices) for one in stores]
    accesses += [(one.source, one.indices) for one in loads]
    for written in {hash(one.buffer): one.buffer for one in stores}.values():
        if any(written.same_as(buffer) for buffer in own):
            continue
        indices = [found for buffer, found in accesses if buffer.same_as(written)]
        dimensions = range(len(written.shape))
        if not any(all(found[d].same_as(var) for found in indices) for d in dimensions):
            return False
    return True


def _can_be_distributed(stmt: tirx.Stmt, var: tirx.Var) -> bool:
    """Whether lanes can be put around each store within: what leads there is the same for all."""
    match stmt:
        case tirx.SeqStmt():
            return all(_can_be_distributed(part, var) for part in stmt.seq)
        case tirx.For():
            bounds = (stmt.min, stmt.extent)
            same = not any(depends(one, var) or nodes(one, tvm.ir.TensorLoad) for one in bounds)
            return same and _can_be_distributed(stmt.body, var)
        case tirx.IfThenElse():
            if depends(stmt.condition, var) or nodes(stmt.condition, tvm.ir.TensorLoad):
                return False
            cases = [one for one in (stmt.then_case, stmt.else_case) if one is not None]
            return all(_can_be_distributed(one, var) for one in cases)
        case tirx.AllocBuffer():
            return all(static_extent(size) is not None for size in stmt.buffer.shape)
        case tirx.BufferStore():
            return True
        case _:
            return False


def _vectorized(
    func: tirx.PrimFunc, nest: _Nest, position: int, machine: CpuDescription
) -> tirx.PrimFunc:
    """The kernel with groups of a loop's iterations in the lanes of the innermost statements."""
    loop = nest.loops[position]
    lanes = max(machine.vector_lanes(str(one.buffer.dtype)) for one in _stores(nest))
    extent = static_extent(loop.extent) or 1
    tile = _VECTORS * lanes
    widths = [_row(nest, extent, tile, machine), tile, lanes, *narrower(lanes)]
    others = [one for place, one in enumerate(nest.loops) if place != position]
    steps = extent * math.prod(static_extent(one.extent) or 1 for one in others)
    inner = [static_extent(one.extent) or 1 for one in nodes(nest.body, tirx.For)]
    steps *= max(inner, default=1)
    threads = worth_threads(machine, steps, lanes)
    parts = [
        _part(nest, position, part, min(part[2], tile), threads and number == 0)
        for number, part in enumerate(stretches(extent, widths))
    ]
    changed = with_body(func, sequence(parts))
    # The parts are copies of one another, and each variable may be defined once.
    alone = tirx.transform.ConvertSSA()(tvm.IRModule({"main": changed}))["main"]
    return func.with_body(alone.body)


def _row(nest: _Nest, extent: int, tile: int, machine: CpuDescription) -> int:
    """Iterations of a loop that go side by side: ``tile``, whose own arrays are in registers.

    Tensors that L2 does not hold come faster in longer rows, which are not jumps from page to page,
    and what an iteration keeps for itself waits in L1 then. There is a row for each core.
    """
    if _tensor_bytes(nest) <= machine.l2_bytes:
        return tile
    own = [stmt.buffer for stmt in nodes(nest.body, tirx.AllocBuffer)]
    kept = sum(map(buffer_bytes, own))
    longest = extent // machine.cores
    if kept:
        longest = min(longest, int(machine.l1d_bytes * _SHARE_OF_L1) // kept)
    return max(longest // tile, 1) * tile


def _tensor_bytes(nest: _Nest) -> int:
    """Of all that is read and written, where its sizes are known."""
    own = [stmt.buffer for stmt in nodes(nest.body, tirx.AllocBuffer)]
    loads = [one.source for one in nodes(nest.body, tvm.ir.TensorLoad)]
    accessed = [*loads, *(store.buffer for store in _stores(nest))]
    tensors = {hash(one): one for one in accessed if not any(one.same_as(each) for each in own)}
    return sum(map(buffer_bytes, tensors.values()))


def _stores(nest: _Nest) -> list[tirx.BufferStore]:
    return list(nodes(nest.body, tirx.BufferStore))


def _part(
    nest: _Nest, position: int, part: tuple[int, int, int], tile: int, threads: bool
) -> tirx.Stmt:
    """The loops over groups of iterations, around those that there were, with lanes inside."""
    start, count, width = part
    loop = nest.loops[position]
    dtype = str(loop.loop_var.ty)
    group = tirx.Var("group", dtype)
    first = tirx.const(start, dtype) + group * tirx.const(width, dtype)
    body = _Lanes(loop.loop_var, first, width, tile).spread(nest.body)
    around = [one for place, one in enumerate(nest.loops) if place != position]
    for one in reversed(around):
        body = tirx.For(one.loop_var, one.min, one.extent, one.kind, body)
    kind = tirx.ForKind.PARALLEL if threads and count > 1 else _SERIAL
    is_on_threads = any(one.kind == tirx.ForKind.PARALLEL for one in around)
    kind = _SERIAL if is_on_threads else kind
    return tirx.For(group, tirx.const(0, dtype), tirx.const(count, dtype), kind, body)


class _Lanes:
    """Writes statements for ``width`` iterations of a loop at a time, from ``first`` on.

    They are ``tile`` lanes of vectors; where there are more, a loop goes over tiles.
    """

    def __init__(self, var: tirx.Var, first: tirx.Expr, width: int, tile: int) -> None:
        self._var, self._width, self._tile = var, width, tile
        self._lane, self._row = (tirx.Var(name, str(var.ty)) for name in ("lane", "tile"))
        self._inside = self._lane + self._row * self._number(tile) if width > tile else self._lane
        self._place = first + self._inside
        self._arrays: list[tuple[tirx.Buffer, tirx.Buffer]] = []

    def spread(self, stmt: tirx.Stmt) -> tirx.Stmt:
        """The statement for all lanes."""
        match stmt:
            case tirx.SeqStmt():
                groups = itertools.groupby(stmt.seq, lambda one: isinstance(one, tirx.BufferStore))
                return sequence([part for group in groups for part in self._parts(*group)])
            case tirx.For():
                body = self.spread(stmt.body)
                return tirx.For(stmt.loop_var, stmt.min, stmt.extent, stmt.kind, body)
            case tirx.IfThenElse():
                otherwise = None if stmt.else_case is None else self.spread(stmt.else_case)
                return tirx.IfThenElse(stmt.condition, self.spread(stmt.then_case), otherwise)
            case tirx.AllocBuffer():
                return tirx.AllocBuffer(self._array(stmt.buffer))
            case _:
                return self._over_tiles([stmt])

    def _parts(self, are_stores: bool, parts: Iterable[tirx.Stmt]) -> list[tirx.Stmt]:
        """Neighbouring stores go over tiles together."""
        return (
            [self._over_tiles(list(parts))] if are_stores else [self.spread(one) for one in parts]
        )

    def _over_tiles(self, stores: list[tirx.BufferStore]) -> tirx.Stmt:
        vectors = sequence([self._in_lanes(store) for store in stores])
        if self._width == self._tile:
            return vectors
        count = self._number(self._width // self._tile)
        return tirx.For(self._row, self._number(0), count, _SERIAL, vectors)

    def _number(self, value: int) -> tirx.Expr:
        return tirx.const(value, str(self._var.ty))

    def _array(self, buffer: tirx.Buffer) -> tirx.Buffer:
        """An array with the elements of all lanes side by side."""
        shape = [*buffer.shape, tirx.const(self._width, str(buffer.shape[0].ty))]
        array = tirx.decl_buffer(shape, str(buffer.dtype), str(buffer.name), scope=buffer.scope())
        self._arrays.append((buffer, array))
        return array

    def _in_lanes(self, store: tirx.BufferStore) -> tirx.Stmt:
        def array(buffer: tirx.Buffer) -> tirx.Buffer | None:
            return next((new for old, new in self._arrays if old.same_as(buffer)), None)

        def load(node: Any) -> Any:
            own = array(node.source)
            return node if own is None else tirx.BufferLoad(own, [*node.indices, self._inside])

        def variable(var: Any) -> Any:
            return self._place if var.same_as(self._var) else var

        def here(expr: Any) -> Any:
            return structural_map(
                structural_map(expr, (tvm.ir.TensorLoad, load)), (tvm.ir.Var, variable)
            )

        indices = [here(index) for index in store.indices]
        target = array(store.buffer)
        if target is not None:
            indices.append(self._inside)
        written = store.buffer if target is None else target
        inner = tirx.BufferStore(written, here(store.value), indices)
        kind = tirx.ForKind.VECTORIZED if self._tile > 1 else _SERIAL
        return tirx.For(self._lane, self._number(0), self._number(self._tile), kind, inner)
