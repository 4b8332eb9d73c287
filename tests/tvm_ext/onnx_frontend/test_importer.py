"""Sizes whose expressions grow from layer to layer."""

import numpy as np
import onnx
import pytest
from operator_models import by_runtime
from small_models import model, node, rand, value
from tvm import tirx
from unoptimised import HOST

import tvm_ext
from tvm_ext.onnx_frontend import import_model


def layers(count: int) -> onnx.ModelProto:
    """Each cuts a tensor in two at a computed place, joins the parts anew, and cuts that."""
    nodes, last = [], "x"
    for n in range(count):
        nodes += [
            node("Shape", [last], [f"size{n}"], end=1),
            node("Div", [f"size{n}", "two"], [f"half{n}"]),
            node("Sub", [f"half{n}", "seven"], [f"place{n}"]),
            node("Slice", [last, "zero", f"place{n}", "zero"], [f"first{n}"]),
            node("Slice", [last, f"place{n}", f"size{n}", "zero"], [f"second{n}"]),
            node("Relu", [f"first{n}"], [f"relu{n}"]),
            node("Concat", [f"second{n}", f"relu{n}"], [f"joined{n}"], axis=0),
            node("Slice", [f"joined{n}", "one", f"size{n}", "zero"], [f"cut{n}"]),
            node("Sigmoid", [f"cut{n}"], [f"sigmoid{n}"]),
            node("Mul", [f"cut{n}", f"sigmoid{n}"], [f"layer{n}"]),
        ]
        last = f"layer{n}"
    stored = {"zero": [0], "one": [1], "two": [2], "seven": [7]}
    arrays = {name: np.array(array, np.int64) for name, array in stored.items()}
    output = [onnx.ValueInfoProto(name=last)]
    return model(nodes, [value("x", ["N", 3])], output, opset=18, **arrays)


@pytest.mark.slow
def test_layers_of_slices() -> None:
    proto = layers(3)
    compiled = tvm_ext.compile(proto, HOST, opt_level="O0")
    for rows in (60, 17, 9):
        feeds = {"x": rand(rows, 3)}
        (wanted,), (got,) = by_runtime(proto, feeds), compiled.run(feeds).values()
        assert got.shape == wanted.shape
        np.testing.assert_allclose(got, wanted, rtol=1e-5)


@pytest.mark.slow
def test_sizes_stay_variables_however_many_layers_there_are() -> None:
    size = import_model(layers(8)).mod["main"].ret_ty.shape
    assert size is None or isinstance(size.values[0], tirx.Var)


def test_equal_expressions_become_one_dimension() -> None:
    """Two slices of the same computed place are added without a check of their sizes."""
    proto = layers(1)
    del proto.graph.output[:]
    nodes = [
        node("Slice", ["x", "one", "place0", "zero"], ["a"]),
        node("Relu", ["x"], ["positive"]),
        node("Slice", ["positive", "one", "place0", "zero"], ["b"]),
        node("Add", ["a", "b"], ["y"]),
    ]
    proto.graph.node.extend(nodes)
    proto.graph.output.append(onnx.ValueInfoProto(name="y"))
    text = import_model(proto).mod.script()
    assert text.count("R.shape_to_tensor") == 1
    assert "broadcast" not in text
    assert "agreed" not in text


def test_windows_that_are_rounded_up_behind_each_other() -> None:
    pool = {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}
    nodes = [
        node("MaxPool", ["x"], ["p"], **pool),
        node("Sigmoid", ["p"], ["q"]),
        node("MaxPool", ["q"], ["r"], **pool),
        node("Sigmoid", ["r"], ["s"]),
        node("Add", ["r", "s"], ["y"]),
    ]
    proto = model(nodes, [value("x", ["N", 2, "H", "W"])], [value("y", [None] * 4)])
    compiled = tvm_ext.compile(proto, HOST)
    for sides in ((7, 9), (8, 13)):
        x = {"x": rand(1, 2, *sides)}
        np.testing.assert_allclose(compiled.run(x)["y"], by_runtime(proto, x)[0], atol=1e-6)


def _rounded_up(name: str, parts: str) -> list[onnx.NodeProto]:
    """``name`` is the first size of x, rounded up to a multiple of ``parts``."""
    return [
        node("Shape", ["x"], ["size"], end=1),
        node("Cast", ["size"], ["real"], to=onnx.TensorProto.FLOAT),
        node("Div", ["real", parts], ["parts"]),
        node("Ceil", ["parts"], ["whole"]),
        node("Mul", ["whole", parts], ["rounded"]),
        node("Cast", ["rounded"], [name], to=onnx.TensorProto.INT64),
    ]


def test_a_size_rounded_as_a_float_is_what_a_pad_adds() -> None:
    """As detectors pad their images to a multiple of 32, with a pass for fusion behind it."""
    nodes = [
        *_rounded_up("wanted", "eight"),
        node("Sub", ["wanted", "size"], ["missing"]),
        node("Concat", ["none", "none", "missing", "none"], ["pads"], axis=0),
        node("Pad", ["x", "pads"], ["padded"]),
        node("Relu", ["padded"], ["y"]),
    ]
    arrays = {"eight": np.array([8], np.float32), "none": np.array([0], np.int64)}
    proto = model(nodes, [value("x", ["N", 3])], [value("y", [None, 3])], opset=18, **arrays)
    compiled = tvm_ext.compile(proto, HOST)
    for rows in (3, 8, 17):
        x = {"x": rand(rows, 3)}
        np.testing.assert_array_equal(compiled.run(x)["y"], by_runtime(proto, x)[0])


def test_a_long_value_below_zero_keeps_its_sign() -> None:
    """A dimension is never negative, but what is counted from the end is."""
    nodes = [
        *_rounded_up("wanted", "eight"),
        node("Sub", ["three", "wanted"], ["start"]),
        node("Slice", ["x", "start", "far", "zero"], ["y"]),
    ]
    stored = {"three": [11], "far": [2**62], "zero": [0]}
    arrays = {name: np.array(array, np.int64) for name, array in stored.items()}
    eight = np.array([8], np.float32)
    inputs, outputs = [value("x", ["N", 3])], [value("y", [None, 3])]
    proto = model(nodes, inputs, outputs, opset=18, eight=eight, **arrays)
    compiled = tvm_ext.compile(proto, HOST, opt_level="O0")
    for rows in (3, 8, 12, 17):
        x = {"x": rand(rows, 3)}
        np.testing.assert_array_equal(compiled.run(x)["y"], by_runtime(proto, x)[0])


def test_the_first_half_of_twice_a_size_is_the_size() -> None:
    """Two batches go through one layer, and their halves are added to the first."""
    nodes = [
        node("Concat", ["x", "x"], ["both"], axis=0),
        node("Shape", ["both"], ["rows"], end=1),
        node("Div", ["rows", "two"], ["half"]),
        node("Slice", ["both", "zero", "half", "zero"], ["first"]),
        node("Add", ["x", "first"], ["y"]),
    ]
    arrays = {"zero": np.array([0], np.int64), "two": np.array([2], np.int64)}
    proto = model(nodes, [value("x", ["N", 3])], [value("y", [None, 3])], opset=18, **arrays)
    imported = import_model(proto).mod
    text = imported.script()
    assert "T.min" not in text
    assert "agreed" not in text


def test_a_size_that_a_cast_limits_reserves_no_storage_for_the_limit() -> None:
    """As TensorFlow multiplies sizes in int32: the product may wrap, and is small in truth."""
    nodes = [
        node("Shape", ["x"], ["sizes"], end=2),
        node("Cast", ["sizes"], ["narrow"], to=onnx.TensorProto.INT32),
        node("ReduceProd", ["narrow"], ["product"], keepdims=1),
        node("Cast", ["product"], ["rows"], to=onnx.TensorProto.INT64),
        node("Concat", ["rows", "columns"], ["shape"], axis=0),
        node("Reshape", ["x", "shape"], ["flat"]),
        node("Sigmoid", ["flat"], ["s"]),
        node("MatMul", ["s", "w"], ["y"]),
    ]
    arrays = {"columns": np.array([400], np.int64), "w": rand(400, 400)}
    inputs, outputs = [value("x", ["N", "M", 400])], [value("y", [None, 400])]
    proto = model(nodes, inputs, outputs, opset=18, **arrays)
    compiled = tvm_ext.compile(proto, HOST)
    x = {"x": rand(2, 3, 400)}
    np.testing.assert_allclose(compiled.run(x)["y"], by_runtime(proto, x)[0], atol=1e-4)
