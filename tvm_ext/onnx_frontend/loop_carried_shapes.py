"""Shapes of values that a Loop carries, where an iteration keeps what they begin with.

ONNX's inference knows nothing of the shape of a loop-carried value, because an iteration may change
it, and so nothing of what is computed from it. Exporters leave these types out (torch.export of an
``EmbeddingBag`` or a ``while_loop``). Here the body is inferred once on the assumption that every
such value has its first shape; the shapes that the body then gives back unchanged are proven by
induction, the others are dropped and the rest is inferred again. A size that only the run knows
goes by the value and the axis that it is of.
"""

import onnx
import onnx_ir as ir

from tvm_ext.onnx_frontend.ir_edits import constant_of
from tvm_ext.onnx_frontend.onnx_graph import DEFAULT_DOMAINS, free_names

# Constants from outside that inference may read: axes, target shapes, bounds.
_READ_ELEMENTS = 1024


def infer_carried_shapes(model: ir.Model) -> bool:
    """Writes such shapes into the bodies of all Loops, in place; whether one was new.

    Before: ``i' = Loop(n, c, i: int64[])``, whose body takes ``i`` of an unknown rank
    After:  the body takes ``i: int64[]``, and what it computes from it has a shape as well
    """
    found = [n for n in model.graph.all_nodes() if n.op_type == "Loop"]
    return any([_infer(n, model) for n in found if n.domain in DEFAULT_DOMAINS])


def element_shape(node: ir.Node, element: ir.Value, model: ir.Model) -> ir.Shape | None:
    """The shape of a value of a Loop's body where it is the same in all iterations, else None.

    Unknown sizes have the names that ``named_shape`` gives to those of values outside of the body.
    """
    body = node.attributes["body"].as_graph()
    assumed = {
        formal: first
        for formal, first in zip(body.inputs[2:], node.inputs[2:], strict=True)
        if _has_shape(first)
    }
    _, types = _proven(body, assumed, model)
    shape = _shape(types, element)
    values = _values_of(body)
    outside = [values[name] for name in free_names(ir.serde.serialize_graph(body))]
    shapes = map(named_shape, (*assumed.values(), *outside))
    given = {size for one in shapes for size in one or ()}
    known = shape is not None and all(isinstance(size, int) or size in given for size in shape)
    return shape if known else None


def named_shape(value: ir.Value) -> ir.Shape | None:
    """Its shape, in which sizes without a name are named after the value and the axis.

    Elements that share a name in the type of their sequence need not be alike in size, unless they
    are the parts of one tensor: names of other sequences are left out.
    """
    if value.shape is None:
        return None
    if not isinstance(value.type, ir.TensorType):
        producer = value.producer()
        if producer is not None and producer.op_type == "SplitToSequence":
            return value.shape
        return ir.Shape([size if isinstance(size, int) else None for size in value.shape])
    return ir.Shape(
        [
            f"{value.name}/{axis}" if size == ir.SymbolicDim(None) else size
            for axis, size in enumerate(value.shape)
        ]
    )


def _has_shape(value: ir.Value | None) -> bool:
    return value is not None and isinstance(value.type, ir.TensorType) and value.shape is not None


def _infer(node: ir.Node, model: ir.Model) -> bool:
    body = node.attributes["body"].as_graph()
    assumed = {
        formal: first
        for formal, first in zip(body.inputs[2:], node.inputs[2:], strict=True)
        if _has_shape(first) and _is_news(formal.shape, first.shape)
    }
    kept, types = _proven(body, assumed, model)
    if kept:
        _write(node, body, kept, types)
    return bool(kept)


def _is_news(declared: ir.Shape | None, first: ir.Shape) -> bool:
    """Whether the first shape says more than what the body declares, which may lack sizes."""
    if declared is None:
        return True
    unknown = ir.SymbolicDim(None)
    return len(declared) == len(first) and any(
        size == unknown and of_first != unknown
        for size, of_first in zip(declared, first, strict=True)
    )


def _proven(
    body: ir.Graph, assumed: dict[ir.Value, ir.Value], model: ir.Model
) -> tuple[dict[ir.Value, ir.Value], dict[str, onnx.TypeProto]]:
    """The values that keep the shapes of their first ones, and all types by name on that ground."""
    while True:
        types = _inferred(body, assumed, model)
        if types is None:
            return {}, {}
        kept = {
            formal: first
            for formal, first in assumed.items()
            if _shape(types, body.outputs[body.inputs.index(formal) - 1]) == named_shape(first)
        }
        if len(kept) == len(assumed):
            return kept, types
        assumed = kept


def _inferred(
    body: ir.Graph, assumed: dict[ir.Value, ir.Value], model: ir.Model
) -> dict[str, onnx.TypeProto] | None:
    """Types of the values of the body by name; None where ONNX's inference does not end well."""
    graph = ir.serde.serialize_graph(body)
    known = _values_of(body)
    for described in (*graph.input, *graph.value_info):
        # What the body calls the same size may be another one in the next iteration.
        for size in described.type.tensor_type.shape.dim:
            size.ClearField("dim_param")
    for name in free_names(graph):
        constant = constant_of(known[name])
        if constant is not None and constant.size <= _READ_ELEMENTS:
            graph.initializer.append(onnx.numpy_helper.from_array(constant, name))
        else:
            graph.input.append(_described(known[name]))
    firsts = {formal.name: first for formal, first in assumed.items()}
    for given in graph.input:
        if given.name in firsts:
            given.type.CopyFrom(_described(firsts[given.name]).type)
    for output in graph.output:
        output.ClearField("type")
    opsets = [onnx.helper.make_opsetid(d, v) for d, v in model.opset_imports.items()]
    whole = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=model.ir_version)
    try:
        found = onnx.shape_inference.infer_shapes(whole, data_prop=True).graph
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError):
        return None
    return {value.name: value.type for value in (*found.input, *found.value_info, *found.output)}


def _described(value: ir.Value) -> onnx.ValueInfoProto:
    named = ir.Value(name=value.name, type=value.type, shape=named_shape(value))
    return ir.serde.serialize_value(named)


def _values_of(body: ir.Graph) -> dict[str, ir.Value]:
    """What the body, or a body in it, reads or gives back, by name."""
    values = [value for node in body.all_nodes() for value in node.inputs if value is not None]
    for graph in (body, *body.subgraphs()):
        values.extend(graph.outputs)
    return {str(value.name): value for value in values}


def _shape(types: dict[str, onnx.TypeProto], value: ir.Value) -> ir.Shape | None:
    found = types.get(value.name or "")
    if found is None or not found.tensor_type.HasField("shape"):
        return None
    shape = ir.serde.deserialize_type_proto_for_shape(found)
    return None if shape is None or any(size == ir.SymbolicDim(None) for size in shape) else shape


def _write(
    node: ir.Node,
    body: ir.Graph,
    kept: dict[ir.Value, ir.Value],
    types: dict[str, onnx.TypeProto],
) -> None:
    """Gives the loop-carried values, their results and what the body computes the shapes found."""
    for formal, first in kept.items():
        result = node.outputs[body.inputs.index(formal) - 2]
        for value in (formal, result):
            value.type, value.shape = first.type, first.shape
    for value in (output for inner in body for output in inner.outputs):
        found = types.get(value.name or "")
        if value.shape is None and found is not None:
            value.shape = _known_sizes(ir.serde.deserialize_type_proto_for_shape(found))
            value.type = value.type or ir.serde.deserialize_type_proto_for_type(found)


def _known_sizes(shape: ir.Shape | None) -> ir.Shape | None:
    """Without the names that inference gave to unknown sizes, which mean others outside."""
    return None if shape is None else ir.Shape([n if isinstance(n, int) else None for n in shape])
