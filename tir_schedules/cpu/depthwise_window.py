"""What a depthwise convolution reads and writes, by rows, columns and channels."""

import math
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.tir_schedules.analysis.buffer_access import (
    LoopAxis,
    slope,
    static_extent,
    stride,
)
from tvm_ext.tir_schedules.analysis.loop_nest import index_of, substitute
from tvm_ext.tir_schedules.analysis.sliding_window import (
    Slide,
    Window,
    at_position,
    moving_load,
    position_step,
)


@dataclass(frozen=True)
class DepthwiseWindow:
    """A window over rows and columns, with a weight for each of its positions and each channel.

    Attributes
    ----------
    rows : Slide or None
        The slower axis; None for a convolution over one axis.
    columns : Slide
        The faster one.
    outer : tuple[LoopAxis, ...]
        Loops over results along which the window does not slide, without the channels last.
    channels : LoopAxis or None
        Channels when they are next to each other in memory; None with channels first.
    data, weight : TensorLoad
        An element of the input, and of what it is multiplied by.
    factors : tuple[Expr, Expr]
        What is computed from each of the two before they are multiplied: the element itself, or
        as a number of the type of the sums, less a zero point.
    """

    rows: Slide | None
    columns: Slide
    outer: tuple[LoopAxis, ...]
    channels: LoopAxis | None
    data: Any
    weight: Any
    factors: tuple[Any, Any]

    @property
    def dtype(self) -> str:
        """Of the sums, and of both factors."""
        return str(self.factors[0].ty)

    @property
    def data_bytes(self) -> int:
        """Of an element of the input."""
        return int(tvm.DataType(str(self.data.ty)).bits) // 8

    def data_factor(self, address: tvm.ir.Expr, lanes: int = 1) -> tvm.ir.Expr:
        """What the elements of the input from an address on are multiplied as."""
        return _vector(self.factors[0], self.data, address, lanes)

    def weight_factor(self, address: tvm.ir.Expr, lanes: int = 1) -> tvm.ir.Expr:
        """The same of the weights."""
        return _vector(self.factors[1], self.weight, address, lanes)

    @property
    def taps(self) -> int:
        """Positions of the window."""
        down = self.rows.position.extent if self.rows is not None else 1
        return down * self.columns.position.extent

    def results(self) -> int:
        """How many elements the result has."""
        slides = [slide for slide in (self.rows, self.columns) if slide is not None]
        axes = [*self.outer, *(slide.output for slide in slides)]
        axes += [self.channels] if self.channels is not None else []
        return math.prod(axis.extent for axis in axes)

    def data_at(self, row: Any, column: Any) -> tvm.ir.Expr:
        """Address of the input at a row and a column, both counted from the padding's start."""
        data = self.data if self.rows is None else at_position(self.data, self.rows, row)
        return at_position(data, self.columns, column).indices[0]

    def weight_at(self, row: Any, column: Any) -> tvm.ir.Expr:
        """Address of the weight for a row and a column of the window."""
        values = {self.columns.position.var: index_of(column, self.columns.position.var)}
        if self.rows is not None:
            values[self.rows.position.var] = index_of(row, self.rows.position.var)
        return substitute(self.weight.indices[0], values)

    def column_steps(self) -> tuple[int, int]:
        """Elements of the input from a column to the next, and of the weights from tap to tap."""
        position = self.columns.position.var
        return position_step(self.data, self.columns) or 0, slope(
            self.weight.indices[0], position
        ) or 0


def depthwise_window(window: Window) -> DepthwiseWindow:
    """``window``, of products, as rows and columns. Raises NotApplicable where it is not one."""
    product = window.store.value
    if window.combine is not tirx.Add or not isinstance(product, tirx.Mul):
        raise NotApplicable("it is no contraction")
    weight = moving_load(product.b)
    if weight is None or moving_load(product.a) is None:
        raise NotApplicable("it is no contraction of an input and a weight")
    # The only input channel of a group is counted as well: a window of one position.
    single = [s for s in window.slides if _is_single_input(s, weight)]
    slides = [slide for slide in window.slides if not any(slide is one for one in single)]
    if not 1 <= len(slides) <= 2 or any(slide.position.extent > 1 for slide in single):
        raise NotApplicable("the window does not slide along one or two axes")
    zero = {slide.position.var: index_of(0, slide.position.var) for slide in single}
    factors = (substitute(product.a, zero), substitute(product.b, zero))
    data, weight = (moving_load(factor) for factor in factors)
    if data is None or weight is None or not all(map(_is_elementwise, factors)):
        raise NotApplicable("its factors are more than numbers less a zero point")
    if {str(factor.ty) for factor in factors} != {str(window.start.ty)}:
        raise NotApplicable("sums have another type than the input and the weights")
    steps = [position_step(data, slide) for slide in slides]
    if any(step is None for step in steps):
        raise NotApplicable("an address is not linear in the position of the window")
    *rows, columns = sorted(slides, key=lambda slide: _apart(data, slide), reverse=True)
    sliding = [slide.output for slide in slides]
    others = [a for a in window.outputs if not any(a is s for s in sliding) and not a.runs_once]
    channels = [axis for axis in others if slope(data.indices[0], axis.var) == 1]
    outer = tuple(axis for axis in others if not any(axis is c for c in channels))
    found = DepthwiseWindow(
        rows=rows[0] if rows else None,
        columns=columns,
        outer=outer,
        channels=channels[0] if channels else None,
        data=data,
        weight=weight,
        factors=factors,
    )
    return _checked(found, window)


_ELEMENTWISE = (tirx.Add, tirx.Sub, tirx.Mul)


def _is_elementwise(factor: Any) -> bool:
    """Whether ``_vector`` knows how to compute several of it at once."""
    if moving_load(factor) is None or isinstance(factor, tvm.ir.TensorLoad):
        return True
    if isinstance(factor, tirx.Cast):
        return _is_elementwise(factor.value)
    return isinstance(factor, _ELEMENTWISE) and all(map(_is_elementwise, (factor.a, factor.b)))


def _vector(factor: Any, load: Any, address: tvm.ir.Expr, lanes: int) -> tvm.ir.Expr:
    """``factor`` with ``lanes`` neighbours from ``address`` on in place of ``load``."""
    if isinstance(factor, tvm.ir.TensorLoad) and factor.source.same_as(load.source):
        one = tirx.const(1, str(address.ty))
        return tirx.BufferLoad(
            load.source, [tirx.Ramp(address, one, lanes) if lanes > 1 else address]
        )
    if moving_load(factor) is None:
        return tirx.Broadcast(factor, lanes) if lanes > 1 else factor
    if isinstance(factor, tirx.Cast):
        dtype = f"{factor.ty}x{lanes}" if lanes > 1 else str(factor.ty)
        return _vector(factor.value, load, address, lanes).astype(dtype)
    return type(factor)(*(_vector(side, load, address, lanes) for side in (factor.a, factor.b)))


def _checked(depthwise: DepthwiseWindow, window: Window) -> DepthwiseWindow:
    address, weight = depthwise.data.indices[0], depthwise.weight.indices[0]
    axes = [*depthwise.outer, *([depthwise.channels] if depthwise.channels is not None else [])]
    moving = [slide.output for slide in (depthwise.rows, depthwise.columns) if slide is not None]
    if any(slope(weight, axis.var) != 0 for axis in moving):
        raise NotApplicable("weights depend on the place in the result")
    if any(_is_still(address, axis) for axis in axes):
        raise NotApplicable("results share an input, as those of a whole convolution do")
    inner = depthwise.channels or depthwise.columns.output
    stored = slope(window.store.indices[0], inner.var)
    if stored != 1 and not inner.runs_once:
        raise NotApplicable("results are not next to each other along the vectors")
    if depthwise.channels is not None and slope(weight, depthwise.channels.var) != 1:
        raise NotApplicable("weights of neighbouring channels are not next to each other")
    if depthwise.channels is None and position_step(depthwise.data, depthwise.columns) != 1:
        raise NotApplicable("neither channels nor columns are next to each other")
    return depthwise


def _apart(data: tvm.ir.TensorLoad, slide: Slide) -> float:
    """Elements from a position of the window to the next; more than any number if symbolic."""
    step = position_step(data, slide)
    return step if isinstance(step, int) else math.inf


def _is_still(address: tvm.ir.Expr, axis: LoopAxis) -> bool:
    step = stride(address, axis.var)
    return step is None or static_extent(step) == 0


def _is_single_input(slide: Slide, weight: tvm.ir.TensorLoad) -> bool:
    """Whether it is the loop over the input channels of a group, of which there is one."""
    alone = slide.position.extent == 1 and slide.output.length == 1
    return (alone and not slide.is_padded) or slope(weight.indices[0], slide.output.var) != 0
