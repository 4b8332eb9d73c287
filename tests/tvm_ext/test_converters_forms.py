"""Forms that TVM's converters do not take: OneHot, Cast to integers, Dropout, scalar axes."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvm_ext
from tvm_ext.errors import ModelError
from tvm_ext.onnx_frontend import import_model

node = helper.make_node
NAN, INF = float("nan"), float("inf")


def value(name: str, shape: list, dtype: object = np.float32) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape
    )


def model(nodes, inputs, outputs, opset=17, **weights: np.ndarray) -> onnx.ModelProto:
    stored = [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "small", inputs, outputs, stored)
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def run(proto: onnx.ModelProto, **inputs: np.ndarray) -> list[dict[str, np.ndarray]]:
    return [tvm_ext.compile(proto, opt_level=level).run(inputs) for level in ("O0", "O3")]


def hot(indices: np.ndarray, depth: int, axis: int, values: np.ndarray) -> np.ndarray:
    """As the specification of OneHot says, one element at a time."""
    rows = [[values[int(p == i or p == i + depth)] for p in range(depth)] for i in indices.ravel()]
    table = np.array(rows, values.dtype).reshape(*indices.shape, depth)
    return np.moveaxis(table, -1, axis)


@pytest.mark.parametrize("depth_shape", [[], [1]])
@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize(
    ("indices", "values"),
    [
        (np.array([[0, 2, -1], [3, -3, 9]], np.int64), np.array([0, 1], np.float32)),
        (np.array([[0, 2, 1]], np.int32), np.array([-1, 5], np.int64)),
        (np.array([[0, 2, 1]], np.float32), np.array([0, 1], np.float64)),
        (np.array([[0, 2, 1]], np.uint8), np.array([0, 1], np.int32)),
    ],
)
def test_one_hot(depth_shape: list, axis: int, indices: np.ndarray, values: np.ndarray) -> None:
    proto = model(
        [node("OneHot", ["i", "depth", "values"], ["y"], axis=axis)],
        [value("i", list(indices.shape), indices.dtype)],
        [value("y", None, values.dtype)],
        depth=np.array(3, np.int64).reshape(depth_shape),
        values=values,
    )
    for outputs in run(proto, i=indices):
        wanted = hot(indices, 3, axis, values)
        assert outputs["y"].dtype == wanted.dtype
        np.testing.assert_array_equal(outputs["y"], wanted)


def test_one_hot_of_values_in_the_run() -> None:
    indices, values = np.array([1, -1], np.int64), np.array([2, 7], np.float32)
    proto = model(
        [node("OneHot", ["i", "depth", "values"], ["y"])],
        [value("i", [2], np.int64), value("values", [2])],
        [value("y", [2, 3])],
        depth=np.array([3], np.int64),
    )
    for outputs in run(proto, i=indices, values=values):
        np.testing.assert_array_equal(outputs["y"], hot(indices, 3, -1, values))


def test_one_hot_of_a_depth_in_the_run() -> None:
    indices, values = np.array([0, -1], np.int64), np.array([0, 1], np.float32)
    proto = model(
        [node("OneHot", ["i", "depth", "values"], ["y"])],
        [value("i", [2], np.int64), value("depth", [1], np.int64)],
        [value("y", None)],
        values=values,
    )
    for depth in (3, 5):
        for outputs in run(proto, i=indices, depth=np.array([depth])):
            np.testing.assert_array_equal(outputs["y"], hot(indices, depth, -1, values))


FLOATS = np.array([-129.9, -128, -1.5, -0.5, 0, 0.5, 1.5, 127, 255.9, 300], np.float32)


@pytest.mark.parametrize("wanted", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64"])
@pytest.mark.parametrize("given", ["float16", "float32", "float64"])
def test_cast_of_floats_truncates_and_narrow_integers_wrap_around(given: str, wanted: str) -> None:
    x = FLOATS.astype(given)
    to = helper.np_dtype_to_tensor_dtype(np.dtype(wanted))
    proto = model(
        [node("Cast", ["x"], ["y"], to=to)],
        [value("x", [10], given)],
        [value("y", [10], wanted)],
    )
    for outputs in run(proto, x=x):
        assert outputs["y"].dtype == wanted
        np.testing.assert_array_equal(outputs["y"], np.trunc(x).astype("int64").astype(wanted))


def test_cast_to_integers_is_one_operator() -> None:
    proto = model(
        [node("Cast", ["x"], ["y"], to=TensorProto.INT32)],
        [value("x", [4])],
        [value("y", [4], np.int32)],
    )
    script = import_model(proto).mod.script()
    assert script.count("R.astype") == 1
    assert "where" not in script


def test_cast_of_what_is_no_number_ends_well() -> None:
    proto = model(
        [node("Cast", ["x"], ["i"], to=TensorProto.INT64), node("Gather", ["data", "i"], ["y"])],
        [value("x", [4])],
        [value("y", [4])],
        data=np.ones(3, np.float32),
    )
    for outputs in run(proto, x=np.array([NAN, INF, -INF, 1e30], np.float32)):
        np.testing.assert_array_equal(outputs["y"], np.ones(4, np.float32))


@pytest.mark.parametrize("opset", [9, 11, 12, 17])
def test_dropout_is_its_input(opset: int) -> None:
    nodes = [node("Dropout", ["x"], ["a"]), node("Relu", ["a"], ["y"])]
    proto = model(nodes, [value("x", [3])], [value("y", [3])], opset)
    assert "dropout" not in import_model(proto).mod.script()
    for outputs in run(proto, x=np.array([-1, 0, 2], np.float32)):
        np.testing.assert_array_equal(outputs["y"], [0, 0, 2])


def test_dropout_that_returns_its_input_and_a_mask() -> None:
    outputs = [value("y", [2, 3]), value("mask", [2, 3], np.bool_)]
    proto = model([node("Dropout", ["x"], ["y", "mask"])], [value("x", [2, 3])], outputs)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for found in run(proto, x=x):
        np.testing.assert_array_equal(found["y"], x)
        np.testing.assert_array_equal(found["mask"], np.ones((2, 3), np.bool_))


@pytest.mark.parametrize("stored", [True, False])
def test_dropout_in_training_is_refused(stored: bool) -> None:
    inputs = [value("x", [3])] + ([] if stored else [value("training", [], np.bool_)])
    weights = {"ratio": np.float32(0.5)} | ({"training": np.array(True)} if stored else {})
    proto = model(
        [node("Dropout", ["x", "ratio", "training"], ["y"], name="drop")],
        inputs,
        [value("y", [3])],
        **weights,
    )
    with pytest.raises(ModelError, match=r"Dropout node 'drop' .*training mode"):
        tvm_ext.compile(proto)


@pytest.mark.parametrize(
    ("operator", "opset", "wanted"),
    [("Unsqueeze", 17, (2, 1, 1)), ("Squeeze", 17, (2,)), ("ReduceSum", 17, (2, 1)),
     ("ReduceMax", 18, (2, 1))],
)  # fmt: skip
def test_axes_stored_as_a_scalar(operator: str, opset: int, wanted: tuple) -> None:
    nodes = [node("Neg", ["x"], ["a"]), node(operator, ["a", "axes"], ["y"])]
    outputs = [value("y", list(wanted))]
    proto = model(nodes, [value("x", [2, 1])], outputs, opset, axes=np.array(1, np.int64))
    for found in run(proto, x=np.array([[1], [2]], np.float32)):
        np.testing.assert_array_equal(found["y"], np.array([-1, -2], np.float32).reshape(wanted))


def test_a_stored_shape_is_filled_at_compile_time() -> None:
    nodes = [
        node("ConstantOfShape", ["shape"], ["zeros"]),
        node("ScatterElements", ["zeros", "places", "ones"], ["mask"]),
        node("Add", ["x", "mask"], ["y"]),
    ]
    stored = {"shape": np.array([4]), "places": np.array([1, 3]), "ones": np.ones(2, np.float32)}
    proto = model(nodes, [value("x", [4])], [value("y", [4]), value("zeros", [4])], **stored)
    assert import_model(proto).prepared_operators == {"Add": 1}
    for found in run(proto, x=np.arange(4, dtype=np.float32)):
        np.testing.assert_array_equal(found["y"], [0, 2, 2, 4])
        np.testing.assert_array_equal(found["zeros"], np.zeros(4))
