"""Small ONNX models, and what they are made of, for the tests beside this module."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import tvm_ext

node = helper.make_node


def value(name: str, shape: list | None, dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    """An input or output of a graph."""
    return helper.make_tensor_value_info(name, dtype, shape)


def model(nodes, inputs, outputs, opset: int = 17, domains=(), **weights) -> onnx.ModelProto:
    """A model of these nodes; ``weights``, arrays or numbers, become initializers."""
    stored = [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "small", inputs, outputs, stored)
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def rand(*shape: int, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    """Numbers between -1 and 1, the same for the same shape and seed."""
    return np.random.default_rng([seed, *shape]).uniform(-1, 1, shape).astype(dtype)


W, V = rand(6, 4), rand(4, 3, seed=1)


def mlp(batch: int | str = "N") -> onnx.ModelProto:
    """z = relu(x @ W) @ V, a = relu(x @ W): the inner value is an output as well."""
    nodes = [
        node("MatMul", ["x", "w"], ["m"], name="first"),
        node("Relu", ["m"], ["a"], name="relu"),
        node("MatMul", ["a", "v"], ["z"], name="second"),
    ]
    outputs = [value("z", [batch, 3]), value("a", [batch, 4])]
    return model(nodes, [value("x", [batch, 6])], outputs, w=W, v=V)


def self_attention() -> list[onnx.NodeProto]:
    """Nodes for ``y = softmax(x @ x^T) @ x`` of rows in batches."""
    return [
        node("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
        node("MatMul", ["x", "t"], ["s"]),
        node("Softmax", ["s"], ["p"]),
        node("MatMul", ["p", "x"], ["y"]),
    ]


def mlp_reference(x: np.ndarray) -> dict[str, np.ndarray]:
    """What ``mlp`` computes, by NumPy."""
    hidden = np.maximum(x @ W, 0)
    return {"z": hidden @ V, "a": hidden}


def assert_mlp(compiled: tvm_ext.CompiledModel, x: np.ndarray) -> None:
    """Runs a compiled ``mlp`` and compares names, order, types and numbers."""
    outputs, wanted = compiled.run({"x": x}), mlp_reference(x)
    assert list(outputs) == ["z", "a"]
    for name, array in outputs.items():
        assert array.dtype == np.float32
        np.testing.assert_allclose(array, wanted[name], rtol=1e-4, atol=1e-5)
