"""Sequences and optionals resolved while a model is read: a list of tensors, and a tensor or none.

A sequence whose length and positions are known is only a way to name tensors. What is left over
after ``resolve_containers`` depends on data, and is refused at import.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from tvm_ext.errors import FormError
from tvm_ext.onnx_frontend.ir_edits import Inserter, constant_of, opset_of, replace_outputs
from tvm_ext.onnx_frontend.loop_rewrites import unsqueezed
from tvm_ext.onnx_frontend.onnx_graph import DEFAULT_DOMAINS


class _Unknown(Exception):
    """The node depends on data."""


class _Nothing:
    """An optional without an element."""


@dataclass(frozen=True)
class _Slices:
    """A sequence of the slices of a tensor, whose number only the run may know.

    Each is of ``step`` elements along the axis, and the last one of what is left.
    """

    data: ir.Value
    axis: int
    keeps_axis: bool
    step: int = 1


@dataclass
class _Known:
    """Contents of sequences and optionals by value, and the opset."""

    contents: dict[ir.Value, list[ir.Value] | _Slices | _Nothing]
    opset: int


def resolve_containers(model: ir.Model) -> bool:
    """Replaces in place what is known of sequences and optionals; whether there was some."""
    known = _Known({}, opset_of(model))
    changed = False
    for node in list(model.graph.all_nodes()):
        handler = _HANDLERS.get(node.op_type)
        if handler is None or node.domain not in DEFAULT_DOMAINS:
            continue
        try:
            changed |= handler(node, known)
        except _Unknown:
            continue
    return changed


@contextmanager
def splits_hidden(model: ir.Model) -> Iterator[None]:
    """Hides SplitToSequence with a size that the run decides from onnxscript, which fails on it."""
    hidden = [
        node
        for node in model.graph.all_nodes()
        if node.op_type == "SplitToSequence" and constant_of((*node.inputs, None)[1]) is None
    ]
    domains = [node.domain for node in hidden]
    for node in hidden:
        node.domain = "tvm_ext.hidden"
    yield
    for node, domain in zip(hidden, domains, strict=True):
        node.domain = domain


def _listed(value: ir.Value | None, known: _Known) -> list[ir.Value]:
    found = known.contents.get(value) if value is not None else None
    if not isinstance(found, list):
        raise _Unknown
    return found


def _position(node: ir.Node, index: int, default: int) -> int:
    value = node.inputs[index] if len(node.inputs) > index else None
    if value is None:
        return default
    array = constant_of(value)
    if array is None:
        raise _Unknown
    return int(array.item())


def _checked(node: ir.Node, position: int, length: int) -> int:
    if not -length <= position < length:
        raise FormError(
            f"{node.op_type} node '{node.name}' has position {position} in a sequence of {length}"
        )
    return position % length


def _construct(node: ir.Node, known: _Known) -> bool:
    known.contents[node.outputs[0]] = [value for value in node.inputs if value is not None]
    return False


def _insert(node: ir.Node, known: _Known) -> bool:
    items = list(_listed(node.inputs[0], known))
    position = _position(node, 2, len(items))
    if position != len(items):
        position = _checked(node, position, len(items))
    items.insert(position, node.inputs[1])
    known.contents[node.outputs[0]] = items
    return False


def _erase(node: ir.Node, known: _Known) -> bool:
    items = list(_listed(node.inputs[0], known))
    del items[_checked(node, _position(node, 1, -1), len(items))]
    known.contents[node.outputs[0]] = items
    return False


def _slices(value: ir.Value | None, known: _Known) -> _Slices | None:
    found = known.contents.get(value) if value is not None else None
    return found if isinstance(found, _Slices) else None


def _at(node: ir.Node, known: _Known) -> bool:
    slices = _slices(node.inputs[0], known)
    if slices is not None:
        inserter = Inserter(node, f"{node.name}/item")
        if slices.step > 1:
            return _becomes(node, _chunk(inserter, slices, node.inputs[1], known.opset))
        item = inserter.node("Gather", [slices.data, node.inputs[1]], axis=slices.axis)
        item.dtype = slices.data.dtype
        if slices.keeps_axis:
            item = unsqueezed(inserter, item, slices.axis, known.opset)
        return _becomes(node, item)
    items = _listed(node.inputs[0], known)
    item = items[_checked(node, _position(node, 1, 0), len(items))]
    return _becomes(node, item)


def _chunk(inserter: Inserter, slices: _Slices, place: ir.Value, opset: int) -> ir.Value:
    """The slice of a place: its start is looked up, as one element's place would be."""
    zero, step = (inserter.constant(np.array(n, np.int64)) for n in (0, slices.step))
    size = inserter.size(slices.data, slices.axis)
    start = inserter.node("Gather", [inserter.node("Range", [zero, size, step]), place], axis=0)
    end = inserter.node("Add", [start, step])
    bounds = [unsqueezed(inserter, bound, 0, opset) for bound in (start, end)]
    along = inserter.constant(np.array([slices.axis], np.int64))
    found = inserter.node("Slice", [slices.data, *bounds, along])
    found.dtype = slices.data.dtype
    return found


def _count(inserter: Inserter, slices: _Slices) -> ir.Value:
    """How many slices there are: the size by the step, rounded up."""
    size = inserter.size(slices.data, slices.axis)
    if slices.step == 1:
        return size
    step = inserter.constant(np.array(slices.step, np.int64))
    rest = inserter.constant(np.array(slices.step - 1, np.int64))
    return inserter.node("Div", [inserter.node("Add", [size, rest]), step])


def _becomes(node: ir.Node, value: ir.Value) -> bool:
    """Through an Identity: the output of a graph must not be its input or a second output."""
    copy = Inserter(node, f"{node.name}/value").node("Identity", [value])
    copy.type, copy.shape = value.type, value.shape
    replace_outputs(node, [copy])
    return True


def _length(node: ir.Node, known: _Known) -> bool:
    slices = _slices(node.inputs[0], known)
    if slices is not None:
        replace_outputs(node, [_count(Inserter(node, f"{node.name}/n"), slices)])
        return True
    count = len(_listed(node.inputs[0], known))
    replace_outputs(node, [Inserter(node, f"{node.name}/n").constant(np.array(count, np.int64))])
    return True


def _concat(node: ir.Node, known: _Known) -> bool:
    inserter = Inserter(node, f"{node.name}/parts")
    axis = node.attributes["axis"].as_int()
    new_axis = node.attributes.get("new_axis")
    is_new = new_axis is not None and bool(new_axis.as_int())
    slices = _slices(node.inputs[0], known)
    if slices is not None:
        return _becomes(node, _joined(inserter, slices, axis, is_new, known))
    items = _listed(node.inputs[0], known)
    if is_new:
        items = [unsqueezed(inserter, value, axis, known.opset) for value in items]
    joined = inserter.node("Concat", items, axis=axis)
    joined.dtype = items[0].dtype if items else None
    replace_outputs(node, [joined])
    return True


def _joined(
    inserter: Inserter, slices: _Slices, axis: int, is_new: bool, known: _Known
) -> ir.Value:
    """The slices along a new axis, or one after the other along one of theirs."""
    data = slices.data
    if data.shape is None:
        raise _Unknown
    rank = len(data.shape)
    # A new axis is counted among those of the result.
    axis %= rank if is_new or slices.keeps_axis else rank - 1
    if slices.keeps_axis:
        if is_new or axis != slices.axis:
            raise _Unknown
        return data
    order = [other for other in range(rank) if other != slices.axis]
    order.insert(axis, slices.axis)
    if order != list(range(rank)):
        data = inserter.node("Transpose", [data], perm=order)
        data.dtype = slices.data.dtype
    if is_new:
        return data
    # The sizes of the result, of which that of the joined axis is left to Reshape.
    sizes = [
        unsqueezed(inserter, inserter.size(data, place), 0, known.opset)
        for place in range(rank)
        if place != axis + 1
    ]
    sizes[axis] = inserter.constant(np.array([-1], np.int64))
    merged = inserter.node("Reshape", [data, inserter.node("Concat", sizes, axis=0)])
    merged.dtype = data.dtype
    return merged


def _split(node: ir.Node, known: _Known) -> bool:
    data = node.inputs[0]
    if data.shape is None:
        raise _Unknown
    axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
    axis %= len(data.shape)
    if len(node.inputs) < 2 and not isinstance(data.shape[axis], int):
        known.contents[node.outputs[0]] = _Slices(data, axis, _keeps_axis(node))
        return False
    step = constant_of(node.inputs[1]) if len(node.inputs) > 1 else None
    is_open = not isinstance(data.shape[axis], int)
    if is_open and step is not None and step.ndim == 0 and step.item() >= 1:
        known.contents[node.outputs[0]] = _Slices(data, axis, True, int(step.item()))
        return False
    sizes, keep = _parts(node, data.shape[axis])
    inserter = Inserter(node, f"{node.name}/parts")
    items, start = [], 0
    along = inserter.constant(np.array([axis], np.int64))
    for size in sizes:
        if keep:
            bounds = [inserter.constant(np.array([n], np.int64)) for n in (start, start + size)]
            item = inserter.node("Slice", [data, *bounds, along])
        else:
            at = inserter.constant(np.array(start, np.int64))
            item = inserter.node("Gather", [data, at], axis=axis)
        item.dtype = data.dtype
        items.append(item)
        start += size
    known.contents[node.outputs[0]] = items
    return False


def _parts(node: ir.Node, size: object) -> tuple[list[int], bool]:
    """Sizes of the parts, and whether they keep the axis that is split."""
    split = node.inputs[1] if len(node.inputs) > 1 else None
    if split is not None:
        array = constant_of(split)
        if array is None:
            raise _Unknown
        if array.ndim:
            return [int(n) for n in array], True
        step, keep = int(array.item()), True
    else:
        step, keep = 1, _keeps_axis(node)
    if not isinstance(size, int) or step < 1:
        raise _Unknown
    return [min(step, size - start) for start in range(0, size, step)], keep


def _keeps_axis(node: ir.Node) -> bool:
    return "keepdims" not in node.attributes or bool(node.attributes["keepdims"].as_int())


def _map(node: ir.Node, known: _Known) -> bool:
    count = len(_listed(node.inputs[0], known))
    body = node.attributes["body"].as_graph()
    made: list[list[ir.Value]] = [[] for _ in node.outputs]
    for index in range(count):
        given = []
        for value in node.inputs:
            items = known.contents.get(value)
            given.append(items[index] if isinstance(items, list) else value)
        results = Inserter(node, f"{node.name}/{index}").body(body, given, index)
        for found, value in zip(made, results, strict=True):
            found.append(value)
    known.contents.update(zip(node.outputs, made, strict=True))
    return False


def _identity(node: ir.Node, known: _Known) -> bool:
    if node.inputs[0] in known.contents:
        known.contents[node.outputs[0]] = known.contents[node.inputs[0]]
    return False


def _optional(node: ir.Node, known: _Known) -> bool:
    given = node.inputs[0] if node.inputs else None
    if given is None:
        known.contents[node.outputs[0]] = _Nothing()
        return False
    if given in known.contents:
        known.contents[node.outputs[0]] = known.contents[given]
        return False
    if isinstance(given.type, ir.SequenceType | ir.OptionalType):
        raise _Unknown
    return _becomes(node, given)


def _get_element(node: ir.Node, known: _Known) -> bool:
    given = node.inputs[0]
    if isinstance(known.contents.get(given), _Nothing):
        raise FormError(
            f"OptionalGetElement node '{node.name}' reads the element of an empty optional"
        )
    return _optional(node, known)


def _has_element(node: ir.Node, known: _Known) -> bool:
    given = node.inputs[0] if node.inputs else None
    found = known.contents.get(given) if given is not None else _Nothing()
    if found is None and given is not None and isinstance(given.type, ir.OptionalType):
        raise _Unknown
    answer = np.array(not isinstance(found, _Nothing))
    replace_outputs(node, [Inserter(node, f"{node.name}/has").constant(answer)])
    return True


_HANDLERS: dict[str, Callable[[ir.Node, _Known], bool]] = {
    "ConcatFromSequence": _concat,
    "Identity": _identity,
    "Optional": _optional,
    "OptionalGetElement": _get_element,
    "OptionalHasElement": _has_element,
    "SequenceAt": _at,
    "SequenceConstruct": _construct,
    "SequenceEmpty": _construct,
    "SequenceErase": _erase,
    "SequenceInsert": _insert,
    "SequenceLength": _length,
    "SequenceMap": _map,
    "SplitToSequence": _split,
}
