"""Recognises kernels that are one contraction, with what follows it in a block of its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from tvm import s_tir, tirx
from tvm.ir import TensorLoad
from tvm.s_tir.schedule import SBlockRV

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.tir_schedules.analysis.buffer_access import (
    kernel_blocks,
    nodes,
    only_reduction,
    operands_of,
    same_block,
)
from tvm_ext.tir_schedules.analysis.contraction import (
    Contraction,
    contraction_of,
    loops_of_dimensions,
    summed_product,
)
from tvm_ext.tir_schedules.inlining import inline_blocks
from tvm_ext.tir_schedules.wafer.annotations import WHOLE
from tvm_ext.tir_schedules.wafer.mesh_partition import state_home


@dataclass(frozen=True)
class WaferContraction(Contraction):
    """A contraction and the blocks of its kernel.

    Attributes
    ----------
    block : SBlockRV
        The block that sums.
    last : SBlockRV or None
        The block behind it, which makes the kernel's result of the sum.
    buffers : tuple[tirx.Buffer, ...]
        The two operands.
    dims : tuple[tuple[int | None, ...], ...]
        For the two operands the loop that each dimension follows alone; None for a dimension that
        follows several (a window of a convolution), or none.
    """

    block: SBlockRV
    last: SBlockRV | None
    buffers: tuple[tirx.Buffer, ...]
    dims: tuple[tuple[int | None, ...], ...]

    def state_homes(self, sch: s_tir.Schedule, *cuts: Mapping[int, str]) -> None:
        """Says where the operands lie: ``cuts`` has, for each, the words of loops that are cut."""
        for operand, dims, cut in zip(self.buffers, self.dims, cuts, strict=True):
            words = [WHOLE if dim is None else cut.get(dim, WHOLE) for dim in dims]
            state_home(sch, operand, words)

    @classmethod
    def of(cls, sch: s_tir.Schedule) -> Self:
        """What ``sch`` holds, all inlined that can be. Raises NotApplicable for other kernels."""
        inline_blocks(sch)
        block = only_reduction(sch)
        first, *following = kernel_blocks(sch)
        if not same_block(sch, first, block):
            raise NotApplicable("an operand is computed by a block of its own")
        if len(following) > 1:
            raise NotApplicable("more than one block follows the matmul")
        stmt = sch.get(block)
        found = contraction_of(stmt)
        product = summed_product(stmt)
        if product is None or len(nodes(product, TensorLoad)) != 2:
            raise NotApplicable("it adds up something other than products of two operands")
        regions = operands_of(stmt)
        return cls(
            **vars(found),
            block=block,
            last=following[0] if following else None,
            buffers=tuple(region.source for region in regions),
            dims=tuple(loops_of_dimensions(region, stmt) for region in regions),
        )
