"""NaN in weights, which a damaged training or a damaged file leaves behind.

Elsewhere NaN is a value like others: imputers look for it, and models mark with it what is missing.
"""

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import numpy_helper

from tvm_ext.errors import ModelError
from tvm_ext.onnx_frontend.scopes import graphs_within, names_read, nodes_within

_FLOATS = (
    onnx.TensorProto.FLOAT,
    onnx.TensorProto.DOUBLE,
    onnx.TensorProto.FLOAT16,
    onnx.TensorProto.BFLOAT16,
)

# Operators that add up products with a weight: one NaN spreads over whole rows of results.
_PRODUCTS = frozenset(
    {
        *("Attention", "BatchNormalization", "Conv", "ConvTranspose", "DeformConv", "Einsum"),
        *("FusedConv", "FusedGemm", "FusedMatMul", "GRU", "Gemm", "GroupNormalization"),
        *("InstanceNormalization", "LSTM", "LayerNormalization", "MatMul", "RNN"),
        *("RMSNormalization", "SimplifiedLayerNormalization"),
    }
)
# Operators that only move the elements of a weight.
_MOVES = frozenset(
    {
        *("Cast", "Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose"),
        "Unsqueeze",
    }
)


def refuse_nan_weights(graph: onnx.GraphProto, label: str) -> None:
    """Checks what products read, bodies of If, Loop and Scan included.

    Raises
    ------
    ModelError
        A stored tensor of floats that a product reads holds NaN.
    """
    weights: set[str] = set()
    # From the last node to the first: what a moved weight was made from is one too.
    for node in reversed(list(nodes_within(graph))):
        if node.op_type in _PRODUCTS:
            weights.update(names_read(node))
        elif node.op_type in _MOVES and not weights.isdisjoint(node.output):
            weights.update(node.input[:1])
    for name, tensor in _stored_tensors(graph):
        if name in weights and tensor.data_type in _FLOATS:
            refuse_nan(numpy_helper.to_array(tensor), name, label)


def _stored_tensors(graph: onnx.GraphProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    """Initializers and Constant nodes with their names, bodies of If, Loop and Scan included."""
    for inner in graphs_within(graph):
        for tensor in inner.initializer:
            yield tensor.name, tensor
        for node in inner.node:
            for attr in node.attribute:
                if node.op_type == "Constant" and attr.name == "value":
                    yield node.output[0], attr.t


def refuse_nan(values: np.ndarray, name: str, label: str) -> None:
    """Raises ModelError where a stored tensor of floats holds NaN."""
    bad = int(np.count_nonzero(np.isnan(values.astype(np.float32, copy=False))))
    if bad:
        raise ModelError(
            f"{label}: stored tensor '{name}' holds {bad} NaN of {values.size} values; "
            "expected numbers: every output would be NaN, so export the trained weights again"
        )
