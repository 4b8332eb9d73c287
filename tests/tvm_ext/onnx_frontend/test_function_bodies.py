"""Operators without a converter are expanded by their function bodies; constants by spelling."""

import numpy as np
import onnx
import pytest
from one_model import in_one_model, run_model
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from opt_levels import levels_of
from random_numbers import RANDOM
from small_models import model, value
from unoptimised import HOST

import tvm_ext
from tvm_ext.errors import ModelError
from tvm_ext.onnx_frontend import prepare_model

node = helper.make_node


def assert_as_reference(proto: onnx.ModelProto, **inputs: np.ndarray) -> onnx.ModelProto:
    wanted = ReferenceEvaluator(proto).run(None, inputs)
    for level in levels_of(proto):
        found = list(run_model(proto, inputs, level).values())
        for one, other in zip(found, wanted, strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    return prepare_model(proto)[2]


def attention(**attributes: int) -> onnx.ModelProto:
    shapes = {"q": [1, 2, 4, 8], "k": [1, 2, 6, 8], "v": [1, 2, 6, 8]}
    inputs = [value(name, shape) for name, shape in shapes.items()]
    call = node("Attention", ["q", "k", "v"], ["y"], name="att", **attributes)
    return model([call], inputs, [value("y", [1, 2, 4, 8])], 23)


@pytest.mark.extended
def test_a_body_that_depends_on_the_node():
    inputs = {
        name: RANDOM.random((1, 2, n, 8), np.float32) for name, n in (("q", 4), ("k", 6), ("v", 6))
    }
    prepared = assert_as_reference(attention(is_causal=1), **inputs)
    names = [n.name for n in prepared.graph.node]
    assert all(name.startswith("att/") for name in names)
    assert "Attention" not in {n.op_type for n in prepared.graph.node}


def test_a_body_of_an_older_operator_set_with_its_default_attributes():
    x = RANDOM.standard_normal((3, 8)).astype(np.float32)
    call = node("Celu", ["x"], ["y"], name="celu")
    prepared = assert_as_reference(model([call], [value("x", [3, 8])], [value("y", [3, 8])]), x=x)
    assert "Celu" not in {n.op_type for n in prepared.graph.node}


def test_a_body_within_a_body():
    # SwiGLU holds Swish, which has a default for alpha too.
    x = RANDOM.standard_normal((3, 8)).astype(np.float32)
    call = node("SwiGLU", ["x", "x"], ["y"], name="glu")
    version = onnx.defs.onnx_opset_version()
    proto = model([call], [value("x", [3, 8])], [value("y", [3, 8])], version)
    prepared = assert_as_reference(proto, x=x)
    assert not {"SwiGLU", "Swish"} & {n.op_type for n in prepared.graph.node}


def test_optional_outputs_that_are_asked_for():
    call = node("LayerNormalization", ["x", "s"], ["y", "mean", "inv"], name="ln", axis=1)
    outputs = [value("y", [2, 8]), value("mean", [2, 1]), value("inv", [2, 1])]
    proto = model([call], [value("x", [2, 8]), value("s", [8])], outputs)
    x, s = RANDOM.random((2, 8), np.float32), RANDOM.random(8, np.float32)
    assert_as_reference(proto, x=x, s=s)


CONSTANTS = {
    "value_float": 2.5,
    "value_floats": [1.0, -2.0],
    "value_int": 3,
    "value_ints": [4, 5],
}


@in_one_model
@pytest.mark.parametrize("spelling", CONSTANTS)
def test_constants_in_every_spelling(spelling):
    given = np.array(CONSTANTS[spelling])
    element = TensorProto.FLOAT if "float" in spelling else TensorProto.INT64
    constant = node("Constant", [], ["c"], name="c", **{spelling: CONSTANTS[spelling]})
    proto = model([constant], [], [value("c", list(given.shape), element)])
    (found,) = run_model(proto, {}, "O0").values()
    assert found.dtype == (np.float32 if "float" in spelling else np.int64)
    np.testing.assert_array_equal(found, given)


def sparse_constant(indices: np.ndarray, dims: list[int]) -> onnx.ModelProto:
    values = helper.make_tensor("values", TensorProto.FLOAT, [2], [7.0, 8.0])
    places = onnx.numpy_helper.from_array(indices)
    sparse = helper.make_sparse_tensor(values, places, dims)
    constant = node("Constant", [], ["c"], name="c", sparse_value=sparse)
    add = node("Add", ["x", "c"], ["y"], name="add")
    return model([constant, add], [value("x", dims)], [value("y", dims)])


@pytest.mark.parametrize("indices", [np.array([1, 5]), np.array([[0, 1], [1, 2]])], ids=str)
def test_a_sparse_constant(indices):
    (found,) = (
        tvm_ext.compile(sparse_constant(indices, [2, 3]), HOST, opt_level="O0")
        .run({"x": np.zeros((2, 3), np.float32)})
        .values()
    )
    np.testing.assert_array_equal(found, [[0, 7, 0], [0, 0, 8]])


def test_a_sparse_constant_that_would_fill_the_memory():
    with pytest.raises(ModelError):
        tvm_ext.compile(sparse_constant(np.array([1, 5]), [1 << 20, 1 << 22]))


def test_a_body_of_a_domain_of_its_own():
    """FlexAttention with a function of the scores: its domain's version is not the default's."""
    bias = node("Constant", [], ["bias"], value_float=0.5)
    mod = helper.make_graph(
        [bias, node("Mul", ["scores", "bias"], ["changed"])],
        "score_mod",
        [value("scores", ["B", "H", "L", "S"])],
        [value("changed", ["B", "H", "L", "S"])],
    )
    call = node(*("FlexAttention", ["q", "k", "v"], ["y"]), domain="ai.onnx.preview", score_mod=mod)
    shapes = {"q": [1, 4, 5, 8], "k": [1, 2, 6, 8], "v": [1, 2, 6, 8]}
    inputs = [value(name, shape) for name, shape in shapes.items()]
    proto = model([call], inputs, [value("y", [1, 4, 5, 8])], 26)
    proto.opset_import.append(helper.make_opsetid("ai.onnx.preview", 1))
    arrays = {name: RANDOM.random(shape, np.float32) for name, shape in shapes.items()}
    k, v = (arrays[name].repeat(2, 1) for name in "kv")
    scores = arrays["q"] @ k.swapaxes(2, 3) / np.sqrt(8) * 0.5
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    found = run_model(proto, arrays)["y"]
    np.testing.assert_allclose(found, weights @ v, rtol=1e-4, atol=1e-6)


def test_a_function_of_the_model_in_another_operator_set():
    """As skl2onnx writes imputers: the function's nodes mean the same in the model's set."""
    inner = helper.make_function(
        *("local", "twice", ["a"], ["b"], [node("Add", ["a", "a"], ["b"])]),
        opset_imports=[helper.make_opsetid("", 18)],
    )
    call = node("twice", ["x"], ["y"], domain="local")
    proto = model([call], [value("x", [3])], [value("y", [3])], 22)
    proto.opset_import.append(helper.make_opsetid("local", 1))
    proto.functions.append(inner)
    found = run_model(proto, {"x": np.ones(3, np.float32)}, "O0")
    np.testing.assert_array_equal(found["y"], [2, 2, 2])
