"""A node that cannot be converted, and whether ONNX itself rules it out."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import tvm
from onnx import numpy_helper
from tvm import relax, tirx

# Stored inputs that shape inference may read: axes, pads and sizes, no weights.
_READ_ELEMENTS = 64


class NodeFailed(BaseException):
    """A converter's error on its way through TVM's importer, which prints every Exception.

    Attributes
    ----------
    place : str
        The node.
    reason : Exception
        What the converter raised.
    impossible : bool
        Whether the node contradicts ONNX's own rules for the shapes it gets, so that no runtime
        could run it.
    """

    def __init__(self, place: str, reason: Exception, impossible: bool = False) -> None:
        super().__init__(place)
        self.place = place
        self.reason = reason
        self.impossible = impossible


def place_of(op_type: str, name: str) -> str:
    """How errors name a node."""
    return f"{op_type} node '{name}'"


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
