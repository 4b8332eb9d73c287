"""Sizes and axes in a list whose length a run decides, compared with ONNX Runtime."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from small_models import model, node, rand, value
from unoptimised import HOST

import tvm_ext

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
ONE = helper.make_tensor("one", INT64, [1], [1])
sequence = helper.make_tensor_sequence_value_info
X, SIZES = value("x", [2, 6]), value("sizes", ["count"], INT64)
Y = helper.make_tensor_value_info("y", FLOAT, None)


def product(read: str, made: str) -> onnx.NodeProto:
    """What is compiled: a product with stored weights."""
    return node("MatMul", [read, "w"], [made], name=f"product_{made}")


FORMS = {
    "Reshape": ([product("x", "m"), node("Reshape", ["m", "sizes"], ["y"])], [3, 4]),
    "Expand": (
        [
            product("x", "m"),
            node("Concat", ["sizes", "one", "one"], ["all"], axis=0),
            node("Expand", ["m", "all"], ["y"]),
        ],
        [2, 3],
    ),
    "ConstantOfShape": (
        [
            product("x", "m"),
            node("Concat", ["sizes", "one"], ["all"], axis=0),
            node("ConstantOfShape", ["all"], ["zeros"]),
            node("Add", ["zeros", "m"], ["y"]),
        ],
        [5, 2],
    ),
    "Unsqueeze": ([product("x", "m"), node("Unsqueeze", ["m", "sizes"], ["y"])], [0, 2]),
    "Squeeze": (
        [
            product("x", "m"),
            node("Reshape", ["m", "ones"], ["r"]),
            node("Squeeze", ["r", "sizes"], ["y"]),
        ],
        [1, 3],
    ),
    "Reshape and back": (
        [
            node("Mul", ["sizes", "one"], ["same"]),
            node("Reshape", ["x", "same"], ["r"]),
            node("Reshape", ["r", "back"], ["s"]),
            product("s", "y"),
        ],
        [3, 2, 2],
    ),
}


def assert_as_runtime(proto: onnx.ModelProto, **inputs: Any) -> tvm_ext.CompiledModel:
    (wanted,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, inputs)
    compiled = tvm_ext.compile(proto, HOST, opt_level="O1")
    found = compiled.run(inputs)["y"]
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    return compiled


@pytest.mark.parametrize("form", FORMS)
def test_a_run_decides_how_many_axes_there_are(form: str) -> None:
    nodes, sizes = FORMS[form]
    stored = {"one": [1], "ones": [2, 1, 6, 1], "back": [2, 6]}
    weights = {name: np.array(sizes, "int64") for name, sizes in stored.items()}
    proto = model(nodes, [X, SIZES], [Y], w=rand(6, 6), **weights)
    compiled = assert_as_runtime(proto, x=rand(2, 6), sizes=np.array(sizes, "int64"))
    assert "is not known" in compiled.report.host[-1].reason
    assert "MatMul" not in [record.operator for record in compiled.report.host]


def test_a_list_from_a_sequence_repeats_rows() -> None:
    """As a text-to-speech model lengthens each sound: one Expand a step, to sizes of its own."""
    body = helper.make_graph(
        [
            node("SequenceAt", ["counts", "i"], ["count"]),
            node("SequenceAt", ["rows", "i"], ["row"]),
            node("Unsqueeze", ["row", "zero"], ["lifted"]),
            node("Concat", ["one", "count", "minus"], ["all"], axis=0),
            node("Shape", ["all"], ["length"]),
            node("ConstantOfShape", ["length"], ["ones"], value=ONE),
            node("Equal", ["all", "minus"], ["kept"]),
            node("Where", ["kept", "ones", "all"], ["wanted"]),
            node("Expand", ["lifted", "wanted"], ["many"]),
            node("Reshape", ["many", "flat"], ["lines"]),
            node("SequenceInsert", ["s", "lines"], ["t"]),
            node("Identity", ["go"], ["on"]),
        ],
        "body",
        [value("i", [], INT64), value("go", [], BOOL), sequence("s", FLOAT, None)],
        [value("on", [], BOOL), sequence("t", FLOAT, None)],
    )  # fmt: skip
    nodes = [
        product("x", "m"),
        node("SplitToSequence", ["times", "each"], ["counts"]),
        node("SplitToSequence", ["m"], ["rows"], axis=0, keepdims=0),
        node("SequenceEmpty", [], ["none"]),
        node("Loop", ["trips", "yes", "none"], ["all_rows"], body=body),
        node("ConcatFromSequence", ["all_rows"], ["y"], axis=0),
    ]
    stored = {"zero": [0], "one": [1], "minus": [-1], "flat": [-1, 6], "each": [1, 1]}
    weights = {name: np.array(sizes, "int64") for name, sizes in stored.items()}
    proto = model(
        nodes, [X, value("times", [2], INT64)], [Y], w=rand(6, 6),
        trips=np.array([2], "int64"), yes=np.array(True), **weights,
    )  # fmt: skip
    assert_as_runtime(proto, x=rand(2, 6), times=np.array([3, 1], "int64"))
