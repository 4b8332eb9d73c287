"""The kernel of attention by warp groups: one brings keys and values, the others multiply."""

from typing import Any

from tvm import tirx
from tvm.tirx.buffer import buffer_data

from tvm_ext.tir_schedules.cuda.attention.attention_problem import AttentionProblem
from tvm_ext.tir_schedules.cuda.attention.attention_scores import INDEX, number
from tvm_ext.tir_schedules.cuda.launch import Arrays, alone, bound, guarded
from tvm_ext.tir_schedules.cuda.warp_group_attention.group_copies import GroupCopies
from tvm_ext.tir_schedules.cuda.warp_group_attention.group_decision import REGISTERS
from tvm_ext.tir_schedules.cuda.warp_group_attention.group_products import GroupProducts
from tvm_ext.tir_schedules.cuda.warp_group_attention.group_ring import GroupRing
from tvm_ext.tir_schedules.cuda.warp_group_attention.group_shape import (
    GroupAttentionTiles,
    GroupLayout,
)
from tvm_ext.tir_schedules.cuda.warp_group_attention.group_tiles import GroupTiles
from tvm_ext.tir_schedules.cuda.warp_groups import warp_group_instructions as hopper
from tvm_ext.tir_schedules.statements import sequence


class GroupAttentionKernel:
    """Writes the kernel: statements, and what they allocate to ``arrays``."""

    def __init__(
        self, problem: AttentionProblem, tiles: GroupAttentionTiles, sms: int, arrays: Arrays
    ) -> None:
        self.problem, self.tiles, self.sms, self.arrays = problem, tiles, sms, arrays
        layout = GroupLayout(problem, tiles)
        size = (layout.shared_bytes,)
        self.shared = arrays.allocated("stages", size, "uint8", "shared.dyn")
        self.ring = GroupRing(layout, arrays)
        self.copies = GroupCopies(self._new_tiles(), self.ring)

    def statements(self) -> list[tirx.Stmt]:
        """Tensor maps on the host, and the launch."""

        def threads(block: Any) -> tirx.Stmt:
            return bound("threadIdx.x", self.tiles.threads, INDEX, lambda t: self._block(block, t))

        launch = bound("blockIdx.x", self.copies.tiles.grid, INDEX, threads)
        return [*self.copies.on_host(), alone(launch)]

    def _new_tiles(self) -> GroupTiles:
        return GroupTiles(self.problem, self.tiles, self.sms)

    def _block(self, block: Any, thread: Any) -> tirx.Stmt:
        few, many = REGISTERS[self.tiles.groups]
        first = tirx.EQ(thread, number(0))
        copies = [
            hopper.change_registers(few, more=False),
            guarded(first, self.copies.statements(block)),
        ]
        multiplying = GroupProducts(self._new_tiles(), self.ring, self.arrays, thread)
        products = [hopper.change_registers(many, more=True), multiplying.statements(block)]
        prepared = sequence([*self.copies.prefetched(), *self.ring.prepared()])
        copying = tirx.LT(thread, number(hopper.WARP_GROUP))
        return sequence(
            [
                tirx.Bind(self.ring.base, hopper.shared_address(buffer_data(self.shared))),
                guarded(first, prepared),
                hopper.barrier_init_done(),
                tirx.IfThenElse(copying, sequence(copies), sequence(products)),
            ]
        )
