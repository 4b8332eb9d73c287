"""Brings models of old opsets to one whose forms TVM's converters know."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tvm_ext.errors import ModelError
from tvm_ext.onnx_frontend.onnx_graph import DEFAULT_DOMAINS, graphs_within

# Scan of opset 8, which scans each element of a batch on its own, as Loops that opset 8 has.
#
#     Before: ``y, ys = Scan(lengths, s, xs)``
#     After:  ``y, ys = Loop(shape(xs)[0])`` over the batch, whose body holds a Loop over ``xs[b]``
#
# Later opsets have no batch there, and ONNX's converter of opsets only drops it.


_BACKWARD = 1


def batched_scans_to_loops(model: onnx.ModelProto) -> None:
    """Rewrites every Scan of a model of opset 8 in place, bodies included.

    Names must have been told apart. Steps behind the end of a sequence leave the states as they
    are and give zeros, and a backward scan begins at that end, as in ONNX Runtime.
    """
    for graph in graphs_within(model.graph):
        if not any(_is_scan(node) for node in graph.node):
            continue
        nodes = []
        for node in graph.node:
            copy = onnx.NodeProto.FromString(node.SerializeToString())
            nodes += _loops(copy) if _is_scan(copy) else [copy]
        del graph.node[:]
        graph.node.extend(nodes)


def _is_scan(node: onnx.NodeProto) -> bool:
    return node.op_type == "Scan" and node.domain in DEFAULT_DOMAINS


def _loops(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """The Loop over the batch, and what its trip count takes."""
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    body, scanned = attributes["body"], attributes["num_scan_inputs"]
    lengths, *given = node.input
    if not 1 <= scanned <= len(given) or len(body.input) != len(given):
        raise ModelError(
            f"Scan node '{node.name}' has num_scan_inputs {scanned} and {len(given)} inputs beside "
            f"the lengths; expected its body's {len(body.input)} and at least one that is scanned: "
            "export the model again"
        )
    name = _Names(node)
    states = len(given) - scanned
    element = [name(f"element_{place}") for place in range(len(given))]
    inside = [
        _node("Gather", [value, name("b")], made, axis=0)
        for value, made in zip(given, element, strict=True)
    ]
    length = name("length") if lengths else ""
    if lengths:
        inside.append(_node("Gather", [lengths, name("b")], length, axis=0))
    results = [name(f"result_{place}") for place in range(len(body.output))]
    directions = attributes.get("directions") or [0] * scanned
    steps = _steps(name, body, element, states, directions, length)
    loop = helper.make_node(
        "Loop", [name("steps"), "", *element[:states]], results, name=name("steps"), body=steps
    )
    on = _node("Identity", [name("go")], name("on"))
    batch = helper.make_graph(
        [*inside, loop, on],
        name("batch"),
        [_scalar(name("b"), TensorProto.INT64), _scalar(name("go"), TensorProto.BOOL)],
        [
            _scalar(name("on"), TensorProto.BOOL),
            *(_typed(made, out) for made, out in zip(results, body.output, strict=True)),
        ],
    )
    sizes = [_node("Shape", [given[states]], name("shape"))]
    for place, made in ((0, "batches"), (1, "steps")):
        sizes.append(_constant(name(f"axis_{place}"), np.array(place)))
        sizes.append(_node("Gather", [name("shape"), name(f"axis_{place}")], name(made), axis=0))
    outer = helper.make_node("Loop", [name("batches"), ""], node.output, name=node.name, body=batch)
    return [*sizes, outer]


def _steps(
    name: "_Names",
    body: onnx.GraphProto,
    element: list[str],
    states: int,
    directions: list[int],
    length: str,
) -> onnx.GraphProto:
    """The body of the Loop over the steps of one element of the batch."""
    nodes = [_node("Identity", [name("step_go")], name("step_on"))]
    positions = {0: name("t")}
    if _BACKWARD in directions:
        positions[_BACKWARD] = name("back")
        nodes.append(_constant(name("one"), np.array(1)))
        nodes.append(_node("Sub", [length or name("steps"), name("one")], name("last")))
        nodes.append(_node("Sub", [name("last"), name("t")], name("back")))
    for value, formal, direction in zip(
        element[states:], body.input[states:], directions, strict=True
    ):
        nodes.append(_node("Gather", [value, positions[direction]], formal.name, axis=0))
    nodes += body.node
    outputs = [value.name for value in body.output]
    if length:
        inside, outputs = _within(name, body, states, length)
        nodes += inside
    return onnx.GraphProto(
        name=name("steps_body"),
        node=nodes,
        initializer=body.initializer,
        value_info=body.value_info,
        input=[
            _scalar(name("t"), TensorProto.INT64),
            _scalar(name("step_go"), TensorProto.BOOL),
            *body.input[:states],
        ],
        output=[
            _scalar(name("step_on"), TensorProto.BOOL),
            *(_typed(made, out) for made, out in zip(outputs, body.output, strict=True)),
        ],
    )


def _within(
    name: "_Names", body: onnx.GraphProto, states: int, length: str
) -> tuple[list[onnx.NodeProto], list[str]]:
    """A choice between what a step gives and, behind the end, the states before it and zeros."""
    copies, otherwise = [], []
    for place, out in enumerate(body.output):
        copies.append(_node("Identity", [out.name], name(f"kept_{place}")))
        if place < states:
            before = body.input[place].name
            otherwise.append(_node("Identity", [before], name(f"before_{place}")))
            continue
        kind = helper.tensor_dtype_to_np_dtype(out.type.tensor_type.elem_type)
        otherwise += [
            _constant(name(f"zero_{place}"), np.zeros((), kind)),
            _node("Shape", [out.name], name(f"sizes_{place}")),
            _node("Expand", [name(f"zero_{place}"), name(f"sizes_{place}")], name(f"none_{place}")),
        ]

    def branch(side: str, nodes: list[onnx.NodeProto], made: list[str]) -> onnx.GraphProto:
        typed = [_typed(m, out) for m, out in zip(made, body.output, strict=True)]
        return helper.make_graph(nodes, name(side), [], typed)

    given = [name(f"kept_{place}") for place in range(len(body.output))]
    instead = [
        name(f"before_{place}" if place < states else f"none_{place}")
        for place in range(len(body.output))
    ]
    chosen = [name(f"chosen_{place}") for place in range(len(body.output))]
    choice = helper.make_node(
        "If",
        [name("inside")],
        chosen,
        name=name("within"),
        then_branch=branch("then", copies, given),
        else_branch=branch("else", otherwise, instead),
    )
    # Less of opset 8 takes no integers.
    asked = [
        _node("Cast", [name("t")], name("t_number"), to=TensorProto.DOUBLE),
        _node("Cast", [length], name("length_number"), to=TensorProto.DOUBLE),
        _node("Less", [name("t_number"), name("length_number")], name("inside")),
    ]
    return [*asked, choice], chosen


class _Names:
    """Names of the new values of one Scan."""

    def __init__(self, node: onnx.NodeProto) -> None:
        self._prefix = next(filter(None, node.output), node.name)

    def __call__(self, what: str) -> str:
        return f"{self._prefix}/scan/{what}"


def _node(operator: str, inputs: list[str], made: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(operator, inputs, [made], name=made, **attributes)


def _constant(made: str, array: np.ndarray) -> onnx.NodeProto:
    return _node("Constant", [], made, value=numpy_helper.from_array(array, made))


def _scalar(name: str, kind: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, [])


def _typed(name: str, like: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, like.type.tensor_type.elem_type, None)


# Slice, Pad, Clip, Resize and Upsample took their last arguments for attributes, or in another
# order, before it; Softmax changed its meaning after it, which TVM's converters know about.
OLDEST_OPSET = 11
_BATCHED_SCAN = 8


def convert_opset(model: onnx.ModelProto, oldest: int = OLDEST_OPSET) -> onnx.ModelProto:
    """The model in the opset ``oldest`` when it is of an older one, else as it is.

    ONNX's own converter does it; a model that this converter cannot read stays as it is, and is
    judged node by node later on.
    """
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)
    if opset == _BATCHED_SCAN:
        batched_scans_to_loops(model)
    if not 0 < opset < oldest or model.functions:
        return model
    if model.ByteSize() >= onnx.checker.MAXIMUM_PROTOBUF:
        return model
    try:
        converted = onnx.version_converter.convert_version(model, oldest)
        onnx.checker.check_model(converted, full_check=True)
    except (
        RuntimeError,
        ValueError,
        onnx.checker.ValidationError,
        onnx.shape_inference.InferenceError,
    ):
        return model
    return converted
