"""Recognises a reduction over a window that slides along axes of its input, padded or not."""

from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.sym import detect_linear_equation

from tvm_ext.tir_schedules.block_access import static_extent
from tvm_ext.tir_schedules.conditions import conjuncts
from tvm_ext.tir_schedules.flat_views import nodes
from tvm_ext.tir_schedules.inlining import count_calls
from tvm_ext.tir_schedules.nest import Axis, slope, substitute
from tvm_ext.tir_schedules.template import NotMine

# No tensor is as long as this.
_FAR = 1 << 62

_IF_THEN_ELSE = tvm.ir.Op.get("prim.if_then_else")


@dataclass(frozen=True)
class Slide:
    """One axis of the window: it reads ``step * output + spread * position`` of the input.

    Attributes
    ----------
    output, position : Axis
        Loops over the results, and over the window.
    step, spread : int
        Stride and dilation.
    first, last : int
        The positions (the last one exclusive) that are not padding.
    """

    output: Axis
    position: Axis
    step: int
    spread: int
    first: int
    last: int

    @property
    def length(self) -> int:
        """How many positions there are, padding included."""
        reach = self.spread * (self.position.extent - 1)
        return self.step * (self.output.extent - 1) + reach + 1

    def covered(self) -> tuple[int, int]:
        """The outputs (the last one exclusive) whose windows hold no padding."""
        reach = self.spread * (self.position.extent - 1)
        start = max(0, -(-self.first // self.step))
        end = min(self.output.extent, (self.last - 1 - reach) // self.step + 1)
        return start, max(start, end)


@dataclass(frozen=True)
class Window:
    """The reduction of a pooling kernel.

    Attributes
    ----------
    outputs : tuple[Axis, ...]
        Loops over the results, in the order of the block.
    slides : tuple[Slide, ...]
        The axes of the window.
    store : tirx.BufferStore
        Where a result goes; its value is an element of the window that is not padding.
    combine : type
        The operator: tirx.Add, tirx.Max or tirx.Min.
    start : Expr
        What an empty window gives, and what padding holds.

    The element may be a product: of a load that slides over the input, and one of a weight.
    """

    outputs: tuple[Axis, ...]
    slides: tuple[Slide, ...]
    store: tirx.BufferStore
    combine: Any
    start: Any


def takes_plain_elements(stmt: s_tir.SBlock) -> bool:
    """Whether a reduction takes elements of a buffer as they are: quick to find out."""
    parts = _operator_and_element(stmt)
    return parts is not None and isinstance(parts[1], tvm.ir.TensorLoad)


def window_of(stmt: s_tir.SBlock, weighted: bool = False) -> Window | NotMine:
    """The window that a block reduces, into which its input's padding was inlined.

    ``weighted``: of elements multiplied by weights, which are not padded.
    """
    parts = _operator_and_element(stmt)
    if parts is None:
        return NotMine("it is not a sum, a maximum or a minimum")
    operator, element = parts
    factors = _factors(element) if weighted else (element, None)
    if factors is None:
        return NotMine("it is not a sum of products of an input and a weight")
    value, conditions, fill = _without_padding(factors[0])
    start = stmt.init.value
    if fill is not None and not _is_same_number(fill, start):
        return NotMine("the padding is not what an empty window gives")
    if count_calls(value):
        return NotMine("its input is computed by function calls")
    axes = [Axis(v.var, static_extent(v.dom.extent) or 0) for v in stmt.iter_vars]
    reduces = [v.iter_type == tirx.IterVar.CommReduce for v in stmt.iter_vars]
    outputs = tuple(axis for axis, r in zip(axes, reduces, strict=True) if not r)
    window = [axis for axis, r in zip(axes, reduces, strict=True) if r]
    if not all(axis.extent for axis in axes):
        return NotMine("a loop has a symbolic extent or no iterations")
    unmoved = _unmoved(value, window, outputs, conditions)
    window = [axis for axis in window if not any(axis is other for other in unmoved)]
    zero = {axis.var: tirx.const(0, str(axis.var.ty)) for axis in unmoved}
    value = substitute(value, zero)
    found = [_slide(position, window, outputs, value, conditions) for position in window]
    for strange in found:
        if isinstance(strange, NotMine):
            return strange
    slides = [slide for slide in found if isinstance(slide, Slide)]
    known = [v for slide in slides for v in (slide.output.var, slide.position.var)]
    if not all(any(_uses(c, v) for v in known) for c in conditions):
        return NotMine("the padding is along an axis on which the window does not slide")
    if factors[1] is not None:
        value = value * substitute(factors[1], zero)
    store = tirx.BufferStore(stmt.body.buffer, value, stmt.body.indices)
    return Window(outputs, tuple(slides), store, operator, start)


def _is_same_number(fill: Any, start: Any) -> bool:
    """Whether two constants are equal, whatever their types."""
    if tvm_ffi.structural_equal(fill, start):
        return True
    kinds = (tirx.IntImm, tirx.FloatImm)
    return isinstance(fill, kinds) and isinstance(start, kinds) and fill.value == start.value


def _unmoved(
    value: Any, window: list[Axis], outputs: tuple[Axis, ...], conditions: list[Any]
) -> list[Axis]:
    """The window's axes of one position along which nothing slides.

    One is the only input channel of a group, of which several results may be made.
    """
    return [
        axis
        for axis in window
        if axis.extent == 1
        and not any(_uses(c, axis.var) for c in conditions)
        and isinstance(_slide(axis, window, outputs, value, conditions), NotMine)
    ]


def _operator_and_element(stmt: s_tir.SBlock) -> tuple[Any, Any] | None:
    """How a reduction combines what it has with the next element, and that element."""
    body = stmt.body
    if not isinstance(body, tirx.BufferStore) or not isinstance(stmt.init, tirx.BufferStore):
        return None
    value = body.value
    if not isinstance(value, tirx.Add | tirx.Max | tirx.Min):
        return None
    if not isinstance(value.a, tvm.ir.TensorLoad) or not value.a.source.same_as(body.buffer):
        return None
    return type(value), value.b


def _factors(element: Any) -> tuple[Any, Any] | None:
    """The element of the input and the weight that it is multiplied by.

    The weight is the load with fewer indices that move with the window and the result at once.
    """
    if not isinstance(element, tirx.Mul):
        return None
    loads = [nodes(side, tvm.ir.TensorLoad) for side in (element.a, element.b)]
    if any(len(found) != 1 for found in loads):
        return None
    sides = sorted((element.a, element.b), key=_terms_of_indices, reverse=True)
    weight = sides[1].value if isinstance(sides[1], tirx.Cast) else sides[1]
    return (sides[0], sides[1]) if isinstance(weight, tvm.ir.TensorLoad) else None


def _terms_of_indices(side: Any) -> int:
    (load,) = nodes(side, tvm.ir.TensorLoad)
    return sum(len(nodes(index, tvm.ir.Var)) for index in load.indices)


def _without_padding(value: Any) -> tuple[Any, list[Any], Any | None]:
    """What is read where there is no padding, when that is, and what is read where there is."""
    if isinstance(value, tirx.Cast):
        inside, conditions, fill = _without_padding(value.value)
        return inside.astype(str(value.ty)), conditions, fill
    if not isinstance(value, tvm.ir.Call) or not value.op.same_as(_IF_THEN_ELSE):
        return value, [], None
    condition, inside, outside = value.args
    return inside, conjuncts(condition), outside


def _slide(
    position: Axis, window: list[Axis], outputs: tuple[Axis, ...], value: Any, conditions: list[Any]
) -> Slide | NotMine:
    indices = [i for load in nodes(value, tvm.ir.TensorLoad) for i in load.indices]
    steps = {_step(index, position, window, outputs) for index in indices}
    steps.discard(None)
    if len(steps) != 1:
        return NotMine("the window does not slide along one axis of its input")
    partner, step, spread = next(s for s in steps if s is not None)
    if step < 1 or spread < 1:
        return NotMine("the window does not slide forwards")
    output = outputs[partner] if partner is not None else Axis(_unused(position), 1)
    first, last = 0, step * (output.extent - 1) + spread * (position.extent - 1) + 1
    for condition in conditions:
        bound = _bound(condition, output, position, step, spread)
        if isinstance(bound, NotMine):
            return bound
        if bound is not None:
            first, last = max(first, bound[0]), min(last, bound[1])
    return Slide(output, position, step, spread, first, last)


def _step(
    index: Any, position: Axis, window: list[Axis], outputs: tuple[Axis, ...]
) -> tuple[int | None, int, int] | None:
    """(output axis, stride, dilation) of an index along the window; None if it does not move.

    A stride of 0 says that the index is not of that kind.
    """
    if not _uses(index, position.var):
        return None
    everything = [*outputs, *window]
    linear = detect_linear_equation(index, [axis.var for axis in everything])
    numbers = [static_extent(number) for number in linear[:-1]]
    if len(numbers) != len(everything) or None in numbers:
        return (None, 0, 0)
    moving = {id(axis): n for axis, n in zip(everything, numbers, strict=True) if n}
    spread = moving.pop(id(position), 0)
    if not spread:
        return None
    partners = [i for i, axis in enumerate(outputs) if id(axis) in moving]
    if len(moving) > 1 or len(partners) != len(moving):
        return (None, 0, 0)
    if not partners:
        return (None, 1, spread or 0)
    return (partners[0], moving[id(outputs[partners[0]])] or 0, spread or 0)


def _bound(
    condition: Any, output: Axis, position: Axis, step: int, spread: int
) -> tuple[int, int] | NotMine | None:
    """Positions for which a condition of the padding holds; None when it is about another axis."""
    strange = NotMine("the padding is not a range of positions along the window")
    if not isinstance(condition, tirx.LT | tirx.LE | tirx.GT | tirx.GE):
        return strange
    linear = detect_linear_equation(condition.a - condition.b, [output.var, position.var])
    if len(linear) != 3:
        return strange
    by_output, by_position, offset = (static_extent(number) for number in linear)
    if by_position == 0 and by_output == 0:
        return None
    if offset is None or by_position not in (spread, -spread):
        return strange
    if output.extent > 1 and by_output != by_position // spread * step:
        return strange
    # The difference is +-position + offset, compared with 0.
    if by_position > 0:
        if isinstance(condition, tirx.LT | tirx.LE):
            return -_FAR, -offset + isinstance(condition, tirx.LE)
        return -offset + isinstance(condition, tirx.GT), _FAR
    if isinstance(condition, tirx.LT | tirx.LE):
        return offset + isinstance(condition, tirx.LT), _FAR
    return -_FAR, offset + isinstance(condition, tirx.GE)


def _uses(expr: Any, var: tirx.Var) -> bool:
    return any(node.same_as(var) for node in nodes(expr, tvm.ir.Var))


def _unused(like: Axis) -> tirx.Var:
    return tirx.Var("single", str(like.var.ty))


def at_position(value: Any, slide: Slide, position: Any) -> Any:
    """``value`` with its addresses moved to a position along an axis of the window."""
    zero = {
        slide.output.var: tirx.const(0, str(slide.output.var.ty)),
        slide.position.var: tirx.const(0, str(slide.position.var.ty)),
    }

    def moved(load: tvm.ir.TensorLoad) -> Any:
        step = slope(load.indices[0], slide.position.var) or 0
        address = substitute(load.indices[0], zero) + position * (step // slide.spread)
        return tirx.BufferLoad(load.source, [address])

    return tvm_ffi.structural_map(value, (tvm.ir.TensorLoad, moved))
