"""Attention by the instructions of warp groups, on GPUs of compute capability 9.0a."""

from tvm import s_tir, tirx

from tvm_ext.hardware.description import GpuDescription
from tvm_ext.tir_schedules.cuda.attention.attention_problem import AttentionProblem, read_problem
from tvm_ext.tir_schedules.cuda.elementwise import with_arrays
from tvm_ext.tir_schedules.cuda.launch import Arrays
from tvm_ext.tir_schedules.cuda.warp_group_attention.group_decision import decide_group_attention
from tvm_ext.tir_schedules.cuda.warp_group_attention.group_instructions import PTX_TYPES
from tvm_ext.tir_schedules.cuda.warp_group_attention.group_kernel import GroupAttentionKernel
from tvm_ext.tir_schedules.cuda.warp_group_attention.head_boxes import HeadBoxes
from tvm_ext.tir_schedules.cuda.warp_groups.tensor_map import ALIGNMENT
from tvm_ext.tir_schedules.cuda.warp_groups.warp_group_contraction import ARCHITECTURE
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions
from tvm_ext.tir_schedules.flat_views import FlatViews
from tvm_ext.tir_schedules.template import Machine, NotMine


class WarpGroupAttention:
    """Functions that the pass ``AttentionFusion`` made, with enough rows for warp groups."""

    name = "warp group attention"

    def apply(
        self, func: tirx.PrimFunc, machine: Machine, decisions: Decisions = CLOSED_FORM
    ) -> s_tir.Schedule | NotMine:
        """See ``Template.apply``. Decisions: those of ``decide_group_attention``."""
        if not isinstance(machine, GpuDescription):
            return NotMine("the target is not an NVIDIA GPU")
        if machine.arch != ARCHITECTURE:
            return NotMine(f"{machine.arch} has no instructions of warp groups")
        views = FlatViews()
        problem = read_problem(func, views)
        if isinstance(problem, NotMine):
            return problem
        obstacle = _obstacle(problem)
        if obstacle is not None:
            return obstacle
        tiles = decide_group_attention(problem, machine, decisions)
        if isinstance(tiles, NotMine):
            return tiles
        arrays = Arrays("int32")
        kernel = GroupAttentionKernel(problem, tiles, machine.sms, arrays)
        return s_tir.Schedule(with_arrays(func, views, kernel.statements(), arrays))


def _obstacle(problem: AttentionProblem) -> NotMine | None:
    """What the instructions cannot do."""
    dtype = problem.query.dtype
    if dtype not in PTX_TYPES:
        return NotMine(f"operands are of {dtype}, not of a type of 16 bits")
    if problem.key.size("h") != problem.value.size("h"):
        return NotMine("keys and values have different numbers of heads")
    for tensor in (problem.query, problem.key, problem.value):
        if not HeadBoxes.of(tensor).operand.is_aligned:
            name = tensor.buffer.name
            return NotMine(f"rows of {name} do not begin at multiples of {ALIGNMENT} bytes")
    return None
