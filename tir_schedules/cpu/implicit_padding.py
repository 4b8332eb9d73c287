"""Convolutions whose padding is written nowhere but next to the pixels of a tile.

A convolution with padding reads a copy of its image with zeros around it. Where the channels of a
pixel follow each other, the pixels of a tile are copied instead, for each tap of the window anew,
with zeros where there is none. Taps under which no row of a tile has a pixel are left out: where
windows are spread over more than the image (the pyramids of DeepLab) most are.

Near: M. Dukhan, "The Indirect Convolution Algorithm", arXiv 1907.02129, where rows have pointers.
"""

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

from tvm_ext.tir_schedules.analysis.buffer_access import (
    LoopAxis,
    among,
    depends,
    is_conditional,
    kernel_blocks,
    same_block,
)
from tvm_ext.tir_schedules.analysis.loop_nest import substitute
from tvm_ext.tir_schedules.cpu.nest_code import chunk_start, vector_chunk
from tvm_ext.tir_schedules.cpu.symbolic_contraction import SymbolicContraction
from tvm_ext.tir_schedules.statements import bits_of

# Channels, at least, that pay for a copy of each tap.
_LEAST_CHANNELS = 16


@dataclass(frozen=True)
class ImplicitPadding:
    """An operand that is a pixel of an image, or zero.

    Attributes
    ----------
    block : SBlockRV
        Writes the image with its padding.
    load : TensorLoad
        The operand as the product reads it, from what ``block`` writes.
    pixel : TensorLoad
        The same element of the image.
    inside : Expr
        Whether there is such a pixel: the same for all channels.
    channels : LoopAxis
        The innermost loop of the sum, over channels.
    lanes : int
        Elements of a vector register.
    """

    block: SBlockRV
    load: tvm.ir.TensorLoad
    pixel: tvm.ir.TensorLoad
    inside: tvm.ir.Expr
    channels: LoopAxis
    lanes: int

    @property
    def stored_type(self) -> str:
        """Of the copy: TVM would keep float32 in an array of bfloat16."""
        dtype = str(self.pixel.ty)
        return "uint16" if dtype == "bfloat16" else dtype

    def copy(self, row: int, copied: tirx.Buffer, values: dict[Any, Any]) -> tirx.Stmt:
        """Writes the channels of a row's pixel, or as many zeros, to their place in ``copied``.

        ``values``: of the variables of the contraction but for the channel.
        """
        dtype, count = str(self.channels.var.ty), self.channels.length or 0
        size = vector_chunk(count, self.lanes)

        def loops(is_pixel: bool) -> tirx.Stmt:
            chunk, lane = (tirx.Var(name, dtype) for name in ("chunk", "lane"))
            channel = chunk_start(chunk, size, self.channels.extent) + lane
            here = {**values, self.channels.var: channel}
            indices = [substitute(index, here) for index in self.pixel.indices]
            pixel = tirx.BufferLoad(self.pixel.source, indices)
            zero = tirx.const(0, self.stored_type)
            value = bits_of(pixel, self.stored_type) if is_pixel else zero
            body: tirx.Stmt = tirx.BufferStore(copied, value, [channel + row * count])
            for var, extent, kind in (
                (lane, size, tirx.ForKind.VECTORIZED),
                (chunk, -(-count // size), tirx.ForKind.SERIAL),
            ):
                body = tirx.For(var, tirx.const(0, dtype), tirx.const(extent, dtype), kind, body)
            return body

        return tirx.IfThenElse(substitute(self.inside, values), loops(True), loops(False))


def implicit_padding(
    sch: s_tir.Schedule,
    anchor: SBlockRV,
    contraction: SymbolicContraction,
    rows: LoopAxis | None,
    columns: LoopAxis,
    lanes: int,
) -> ImplicitPadding | None:
    """The operand of ``anchor`` whose padding need not be written; None where there is none."""
    *_, channels = (None, *contraction.reduction)
    if rows is None or channels is None or (channels.length or 0) < _LEAST_CHANNELS:
        return None
    for block in kernel_blocks(sch):
        consumers = sch.get_consumers(block)
        if len(consumers) != 1 or not same_block(sch, consumers[0], anchor):
            continue
        found = _padded(sch, block, contraction, channels, lanes)
        if found is None or contraction.step(found.load, columns) != 0:
            continue
        if contraction.step(found.pixel, channels) == 1:
            return found
    return None


def _padded(
    sch: s_tir.Schedule,
    block: SBlockRV,
    contraction: SymbolicContraction,
    channels: LoopAxis,
    lanes: int,
) -> ImplicitPadding | None:
    stmt = sch.get(block)
    store = stmt.body
    loads = [load for load in contraction.operands() if load.source.same_as(stmt.writes[0].source)]
    if not isinstance(store, tirx.BufferStore) or len(loads) != 1:
        return None
    (load,) = loads
    if not is_conditional(store.value) or not _is_factor(load, contraction.product):
        return None
    inside, pixel, zero = store.value.args
    is_zero = isinstance(zero, tirx.FloatImm | tirx.IntImm) and zero.value == 0
    if not isinstance(pixel, tvm.ir.TensorLoad) or not is_zero:
        return None
    params = sch.mod["main"].params
    # A padded image that is a result is wanted whole.
    if not among(pixel.source, params) or among(load.source, params) or pixel.source.strides:
        return None
    pairs = zip(store.indices, load.indices, strict=True)
    places = {index: place for index, place in pairs if isinstance(index, tirx.Var)}
    if any(v.var not in places for v in stmt.iter_vars):
        return None
    inside = substitute(inside, places)
    if depends(inside, channels.var):
        return None
    indices = [substitute(index, places) for index in pixel.indices]
    element = tirx.BufferLoad(pixel.source, indices)
    return ImplicitPadding(block, load, element, inside, channels, lanes)


def _is_factor(load: tvm.ir.TensorLoad, product: tvm.ir.Expr) -> bool:
    """Whether the product is zero wherever ``load`` is."""
    if isinstance(product, tirx.Cast):
        return _is_factor(load, product.value)
    if isinstance(product, tirx.Mul):
        return _is_factor(load, product.a) or _is_factor(load, product.b)
    return bool(product.same_as(load))
