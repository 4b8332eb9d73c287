"""Types below a byte, held in a byte each: TVM's runtime packs them and its kernels do not.

The numbers stay the same: int4 is held in int8, float4e2m1 in float8e4m3fn. A node that makes such
numbers from others (Cast, QuantizeLinear) says in an attribute which type it rounds or wraps to;
inputs and outputs of the model keep the name of the type among their properties.
"""

import onnx
import onnx_ir as ir

from tvm_ext.errors import FormError
from tvm_ext.model_inputs import HOLDERS, numpy_type

NARROW_ATTRIBUTE = "tvm_ext_narrow_type"
NARROW_PROPERTY = "tvm_ext.narrow_type"

# ONNX's names (older releases lack some of them) and NumPy's.
_NUMPY_NAMES = {
    "INT4": "int4",
    "UINT4": "uint4",
    "INT2": "int2",
    "UINT2": "uint2",
    "FLOAT4E2M1": "float4_e2m1fn",
    "FLOAT6E2M3": "float6_e2m3fn",
    "FLOAT6E3M2": "float6_e3m2fn",
}
_HELD = {
    name: (dtype, ir.DataType.from_numpy(numpy_type(HOLDERS[dtype])))
    for name, dtype in _NUMPY_NAMES.items()
}
_MAKERS = ("Cast", "QuantizeLinear")


def hold_narrow_types(model: ir.Model) -> None:
    """Changes the model in place; types must have been inferred.

    Raises
    ------
    FormError
        An operator makes numbers of a narrow type from ones of another type.
    """
    if not any(_name(value) in _HELD for value in _values(model)):
        return
    for node in list(model.graph.all_nodes()):
        _mark(node)
    for value in _values(model):
        if _name(value) in _HELD:
            _hold(value)


def narrow_type(value: onnx.ValueInfoProto) -> str:
    """NumPy's name of the narrow type that an input or output had before it was held; or ""."""
    properties = {entry.key: entry.value for entry in value.metadata_props}
    return properties.get(NARROW_PROPERTY, "")


def _values(model: ir.Model) -> list[ir.Value]:
    values = [*model.graph.inputs, *model.graph.initializers.values()]
    for node in model.graph.all_nodes():
        values.extend(node.outputs)
        for attribute in node.attributes.values():
            for graph in _graphs(attribute):
                values.extend((*graph.inputs, *graph.initializers.values()))
    return list({id(value): value for value in values}.values())


def _graphs(attribute: ir.Attr) -> list[ir.Graph]:
    if attribute.type == ir.AttributeType.GRAPH:
        return [attribute.as_graph()]
    return list(attribute.as_graphs()) if attribute.type == ir.AttributeType.GRAPHS else []


def _name(value: ir.Value | None) -> str:
    return value.dtype.name if value is not None and value.dtype is not None else ""


def _mark(node: ir.Node) -> None:
    """The attribute on a node whose result is narrow, and holders instead of narrow attributes."""
    made = _name(node.outputs[0]) if node.outputs else ""
    if made not in _HELD:
        return
    dtype, holder = _HELD[made]
    if node.op_type == "CastLike":
        _cast_to(node, holder)
    if node.op_type == "Constant" and "value" in node.attributes:
        held = _held(node.attributes["value"].as_tensor(), made)
        node.attributes["value"] = ir.AttrTensor("value", held)
    elif node.op_type in _MAKERS:
        node.attributes[NARROW_ATTRIBUTE] = ir.AttrString(NARROW_ATTRIBUTE, dtype)
        key = "to" if node.op_type == "Cast" else "output_dtype"
        node.attributes[key] = ir.AttrInt64(key, int(holder))
    elif all(_name(value) != made for value in node.inputs) and not _has_body(node):
        raise FormError(f"{node.op_type} node '{node.name}' makes {made} of another type")


def _has_body(node: ir.Node) -> bool:
    return any(_graphs(attribute) for attribute in node.attributes.values())


def _cast_to(node: ir.Node, holder: ir.DataType) -> None:
    node.op_type = "Cast"
    node.attributes["to"] = ir.AttrInt64("to", int(holder))
    node.resize_inputs(1)


def _hold(value: ir.Value) -> None:
    made = _name(value)
    dtype, holder = _HELD[made]
    if value.const_value is not None:
        value.const_value = _held(value.const_value, made)
    value.type = ir.TensorType(holder)
    if value.is_graph_input() or value.is_graph_output():
        value.metadata_props[NARROW_PROPERTY] = dtype


def _held(tensor: ir.TensorProtocol, made: str) -> ir.TensorProtocol:
    dtype, holder = _HELD[made]
    numbers = tensor.numpy().astype(numpy_type(dtype))
    return ir.tensor(numbers.astype(holder.numpy()), dtype=holder, name=tensor.name)
