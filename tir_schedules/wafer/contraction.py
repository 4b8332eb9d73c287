"""Recognises kernels that multiply two tensors and sum: which loops go with which operand."""

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.tir_schedules.analysis.buffer_access import nodes, operands_of, static_extent
from tvm_ext.tir_schedules.inlining import inline_blocks, kernel_blocks, reduction_blocks


@dataclass(frozen=True)
class WaferContraction:
    """A contraction of two operands.

    Attributes
    ----------
    block : SBlockRV
        The block that sums.
    last : SBlockRV or None
        The block behind it, which makes the kernel's result of the sum.
    extents : tuple[int, ...]
        Of the block's loops, in order.
    batch, left, right, summed : tuple[int, ...]
        Loops that move both operands, only the first, only the second, and those that are summed,
        by position. Each of the first three moves the result.
    operands : tuple[Any, Any]
        The buffers of the two operands.
    dims : tuple[tuple[int | None, ...], ...]
        For the two operands and the result, the loop that each dimension follows alone; None for a
        dimension that follows several (a window of a convolution), or none.
    """

    block: SBlockRV
    last: SBlockRV | None
    extents: tuple[int, ...]
    batch: tuple[int, ...]
    left: tuple[int, ...]
    right: tuple[int, ...]
    summed: tuple[int, ...]
    operands: tuple[Any, Any]
    dims: tuple[tuple[int | None, ...], ...]

    def size(self, loops: tuple[int, ...]) -> int:
        """Iterations of some of the loops together."""
        size = 1
        for position in loops:
            size *= self.extents[position]
        return size

    def longest(self, loops: tuple[int, ...]) -> int | None:
        """The loop with the most iterations among ``loops``; None if there is none above one."""
        chosen = max(loops, key=lambda position: self.extents[position], default=None)
        return chosen if chosen is not None and self.extents[chosen] > 1 else None


def contraction_of(sch: s_tir.Schedule) -> WaferContraction | NotApplicable:
    """What ``sch`` holds, after everything that can be inlined was inlined."""
    inline_blocks(sch)
    sums = reduction_blocks(sch)
    if len(sums) != 1:
        return NotApplicable(f"{len(sums)} blocks sum; expected one matmul")
    blocks = kernel_blocks(sch)
    position = next(i for i, block in enumerate(blocks) if _same(sch, block, sums[0]))
    if position:
        return NotApplicable("an operand is computed by a block of its own")
    if len(blocks) - position > 2:
        return NotApplicable("more than one block follows the matmul")
    last = blocks[-1] if len(blocks) == 2 else None
    return _roles(sch, sums[0], last)


def _same(sch: s_tir.Schedule, block: SBlockRV, other: SBlockRV) -> bool:
    return bool(sch.get(block).same_as(sch.get(other)))


def _roles(
    sch: s_tir.Schedule, block: SBlockRV, last: SBlockRV | None
) -> WaferContraction | NotApplicable:
    stmt = sch.get(block)
    extents = [static_extent(v.dom.extent) for v in stmt.iter_vars]
    if None in extents:
        return NotApplicable("an extent is not known")
    reads = operands_of(stmt)
    if len(reads) != 2 or not _multiplies(stmt.body):
        return NotApplicable("it does not sum products of two tensors")
    variables = [v.var for v in stmt.iter_vars]
    used = [_used(region, variables) for region in reads]
    groups: dict[str, list[int]] = {"batch": [], "left": [], "right": [], "summed": []}
    for position, iter_var in enumerate(stmt.iter_vars):
        if iter_var.iter_type == tirx.IterVar.CommReduce:
            groups["summed"].append(position)
        elif iter_var.iter_type != tirx.IterVar.DataPar:
            return NotApplicable("a loop is neither parallel nor a sum")
        else:
            in_left, in_right = (position in found for found in used)
            key = "batch" if in_left and in_right else "left" if in_left else "right"
            groups[key].append(position)
    return WaferContraction(
        block,
        last,
        tuple(e for e in extents if e is not None),
        batch=tuple(groups["batch"]),
        left=tuple(groups["left"]),
        right=tuple(groups["right"]),
        summed=tuple(groups["summed"]),
        operands=(reads[0].source, reads[1].source),
        dims=tuple(_dims(region, variables) for region in (*reads, stmt.writes[0])),
    )


def _multiplies(body: Any) -> bool:
    value = getattr(body, "value", None)
    if not isinstance(value, tirx.Add):
        return False
    product = value.b
    while isinstance(product, tirx.Cast):
        product = product.value
    return isinstance(product, tirx.Mul) and len(nodes(product, tvm.ir.TensorLoad)) == 2


def _used(region: Any, variables: list[Any]) -> set[int]:
    return {
        position
        for dim in region.region
        for found in nodes(dim.min, tvm.ir.Var)
        for position, var in enumerate(variables)
        if var.same_as(found)
    }


def _dims(region: Any, variables: list[Any]) -> tuple[int | None, ...]:
    return tuple(
        next((p for p, var in enumerate(variables) if var.same_as(dim.min)), None)
        for dim in region.region
    )
