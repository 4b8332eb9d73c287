"""Contractions: reductions that add up products of two operands, as matmuls and convolutions do.

What a loop is, of M, N, K or the batch, follows from which of the operands and the result it moves.
"""

import math
from dataclasses import dataclass, replace
from typing import Self

import tvm
from tvm import s_tir, tirx
from tvm.ir import TensorLoad, TensorRegion

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.tir_schedules.analysis.buffer_access import depends, operands_of, scans, static_extent


@dataclass(frozen=True)
class Contraction:
    """The loops of a block by what they are in ``C[b, i, j] += A[b, i, k] * B[b, k, j]``.

    Each is a tuple of positions among the block's loops. Loops of extent 1 are in none.

    Attributes
    ----------
    batch, m, n, k : tuple[int, ...]
        ``b``, ``i``, ``j`` and ``k``.
    operands : tuple[int, int]
        Which of the block's two operands is A, and which B.
    extents : tuple[int, ...]
        Trip count of every loop.
    """

    batch: tuple[int, ...]
    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]
    operands: tuple[int, int]
    extents: tuple[int, ...]

    def size(self, positions: tuple[int, ...]) -> int:
        """Trip count of some loops together."""
        return math.prod(self.extents[position] for position in positions)

    def longest(self, positions: tuple[int, ...]) -> int | None:
        """The loop with the most iterations among ``positions``; None if there is none."""
        return max(positions, key=lambda position: self.extents[position], default=None)

    def swapped(self) -> Self:
        """The transposed matmul, whose first operand is B."""
        return replace(self, m=self.n, n=self.m, operands=self.operands[::-1])


def contraction_of(block: s_tir.SBlock) -> Contraction:
    """The contraction that a block is, its operands in their order. Raises NotApplicable."""
    extents = [static_extent(v.dom.extent) for v in block.iter_vars]
    regions = operands_of(block)
    if scans(block):
        raise NotApplicable("a loop is neither data-parallel nor a reduction")
    if None in extents:
        raise NotApplicable("a loop has a symbolic extent")
    if len(regions) != 2:
        raise NotApplicable(f"it reads {len(regions)} operands besides the sum, not two")
    moved = [moved_by(region, block) for region in (*regions, block.writes[0])]
    groups: dict[str, list[int]] = {"batch": [], "m": [], "n": [], "k": []}
    for position, (iter_var, extent) in enumerate(zip(block.iter_vars, extents, strict=True)):
        if extent == 1:
            continue
        reduces = iter_var.iter_type == tirx.IterVar.CommReduce
        group = _ROLES.get((reduces, *(position in positions for positions in moved)))
        if group is None:
            raise NotApplicable("a loop moves neither both operands nor one of them and the result")
        groups[group].append(position)
    batch, m, n, k = (tuple(positions) for positions in groups.values())
    return Contraction(batch, m, n, k, (0, 1), tuple(extent or 0 for extent in extents))


# Whether a loop reduces and which of A, B and C it moves, and what it then is.
_ROLES = {
    (True, True, True, False): "k",
    (False, True, True, True): "batch",
    (False, True, False, True): "m",
    (False, False, True, True): "n",
}


def moved_by(region: TensorRegion, block: s_tir.SBlock) -> set[int]:
    """Positions of the loops that move a region."""
    return {
        position
        for position, iter_var in enumerate(block.iter_vars)
        if any(depends(dim.min, iter_var.var) for dim in region.region)
    }


def loops_of_dimensions(region: TensorRegion, block: s_tir.SBlock) -> tuple[int | None, ...]:
    """For each dimension the loop that is its index; None for any other index."""
    return tuple(
        next((p for p, v in enumerate(block.iter_vars) if v.var.same_as(dim.min)), None)
        for dim in region.region
    )


# What a reduction adds up.


def accumulation_of(block: s_tir.SBlock) -> tuple[type, tvm.ir.Expr] | None:
    """How a reduction combines what it has with the next element, and that element.

    The operator is ``tirx.Add``, ``tirx.Max`` or ``tirx.Min``; None for anything else.
    """
    body = block.body
    if not isinstance(body, tirx.BufferStore) or not isinstance(block.init, tirx.BufferStore):
        return None
    value = body.value
    if not isinstance(value, tirx.Add | tirx.Max | tirx.Min):
        return None
    if not isinstance(value.a, TensorLoad) or not value.a.source.same_as(body.buffer):
        return None
    return type(value), value.b


def summed_product(block: s_tir.SBlock) -> tirx.Mul | None:
    """The product that a block adds up, without casts around it; None if it is another sum."""
    operator, element = accumulation_of(block) or (None, None)
    while isinstance(element, tirx.Cast):
        element = element.value
    return element if operator is tirx.Add and isinstance(element, tirx.Mul) else None


def factors_of(block: s_tir.SBlock) -> list[TensorLoad]:
    """The two loads whose product a block adds up, each under at most a cast; empty if other."""
    operator, product = accumulation_of(block) or (None, None)
    if operator is not tirx.Add or not isinstance(product, tirx.Mul):
        return []
    factors = [f.value if isinstance(f, tirx.Cast) else f for f in (product.a, product.b)]
    return factors if all(isinstance(factor, TensorLoad) for factor in factors) else []
