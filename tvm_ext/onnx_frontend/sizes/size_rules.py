"""Operators on numbers that follow from sizes: which rule each has."""

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import tvm
from onnx.reference import ReferenceEvaluator
from tvm import relax, tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.onnx_frontend.sizes import scalar_rules as rules
from tvm_ext.onnx_frontend.sizes.generated_tensors import GeneratedTensor
from tvm_ext.onnx_frontend.sizes.size_values import (
    FLOATS,
    INTEGERS,
    Element,
    SizeValues,
    array_of,
)
from tvm_ext.onnx_frontend.value_sizes import range_steps

# Nodes whose inputs are numbers, computed by ONNX's own reference implementation.


# Elements of a result that is computed while a model is imported: tables of positions.
MOST_ELEMENTS = 1 << 16


def computed_by_reference(
    node: onnx.NodeProto, inputs: Sequence[np.ndarray | None], opset: int
) -> list[np.ndarray]:
    """The node's outputs.

    Raises
    ------
    NotApplicable
        See there.
    """
    if _expected_elements(node, inputs) > MOST_ELEMENTS:
        raise NotApplicable(node.op_type)
    # The same value may be several inputs: each gets a name of its own.
    names = ["" if value is None else f"i{place}" for place, value in enumerate(inputs)]
    single = onnx.NodeProto()
    single.CopyFrom(node)
    del single.input[:]
    single.input.extend(names)
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    infos = [onnx.ValueInfoProto(name=name) for name in names if name]
    graph = onnx.helper.make_graph([single], "node", infos, outputs)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    feeds = {name: value for name, value in zip(names, inputs, strict=True) if name}
    try:
        with np.errstate(all="ignore"):
            found = ReferenceEvaluator(model).run(None, feeds)
    except Exception as error:
        # Whatever NumPy raises at indices out of range and the like: the run says what is wrong.
        raise NotApplicable(node.op_type) from error
    # TVM writes constants as they lie in memory: transposed ones would be damaged files.
    arrays = [np.array(value, order="C") for value in found]
    if any(array.dtype == object or array.size > MOST_ELEMENTS for array in arrays):
        raise NotApplicable(node.op_type)
    return arrays


def _expected_elements(node: onnx.NodeProto, inputs: Sequence[np.ndarray | None]) -> int:
    """How many elements operators make whose result is larger than what they read."""
    numbers: list[Any] = [None if value is None else value.flatten().tolist() for value in inputs]
    try:
        if node.op_type == "ConstantOfShape":
            return math.prod(numbers[0])
        if node.op_type == "Expand":
            return math.prod(numbers[1]) * len(numbers[0])
        if node.op_type == "Tile":
            return math.prod(numbers[1]) * len(numbers[0])
        if node.op_type == "Range":
            return range_steps(*(value.item() for value in inputs if value is not None))
    except (ValueError, TypeError, ZeroDivisionError) as error:
        raise NotApplicable(node.op_type) from error
    return MOST_ELEMENTS + 1 if node.op_type in _SIZED_BY_VALUES else 0


# Others whose results can be much larger than all that they read.
_SIZED_BY_VALUES = frozenset(
    {
        *("BlackmanWindow", "CenterCropPad", "Col2Im", "DFT", "Einsum", "HammingWindow"),
        *("HannWindow", "MaxUnpool", "MelWeightMatrix", "OneHot", "Resize", "STFT", "Upsample"),
    }
)


# Arrays with expressions in them, and tensors beside them, that are calculated with one by one.
MOST_LISTED = 1 << 10

_Values = list[SizeValues | None]


def computed_from_sizes(
    node: onnx.NodeProto, inputs: Sequence[Any], opset: int
) -> list[SizeValues] | None:
    """The outputs of a node of the default domain that reads sizes; None for what has no rule.

    Elements that only the run knows are None in them, if not all are; their ``tensor`` is missing.
    """
    if node.op_type in ("Shape", "Size"):
        return _of_tensor(node, inputs[0])
    if not any(isinstance(value, SizeValues) for value in inputs):
        return None
    if any(isinstance(value, GeneratedTensor) for value in inputs):
        return None
    values = [_listed(value) for value in inputs]
    if [value is None for value in values] != [value is None for value in inputs]:
        return None
    try:
        found = _computed(node, values, opset)
    except NotApplicable:
        return None
    if found is None or any(value.unknown == value.elements.size > 0 for value in found):
        return None
    return found


def _computed(node: onnx.NodeProto, values: _Values, opset: int) -> list[SizeValues] | None:
    if all(value is None or value.is_known for value in values):
        arrays = [None if value is None else value.elements for value in values]
        found = computed_by_reference(node, arrays, opset)
        if any(str(array.dtype) not in (*INTEGERS, *FLOATS, "bool") for array in found):
            return None
        return [SizeValues(str(array.dtype), array) for array in found]
    if _moves(node, values):
        return _moved(node, values, opset)
    rule = _RULES.get(node.op_type)
    return None if rule is None else rule(node, values)


def _listed(value: Any) -> SizeValues | None:
    """An input as values, if it is small and of a type that there are rules for."""
    if value is None or isinstance(value, SizeValues):
        return value
    if not isinstance(getattr(value, "ty", None), relax.TensorType):
        return None
    dtype = str(value.ty.dtype)
    if dtype not in (*INTEGERS, *FLOATS, "bool"):
        return None
    if isinstance(value, tvm.ir.GenericConst):
        array = value.value.numpy()
        return SizeValues(dtype, array) if array.size <= MOST_LISTED else None
    shape = value.ty.shape
    if not isinstance(shape, relax.ShapeExpr):
        return None
    if not all(isinstance(size, tirx.IntImm) for size in shape.values):
        return None
    sizes = [int(size) for size in shape.values]
    if np.prod(sizes) > MOST_LISTED:
        return None
    return SizeValues(dtype, np.full(sizes, None, object), value)


def _of_tensor(node: onnx.NodeProto, value: Any) -> list[SizeValues] | None:
    """Shape and Size."""
    if isinstance(value, SizeValues):
        sizes: list[Element] = list(value.elements.shape)
    elif isinstance(getattr(value, "ty", None), relax.TensorType) and isinstance(
        value.ty.shape, relax.ShapeExpr
    ):
        sizes = [int(s) if isinstance(s, tirx.IntImm) else s for s in value.ty.shape.values]
    else:
        return None
    if node.op_type == "Size":
        total: Element = 1
        for size in sizes:
            total = rules.multiply(total, size, "int64")
        return [_values("int64", array_of([total], ()))]
    attributes = attributes_of(node)
    sizes = sizes[attributes.get("start", 0) : attributes.get("end")]
    return [_values("int64", array_of(sizes, (len(sizes),)))]


def _values(dtype: str, elements: np.ndarray) -> SizeValues:
    return SizeValues.of(dtype, elements)


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """The attributes of a node by name."""
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


# Operators that put elements of some inputs in other places, and which inputs these are.
_MOVING: dict[str, tuple[int, ...]] = {
    "Compress": (0,),
    "Expand": (0,),
    "Flatten": (0,),
    "Gather": (0,),
    "GatherElements": (0,),
    "GatherND": (0,),
    "Identity": (0,),
    "Pad": (0, 2),
    "Reshape": (0,),
    "ReverseSequence": (0,),
    "Scatter": (0, 2),
    "ScatterElements": (0, 2),
    "ScatterND": (0, 2),
    "Slice": (0,),
    "Split": (0,),
    "Squeeze": (0,),
    "Tile": (0,),
    "Transpose": (0,),
    "Trilu": (0,),
    "Unsqueeze": (0,),
    "Where": (1, 2),
}


def _moved_inputs(node: onnx.NodeProto, values: _Values) -> tuple[int, ...]:
    places = range(len(values)) if node.op_type == "Concat" else _MOVING.get(node.op_type, ())
    return tuple(place for place in places if place < len(values))


def _moves(node: onnx.NodeProto, values: _Values) -> bool:
    """Whether it is such an operator, and where it puts things is known."""
    moved = _moved_inputs(node, values)
    if not moved or attributes_of(node).get("reduction", b"none") != b"none":
        return False
    others = [value for place, value in enumerate(values) if place not in moved]
    return all(value is None or value.is_known for value in others)


def _moved(node: onnx.NodeProto, values: _Values, opset: int) -> list[SizeValues]:
    """The operator on numbers of elements, 0 of which is what padding and triangles fill with."""
    moved = _moved_inputs(node, values)
    dtype = next(value.dtype for place in moved if (value := values[place]) is not None)
    known: list[Element] = SizeValues(dtype, np.zeros(1, dtype)).listed()
    numbers: list[np.ndarray | None] = []
    for place, value in enumerate(values):
        if value is None or place not in moved:
            numbers.append(None if value is None else value.elements)
            continue
        listed = value.listed()
        first = len(known)
        known += listed
        numbers.append(np.arange(first, len(known), dtype=np.int64).reshape(value.elements.shape))
    found = computed_by_reference(node, numbers, opset)
    return [
        _values(dtype, array_of([known[number] for number in array.flat], array.shape))
        for array in found
    ]


def _elementwise(function: Callable[..., Element], *arrays: np.ndarray) -> np.ndarray:
    """``function`` of each tuple of elements, broadcast."""
    found = np.frompyfunc(function, len(arrays), 1)(*arrays)
    return found if isinstance(found, np.ndarray) else array_of([found], ())


_Rule = Callable[[onnx.NodeProto, _Values], "list[SizeValues] | None"]


def _of_elements(rule: Callable[..., Element], result: str | None = None) -> _Rule:
    """An operator by element; its result has the type of its first input unless one is given."""

    def apply(node: onnx.NodeProto, values: _Values) -> list[SizeValues] | None:
        given = [value for value in values if value is not None]
        dtype = given[0].dtype
        arrays = [value.objects() for value in given]
        found = _elementwise(lambda *elements: rule(*elements, dtype), *arrays)
        return [_values(result or dtype, found)]

    return apply


def _chain(rule: Callable[..., Element]) -> _Rule:
    """An operator of any number of inputs, two at a time."""

    def apply(node: onnx.NodeProto, values: _Values) -> list[SizeValues] | None:
        given = [value for value in values if value is not None]
        dtype, found = given[0].dtype, given[0].objects()
        for value in given[1:]:
            found = _elementwise(lambda a, b: rule(a, b, dtype), found, value.objects())
        return [_values(dtype, found)]

    return apply


def _where(node: onnx.NodeProto, values: _Values) -> list[SizeValues] | None:
    condition, first, second = values
    if condition is None or first is None or second is None:
        return None
    arrays = [value.objects() for value in (condition, first, second)]
    dtype = first.dtype
    found = _elementwise(lambda c, a, b: rules.chosen(c, a, b, dtype), *arrays)
    return [_values(dtype, found)]


def _remainder(node: onnx.NodeProto, values: _Values) -> list[SizeValues] | None:
    like_dividend = bool(attributes_of(node).get("fmod", 0))
    rule = _of_elements(lambda a, b, dtype: rules.remainder(a, b, dtype, like_dividend))
    return rule(node, values)


def _cast(node: onnx.NodeProto, values: _Values) -> list[SizeValues] | None:
    if node.op_type == "CastLike":
        target = values[1].dtype if values[1] is not None else ""
    else:
        try:
            target = str(onnx.helper.tensor_dtype_to_np_dtype(attributes_of(node)["to"]))
        except KeyError:
            return None
    value = values[0]
    if value is None or target not in (*INTEGERS, *FLOATS, "bool"):
        return None
    source = value.dtype
    found = _elementwise(lambda e: rules.converted(e, source, target), value.objects())
    return [_values(target, found)]


def _clip(node: onnx.NodeProto, values: _Values) -> list[SizeValues] | None:
    data, low, high = [*values, None, None][:3]
    if data is None or {"min", "max"} & attributes_of(node).keys():
        return None
    found = data.objects()
    for bound, rule in ((low, rules.maximum), (high, rules.minimum)):
        if bound is not None:
            limited = lambda a, b, rule=rule: rule(a, b, data.dtype)  # noqa: E731
            found = _elementwise(limited, found, bound.objects())
    return [_values(data.dtype, found)]


def _reduction(rule: Callable[..., Element]) -> _Rule:
    def apply(node: onnx.NodeProto, values: _Values) -> list[SizeValues] | None:
        attributes = attributes_of(node)
        data, axes = values[0], values[1] if len(values) > 1 else None
        if data is None or (axes is not None and not axes.is_known) or not data.elements.size:
            return None
        rank = data.elements.ndim
        listed = attributes.get("axes", []) if axes is None else axes.elements.flatten().tolist()
        if not listed and attributes.get("noop_with_empty_axes", 0):
            return [data]
        reduced = tuple(int(axis) % max(rank, 1) for axis in listed) or tuple(range(rank))
        found = data.objects()
        combined = np.frompyfunc(lambda a, b: rule(a, b, data.dtype), 2, 1)
        for axis in sorted(reduced, reverse=True):
            found = combined.reduce(found, axis=axis, keepdims=bool(attributes.get("keepdims", 1)))
            found = found if isinstance(found, np.ndarray) else array_of([found], ())
        return [_values(data.dtype, found)]

    return apply


def _cumulative_sum(node: onnx.NodeProto, values: _Values) -> list[SizeValues] | None:
    data, axis = values[0], values[1]
    attributes = attributes_of(node)
    if data is None or axis is None or not axis.is_known or attributes.get("exclusive", 0):
        return None
    place, found = int(axis.elements.item()), data.objects()
    turned = bool(attributes.get("reverse", 0))
    found = np.flip(found, place) if turned else found
    combined = np.frompyfunc(lambda a, b: rules.add(a, b, data.dtype), 2, 1)
    found = combined.accumulate(found, axis=place)
    return [_values(data.dtype, np.flip(found, place) if turned else found)]


def _range(node: onnx.NodeProto, values: _Values) -> list[SizeValues] | None:
    """A list of which only the first element is symbolic, as ``Range(n, n + 3, 1)``."""
    if any(value is None or value.dtype not in INTEGERS for value in values):
        return None
    (start,), (limit,), (step,) = (value.listed() for value in values if value is not None)
    dtype = values[0].dtype if values[0] is not None else "int64"
    distance = rules.subtract(limit, start, dtype)
    if distance is None or step is None or any(map(rules.is_expression, (distance, step))):
        return None
    if step == 0 or abs(distance) > MOST_LISTED:
        return None
    count = max(0, -(-distance // step))
    found = [rules.add(start, place * step, dtype) for place in range(count)]
    return [_values(dtype, array_of(found, (count,)))]


def _reciprocal(a: Element, dtype: str) -> Element:
    return rules.divide(np.dtype(dtype).type(1), a, dtype) if dtype in FLOATS else None


_RULES: dict[str, _Rule] = {
    "Abs": _of_elements(rules.absolute),
    "Add": _of_elements(rules.add),
    "And": _of_elements(rules.both),
    "Cast": _cast,
    "CastLike": _cast,
    "Ceil": _of_elements(rules.ceil),
    "Clip": _clip,
    "CumSum": _cumulative_sum,
    "Div": _of_elements(rules.divide),
    "Equal": _of_elements(rules.comparison(operator.eq), "bool"),
    "Floor": _of_elements(rules.floor),
    "Greater": _of_elements(rules.comparison(operator.gt), "bool"),
    "GreaterOrEqual": _of_elements(rules.comparison(operator.ge), "bool"),
    "Less": _of_elements(rules.comparison(operator.lt), "bool"),
    "LessOrEqual": _of_elements(rules.comparison(operator.le), "bool"),
    "Max": _chain(rules.maximum),
    "Min": _chain(rules.minimum),
    "Mod": _remainder,
    "Mul": _of_elements(rules.multiply),
    "Neg": _of_elements(rules.negative),
    "Not": _of_elements(rules.contrary),
    "Or": _of_elements(rules.either),
    "Pow": _of_elements(rules.power),
    "Range": _range,
    "Reciprocal": _of_elements(_reciprocal),
    "ReduceMax": _reduction(rules.maximum),
    "ReduceMin": _reduction(rules.minimum),
    "ReduceProd": _reduction(rules.multiply),
    "ReduceSum": _reduction(rules.add),
    "Round": _of_elements(rules.nearest),
    "Sqrt": _of_elements(rules.square_root),
    "Sub": _of_elements(rules.subtract),
    "Sum": _chain(rules.add),
    "Where": _where,
}

# Of them, those that compute each element of the result from one element of each input.
SCALAR_RULES: dict[str, _Rule] = {
    name: rule
    for name, rule in _RULES.items()
    if name != "CumSum" and name != "Range" and not name.startswith("Reduce")
}
