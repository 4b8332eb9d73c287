"""Attention with online softmax: scores never leave the registers."""

from tvm import s_tir, tirx

from tvm_ext.hardware.description import GpuDescription
from tvm_ext.tir_schedules.cuda.attention.attention_decision import decide_attention
from tvm_ext.tir_schedules.cuda.attention.attention_lanes import LaneAttention
from tvm_ext.tir_schedules.cuda.attention.attention_problem import read_problem
from tvm_ext.tir_schedules.cuda.attention.attention_warps import WarpAttention
from tvm_ext.tir_schedules.cuda.elementwise import with_arrays
from tvm_ext.tir_schedules.cuda.launch import Arrays
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions
from tvm_ext.tir_schedules.flat_views import FlatViews
from tvm_ext.tir_schedules.template import Machine, NotMine


class Attention:
    """Functions that the pass ``AttentionFusion`` made."""

    name = "attention"

    def apply(
        self, func: tirx.PrimFunc, machine: Machine, decisions: Decisions = CLOSED_FORM
    ) -> s_tir.Schedule | NotMine:
        """See ``Template.apply``. Decisions: those of ``decide_attention``."""
        if not isinstance(machine, GpuDescription):
            return NotMine("the target is not an NVIDIA GPU")
        views = FlatViews()
        problem = read_problem(func, views)
        if isinstance(problem, NotMine):
            return problem
        tiles = decide_attention(problem, machine, decisions)
        if isinstance(tiles, NotMine):
            return tiles
        arrays = Arrays("int32")
        kernel = WarpAttention if tiles.kind.on_tensor_cores else LaneAttention
        code = kernel(problem, tiles, arrays).write()
        return s_tir.Schedule(with_arrays(func, views, code, arrays))


def refusal(func: tirx.PrimFunc, machine: GpuDescription) -> str:
    """Why there is no kernel for a fused attention; empty when there is one."""
    problem = read_problem(func, FlatViews())
    if isinstance(problem, NotMine):
        return problem.reason
    tiles = decide_attention(problem, machine, CLOSED_FORM)
    return tiles.reason if isinstance(tiles, NotMine) else ""
