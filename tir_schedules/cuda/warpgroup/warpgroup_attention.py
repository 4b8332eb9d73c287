"""Attention by warpgroup instructions (wgmma), on GPUs of compute capability 9.0a."""

import tvm
from tvm import s_tir, tirx
from tvm.tirx.buffer import buffer_data

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.hardware.matrix_instructions import WARPGROUP_ARCHITECTURE
from tvm_ext.tir_schedules.cuda.attention.online_softmax import INDEX, number
from tvm_ext.tir_schedules.cuda.launch import Arrays, alone, bound, guarded
from tvm_ext.tir_schedules.cuda.warpgroup import warpgroup_instructions as hopper
from tvm_ext.tir_schedules.cuda.warpgroup.tma import ALIGNMENT
from tvm_ext.tir_schedules.cuda.warpgroup.warpgroup_attention_decision import (
    REGISTERS,
    HeadBoxes,
    WarpgroupAttentionLayout,
    WarpgroupAttentionTiles,
    decide_group_attention,
)
from tvm_ext.tir_schedules.cuda.warpgroup.warpgroup_attention_mainloop import (
    AttentionTileScheduler,
    WarpgroupAttentionLoads,
    WarpgroupAttentionMatmuls,
    WarpgroupAttentionPipeline,
)
from tvm_ext.tir_schedules.cuda.warpgroup.warpgroup_instructions import ACROSS
from tvm_ext.tir_schedules.operators.attention_problem import AttentionProblem, read_problem
from tvm_ext.tir_schedules.statements import FlatViews, sequence
from tvm_ext.tir_schedules.template import Decisions

# The kernel of attention by warpgroups: one brings keys and values, the others multiply.


class WarpgroupAttentionKernel:
    """Writes the kernel: statements, and what they allocate to ``arrays``."""

    def __init__(
        self, problem: AttentionProblem, tiles: WarpgroupAttentionTiles, sms: int, arrays: Arrays
    ) -> None:
        self.problem, self.tiles, self.sms, self.arrays = problem, tiles, sms, arrays
        layout = WarpgroupAttentionLayout(problem, tiles)
        size = (layout.shared_bytes,)
        self.shared = arrays.allocated("stages", size, "uint8", "shared.dyn")
        self.pipeline = WarpgroupAttentionPipeline(layout, arrays)
        self.copies = WarpgroupAttentionLoads(self._new_tiles(), self.pipeline)

    def statements(self) -> list[tirx.Stmt]:
        """Tensor maps on the host, and the launch."""

        def threads(block: tvm.ir.Expr) -> tirx.Stmt:
            return bound("threadIdx.x", self.tiles.threads, INDEX, lambda t: self._block(block, t))

        launch = bound("blockIdx.x", self.copies.tiles.grid, INDEX, threads)
        return [*self.copies.on_host(), alone(launch)]

    def _new_tiles(self) -> AttentionTileScheduler:
        return AttentionTileScheduler(self.problem, self.tiles, self.sms)

    def _block(self, block: tvm.ir.Expr, thread: tvm.ir.Expr) -> tirx.Stmt:
        few, many = REGISTERS[self.tiles.groups]
        first = tirx.EQ(thread, number(0))
        copies = [
            hopper.change_registers(few, more=False),
            guarded(first, self.copies.statements(block)),
        ]
        multiplying = WarpgroupAttentionMatmuls(
            self._new_tiles(), self.pipeline, self.arrays, thread
        )
        products = [hopper.change_registers(many, more=True), multiplying.statements(block)]
        prepared = sequence([*self.copies.prefetched(), *self.pipeline.prepared()])
        copying = tirx.LT(thread, number(hopper.WARPGROUP))
        return sequence(
            [
                tirx.Bind(self.pipeline.base, hopper.shared_address(buffer_data(self.shared))),
                guarded(first, prepared),
                hopper.barrier_init_done(),
                tirx.IfThenElse(copying, sequence(copies), sequence(products)),
            ]
        )


class WarpgroupAttention:
    """Functions that the pass ``AttentionFusion`` made, with enough rows for warpgroups."""

    name = "warpgroup attention"
    machine_type = CudaDescription

    def apply(
        self, func: tirx.PrimFunc, machine: CudaDescription, decisions: Decisions
    ) -> s_tir.Schedule:
        """See ``Template.apply``. Decisions: those of ``decide_group_attention``."""
        if machine.arch != WARPGROUP_ARCHITECTURE:
            raise NotApplicable(f"{machine.arch} has no instructions of warpgroups")
        views = FlatViews()
        problem = read_problem(func, views)
        _refuse(problem)
        tiles = decide_group_attention(problem, machine, decisions)
        arrays = Arrays("int32")
        kernel = WarpgroupAttentionKernel(problem, tiles, machine.sms, arrays)
        return s_tir.Schedule(views.kernel(func, kernel.statements(), arrays.buffers))


def _refuse(problem: AttentionProblem) -> None:
    """Raises NotApplicable for what the instructions cannot do."""
    dtype = problem.query.dtype
    if dtype not in ACROSS:
        raise NotApplicable(f"operands are of {dtype}, not of a type of 16 bits")
    if problem.compute.cap is not None:
        raise NotApplicable("there is no kernel for scores that are capped")
    if problem.sink is not None:
        raise NotApplicable("there is no kernel for a sink of the softmax")
    if problem.key.size("h") != problem.value.size("h"):
        raise NotApplicable("keys and values have different numbers of heads")
    for tensor in (problem.query, problem.key, problem.value):
        if not HeadBoxes.of(tensor).operand.is_aligned:
            name = tensor.buffer.name
            raise NotApplicable(f"rows of {name} do not begin at multiples of {ALIGNMENT} bytes")
