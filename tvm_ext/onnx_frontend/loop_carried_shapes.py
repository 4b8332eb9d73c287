"""Shapes of values that a Loop carries, where an iteration keeps what they begin with.

ONNX's inference knows nothing of the shape of a loop-carried value, because an iteration may change
it, and so nothing of what is computed from it. Exporters leave these types out (torch.export of an
``EmbeddingBag`` or a ``while_loop``). Here the body is inferred once on the assumption that every
such value has its first shape; the shapes that the body then gives back unchanged are proven by
induction, the others are dropped and the rest is inferred again.
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


def _infer(node: ir.Node, model: ir.Model) -> bool:
    body = node.attributes["body"].as_graph()
    carried = dict(zip(body.inputs[2:], node.inputs[2:], strict=True))
    assumed = {
        formal: first
        for formal, first in carried.items()
        if formal.shape is None
        and first is not None
        and first.shape is not None
        and isinstance(first.type, ir.TensorType)
    }
    while assumed:
        inferred = _inferred(body, assumed, model)
        if inferred is None:
            return False
        kept = {
            formal: first
            for formal, first in assumed.items()
            if _shape(inferred, body.outputs[body.inputs.index(formal) - 1]) == first.shape
        }
        if len(kept) == len(assumed):
            _write(node, body, kept, inferred)
            return True
        assumed = kept
    return False


def _inferred(
    body: ir.Graph, assumed: dict[ir.Value, ir.Value], model: ir.Model
) -> dict[str, onnx.TypeProto] | None:
    """Types of the values of the body by name; None where ONNX's inference does not end well."""
    graph = ir.serde.serialize_graph(body)
    known = _values_of(body)
    for name in free_names(graph):
        value = known[name]
        constant = constant_of(value)
        if constant is not None and constant.size <= _READ_ELEMENTS:
            graph.initializer.append(onnx.numpy_helper.from_array(constant, name))
        else:
            graph.input.append(ir.serde.serialize_value(value))
    firsts = {formal.name: first for formal, first in assumed.items()}
    for given in graph.input:
        if given.name in firsts:
            given.type.CopyFrom(ir.serde.serialize_value(firsts[given.name]).type)
    for output in graph.output:
        output.ClearField("type")
    opsets = [onnx.helper.make_opsetid(d, v) for d, v in model.opset_imports.items()]
    whole = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=model.ir_version)
    try:
        found = onnx.shape_inference.infer_shapes(whole, data_prop=True).graph
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError):
        return None
    return {value.name: value.type for value in (*found.input, *found.value_info, *found.output)}


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
