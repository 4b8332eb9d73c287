"""Models whose products of bytes ONNX Runtime adds up exactly.

On x86 without VNNI, it adds pairs of products of an unsigned by a signed byte in 16 bits, where the
sum saturates. Its products of two unsigned bytes are exact, so signed ones are moved by 128, and
their zero point with them. (Its own option for that, ``session.x64quantprecision``, fails where two
products share a zero point, and does nothing without optimisations.)
"""

import uuid
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tvm_ext.onnx_frontend.onnx_graph import graphs_within, nodes_within, operator_key
from tvm_ext.onnx_frontend.submodel import value_types, with_types

_MOVED_BY = 128

# By operator, the places of bytes, of their scale (None: it has none) and of their zero point.
_Places = tuple[tuple[int, int | None, int], ...]
_PRODUCTS: dict[str, _Places] = {
    "MatMulInteger": ((1, None, 3),),
    # Here it is the weight that is taken for the first operand.
    "ConvInteger": ((0, None, 2),),
    "com.microsoft::MatMulIntegerToFloat": ((1, 3, 5),),
    "com.microsoft::DynamicQuantizeMatMul": ((1, 2, 3),),
    "com.microsoft::DynamicQuantizeLSTM": ((1, 8, 9), (2, 10, 11)),
}
# Their operands are of one type, or the first is unsigned and the second is not.
_MIXED_PRODUCTS: dict[str, _Places] = {
    "QLinearMatMul": ((3, 4, 5),),
    "QLinearConv": ((3, 4, 5),),
    "com.microsoft::QLinearConv": ((3, 4, 5),),
    "com.microsoft::QGemm": ((3, 4, 5),),
    "com.microsoft::QAttention": ((1, 4, 7),),
}
# Weights of products that ONNX Runtime's optimisations make of those of floats.
_WEIGHTS: dict[str, _Places] = {
    "DequantizeLinear": ((0, 1, 2),),
    "com.microsoft::DequantizeLinear": ((0, 1, 2),),
}


_ALL = _PRODUCTS | _MIXED_PRODUCTS | _WEIGHTS


def with_unsigned_bytes(source: str | Path | onnx.ModelProto) -> onnx.ModelProto | None:
    """The model with unsigned bytes for the signed operands of its products.

    None for a model that has none, or that is above the 2 GB of one message.
    """
    if isinstance(source, onnx.ModelProto):
        model = source
    else:
        model = onnx.load_model(source, load_external_data=False)
        if not any(operator_key(node) in _ALL for node in nodes_within(model.graph)):
            return None
        onnx.load_external_data_for_model(model, str(Path(source).parent))
    if model.ByteSize() >= onnx.checker.MAXIMUM_PROTOBUF:
        return None
    moved = onnx.ModelProto()
    moved.CopyFrom(model)
    types = _element_types(moved)
    count = sum([_move_operands(graph, types) for graph in graphs_within(moved.graph)])
    return moved if count else None


def _element_types(model: onnx.ModelProto) -> dict[str, int]:
    found: dict[str, int] = {}
    for graph in graphs_within(with_types(model).graph):
        for name, type_ in value_types(graph).items():
            found[name] = type_.tensor_type.elem_type
        found |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    return found


def _move_operands(graph: onnx.GraphProto, types: Mapping[str, int]) -> int:
    """Rewrites a graph in place; returns of how many operands."""
    steps = {name for n in graph.node if n.op_type == "QuantizeLinear" for name in n.output}
    nodes: list[onnx.NodeProto] = []
    count = 0
    for node in graph.node:
        for value, scale, zero_point in _ALL.get(operator_key(node), ()):
            if _is_to_move(node, value, types, steps):
                scales = node.input[scale] if scale is not None else ""
                _move(node, value, zero_point, scales, nodes)
                count += 1
        nodes.append(node)
    if count:
        rewritten = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del graph.node[:]
        graph.node.extend(rewritten)
    return count


def _is_to_move(
    node: onnx.NodeProto, value: int, types: Mapping[str, int], steps: Collection[str]
) -> bool:
    if value >= len(node.input) or types.get(node.input[value]) != TensorProto.INT8:
        return False
    key = operator_key(node)
    if key in _MIXED_PRODUCTS:
        return types.get(node.input[0]) == TensorProto.UINT8
    return key in _PRODUCTS or node.input[value] not in steps


def _move(
    node: onnx.NodeProto, value: int, zero_point: int, scales: str, nodes: list[onnx.NodeProto]
) -> None:
    node.input[value] = _unsigned(node.input[value], nodes)
    node.input.extend([""] * (zero_point + 1 - len(node.input)))
    if node.input[zero_point]:
        node.input[zero_point] = _unsigned(node.input[zero_point], nodes)
    else:
        node.input[zero_point] = _zero_points(scales, nodes)


def _unsigned(name: str, nodes: list[onnx.NodeProto]) -> str:
    wide = _add(nodes, "Cast", name, to=TensorProto.INT32)
    moved = _add(nodes, "Add", wide, _constant(np.int32(_MOVED_BY), nodes))
    return _add(nodes, "Cast", moved, to=TensorProto.UINT8)


def _zero_points(scales: str, nodes: list[onnx.NodeProto]) -> str:
    """One for each scale; one alone where there is no scale."""
    if not scales:
        return _constant(np.uint8(_MOVED_BY), nodes)
    value = numpy_helper.from_array(np.array([_MOVED_BY], np.uint8))
    return _add(nodes, "ConstantOfShape", _add(nodes, "Shape", scales), value=value)


def _constant(value: np.generic, nodes: list[onnx.NodeProto]) -> str:
    return _add(nodes, "Constant", value=numpy_helper.from_array(np.asarray(value)))


def _add(nodes: list[onnx.NodeProto], operator: str, *inputs: str, **attributes: Any) -> str:
    """Adds a node to the list; returns its output."""
    name = f"tvm_ext/unsigned/{uuid.uuid4().hex}"
    nodes.append(helper.make_node(operator, inputs, [name], name, **attributes))
    return name
