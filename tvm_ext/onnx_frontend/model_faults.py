"""Says in our words what ONNX's checker has against a model."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx
from onnx import TensorProto, defs, helper

from tvm_ext.onnx_frontend.node_failure import place_of
from tvm_ext.onnx_frontend.operator_key import opset_of
from tvm_ext.onnx_frontend.scopes import subgraphs_of
from tvm_ext.open_dimensions import listed

# How shape inference names the node it was at; in a body also those around it, outermost first.
_AT = re.compile(r"\(op_type:\s*([\w.]+)(?:, node name: ([^)]*))?\)")
# Attributes of so many values are shown.
_SHOWN = 8


def model_fault(model: onnx.ModelProto, error: Exception) -> str:
    """What is wrong with a model that the checker or shape inference refuses with ``error``."""
    fault = next(_structural_faults(model), "")
    return fault or _at_a_node(model, str(error)) or _by_name(model, str(error))


def external_fault(model: onnx.ModelProto, folder: Path) -> str:
    """Which tensor's values are not where the model says, and where that is."""
    for graph, _ in _graphs(model.graph, set()):
        for tensor in graph.initializer:
            if tensor.data_location == TensorProto.EXTERNAL:
                fault = _fault_of_stored(tensor, folder)
                if fault:
                    return f"those of '{tensor.name}': {fault}"
    return "its files cannot be read"


def _fault_of_stored(tensor: TensorProto, folder: Path) -> str:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    name = entries.get("location", "")
    file = folder / name
    if not name:
        return "the model names no file"
    if not file.resolve().is_relative_to(folder.resolve()) or file.is_symlink():
        return f"'{name}' is outside of the model's folder"
    if not file.is_file():
        return f"there is no file '{name}'"
    wanted = [text for key in ("offset", "length") if (text := entries.get(key, "0")).isdecimal()]
    have, need = file.stat().st_size, sum(map(int, wanted))
    return f"'{name}' has {have} bytes, not {need}" if have < need else ""


def _structural_faults(model: onnx.ModelProto) -> Iterator[str]:
    for graph, around in _graphs(model.graph, set()):
        yield from _faults_of_names(graph, around)
        for node in graph.node:
            yield from _faults_of_node(node, opset_of(model, node.domain))
        for tensor in graph.initializer:
            if tensor.data_type not in TensorProto.DataType.values():
                yield f"the stored tensor '{tensor.name}' is of the unknown type {tensor.data_type}"
            elif _is_cut_short(tensor):
                yield (
                    f"the stored tensor '{tensor.name}' has {len(tensor.raw_data)} bytes, too few "
                    f"for its sizes {list(tensor.dims)}"
                )


def _graphs(graph: onnx.GraphProto, around: set[str]) -> Iterator[tuple[onnx.GraphProto, set[str]]]:
    """The graph and the bodies in it, each with the names that it may read from around it."""
    yield graph, around
    inside = around | {name for name, _ in _definitions(graph)}
    for node in graph.node:
        for body in subgraphs_of(node):
            yield from _graphs(body, inside)


def _definitions(graph: onnx.GraphProto) -> Iterator[tuple[str, str]]:
    """Names that a graph defines, each with what defines it."""
    stored = {tensor.name for tensor in graph.initializer}
    yield from ((name, "a stored tensor") for name in stored)
    yield from ((t.values.name, "a stored tensor") for t in graph.sparse_initializer)
    yield from ((v.name, "an input") for v in graph.input if v.name not in stored)
    for node in graph.node:
        yield from ((name, place_of(node)) for name in node.output if name)


def _faults_of_names(graph: onnx.GraphProto, around: set[str]) -> Iterator[str]:
    known: dict[str, str] = {}
    for name, place in _definitions(graph):
        if name in known:
            yield f"'{name}' is defined by {known[name]} and again by {place}"
        known[name] = place
    for node in graph.node:
        for name in node.input:
            if name and name not in known and name not in around:
                yield f"{place_of(node)} reads '{name}', which nothing defines"
    for value in graph.output:
        if value.name not in known and value.name not in around:
            yield f"the output '{value.name}' is defined by nothing"


def _faults_of_node(node: onnx.NodeProto, opset: int) -> Iterator[str]:
    if not defs.has(node.op_type, node.domain):
        return
    try:
        schema = defs.get_schema(node.op_type, opset, node.domain)
    except defs.SchemaError:
        yield f"{place_of(node)} is of an operator that opset {opset} does not have"
        return
    for attribute in node.attribute:
        if attribute.name not in schema.attributes:
            known = ", ".join(schema.attributes) or "none"
            yield f"{place_of(node)} has the attribute '{attribute.name}'; the operator has {known}"
    for name, declared in schema.attributes.items():
        if declared.required and name not in {a.name for a in node.attribute}:
            yield f"{place_of(node)} lacks the attribute '{name}'"
    for what, count, least, most in (
        ("inputs", len(node.input), schema.min_input, schema.max_input),
        ("outputs", len(node.output), schema.min_output, schema.max_output),
    ):
        if not least <= count <= most:
            wanted = f"{least}" if least == most else f"{least} to {most}"
            yield f"{place_of(node)} has {count} {what}, the operator {wanted}"


def _is_cut_short(tensor: TensorProto) -> bool:
    if not tensor.HasField("raw_data") or tensor.data_location == TensorProto.EXTERNAL:
        return False
    try:
        width = helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    except KeyError:
        return False
    elements = 1
    for size in tensor.dims:
        elements *= size
    # Types below a byte are packed.
    return len(tensor.raw_data) < (elements * width if width > 1 else elements // 4)


def _at_a_node(model: onnx.ModelProto, text: str) -> str:
    """The node at which inference stopped, with what is known of its inputs and attributes."""
    places = _AT.findall(text)
    if not places:
        return ""
    op, name = places[-1]
    for graph, _ in _graphs(model.graph, set()):
        for node in graph.node:
            if node.op_type == op and node.name == name:
                inputs = listed(_types(model, graph, node.input))
                given = f" for its inputs {inputs}" if inputs else ""
                attributes = [text for a in node.attribute if (text := _attribute(a))]
                more = f" and {', '.join(attributes)}" if attributes else ""
                return f"ONNX's rules do not allow {place_of(node)}{given}{more}"
    return f"ONNX's rules do not allow {op} node '{name}' as it is"


def _types(model: onnx.ModelProto, graph: onnx.GraphProto, names: Sequence[str]) -> list[str]:
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=False).graph
    found: dict[str, str] = {}
    for owner in (inferred, graph):
        values = (*owner.input, *owner.value_info, *owner.output)
        found |= {v.name: _type_text(v.type) for v in values if v.type.HasField("tensor_type")}
        found |= {t.name: _sized(t.data_type, list(t.dims)) for t in owner.initializer}
    return [f"'{name}' {found[name]}".strip() for name in names if name in found]


def _type_text(ty: onnx.TypeProto) -> str:
    tensor = ty.tensor_type
    if not tensor.HasField("shape"):
        return _sized(tensor.elem_type, None)
    sizes = [
        d.dim_param or (str(d.dim_value) if d.HasField("dim_value") else "?")
        for d in tensor.shape.dim
    ]
    return _sized(tensor.elem_type, sizes)


def _sized(kind: int, sizes: Sequence[object] | None) -> str:
    name = TensorProto.DataType.Name(kind).lower() if kind in TensorProto.DataType.values() else "?"
    name = {"float": "float32", "double": "float64"}.get(name, name)
    return name if sizes is None else f"{name}[{', '.join(map(str, sizes))}]"


def _attribute(attribute: onnx.AttributeProto) -> str:
    if attribute.HasField("g") or attribute.HasField("t"):
        return ""
    value = helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if isinstance(value, str | int | float):
        return f"{attribute.name}={value}"
    return f"{attribute.name}={list(value)}" if len(value) <= _SHOWN else ""


def _by_name(model: onnx.ModelProto, text: str) -> str:
    """What the checker names, where it says no more that we know."""
    words = set(re.findall(r"[^\s'\"():;,]+", text))
    graphs = [graph for graph, _ in _graphs(model.graph, set())]
    names = [name for graph in graphs for name, _ in _definitions(graph)]
    names += [t.indices.name for graph in graphs for t in graph.sparse_initializer]
    named = [f"'{name}'" for name in dict.fromkeys(names) if name in words]
    return f"ONNX's rules do not allow what it holds{f' at {listed(named)}' if named else ''}"
