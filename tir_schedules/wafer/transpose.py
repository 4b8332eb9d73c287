"""Kernels that only move data, on a mesh: transposition, reshape, concatenation, slices."""

from collections.abc import Sequence

import tvm
from tvm import s_tir, tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.wafer.description import WaferDescription
from tvm_ext.tir_schedules.analysis.buffer_access import (
    is_conditional,
    kernel_blocks,
    static_extent,
)
from tvm_ext.tir_schedules.analysis.dimensions import loop_index, plain_block_refusal
from tvm_ext.tir_schedules.analysis.guarded_loads import guarded_loads
from tvm_ext.tir_schedules.inlining import inlined_schedule
from tvm_ext.tir_schedules.template import Decisions
from tvm_ext.tir_schedules.wafer.block_statements import reduces_or_scans, share_loops
from tvm_ext.tir_schedules.wafer.blockwise import schedule_tiles
from tvm_ext.tir_schedules.wafer.tile_plan import plan_tiles


class WaferTranspose:
    """Kernels that compute nothing and put elements elsewhere.

    The result is cut over rows and columns by its two largest axes, and every operand by its own.
    A PE gathers its tile from wherever that lies.
    """

    name = "wafer transpose"
    machine_type = WaferDescription

    def apply(
        self, func: tirx.PrimFunc, machine: WaferDescription, decisions: Decisions
    ) -> s_tir.Schedule:
        """See ``Template.apply``."""
        if reduces_or_scans(func):
            raise NotApplicable("the kernel reduces or scans")
        if share_loops(func):
            raise NotApplicable("blocks share loops")
        sch = inlined_schedule(func)
        stmts = [sch.get(block) for block in kernel_blocks(sch)]
        _refuse(stmts)
        return schedule_tiles(sch, plan_tiles(func, stmts, machine, decisions))


def _refuse(stmts: Sequence[s_tir.SBlock]) -> None:
    elsewhere = False
    for stmt in stmts:
        reason = plain_block_refusal(stmt)
        if reason is not None:
            raise NotApplicable(reason)
        if not _only_moves(stmt.body.value):
            raise NotApplicable("it computes values")
        loads = guarded_loads(stmt.body.value)
        if not all(one.is_known() for one in loads):
            raise NotApplicable("an index depends on data")
        elsewhere |= any(_is_elsewhere(stmt, one.load) for one in loads)
    if not elsewhere:
        raise NotApplicable("every element stays at its index")


def _only_moves(value: tvm.ir.Expr) -> bool:
    """Whether an expression is one of the elements that it reads, or a constant."""
    if isinstance(value, tirx.Cast):
        return _only_moves(value.value)
    if isinstance(value, tirx.Select):
        return _only_moves(value.true_value) and _only_moves(value.false_value)
    if is_conditional(value):
        return _only_moves(value.args[1]) and _only_moves(value.args[2])
    return isinstance(value, tvm.ir.TensorLoad | tirx.IntImm | tirx.FloatImm)


def _is_elsewhere(stmt: s_tir.SBlock, load: tvm.ir.TensorLoad) -> bool:
    """Whether the axes of what is read are not those of the result, in their order."""
    pairs = zip(load.source.shape, load.indices, strict=True)
    places = [loop_index(stmt, size, index) for size, index in pairs if static_extent(size) != 1]
    known = [place for place in places if place is not None]
    return len(known) < len(places) or known != sorted(known)
