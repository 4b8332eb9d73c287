"""Plans a kernel block by block: how each is cut, and which tiles have to come from other PEs.

Between kernels a tensor lies cut by its two largest axes over the same grid as the largest
block.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from tvm_ext.hardware.wafer.description import WaferDescription
from tvm_ext.tir_schedules.analysis.buffer_access import (
    among,
    constant_parameter,
    nodes,
    static_extent,
)
from tvm_ext.tir_schedules.analysis.dimensions import (
    loop_index,
    loop_indices,
    plain_block_refusal,
    volume,
)
from tvm_ext.tir_schedules.analysis.guarded_loads import (
    GuardedLoad,
    each_element_once,
    guarded_loads,
)
from tvm_ext.tir_schedules.analysis.row_kernel import buffer_key
from tvm_ext.tir_schedules.template import DEFAULT_DECISIONS, Decisions
from tvm_ext.tir_schedules.wafer.annotations import COLUMN, ROW, WHOLE, Pattern
from tvm_ext.tir_schedules.wafer.block_statements import Change, Stage
from tvm_ext.tir_schedules.wafer.mesh_partition import (
    MeshPartition,
    broadcast_pattern,
    largest_two,
    pick_pieces,
)

# Where the pieces of a tensor lie on a mesh, and whether a block finds what it reads in its PE.


# For each axis of a tensor, "row", "column" or "-", and the elements of one piece.
Layout = tuple[tuple[str, int], ...]


def home_layout(buffer: tirx.Buffer, grid: Mapping[str, int], axes: Sequence[str]) -> Layout:
    """A tensor cut by its two largest axes over a grid, the first of them over the rows.

    A vector lies along the line of PEs that ``axes`` names for it, if it does.
    """
    sizes = [static_extent(size) or 1 for size in buffer.shape]
    chosen = [position for position, _ in largest_two(list(enumerate(sizes)))]
    lines = dict(zip(chosen, (ROW, COLUMN), strict=False))
    if len(chosen) == 1 and axes and axes[chosen[0]] != WHOLE:
        lines = {chosen[0]: axes[chosen[0]]}
    return tuple(
        (lines[i], -(-size // grid[lines[i]])) if i in lines else (WHOLE, size)
        for i, size in enumerate(sizes)
    )


def home_words(layout: Layout, grid: Mapping[str, int]) -> str:
    """A layout as annotations of homes say it."""
    return " ".join(WHOLE if axis == WHOLE else f"{axis}/{grid[axis]}" for axis, _ in layout)


def axes_read(
    stmt: s_tir.SBlock, buffer: tirx.Buffer, indices: Sequence[tvm.ir.Expr], cut: MeshPartition
) -> list[str]:
    """For each axis of a tensor, what of the mesh the loop is that goes over all of it.

    ``cut`` is by positions of iteration variables of ``stmt``.
    """
    return [
        WHOLE if static_extent(size) == 1 else cut.axis_of(loop_index(stmt, size, index))
        for size, index in zip(buffer.shape, indices, strict=True)
    ]


def layout_written(
    stmt: s_tir.SBlock, region: tvm.ir.TensorRegion, cut: MeshPartition
) -> Layout | None:
    """Which piece of its result a PE writes; None where it is no piece."""
    positions = loop_indices(stmt, region)
    if positions is None:
        return None
    return tuple(
        (cut.axis_of(position), -(-(static_extent(size) or 1) // cut.pieces(position)))
        for position, size in zip(positions, region.source.shape, strict=True)
    )


def lines_followed(
    stmt: s_tir.SBlock,
    buffer: tirx.Buffer,
    indices: Sequence[tvm.ir.Expr],
    cut: MeshPartition,
    lies: Layout | None,
) -> set[str] | None:
    """Along which lines of PEs a tensor is cut, if each PE has all that it reads of it.

    None if it has not, or if nobody knows where the tensor ``lies``. An axis that is not cut may be
    read at any place.
    """
    if lies is None:
        return None
    for size, index, (axis, piece) in zip(buffer.shape, indices, lies, strict=True):
        extent = static_extent(size) or 1
        if piece == extent:
            continue
        position = loop_index(stmt, size, index)
        if cut.axis_of(position) != axis or -(-extent // cut.pieces(position)) != piece:
            return None
    return {axis for axis, _ in lies}


def with_loads(value: tvm.ir.Expr, replaced: Mapping[Any, Any]) -> tvm.ir.Expr:
    """``value`` with other expressions in the place of loads, by their structural keys."""

    def visit(node: Any, mutator: Any) -> Any:
        if isinstance(node, tvm.ir.TensorLoad) and tvm_ffi.StructuralKey(node) in replaced:
            return replaced[tvm_ffi.StructuralKey(node)]
        return mutator.default_mutate(node)

    return tvm_ffi.structural_mutate(value, [(tvm.ir.Expr, visit)])


# A sum that reads a tensor more often than this, on average, reads it by windows.
_MOST_READS = 2


@dataclass(frozen=True)
class WaferBlockPlan:
    """What becomes of one block.

    Attributes
    ----------
    cut : MeshPartition
        By positions of its iteration variables.
    change : Change or None
        Tensors that hold what it reads, in the order in which it reads it; None if there are none.
    patterns : tuple[str, ...]
        How each of these comes to the PEs.
    windows : tuple[tuple[Buffer, str], ...]
        Tensors that come as they lie, in boxes around what is read, and how.
    """

    cut: MeshPartition
    change: Change | None = None
    patterns: tuple[str, ...] = ()
    windows: tuple[tuple[Any, str], ...] = ()


@dataclass
class TilePlan:
    """The plans of all blocks, and where the kernel's operands lie.

    Attributes
    ----------
    blocks : list[WaferBlockPlan]
        In program order.
    homes : dict[int, str]
        By position of a parameter, as annotations say it.
    """

    blocks: list[WaferBlockPlan] = field(default_factory=list)
    homes: dict[int, str] = field(default_factory=dict)


def plan_tiles(
    func: tirx.PrimFunc,
    stmts: Sequence[s_tir.SBlock],
    machine: WaferDescription,
    decisions: Decisions,
) -> TilePlan:
    """The plan for ``stmts``, the blocks of ``func``; their extents are known.

    The grid is decided for the block with the largest result.
    """
    largest = max(range(len(stmts)), key=lambda i: (_results(stmts[i]), volume(stmts[i])))
    most = _cut(stmts[largest], machine.rows, machine.columns, decisions)
    planner = _TilePlanner(func, most.rows, most.columns)
    plan = TilePlan()
    for number, stmt in enumerate(stmts):
        cut = most if number == largest else _cut(stmt, most.rows, most.columns, DEFAULT_DECISIONS)
        plan.blocks.append(planner.block(stmt, cut))
    plan.homes = planner.homes()
    return plan


def _results(stmt: s_tir.SBlock) -> int:
    return math.prod(
        static_extent(one.dom.extent) or 1
        for one in stmt.iter_vars
        if one.iter_type == tirx.IterVar.DataPar
    )


def _cut(stmt: s_tir.SBlock, rows: int, columns: int, decisions: Decisions) -> MeshPartition:
    """The two largest loops of a block's result, or the only one over the rows."""
    loops = [
        (position, static_extent(one.dom.extent) or 1)
        for position, one in enumerate(stmt.iter_vars)
        if one.iter_type == tirx.IterVar.DataPar
    ]
    chosen = largest_two(loops)
    if not chosen:
        return MeshPartition(None, None)
    row, row_extent = chosen[0]
    row_pieces = pick_pieces("rows", row_extent, rows, decisions)
    if len(chosen) == 1:
        return MeshPartition(row, None, row_pieces)
    column, column_extent = chosen[1]
    return MeshPartition(
        row, column, row_pieces, pick_pieces("columns", column_extent, columns, decisions)
    )


class _TilePlanner:
    """Remembers where tensors lie while it goes through the blocks."""

    def __init__(self, func: tirx.PrimFunc, rows: int, columns: int) -> None:
        self._func = func
        self._grid = {ROW: rows, COLUMN: columns}
        self._layouts: dict[int, Layout | None] = {}
        self._stated: dict[int, Layout] = {}
        self._names: list[str] = []

    def homes(self) -> dict[int, str]:
        """Where parameters lie that are read."""
        found = {}
        for position, param in enumerate(self._func.params):
            layout = self._stated.get(buffer_key(param))
            if layout is not None:
                found[position] = home_words(layout, self._grid)
        return found

    def block(self, stmt: s_tir.SBlock, cut: MeshPartition) -> WaferBlockPlan:
        """The plan of one block; those before it came before."""
        if plain_block_refusal(stmt) is not None:
            return WaferBlockPlan(cut)
        stages: list[Stage] = []
        patterns: list[str] = []
        windows: dict[int, tuple[Any, str]] = {}
        replaced: dict[Any, Any] = {}
        written = stmt.writes[0]
        for one in each_element_once(guarded_loads(stmt.body.value)):
            if one.load.source.same_as(written.source):
                continue
            pattern = self._pattern(stmt, cut, one)
            if pattern is None:
                continue
            over = _variables(stmt, one)
            if not over or _overlaps(stmt, one.load, over):
                windows[buffer_key(one.load.source)] = (one.load.source, pattern)
                continue
            stage = self._stage(one, over)
            stages.append(stage)
            patterns.append(pattern)
            replaced[tvm_ffi.StructuralKey(one.load)] = stage.load()
        self._layouts[buffer_key(written.source)] = layout_written(stmt, written, cut)
        change = None
        if stages:
            change = Change(tuple(stages), with_loads(stmt.body.value, replaced))
        return WaferBlockPlan(cut, change, tuple(patterns), tuple(windows.values()))

    def _pattern(self, stmt: s_tir.SBlock, cut: MeshPartition, guarded: GuardedLoad) -> str | None:
        """How elements come to the PEs that need them; None if they are there, or may be."""
        buffer = guarded.load.source
        if constant_parameter(self._func, buffer) is not None:
            # It lies where it is used, unless nobody knows where that is.
            if not guarded.is_known():
                self._lies(buffer, ())
            return None
        indices = list(guarded.load.indices)
        lies = self._lies(buffer, axes_read(stmt, buffer, indices, cut))
        if not guarded.is_known():
            return None
        lines = lines_followed(stmt, buffer, indices, cut, lies)
        if lines is None:
            return Pattern.GATHER
        return broadcast_pattern(
            cut.rows > 1 and ROW not in lines, cut.columns > 1 and COLUMN not in lines
        )

    def _lies(self, buffer: tirx.Buffer, along: Sequence[str]) -> Layout | None:
        """Where a tensor lies: where it was written, or by its two largest axes.

        ``along`` says for each axis how the first reader has it cut.
        """
        key = buffer_key(buffer)
        if key not in self._layouts and among(buffer, self._func.params):
            self._layouts[key] = self._stated[key] = home_layout(buffer, self._grid, along)
        return self._layouts.get(key)

    def _stage(self, guarded: GuardedLoad, over: tuple[tvm.ir.Expr, ...]) -> Stage:
        """A tensor of what is read, in the order in which the block goes over it."""
        name = f"{guarded.load.source.name}_tile"
        self._names.append(name)
        count = self._names.count(name)
        name = name if count == 1 else f"{name}{count}"
        shape = [var.dom.extent for var in over]
        return Stage(tirx.decl_buffer(shape, str(guarded.load.ty), name), over, guarded.value())


def _variables(stmt: s_tir.SBlock, guarded: GuardedLoad) -> tuple[tvm.ir.Expr, ...]:
    """The iteration variables of a block that move what it reads."""
    roots = [*guarded.load.indices, *([] if guarded.condition is None else [guarded.condition])]
    used = {buffer_key(var) for root in roots for var in nodes(root, tvm.ir.Var)}
    return tuple(var for var in stmt.iter_vars if buffer_key(var.var) in used)


def _overlaps(stmt: s_tir.SBlock, load: tvm.ir.TensorLoad, over: tuple[tvm.ir.Expr, ...]) -> bool:
    """Whether a sum reads elements many times."""
    if all(one.iter_type == tirx.IterVar.DataPar for one in stmt.iter_vars):
        return False
    reads = math.prod(static_extent(one.dom.extent) or 1 for one in over)
    elements = math.prod(static_extent(size) or 1 for size in load.source.shape)
    return reads > _MOST_READS * elements
