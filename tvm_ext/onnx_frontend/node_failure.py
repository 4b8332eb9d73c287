"""A node that cannot be converted: which, of which inputs, and whether ONNX itself rules it out."""

import re
import traceback
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import tvm
from onnx import numpy_helper
from tvm import relax, tirx

from tvm_ext.errors import REPORT_IT, ModelError, own_words
from tvm_ext.onnx_frontend.input_shapes import model_inputs
from tvm_ext.open_dimensions import freezing_hint, listed, open_names

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
        Open dimensions in them.
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
        known = set(open_names(input_shapes_of(model.graph)))
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
    """Sizes of a graph's inputs by name; a text is the name of an open dimension."""
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
    names = failed.symbols or open_names(shapes)
    if failed.impossible and not names:
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
    """A value of the import as text, with the names of the open dimensions in it.

    ``known`` are those of the model's inputs; any other size is one that the run computes.
    """
    symbols: list[str] = []

    def size(given: Any) -> str:
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
    if isinstance(value, int | tirx.Expr) and (
        isinstance(value, int) or tvm.ir.is_prim_expr(value)
    ):
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
