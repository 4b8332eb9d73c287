"""Plans a kernel block by block: how each is cut, and which tiles have to come from other PEs.

Between kernels a tensor lies cut by its two largest axes over the same grid as the largest block.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from tvm_ext.hardware.mesh_description import MeshDescription
from tvm_ext.tir_schedules.block_access import constant_parameter, static_extent
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions
from tvm_ext.tir_schedules.flat_views import nodes
from tvm_ext.tir_schedules.rows.row_kernel import buffer_key
from tvm_ext.tir_schedules.wafer.annotations import COLUMN, ROW, Pattern
from tvm_ext.tir_schedules.wafer.block_statements import Change, Stage
from tvm_ext.tir_schedules.wafer.broadcasts import broadcast_pattern
from tvm_ext.tir_schedules.wafer.dimensions import plain_block_refusal, volume
from tvm_ext.tir_schedules.wafer.guarded_loads import GuardedLoad, guarded_loads, with_loads
from tvm_ext.tir_schedules.wafer.layouts import (
    Layout,
    axes_read,
    home_layout,
    home_words,
    largest_two,
    layout_written,
    lines_followed,
)
from tvm_ext.tir_schedules.wafer.mesh_cut import MeshCut, pick_pieces

# A sum that reads a tensor more often than this, on average, reads it by windows.
_MOST_READS = 2


@dataclass(frozen=True)
class BlockPlan:
    """What becomes of one block.

    Attributes
    ----------
    cut : MeshCut
        By positions of its iteration variables.
    change : Change or None
        Tensors that hold what it reads, in the order in which it reads it; None if there are none.
    patterns : tuple[str, ...]
        How each of these comes to the PEs.
    windows : tuple[tuple[Buffer, str], ...]
        Tensors that come as they lie, in boxes around what is read, and how.
    """

    cut: MeshCut
    change: Change | None = None
    patterns: tuple[str, ...] = ()
    windows: tuple[tuple[Any, str], ...] = ()


@dataclass
class TilePlan:
    """The plans of all blocks, and where the kernel's operands lie.

    Attributes
    ----------
    blocks : list[BlockPlan]
        In program order.
    homes : dict[int, str]
        By position of a parameter, as annotations say it.
    """

    blocks: list[BlockPlan] = field(default_factory=list)
    homes: dict[int, str] = field(default_factory=dict)


def plan_tiles(
    func: tirx.PrimFunc,
    stmts: Sequence[s_tir.SBlock],
    machine: MeshDescription,
    decisions: Decisions,
) -> TilePlan:
    """The plan for ``stmts``, the blocks of ``func``; their extents are known.

    The grid is decided for the block with the largest result.
    """
    largest = max(range(len(stmts)), key=lambda i: (_results(stmts[i]), volume(stmts[i])))
    most = _cut(stmts[largest], machine.rows, machine.columns, decisions)
    planner = _Planner(func, most.rows, most.columns)
    plan = TilePlan()
    for number, stmt in enumerate(stmts):
        cut = most if number == largest else _cut(stmt, most.rows, most.columns, CLOSED_FORM)
        plan.blocks.append(planner.block(stmt, cut))
    plan.homes = planner.homes()
    return plan


def _results(stmt: s_tir.SBlock) -> int:
    return math.prod(
        static_extent(one.dom.extent) or 1
        for one in stmt.iter_vars
        if one.iter_type == tirx.IterVar.DataPar
    )


def _cut(stmt: s_tir.SBlock, rows: int, columns: int, decisions: Decisions) -> MeshCut:
    """The two largest loops of a block's result, or the only one over the rows."""
    loops = [
        (position, static_extent(one.dom.extent) or 1)
        for position, one in enumerate(stmt.iter_vars)
        if one.iter_type == tirx.IterVar.DataPar
    ]
    chosen = largest_two(loops)
    if not chosen:
        return MeshCut(None, None)
    row, row_extent = chosen[0]
    row_pieces = pick_pieces("rows", row_extent, rows, decisions)
    if len(chosen) == 1:
        return MeshCut(row, None, row_pieces)
    column, column_extent = chosen[1]
    return MeshCut(
        row, column, row_pieces, pick_pieces("columns", column_extent, columns, decisions)
    )


class _Planner:
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

    def block(self, stmt: s_tir.SBlock, cut: MeshCut) -> BlockPlan:
        """The plan of one block; those before it came before."""
        if plain_block_refusal(stmt) is not None:
            return BlockPlan(cut)
        stages: list[Stage] = []
        patterns: list[str] = []
        windows: dict[int, tuple[Any, str]] = {}
        replaced: dict[Any, Any] = {}
        written = stmt.writes[0]
        for one in guarded_loads(stmt.body.value):
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
        return BlockPlan(cut, change, tuple(patterns), tuple(windows.values()))

    def _pattern(self, stmt: s_tir.SBlock, cut: MeshCut, one: GuardedLoad) -> str | None:
        """How elements come to the PEs that need them; None if they are there, or may be."""
        buffer = one.load.source
        if constant_parameter(self._func, buffer) is not None:
            # It lies where it is used, unless nobody knows where that is.
            if not one.is_known():
                self._lies(buffer, ())
            return None
        indices = list(one.load.indices)
        lies = self._lies(buffer, axes_read(stmt, buffer, indices, cut))
        if not one.is_known():
            return None
        lines = lines_followed(stmt, buffer, indices, cut, lies)
        if lines is None:
            return Pattern.GATHER
        return broadcast_pattern(
            cut.rows > 1 and ROW not in lines, cut.columns > 1 and COLUMN not in lines
        )

    def _lies(self, buffer: Any, along: Sequence[str]) -> Layout | None:
        """Where a tensor lies: where it was written, or by its two largest axes.

        ``along`` says for each axis how the first reader has it cut.
        """
        key = buffer_key(buffer)
        if key not in self._layouts and any(buffer.same_as(one) for one in self._func.params):
            self._layouts[key] = self._stated[key] = home_layout(buffer, self._grid, along)
        return self._layouts.get(key)

    def _stage(self, one: GuardedLoad, over: tuple[Any, ...]) -> Stage:
        """A tensor of what is read, in the order in which the block goes over it."""
        name = f"{one.load.source.name}_tile"
        self._names.append(name)
        count = self._names.count(name)
        name = name if count == 1 else f"{name}{count}"
        shape = [var.dom.extent for var in over]
        return Stage(tirx.decl_buffer(shape, str(one.load.ty), name), over, one.value())


def _variables(stmt: s_tir.SBlock, one: GuardedLoad) -> tuple[Any, ...]:
    """The iteration variables of a block that move what it reads."""
    roots = [*one.load.indices, *([] if one.condition is None else [one.condition])]
    used = {buffer_key(var) for root in roots for var in nodes(root, tvm.ir.Var)}
    return tuple(var for var in stmt.iter_vars if buffer_key(var.var) in used)


def _overlaps(stmt: s_tir.SBlock, load: Any, over: tuple[Any, ...]) -> bool:
    """Whether a sum reads elements many times."""
    if all(one.iter_type == tirx.IterVar.DataPar for one in stmt.iter_vars):
        return False
    reads = math.prod(static_extent(one.dom.extent) or 1 for one in over)
    elements = math.prod(static_extent(size) or 1 for size in load.source.shape)
    return reads > _MOST_READS * elements
