"""Attention whose batch and heads are one axis between views is one kernel, with its numbers."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from unoptimised import HOST

import tvm_ext

HEADS, DEPTH = 2, 8
node, ends = helper.make_node, helper.make_tensor_value_info


def bloom(batch: int | str, length: int | str, *, is_read: bool = False) -> onnx.ModelProto:
    """One attention of Bloom: ALiBi is added with one axis for batch and heads, the mask with two.

    ``is_read`` makes the scores an output as well.
    """
    scale = numpy_helper.from_array(np.float32(DEPTH**-0.5), "scale")
    places = [numpy_helper.from_array(np.array([axis]), f"n{axis}") for axis in range(5)]
    nodes = [
        node("Shape", ["query"], ["sizes"]),
        *(node("Slice", ["sizes", f"n{a}", f"n{a + 1}"], [f"size{a}"]) for a in range(4)),
        node("Mul", ["size0", "size1"], ["merged"]),
        node("Concat", ["merged", "size2", "size3"], ["flat"], axis=0),
        *(node("Reshape", [name, "flat"], [f"{name}3"]) for name in ("query", "key", "value")),
        node("Transpose", ["key3"], ["keys"], perm=[0, 2, 1]),
        node("MatMul", ["query3", "keys"], ["products"]),
        node("Mul", ["products", "scale"], ["scaled"]),
        node("Concat", ["merged", "n1", "size2"], ["row"], axis=0),
        node("Reshape", ["alibi", "row"], ["bias"]),
        node("Add", ["bias", "scaled"], ["biased"]),
        node("Concat", ["size0", "size1", "size2", "size2"], ["apart"], axis=0),
        node("Reshape", ["biased", "apart"], ["scores"]),
        node("Add", ["scores", "mask"], ["masked"]),
        node("Softmax", ["masked"], ["shares"], axis=-1),
        node("Concat", ["merged", "size2", "size2"], ["square"], axis=0),
        node("Reshape", ["shares", "square"], ["weights"]),
        node("MatMul", ["weights", "value3"], ["taken"]),
        node("Reshape", ["taken", "sizes"], ["y"]),
    ]
    shape = [batch, HEADS, length, DEPTH]
    inputs = [ends(name, TensorProto.FLOAT, shape) for name in ("query", "key", "value")]
    inputs.append(ends("alibi", TensorProto.FLOAT, [batch, HEADS, length]))
    inputs.append(ends("mask", TensorProto.FLOAT, [batch, 1, length, length]))
    outputs = [ends("y", TensorProto.FLOAT, shape)]
    if is_read:
        outputs.append(ends("biased", TensorProto.FLOAT, None))
    graph = helper.make_graph(nodes, "bloom", inputs, outputs, [scale, *places])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def arrays_of(batch: int, length: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(batch * length)
    shape = (batch, HEADS, length, DEPTH)
    made = {n: random.standard_normal(shape, dtype=np.float32) for n in ("query", "key", "value")}
    hidden = np.triu(np.full((batch, 1, length, length), -1e9, np.float32), 1)
    alibi = random.standard_normal((batch, HEADS, length), dtype=np.float32)
    return made | {"alibi": alibi, "mask": hidden}


@pytest.mark.parametrize("sizes", [(1, 5), (3, 7), ("batch", "length")])
def test_it_is_one_kernel(sizes: tuple[int | str, int | str]) -> None:
    source = bloom(*sizes)
    compiled = tvm_ext.compile(source, HOST)
    assert "attention" in [one.name for one in compiled.report.kernels]
    assert not any("softmax" in one.name for one in compiled.report.kernels)
    session = onnxruntime.InferenceSession(
        source.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    for batch, length in [(1, 5), (3, 7)] if "batch" in sizes else [sizes]:
        given = arrays_of(batch, length)
        (wanted,) = session.run(None, given)
        np.testing.assert_allclose(compiled.run(given)["y"], wanted, rtol=1e-4, atol=1e-5)


def test_scores_that_are_read_elsewhere_stay() -> None:
    compiled = tvm_ext.compile(bloom(3, 7, is_read=True), HOST)
    assert "attention" not in [one.name for one in compiled.report.kernels]
