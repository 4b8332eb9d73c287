"""Operators of bfloat16, which TVM holds as integers: moves, fills and what it has no code for."""

import ml_dtypes
import numpy as np
import onnx
import pytest
from one_model import in_one_model, run_model
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from opt_levels import levels_of
from random_numbers import RANDOM

node = helper.make_node


def normal(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(ml_dtypes.bfloat16)


def graph_of(nodes: list, element: int, sizes: list, stored: dict) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", element, sizes)],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    opsets = [helper.make_opsetid("", 23)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=11)


def assert_near_float32(
    nodes: list, x: np.ndarray, stored: dict | None = None, sizes: list | None = None
) -> None:
    """Compares with the same model in float32, within what a few roundings can change."""
    stored = stored or {}
    exact = {k: a.astype(np.float32) if a.dtype == x.dtype else a for k, a in stored.items()}
    wide = graph_of(nodes, TensorProto.FLOAT, list(x.shape), exact)
    wanted = ReferenceEvaluator(wide).run(None, {"x": x.astype(np.float32)})[0]
    proto = graph_of(nodes, TensorProto.BFLOAT16, sizes or list(x.shape), stored)
    for level in levels_of(proto):
        found = run_model(proto, {"x": x}, level)["y"]
        assert found.shape == wanted.shape
        assert found.dtype == (x.dtype if wanted.dtype == np.float32 else wanted.dtype)
        found = found.astype(np.float32)
        np.testing.assert_allclose(found, wanted, rtol=2**-6, atol=2**-6 * np.abs(wanted).max())


PADS = {"pads": np.array([0, 1, 0, 2]), "fill": normal()}

CONV = node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
CONV_IN_GROUPS = node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1], group=4)


@in_one_model
@pytest.mark.parametrize(
    ("call", "shape", "stored"),
    [
        (node("Transpose", ["x"], ["y"]), (19, 33), {}),
        (node("Transpose", ["x"], ["y"]), (3, 100), {}),
        (node("Pad", ["x", "pads", "fill"], ["y"]), (5, 21), PADS),
        (node("Expand", ["x", "sizes"], ["y"]), (4, 1), {"sizes": np.array([4, 21])}),
        (node("IsNaN", ["x"], ["y"]), (4, 5), {}),
        (node("Pow", ["x", "two"], ["y"]), (4, 5), {"two": np.array(2, ml_dtypes.bfloat16)}),
        (node("LayerNormalization", ["x", "s"], ["y"]), (4, 21), {"s": normal(21)}),
        (node("GlobalLpPool", ["x"], ["y"], p=2), (2, 3, 5, 5), {}),
        (node("LRN", ["x"], ["y"], size=3), (2, 5, 3, 3), {}),
        (node("MatMul", ["x", "w"], ["y"]), (300, 64), {"w": normal(64, 72)}),
        (CONV, (1, 32, 9, 9), {"w": normal(24, 32, 3, 3)}),
        (CONV, (1, 35, 9, 9), {"w": normal(24, 35, 3, 3)}),
        (CONV_IN_GROUPS, (1, 64, 9, 9), {"w": normal(64, 16, 3, 3)}),
    ],
    ids=lambda value: value.op_type if isinstance(value, onnx.NodeProto) else "",
)
def test_operator(call: onnx.NodeProto, shape: tuple, stored: dict) -> None:
    x = normal(*shape)
    if call.op_type == "GlobalLpPool":
        root = np.sqrt((x.astype(np.float32) ** 2).sum((2, 3), keepdims=True))
        proto = graph_of([call], TensorProto.BFLOAT16, list(shape), {})
        found = run_model(proto, {"x": x})["y"].astype(np.float32)
        np.testing.assert_allclose(found, root, rtol=2**-7)
        return
    assert_near_float32([call], x, stored)


def test_moves_of_symbolic_sizes() -> None:
    nodes = [
        node("Transpose", ["x"], ["t"]),
        node("Pad", ["t", "pads", "fill"], ["p"]),
        node("Concat", ["p", "p"], ["y"], axis=1),
    ]
    assert_near_float32(nodes, normal(19, 33), PADS, ["n", "m"])


@pytest.mark.slow
def test_an_encoder_layer() -> None:
    """Attention with a residual, a norm and a gate, as language models of bfloat16 have them."""
    nodes = [
        node("LayerNormalization", ["x", "s", "b"], ["n"]),
        node("MatMul", ["n", "w"], ["qkv"]),
        node("Split", ["qkv"], ["q", "k", "v"], axis=2, num_outputs=3),
        node("Attention", ["q", "k", "v"], ["a"], q_num_heads=2, kv_num_heads=2, is_causal=1),
        node("Add", ["x", "a"], ["r"]),
        node("Gelu", ["r"], ["y"]),
    ]
    # Weights as large as trained ones, so that roundings do not decide whom a softmax picks.
    weight = (RANDOM.normal(size=(16, 48)) / 4).astype(ml_dtypes.bfloat16)
    stored = {"s": normal(16), "b": normal(16), "w": weight}
    assert_near_float32(nodes, normal(2, 7, 16), stored)
    assert_near_float32(nodes, normal(2, 7, 16), stored, ["batch", "tokens", 16])
