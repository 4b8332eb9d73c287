"""What is wrong with a model, in words: nodes that fail, and faults that ONNX finds."""

import math
import re
import traceback
from collections.abc import Callable, Container, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import tvm
from onnx import TensorProto, defs, helper, numpy_helper
from tvm import relax, tirx

from tvm_ext.errors import REPORT_IT, MisfitError, ModelError, own_words
from tvm_ext.onnx_frontend.onnx_graph import opset_of, subgraphs_of
from tvm_ext.onnx_frontend.signature import model_inputs
from tvm_ext.tensor_spec import freezing_hint, listed, symbolic_names

# Stored inputs that shape inference may read: axes, pads and sizes, no weights.
_READ_ELEMENTS = 64
# Constants of up to this many elements are shown in messages.
_SHOWN_ELEMENTS = 6
# TVM writes types to numbers; what is left is arithmetic that anybody reads, or it is not shown.
_TYPED_NUMBER = re.compile(r"T\.int64\((-?\d+)\)")
_ARITHMETIC = re.compile(r"[\w\s()+*/-]{1,60}")


class NodeFailed(BaseException):
    """A converter's error on its way through TVM's importer, which prints every Exception.

    Attributes
    ----------
    place : str
        Operator and name of the node.
    reason : Exception
        What the converter raised.
    around : list[str]
        The nodes in whose bodies it is, the innermost first.
    inputs : list[str]
        Types of the inputs, with the values of small ones, as texts.
    symbols : list[str]
        Dynamic dimensions in them.
    looked_at : bool
        Whether the inputs were noted.
    impossible : bool
        Whether the node contradicts ONNX's own rules for the shapes it gets, so that no runtime
        could run it.
    """

    def __init__(self, place: str, reason: Exception) -> None:
        super().__init__(place)
        self.place = place
        self.reason = reason
        self.around: list[str] = []
        self.inputs: list[str] = []
        self.symbols: list[str] = []
        self.looked_at = False
        self.impossible = False

    def look_at(self, node: onnx.NodeProto, inputs: Sequence[Any], model: onnx.ModelProto) -> None:
        """Notes what the node was given, and for one in whose body it happened, that node."""
        if self.looked_at:
            self.around.append(place_of(node))
            return
        self.looked_at = True
        known = set(symbolic_names(input_shapes_of(model.graph)))
        texts = [described(value, known) for value in inputs if value is not None]
        self.inputs = [text for text, _ in texts]
        self.symbols = list(dict.fromkeys(name for _, names in texts for name in names))
        if not any(attr.HasField("g") for attr in node.attribute):
            self.impossible = is_impossible(node, inputs, model.opset_import)

    def is_of(self, name: str) -> bool:
        """Whether it is about the node with this name, and not about one in its bodies."""
        return self.place.endswith(f" node '{name}'")

    @property
    def where(self) -> str:
        """The node, and the nodes in whose bodies it is."""
        return self.place + "".join(f" in {outer}" for outer in self.around)

    @property
    def words(self) -> str:
        """Why it failed."""
        own = own_words(self.reason)
        if own or not self.impossible:
            return own or "there is no form of it for these inputs"
        return "ONNX's rules do not allow it for these inputs"


def place_of(node: onnx.NodeProto | ir.Node) -> str:
    """A node in words: its operator and its name."""
    return f"{node.op_type} node '{node.name}'"


def input_shapes_of(graph: onnx.GraphProto) -> dict[str, list[int | str]]:
    """Sizes of a graph's inputs by name; a text is the name of a dynamic dimension."""
    return {
        value.name: [
            dim.dim_param or f"{value.name}_{axis}" if dim.dim_value <= 0 else int(dim.dim_value)
            for axis, dim in enumerate(value.type.tensor_type.shape.dim)
        ]
        for value in model_inputs(graph)
    }


def conversion_error(label: str, graph: onnx.GraphProto, failed: NodeFailed) -> ModelError:
    """The error for a node of ``graph``, or of a body in it, that cannot be converted."""
    shapes = input_shapes_of(graph)
    given = f"; its inputs are {listed(failed.inputs)}" if failed.inputs else ""
    # Sizes that a body computes hide which dimension they came from: any may be it.
    names = failed.symbols or symbolic_names(shapes)
    if isinstance(failed.reason, MisfitError) or (failed.impossible and not names):
        advice = "inputs that fit together: correct the model or give other input shapes"
    elif names:
        advice = f"known sizes: {freezing_hint(shapes, names)}"
    else:
        advice = f"a form that is converted: export the model without it, or {REPORT_IT}"
    return ModelError(
        f"{label}: {failed.where} cannot be converted: {failed.words}{given}; expected {advice}"
    )


def preparation_error(model: onnx.ModelProto, label: str, error: Exception) -> ModelError:
    """The error for a model whose shapes and constants cannot be propagated at ONNX level."""
    node = _node_at(error)
    where = place_of(node) if node is not None else "the graph"
    words = next((own for own in map(own_words, _chain(error)) if own), "")
    found = f"{label}: shapes and constants cannot be propagated through {where}"
    if words:
        return ModelError(
            f"{found}: {words}; expected a graph that fits together: correct the model, or give "
            "other input shapes"
        )
    hint = freezing_hint(input_shapes_of(model.graph))
    return ModelError(
        f"{found}; expected sizes and attributes that ONNX's rules allow: check the model with "
        f"onnx.checker{f', {hint},' if hint else ''} or {REPORT_IT}"
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _node_at(error: Exception) -> ir.Node | None:
    """The node that was looked at: the innermost variable ``node`` of the calls that failed.

    Neither onnxscript nor onnx_ir say in their errors which one it was.
    """
    found = None
    for raised in _chain(error):
        for frame, _ in traceback.walk_tb(raised.__traceback__):
            node = frame.f_locals.get("node")
            found = node if isinstance(node, ir.Node) else found
    return found


def described(value: Any, known: Container[str]) -> tuple[str, list[str]]:
    """A value of the import as text, with the names of the dynamic dimensions in it.

    ``known`` are those of the model's inputs; any other size is one that the run computes.
    """
    symbols: list[str] = []

    def size(given: tirx.Expr) -> str:
        if isinstance(given, int | tirx.IntImm):
            return str(int(given))
        names = [str(var.name) for var in tirx.analysis.undefined_vars(given)]
        if not all(name in known for name in names):
            return "?"
        symbols.extend(names)
        text = _TYPED_NUMBER.sub(r"\1", str(given))
        return text if _ARITHMETIC.fullmatch(text) else f"? of {', '.join(names)}"

    text = _type_text(value, size)
    return text, symbols


def _type_text(value: Any, size: Callable[[Any], str]) -> str:
    if isinstance(value, relax.ShapeExpr):
        return f"the sizes ({', '.join(size(one) for one in value.values)})"
    if isinstance(value, int) or (isinstance(value, tirx.Expr) and tvm.ir.is_prim_expr(value)):
        return f"the size {size(value)}"
    ty = getattr(value, "ty", None)
    if not isinstance(ty, relax.TensorType):
        return "a value that is no tensor"
    if isinstance(ty.shape, relax.ShapeExpr):
        text = f"{ty.dtype}[{', '.join(size(one) for one in ty.shape.values)}]"
    else:
        text = f"{ty.dtype} of {f'rank {ty.ndim}' if ty.ndim >= 0 else 'unknown rank'}"
    if isinstance(value, tvm.ir.GenericConst) and value.value.numpy().size <= _SHOWN_ELEMENTS:
        text += f" = {value.value.numpy().tolist()}"
    return text


def is_impossible(
    node: onnx.NodeProto, inputs: Sequence[Any], opsets: Sequence[onnx.OperatorSetIdProto]
) -> bool:
    """Whether ONNX's shape inference refuses the node for inputs of these types."""
    given, stored = [], []
    for name, value in zip(node.input, inputs, strict=False):
        if not name:
            continue
        if isinstance(value, tvm.ir.GenericConst) and value.value.numpy().size <= _READ_ELEMENTS:
            stored.append(numpy_helper.from_array(value.value.numpy(), name))
            continue
        info = _described(name, value)
        if info is None:
            return False
        given.append(info)
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    unique = {info.name: info for info in given}.values()
    kept = {tensor.name: tensor for tensor in stored}.values()
    graph = onnx.helper.make_graph([node], "node", list(unique), outputs, list(kept))
    model = onnx.helper.make_model(graph, opset_imports=opsets)
    try:
        onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError:
        return True
    return False


def _described(name: str, value: Any) -> onnx.ValueInfoProto | None:
    """Name, type and shape for ONNX; None for what is no tensor of a type that ONNX knows."""
    if not isinstance(value, relax.Expr) or not isinstance(value.ty, relax.TensorType):
        return None
    try:
        kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(str(value.ty.dtype)))
    except (KeyError, TypeError):
        return None
    sizes: list[int | None] | None = None if value.ty.ndim < 0 else [None] * value.ty.ndim
    if isinstance(value.ty.shape, relax.ShapeExpr):
        sizes = [int(s) if isinstance(s, tirx.IntImm) else None for s in value.ty.shape.values]
    return onnx.helper.make_tensor_value_info(name, kind, sizes)


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
    elements = math.prod(tensor.dims)
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
        found |= {v.name: _declared_type(v.type) for v in values if v.type.HasField("tensor_type")}
        found |= {t.name: _sized(t.data_type, list(t.dims)) for t in owner.initializer}
    return [f"'{name}' {found[name]}".strip() for name in names if name in found]


def _declared_type(ty: onnx.TypeProto) -> str:
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
