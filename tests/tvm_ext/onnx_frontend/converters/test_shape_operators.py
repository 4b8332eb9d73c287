"""Operators that change a shape only, by sizes stored in the model or computed in the run."""

import warnings

import numpy as np
import onnx
import pytest
from operator_models import array_info, by_reference, check_operator, run_at_levels
from small_models import model, node, rand, value
from unoptimised import HOST

import tvm_ext
from tvm_ext.configs.errors import DefectWarning
from tvm_ext.errors import RunError
from tvm_ext.onnx_frontend import import_model

X = rand(2, 3, 4)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@pytest.mark.parametrize("stored", [("shape",), ()])
def test_expand_keeps_a_larger_size_of_the_input(stored: tuple) -> None:
    check_operator("Expand", {"x": rand(3, 1), "shape": ints(2, 1, 6)}, stored=stored)


@pytest.mark.parametrize("stored", [("shape",), ()])
@pytest.mark.parametrize("shape", [(4, -1), (0, 0, 2, 2), (-1,), (1, 2, 12)])
def test_reshape(shape: tuple, stored: tuple) -> None:
    check_operator("Reshape", {"x": X, "shape": ints(*shape)}, stored=stored)


@pytest.mark.extended
@pytest.mark.parametrize("stored", [("parts",), ()])
def test_split(stored: tuple) -> None:
    check_operator("Split", {"x": X, "parts": ints(1, 0, 3)}, 3, stored, axis=-1)


def test_stated_parts_of_an_open_size_say_what_it_is() -> None:
    """TVM's two sizes of the last part made a fusion fail, and it was as long as what was left."""
    text = """<ir_version: 10, opset_import: ["" : 18]>
    parts (float[n, 4] x) => (float[3, 4] first, float[1, 4] highest)
    <int64[2] sizes = {3, 5}, int64[1] axes = {0}> {
        first, second = Split <axis = 0> (x, sizes)
        bounded = Tanh (second)
        positive = Exp (bounded)
        highest = ReduceMax (positive, axes)
    }"""
    x = rand(8, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DefectWarning)
        compiled = tvm_ext.compile(onnx.parser.parse_model(text), HOST)
    found = compiled.run({"x": x})
    np.testing.assert_array_equal(found["first"], x[:3])
    highest = np.exp(np.tanh(x[3:])).max(0, keepdims=True)
    np.testing.assert_allclose(found["highest"], highest, rtol=1e-5)
    with pytest.raises(RunError, match="sizes do not fit together"):
        compiled.run({"x": rand(9, 4)})


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_space_to_depth(mode: str) -> None:
    check_operator(
        "SpaceToDepth",
        {"x": rand(1, 2, 4, 6)},
        opset=onnx.defs.onnx_opset_version(),
        reference=by_reference,
        blocksize=2,
        mode=mode,
    )


def test_an_earlier_operator_and_sizes_of_the_run_in_one_kernel() -> None:
    """FuseOps moved such a kernel in front of the sizes that it uses."""
    proto = model(
        [
            node("Relu", ["x"], ["r"]),
            node("Expand", ["r", "s"], ["e"]),
            node("Relu", ["z"], ["q"]),
            node("Add", ["q", "e"], ["y"]),
        ],
        [value("x", [3, 1]), value("z", [1]), value("s", [2], onnx.TensorProto.INT64)],
        [value("y", None)],
    )
    x, z = rand(3, 1), rand(1)
    found = tvm_ext.compile(proto, HOST, opt_level="O3").run({"x": x, "z": z, "s": ints(1, 5)})["y"]
    np.testing.assert_allclose(found, np.maximum(x, 0) + np.maximum(z, 0) + np.zeros((3, 5)))


@pytest.mark.extended
@pytest.mark.parametrize(
    ("operator", "opset", "wanted"),
    [("Unsqueeze", 17, (2, 1, 1)), ("Squeeze", 17, (2,)), ("ReduceSum", 17, (2, 1)),
     ("ReduceMax", 18, (2, 1))],
)  # fmt: skip
def test_axes_stored_as_a_scalar(operator: str, opset: int, wanted: tuple) -> None:
    nodes = [node("Neg", ["x"], ["a"]), node(operator, ["a", "axes"], ["y"])]
    outputs = [array_info("y", list(wanted))]
    proto = model(nodes, [array_info("x", [2, 1])], outputs, opset, axes=np.array(1, np.int64))
    for found in run_at_levels(proto, x=np.array([[1], [2]], np.float32)):
        np.testing.assert_array_equal(found["y"], np.array([-1, -2], np.float32).reshape(wanted))


@pytest.mark.extended
@pytest.mark.parametrize("fill", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_shapes_of_the_run_are_filled_with_infinity_and_with_no_number(
    fill: float, dtype: str
) -> None:
    filling = onnx.numpy_helper.from_array(np.array([fill], dtype))
    nodes = [node("Shape", ["x"], ["s"]), node("ConstantOfShape", ["s"], ["y"], value=filling)]
    proto = model(nodes, [array_info("x", ["n", 2])], [onnx.ValueInfoProto(name="y")])
    for found in run_at_levels(proto, x=np.zeros((3, 2), np.float32)):
        np.testing.assert_array_equal(found["y"], np.full((3, 2), fill, dtype))


def test_a_stored_shape_is_filled_at_compile_time() -> None:
    nodes = [
        node("ConstantOfShape", ["shape"], ["zeros"]),
        node("ScatterElements", ["zeros", "places", "ones"], ["mask"]),
        node("Add", ["x", "mask"], ["y"]),
    ]
    stored = {"shape": np.array([4]), "places": np.array([1, 3]), "ones": np.ones(2, np.float32)}
    proto = model(
        nodes, [array_info("x", [4])], [array_info("y", [4]), array_info("zeros", [4])], **stored
    )
    assert import_model(proto).prepared_operators == {"Add": 1}
    for found in run_at_levels(proto, x=np.arange(4, dtype=np.float32)):
        np.testing.assert_array_equal(found["y"], [0, 2, 2, 4])
        np.testing.assert_array_equal(found["zeros"], np.zeros(4))
