"""The operands of a product by warp groups: matrices, or a convolution's image and filters.

A convolution's rows and steps are counted as its boxes bring them: with the pixels of a box that
are outside of the images, and with channels filled up to whole boxes.
"""

import math
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

from tvm_ext.tir_schedules.block_access import element_bytes, static_extent
from tvm_ext.tir_schedules.cuda.products.product_axes import ProductAxes, loads_of
from tvm_ext.tir_schedules.cuda.warp_groups.image_tensor import Operand, image_tensor
from tvm_ext.tir_schedules.cuda.warp_groups.padding import Padding, padding_of
from tvm_ext.tir_schedules.cuda.warp_groups.pixel_boxes import PixelBoxes
from tvm_ext.tir_schedules.cuda.warp_groups.tensor_map import (
    SWIZZLED_ROW_BYTES,
    OperandTensor,
    operand_tensor,
)
from tvm_ext.tir_schedules.cuda.warp_groups.warp_group_instructions import (
    ACROSS,
    INTEGERS,
    ROWS,
    results_dtype,
)
from tvm_ext.tir_schedules.flat_views import FlatViews, flattened, nodes
from tvm_ext.tir_schedules.template import NotMine

ROW_BYTES = (128, 64, 32)
"""Rows of shared memory that bulk copies and the instructions swizzle."""

# Bytes of products in whose time a block waits for one more pair of operand tiles. Estimate.
_ROW_OVERHEAD = 16


@dataclass(frozen=True)
class GroupOperands:
    """A and B in memory, and how many rows and steps the kernel goes through.

    Attributes
    ----------
    tensors : (OperandTensor or ImageTensor, OperandTensor)
        A and B.
    rows, steps : int
        Of the product, with those that only fill boxes.
    pixels : PixelBoxes or None
        What the rows are for a convolution; None: rows of A in order.
    row_bytes : int
        Bytes of the steps that are brought at a time.
    """

    tensors: tuple[Operand, OperandTensor]
    rows: int
    steps: int
    pixels: PixelBoxes | None = None
    row_bytes: int = SWIZZLED_ROW_BYTES

    @property
    def dtype(self) -> str:
        """Of A."""
        return str(self.tensors[0].buffer.dtype)


def group_operands(
    sch: s_tir.Schedule, main: SBlockRV, axes: ProductAxes, tf32: bool
) -> GroupOperands | NotMine:
    """The operands of the block ``main``; ``tf32``: whether float32 may be rounded to it."""
    block = sch.get(main)
    loads = loads_of(block)
    if not loads:
        return NotMine("it adds up something other than products of two operands")
    refused = _wrong_types(loads, str(block.writes[0].source.dtype), tf32)
    if refused is not None:
        return refused
    if loads[0].source.same_as(loads[1].source):
        return NotMine("both operands are the same array")
    reads = [r for r in block.reads if not r.source.same_as(block.writes[0].source)]
    a, b = (next(x for x in loads if x.source.same_as(reads[n].source)) for n in axes.operands)
    padding = _padding(sch, main, a)
    params = sch.mod["main"].params
    sources = [a.source if padding is None else padding.source, b.source]
    if not all(any(source.same_as(param) for param in params) for source in sources):
        return NotMine("an operand is computed in the kernel")
    plain = flattened(block.body, FlatViews())
    if plain is None:
        return NotMine("an operand's layout is not plain")
    addresses = [_address_of(plain, loads, load) for load in (a, b)]
    found = _tensors(block, (a, b), addresses, axes, padding)
    return found if isinstance(found, NotMine) else _by_depth(found)


def _wrong_types(loads: list[Any], total: str, tf32: bool) -> NotMine | None:
    dtypes = sorted({str(load.source.dtype) for load in loads})
    known = (*ACROSS, *INTEGERS, *(("float32",) if tf32 else ()))
    mixed = len(dtypes) > 1 and not all(dtype in INTEGERS for dtype in dtypes)
    if mixed or not all(dtype in known for dtype in dtypes):
        return NotMine(f"operands are of {', '.join(dtypes)}, which has no instructions here")
    own = () if dtypes[0] in INTEGERS else (dtypes[0],)
    if total not in (results_dtype(dtypes[0]), *own):
        return NotMine(f"it adds up products of {dtypes[0]} in {total}")
    return None


def _padding(sch: s_tir.Schedule, main: SBlockRV, load: Any) -> Padding | None:
    """What computes the array of a load, if that is a padding."""
    for producer in sch.get_producers(main):
        if sch.get(producer).writes[0].source.same_as(load.source):
            return padding_of(sch.get(producer))
    return None


def _tensors(
    block: s_tir.SBlock,
    loads: tuple[Any, Any],
    addresses: list[Any],
    axes: ProductAxes,
    padding: Padding | None,
) -> GroupOperands | NotMine:
    variables = [iter_var.var for iter_var in block.iter_vars]
    a = loads[0]

    def matrix(at: int, taps: int = 0, depth: int = 0) -> OperandTensor | NotMine:
        groups = (axes.batch, axes.columns if at else axes.rows, axes.steps[taps:])
        return operand_tensor(
            *(loads[at], addresses[at], variables, axes.extents, groups),
            *(axes.steps[:taps], depth),
        )

    first = matrix(0)
    if padding is None and not isinstance(first, NotMine):
        second = matrix(1)
        if isinstance(second, NotMine):
            return second
        rows, steps = axes.size(axes.rows), axes.size(axes.steps)
        return GroupOperands((first, second), rows, steps)
    source = a.source if padding is None else padding.source
    row_bytes = _row_bytes((static_extent(source.shape[-1]) or 0) * element_bytes(source))
    depth = row_bytes // element_bytes(source)
    image = image_tensor(a, padding, variables, axes, ROWS, depth)
    if isinstance(image, NotMine):
        single = len(axes.rows) == len(axes.steps) == 1
        return first if single and isinstance(first, NotMine) else image
    second = matrix(1, len(axes.steps) - 1, depth)
    if isinstance(second, NotMine):
        return second
    return GroupOperands(
        (image, second), image.pixels.rows, image.steps.count, image.pixels, row_bytes
    )


def _row_bytes(channels: int) -> int:
    """The bytes of a pixel's ``channels`` to bring at a time: full rows, and few of them."""

    def cost(row: int) -> int:
        return math.ceil(channels / row) * (row + _ROW_OVERHEAD)

    return min(ROW_BYTES, key=lambda row: (cost(row), -row))


def _by_depth(found: GroupOperands) -> GroupOperands | NotMine:
    """``found`` if its types have instructions for how they lie in memory."""
    for tensor in found.tensors:
        dtype = str(tensor.buffer.dtype)
        if tensor.across and dtype not in ACROSS:
            return NotMine(f"{tensor.buffer.name} of {dtype} has no neighbouring steps in memory")
    return found


def _address_of(plain: tirx.BufferStore, loads: list[Any], load: Any) -> Any:
    """The address of one of the product's ``loads`` in its flattened form."""
    flat = nodes(plain.value, tvm.ir.TensorLoad)[1:]
    return flat[next(i for i, other in enumerate(loads) if other.same_as(load))].indices[0]
