"""Reductions with axes from the run, of nothing, of booleans and of infinities."""

import numpy as np
import onnx
import pytest
from one_model import in_one_model, program, run_model
from onnx import TensorProto, helper
from operator_models import by_runtime
from small_models import model, value
from thoroughness import one_in

import tvm_ext
from tvm_ext.errors import ModelError

X = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)

NUMPY = {
    "ReduceL1": lambda x, **k: np.abs(x).sum(**k),
    "ReduceL2": lambda x, **k: np.sqrt(np.square(x).sum(**k)),
    "ReduceLogSumExp": lambda x, **k: np.log(np.exp(x).sum(**k)),
    "ReduceMax": np.max,
    "ReduceMean": np.mean,
    "ReduceMin": np.min,
    "ReduceProd": np.prod,
    "ReduceSum": np.sum,
    "ReduceSumSquare": lambda x, **k: np.square(x).sum(**k),
}


def reduction(op_type: str, x: np.ndarray, axes: np.ndarray | None, **attributes: int):
    element = helper.np_dtype_to_tensor_dtype(x.dtype)
    inputs = [value("x", list(x.shape), element)]
    names = ["x"]
    if axes is not None:
        inputs.append(value("axes", list(axes.shape), TensorProto.INT64))
        names.append("axes")
    call = helper.make_node(op_type, names, ["y"], name="r", **attributes)
    output = onnx.ValueInfoProto(name="y")
    output.type.tensor_type.elem_type = element
    return model([call], inputs, [output], 20)


def run(proto: onnx.ModelProto, **inputs: np.ndarray) -> np.ndarray:
    (found,) = run_model(proto, inputs, "O0").values()
    return found


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("op_type", NUMPY)
def test_axes_from_the_run(op_type):
    compiled = program(reduction(op_type, X, np.zeros(2, np.int64)), "O0")
    for axes in ([0, 2], [-1, 1], [0, 1]):
        (found,) = compiled.run({"x": X, "axes": np.array(axes, np.int64)}).values()
        wanted = NUMPY[op_type](X, axis=tuple(axes), keepdims=True)
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize(("axes", "shape"), [([1], (2, 4)), ([0, -1], (3,)), ([0, 1, 2], ())])
def test_reduced_axes_are_dropped(axes, shape):
    axes = np.array(axes, np.int64)
    found = run(reduction("ReduceSum", X, axes, keepdims=0), x=X, axes=axes)
    assert found.shape == shape
    np.testing.assert_allclose(found, X.sum(axis=tuple(axes)), rtol=1e-5)


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("noop", [0, 1])
def test_no_axes_from_the_run(noop):
    none = np.zeros(0, np.int64)
    proto = reduction("ReduceL1", X, none, noop_with_empty_axes=noop)
    found = run(proto, x=X, axes=none)
    wanted = np.abs(X) if noop else np.abs(X).sum(keepdims=True)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_dropping_axes_of_unknown_number_is_refused():
    proto = reduction("ReduceSum", X, np.zeros(1, np.int64), keepdims=0)
    proto.graph.input[1].type.tensor_type.shape.dim[0].dim_param = "n"
    with pytest.raises(ModelError, match="whose number is not known"):
        tvm_ext.compile(proto)


EMPTY = {"ReduceMax": -np.inf, "ReduceMin": np.inf, "ReduceProd": 1, "ReduceSum": 0}


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("op_type", EMPTY)
def test_an_empty_set(op_type):
    x, axes = np.zeros((2, 0, 4), np.float32), np.array([1], np.int64)
    found = run(reduction(op_type, x, axes), x=x, axes=axes)
    np.testing.assert_array_equal(found, np.full((2, 1, 4), EMPTY[op_type], np.float32))


@in_one_model
@pytest.mark.parametrize(("op_type", "sign"), [("ReduceMax", -1), ("ReduceMin", 1)])
def test_nothing_but_infinities(op_type, sign):
    # A row of a mask: TVM's own converter gives the largest finite number.
    x = np.full((2, 3), sign * np.inf, np.float32)
    np.testing.assert_array_equal(run(reduction(op_type, x, None), x=x), [[sign * np.inf]])


@in_one_model
@pytest.mark.parametrize(("op_type", "wanted"), [("ReduceMax", True), ("ReduceMin", False)])
def test_booleans(op_type, wanted):
    x = np.array([[True, False]])
    found = run(reduction(op_type, x, None), x=x)
    assert found.dtype == bool
    assert found.item() is wanted


@in_one_model
@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("op_type", ["ReduceL2", "ReduceLogSum", "ReduceMean", "ReduceSumSquare"])
def test_integers(op_type, dtype):
    x = np.array([[3, 4, -9, 7], [1, 5, 10, -2]], dtype)
    proto = reduction(op_type, x, np.array([1]), keepdims=0)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1]), "axes"))
    del proto.graph.input[1]
    found = run_model(proto, {"x": x}, "O0")["y"]
    wanted = by_runtime(proto, {"x": x})[0]
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.extended
@pytest.mark.parametrize(("opset", "axis"), [(13, -1), (13, 1), (13, 0), (11, 1), (11, 2)])
@pytest.mark.parametrize("sizes", one_in(2, [["a", "b", "c"], [2, 3, 4]]))
def test_hardmax_of_known_and_open_sizes(sizes: list, opset: int, axis: int) -> None:
    call = helper.make_node("Hardmax", ["x"], ["y"], axis=axis)
    proto = model([call], [value("x", sizes)], [value("y", None)], opset)
    x = np.round(X * 2) / 2
    (wanted,) = by_runtime(proto, {"x": x})
    np.testing.assert_array_equal(run(proto, x=x), wanted)
