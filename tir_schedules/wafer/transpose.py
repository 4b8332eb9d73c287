"""Kernels that only move data, on a mesh: transposition, reshape, concatenation, slices."""

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import s_tir, tirx

from tvm_ext.hardware.mesh_description import MeshDescription
from tvm_ext.tir_schedules.block_access import static_extent
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions
from tvm_ext.tir_schedules.inlining import inline_blocks, kernel_blocks
from tvm_ext.tir_schedules.template import Machine, NotMine
from tvm_ext.tir_schedules.wafer.block_statements import reduces_or_scans, share_loops
from tvm_ext.tir_schedules.wafer.block_tiles import schedule_tiles
from tvm_ext.tir_schedules.wafer.dimensions import loop_index, plain_block_refusal
from tvm_ext.tir_schedules.wafer.guarded_loads import CONDITIONAL, guarded_loads
from tvm_ext.tir_schedules.wafer.tile_plan import plan_tiles


class MeshTranspose:
    """Kernels that compute nothing and put elements elsewhere.

    The result is cut over rows and columns by its two largest axes, and every operand by its own.
    A PE gathers its tile from wherever that lies.
    """

    name = "mesh transpose"

    def apply(
        self, func: tirx.PrimFunc, machine: Machine, decisions: Decisions = CLOSED_FORM
    ) -> s_tir.Schedule | NotMine:
        """See ``Template.apply``."""
        if not isinstance(machine, MeshDescription):
            return NotMine("the target is not a mesh")
        if reduces_or_scans(func):
            return NotMine("the kernel reduces or scans")
        if share_loops(func):
            return NotMine("blocks share loops")
        sch = s_tir.Schedule(func)
        inline_blocks(sch)
        stmts = [sch.get(block) for block in kernel_blocks(sch)]
        refusal = _refuse(stmts)
        if refusal is not None:
            return refusal
        return schedule_tiles(sch, plan_tiles(func, stmts, machine, decisions))


def _refuse(stmts: Sequence[s_tir.SBlock]) -> NotMine | None:
    elsewhere = False
    for stmt in stmts:
        reason = plain_block_refusal(stmt)
        if reason is not None:
            return NotMine(reason)
        if not _only_moves(stmt.body.value):
            return NotMine("it computes values")
        loads = guarded_loads(stmt.body.value)
        if not all(one.is_known() for one in loads):
            return NotMine("an index depends on data")
        elsewhere |= any(_is_elsewhere(stmt, one.load) for one in loads)
    return None if elsewhere else NotMine("every element stays at its index")


def _only_moves(value: Any) -> bool:
    """Whether an expression is one of the elements that it reads, or a constant."""
    if isinstance(value, tirx.Cast):
        return _only_moves(value.value)
    if isinstance(value, tirx.Select):
        return _only_moves(value.true_value) and _only_moves(value.false_value)
    if isinstance(value, tvm.ir.Call) and value.op.same_as(CONDITIONAL):
        return _only_moves(value.args[1]) and _only_moves(value.args[2])
    return isinstance(value, tvm.ir.TensorLoad | tirx.IntImm | tirx.FloatImm)


def _is_elsewhere(stmt: s_tir.SBlock, load: Any) -> bool:
    """Whether the axes of what is read are not those of the result, in their order."""
    pairs = zip(load.source.shape, load.indices, strict=True)
    places = [loop_index(stmt, size, index) for size, index in pairs if static_extent(size) != 1]
    known = [place for place in places if place is not None]
    return len(known) < len(places) or known != sorted(known)
