"""A block that surrounds an array with zeros, as bulk copies do for places outside of a tensor."""

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.sym import Analyzer

from tvm_ext.tir_schedules.block_access import static_extent

_IF_THEN_ELSE = tvm.ir.Op.get("prim.if_then_else")


@dataclass(frozen=True)
class Padding:
    """What a padded array holds.

    Attributes
    ----------
    source : tirx.Buffer
        The array that is padded.
    before : tuple[int, ...]
        Zeros before it along each dimension; fewer than none where it is cut.
    """

    source: Any
    before: tuple[int, ...]


def padding_of(block: s_tir.SBlock) -> Padding | None:
    """The padding that a block computes: zeros exactly where the source has no element."""
    store = block.body
    if not isinstance(store, tirx.BufferStore) or not isinstance(store.value, tvm.ir.Call):
        return None
    if not store.value.op.same_as(_IF_THEN_ELSE):
        return None
    condition, load, otherwise = store.value.args
    variables = [iter_var.var for iter_var in block.iter_vars]
    if not isinstance(load, tvm.ir.TensorLoad) or not _is_zero(otherwise):
        return None
    if len(store.indices) != len(variables) or len(load.indices) != len(variables):
        return None
    if not all(i.same_as(var) for i, var in zip(store.indices, variables, strict=True)):
        return None
    simplified = Analyzer().simplify
    pairs = zip(load.indices, variables, strict=True)
    shifts = [static_extent(simplified(var - index)) for index, var in pairs]
    sizes = [static_extent(size) for size in load.source.shape]
    extents = [static_extent(iter_var.dom.extent) for iter_var in block.iter_vars]
    # Where the source has an element it must be read. Elsewhere it cannot be.
    analyzer, before = Analyzer(), []
    for var, shift, size, extent in zip(variables, shifts, sizes, extents, strict=True):
        if shift is None or size is None or extent is None:
            return None
        first, last = max(0, shift), min(extent, shift + size)
        analyzer.bind(var, tvm.ir.Range(first, max(last, first + 1)))
        before.append(shift)
    return Padding(load.source, tuple(before)) if analyzer.can_prove(condition) else None


def _is_zero(value: Any) -> bool:
    return isinstance(value, tirx.FloatImm | tirx.IntImm) and float(value.value) == 0.0
