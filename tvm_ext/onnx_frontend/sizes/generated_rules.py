"""Operators on generated tensors: what each makes of the expression of an element."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import tirx

from tvm_ext.onnx_frontend.sizes import scalar_rules as rules
from tvm_ext.onnx_frontend.sizes.generated_tensors import GeneratedTensor
from tvm_ext.onnx_frontend.sizes.quasi_affine import equal_products, inferred_size
from tvm_ext.onnx_frontend.sizes.size_rules import SCALAR_RULES, attributes_of
from tvm_ext.onnx_frontend.sizes.size_values import INTEGERS, Element, SizeValues, array_of

# Operators in one expression. With more of them a kernel makes the tensor once, for all readers.
_MOST_OPERATORS = 48

_Inputs = Sequence[Any]


def generated(node: onnx.NodeProto, inputs: _Inputs) -> GeneratedTensor | None:
    """The output of a node of the default domain, if it follows from places and sizes alone.

    There is no rule for what is computed from the values of tensors, for sizes of which only the
    run knows whether they agree, and for numbers that no expression says.
    """
    rule = _RULES.get(node.op_type)
    if rule is None and node.op_type in SCALAR_RULES:
        rule = _elementwise
    if rule is None or not all(_is_from_sizes(value) for value in inputs):
        return None
    if node.op_type not in _MAKING and not any(_is_generated(value) for value in inputs):
        return None
    found = rule(node, inputs)
    if found is None or found.element is None:
        return None
    before = sum(value.operators for value in inputs if isinstance(value, GeneratedTensor))
    found = replace(found, operators=before + 1, tensor=None)
    return found if found.operators <= _MOST_OPERATORS else None


def _is_generated(value: Any) -> bool:
    return isinstance(value, GeneratedTensor)


def _is_from_sizes(value: Any) -> bool:
    """Whether an input holds no values of tensors that the run computes."""
    if isinstance(value, SizeValues):
        return not value.unknown
    return value is None or _is_generated(value) or isinstance(value, tvm.ir.GenericConst)


def same_size(first: Any, second: Any) -> bool:
    """Whether two sizes are known to be equal in every run."""
    if isinstance(first, int) and isinstance(second, int):
        return first == second
    proved = rules.analyzer_of(first, second).can_prove_equal(first, second)
    return bool(proved) or equal_products([first], [second], rules.ends_of)


def new_axes(sizes: Sequence[Any]) -> list[tirx.Var]:
    """A place for each of these sizes."""
    return [tirx.Var(f"i{axis}", "int64") for axis in range(len(sizes))]


_ZERO = tirx.const(0, "int64")


def _moved(
    data: GeneratedTensor, sizes: list[Any], axes: list[tirx.Var], places: Sequence[Any]
) -> GeneratedTensor:
    """A tensor of these sizes whose elements are those of ``data`` at ``places``."""
    return GeneratedTensor(data.dtype, sizes, axes, data.at(places))


def _as_generated(value: Any) -> GeneratedTensor | None:
    """An input as one: a single number has the same element everywhere."""
    if isinstance(value, GeneratedTensor):
        return value
    if isinstance(value, tvm.ir.GenericConst):
        array = value.value.numpy()
        value = SizeValues(str(value.ty.dtype), array)
    if not isinstance(value, SizeValues) or value.elements.size != 1:
        return None
    sizes = list(value.elements.shape)
    return GeneratedTensor(value.dtype, sizes, new_axes(sizes), value.listed()[0])


def _numbers(value: Any) -> list[Any] | None:
    """An input that is a list of sizes, with integers and expressions in it."""
    if isinstance(value, SizeValues) and not value.unknown:
        return value.listed()
    if isinstance(value, tvm.ir.GenericConst):
        return [int(number) for number in np.atleast_1d(value.value.numpy())]
    return None


# Operators by element.


def _elementwise(node: onnx.NodeProto, inputs: _Inputs) -> GeneratedTensor | None:
    given = [None if value is None else _as_generated(value) for value in inputs]
    if any(made is None and value is not None for made, value in zip(given, inputs, strict=True)):
        return None
    sizes = _broadcast([value.sizes for value in given if value is not None])
    if sizes is None:
        return None
    axes = new_axes(sizes)
    scalars = [None if value is None else _scalar(value, sizes, axes) for value in given]
    found = SCALAR_RULES[node.op_type](node, scalars)
    if found is None:
        return None
    (result,) = found
    return GeneratedTensor(result.dtype, sizes, axes, result.listed()[0])


def _scalar(value: GeneratedTensor, sizes: list[Any], axes: list[tirx.Var]) -> SizeValues:
    """The element of ``value`` that is read at a place of the result, as an array of one."""
    own = axes[len(sizes) - len(value.sizes) :]
    pairs = zip(value.sizes, own, strict=True)
    places = [_ZERO if same_size(size, 1) else place for size, place in pairs]
    return SizeValues.of(value.dtype, array_of([value.at(places)], ()))


def _broadcast(shapes: Sequence[list[Any]]) -> list[Any] | None:
    """What the shapes broadcast to; None where only the run can tell."""
    rank = max(len(shape) for shape in shapes)
    found = []
    for axis in range(-rank, 0):
        column = [shape[axis] for shape in shapes if len(shape) >= -axis]
        others = [size for size in column if not same_size(size, 1)]
        if any(not same_size(size, others[0]) for size in others[1:]):
            return None
        found.append(others[0] if others else 1)
    return found


# Operators that make tensors of sizes, and those that move elements.


def _range(node: onnx.NodeProto, inputs: _Inputs) -> GeneratedTensor | None:
    values = [_as_generated(value) for value in inputs]
    if any(value is None or value.dtype not in INTEGERS for value in values):
        return None
    start, limit, step = (value.element for value in values if value is not None)
    if isinstance(step, tvm.ir.Expr) or step == 0:
        return None
    dtype = str(values[0].dtype) if values[0] is not None else "int64"
    distance = rules.subtract(limit, start, dtype)
    if step < 0:
        distance = rules.negative(distance, dtype)
    if not isinstance(distance, tvm.ir.Expr):
        return None
    steps = rules.divide(rules.add(distance, abs(step) - 1, "int64"), abs(step), "int64")
    length = rules.maximum(steps, 0, "int64") if rules.is_positive(distance, 0) else None
    if length is None:
        return None
    axes = new_axes([length])
    element = rules.add(start, rules.multiply(axes[0], step, dtype), dtype)
    return GeneratedTensor(dtype, [length], axes, element)


def _constant_of_shape(node: onnx.NodeProto, inputs: _Inputs) -> GeneratedTensor | None:
    sizes = _numbers(inputs[0])
    if sizes is None or not any(isinstance(size, tvm.ir.Expr) for size in sizes):
        return None
    given = attributes_of(node).get("value")
    array = np.zeros(1, np.float32) if given is None else onnx.numpy_helper.to_array(given)
    if not _has_rules(str(array.dtype)):
        return None
    (element,) = SizeValues(str(array.dtype), array.reshape(1)).listed()
    return GeneratedTensor(str(array.dtype), sizes, new_axes(sizes), element)


def _has_rules(dtype: str) -> bool:
    return dtype in (*INTEGERS, "float32", "float64", "bool")


def _expand(node: onnx.NodeProto, inputs: _Inputs) -> GeneratedTensor | None:
    data, target = _as_generated(inputs[0]), _numbers(inputs[1])
    if data is None or target is None or not _has_rules(data.dtype):
        return None
    if not _is_generated(inputs[0]) and not any(isinstance(one, tvm.ir.Expr) for one in target):
        return None
    sizes = _broadcast([data.sizes, target])
    return None if sizes is None else _stretched(data, sizes)


def _stretched(data: GeneratedTensor, sizes: list[Any]) -> GeneratedTensor:
    axes = new_axes(sizes)
    own = axes[len(sizes) - len(data.sizes) :]
    pairs = zip(data.sizes, own, strict=True)
    places = [_ZERO if same_size(size, 1) else place for size, place in pairs]
    return _moved(data, sizes, axes, places)


def _tile(node: onnx.NodeProto, inputs: _Inputs) -> GeneratedTensor | None:
    """Repeats along axes of one element, as an Expand."""
    data, repeats = inputs[0], _numbers(inputs[1])
    if repeats is None or not _is_generated(data) or len(repeats) != len(data.sizes):
        return None
    pairs = list(zip(data.sizes, repeats, strict=True))
    if not all(same_size(1, size) or same_size(1, count) for size, count in pairs):
        return None
    sizes = [count if same_size(1, size) else size for size, count in pairs]
    return _stretched(data, sizes)


def _listed_axes(node: onnx.NodeProto, inputs: _Inputs) -> list[int] | None:
    """The axes of a Squeeze or Unsqueeze, an attribute up to opset 12."""
    if len(inputs) > 1 and inputs[1] is not None:
        return _numbers(inputs[1])
    return attributes_of(node).get("axes")


def _unsqueeze(node: onnx.NodeProto, inputs: _Inputs) -> GeneratedTensor | None:
    data, listed = inputs[0], _listed_axes(node, inputs)
    if not _is_generated(data) or listed is None:
        return None
    rank = len(data.sizes) + len(listed)
    sizes, axes = list(data.sizes), list(data.axes)
    for axis in sorted(axis % rank for axis in listed):
        sizes.insert(axis, 1)
        axes.insert(axis, tirx.Var("i", "int64"))
    return GeneratedTensor(data.dtype, sizes, axes, data.element)


def _squeeze(node: onnx.NodeProto, inputs: _Inputs) -> GeneratedTensor | None:
    data, listed = inputs[0], _listed_axes(node, inputs)
    if not _is_generated(data) or listed is None:
        return None
    removed = [axis % len(data.sizes) for axis in listed]
    if not all(same_size(data.sizes[axis], 1) for axis in removed):
        return None
    return _without_ones(data, [a for a in range(len(data.sizes)) if a not in removed])


def _without_ones(data: GeneratedTensor, kept: list[int]) -> GeneratedTensor:
    axes = [data.axes[axis] for axis in kept]
    places = [place if axis in kept else _ZERO for axis, place in enumerate(data.axes)]
    return _moved(data, [data.sizes[axis] for axis in kept], axes, places)


def _reshape(node: onnx.NodeProto, inputs: _Inputs) -> GeneratedTensor | None:
    """A Reshape that adds and removes axes of one element."""
    data, target = inputs[0], _numbers(inputs[1])
    if not _is_generated(data) or target is None:
        return None
    if attributes_of(node).get("allowzero", 0) and any(_is(one, 0) for one in target):
        return None
    sizes = [data.sizes[i] if _is(one, 0) else one for i, one in enumerate(target)]
    if any(_is(size, -1) for size in sizes):
        others = [size for size in sizes if not _is(size, -1)]
        rest = inferred_size(data.sizes, others)
        if rest is None:
            return None
        sizes = [rest if _is(size, -1) else size for size in sizes]
    kept = [axis for axis, size in enumerate(data.sizes) if not same_size(size, 1)]
    places = [axis for axis, size in enumerate(sizes) if not same_size(size, 1)]
    if len(kept) != len(places):
        return None
    if not all(same_size(data.sizes[a], sizes[b]) for a, b in zip(kept, places, strict=True)):
        return None
    axes, at = new_axes(sizes), [_ZERO] * len(data.sizes)
    for old, new in zip(kept, places, strict=True):
        at[old] = axes[new]
    return _moved(data, sizes, axes, at)


def _is(size: Any, number: int) -> bool:
    return isinstance(size, int) and size == number


def _transpose(node: onnx.NodeProto, inputs: _Inputs) -> GeneratedTensor | None:
    data = inputs[0]
    order = attributes_of(node).get("perm", range(len(data.sizes))[::-1])
    sizes, axes = ([given[axis] for axis in order] for given in (data.sizes, data.axes))
    return GeneratedTensor(data.dtype, sizes, axes, data.element)


def _concat(node: onnx.NodeProto, inputs: _Inputs) -> GeneratedTensor | None:
    """Parts of one element each along the axis, as the coordinates of indices are."""
    parts = [_as_generated(value) for value in inputs]
    given = [part for part in parts if part is not None]
    if len(given) < len(parts) or len({len(part.sizes) for part in given}) > 1:
        return None
    axis = int(attributes_of(node)["axis"]) % len(given[0].sizes)
    shapes = [[*part.sizes[:axis], *part.sizes[axis + 1 :]] for part in given]
    alike = all(
        same_size(*pair) for shape in shapes[1:] for pair in zip(shape, shapes[0], strict=True)
    )
    if not alike or not all(same_size(part.sizes[axis], 1) for part in given):
        return None
    sizes = [*shapes[0][:axis], len(given), *shapes[0][axis:]]
    axes = new_axes(sizes)
    places = [*axes[:axis], _ZERO, *axes[axis + 1 :]]
    element = given[-1].at(places)
    for number in range(len(given) - 2, -1, -1):
        here = axes[axis] == tirx.const(number, "int64")
        element = rules.chosen(here, given[number].at(places), element, given[0].dtype)
    return GeneratedTensor(given[0].dtype, sizes, axes, element)


def _triangle(node: onnx.NodeProto, inputs: _Inputs) -> GeneratedTensor | None:
    """Trilu: zeros below a diagonal, or above it."""
    data = inputs[0]
    diagonal = _as_generated(inputs[1]) if len(inputs) > 1 and inputs[1] is not None else None
    if not _is_generated(data) or len(data.sizes) < 2:
        return None
    if len(inputs) > 1 and inputs[1] is not None and diagonal is None:
        return None
    first = 0 if diagonal is None else diagonal.element
    distance = rules.subtract(data.axes[-1], data.axes[-2], "int64")
    upper = bool(attributes_of(node).get("upper", 1))
    kept = rules.comparison(operator.ge if upper else operator.le)(distance, first, "int64")
    zero: Element = SizeValues(data.dtype, np.zeros(1, data.dtype)).listed()[0]
    element = rules.chosen(kept, data.element, zero, data.dtype)
    return GeneratedTensor(data.dtype, data.sizes, data.axes, element)


def _slice(node: onnx.NodeProto, inputs: _Inputs) -> GeneratedTensor | None:
    """Steps of one, from and to places whose order every run knows."""
    data, listed = inputs[0], [_numbers(value) for value in inputs[1:]]
    if not _is_generated(data) or len(listed) < 2 or listed[0] is None or listed[1] is None:
        return None
    starts, ends = listed[0], listed[1]
    axes = listed[2] if len(listed) > 2 and inputs[3] is not None else list(range(len(starts)))
    steps = listed[3] if len(listed) > 3 and inputs[4] is not None else [1] * len(starts)
    if axes is None or steps is None or not all(_is(step, 1) for step in steps):
        return None
    sizes, firsts = list(data.sizes), [_ZERO] * len(data.sizes)
    for axis, start, end in zip(axes, starts, ends, strict=True):
        first, last = (_bound(one, data.sizes[axis]) for one in (start, end))
        length = None if first is None or last is None else rules.subtract(last, first, "int64")
        if length is None or not rules.is_positive(length, 0):
            return None
        sizes[axis], firsts[axis] = length, _wide(first)
    places = new_axes(sizes)
    at = [place + first for place, first in zip(places, firsts, strict=True)]
    return _moved(data, sizes, places, at)


def _bound(bound: Any, size: Any) -> Any:
    """A start or an end from the front, within the size; None where its sign is not known."""
    if rules.is_positive(bound, 0):
        return rules.minimum(bound, size, "int64")
    if not isinstance(bound, int):
        return None
    return rules.maximum(rules.add(size, bound, "int64"), 0, "int64")


def _wide(number: Any) -> tirx.Expr:
    return number if isinstance(number, tvm.ir.Expr) else tirx.const(int(number), "int64")


def _identity(node: onnx.NodeProto, inputs: _Inputs) -> GeneratedTensor | None:
    return inputs[0] if isinstance(inputs[0], GeneratedTensor) else None


_Rule = Callable[[onnx.NodeProto, _Inputs], GeneratedTensor | None]

# Operators that make such a tensor from sizes.
_MAKING = ("ConstantOfShape", "Expand", "Range")

_RULES: dict[str, _Rule] = {
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "Expand": _expand,
    "Identity": _identity,
    "Range": _range,
    "Reshape": _reshape,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Trilu": _triangle,
    "Unsqueeze": _unsqueeze,
}
