"""Nothing is printed that was not asked for, and nothing of the process is changed on the way."""

import sys
import warnings

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvm_ext
from tvm_ext.errors import FormError, ModelError
from tvm_ext.onnx_frontend.converters import CONVERTERS
from tvm_ext.onnx_frontend.tvm_compat import OnnxOpConverter


def model(input_name: str = "x") -> onnx.ModelProto:
    weight = numpy_helper.from_array(np.ones((4, 3), np.float32), "w")
    nodes = [
        helper.make_node("MatMul", [input_name, "w"], ["m"], name="product"),
        helper.make_node("Relu", ["m"], ["y"], name="relu"),
    ]
    inputs = [helper.make_tensor_value_info(input_name, TensorProto.FLOAT, [2, 4])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])]
    graph = helper.make_graph(nodes, "small", inputs, outputs, [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.extended
def test_run_then_save_then_load(tmp_path, capfd):
    x = np.ones((2, 4), np.float32)
    compiled = tvm_ext.compile(model())
    before = compiled.run({"x": x})["y"]
    compiled.save(tmp_path / "model.tvmx")
    loaded = tvm_ext.load(tmp_path / "model.tvmx")
    np.testing.assert_array_equal(loaded.run({"x": x})["y"], before)
    loaded.save(tmp_path / "again.tvmx")
    tvm_ext.load(tmp_path / "again.tvmx")
    assert capfd.readouterr() == ("", "")


def test_a_name_that_tvm_warns_about(capfd):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = tvm_ext.compile(model("1 x=2"))
    assert [spec.name for spec in compiled.inputs] == ["1 x=2"]
    assert capfd.readouterr() == ("", "")


@pytest.mark.extended
def test_a_choice_within_a_size(capfd):
    """The windows of a pool that rounds up are as many as their last one begins inside."""
    sides = {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}
    nodes = [
        helper.make_node("MaxPool", ["x"], ["half"], kernel_shape=[1, 1], strides=[2, 2]),
        helper.make_node("MaxPool", ["half"], ["pool"], **sides),
        helper.make_node("GlobalAveragePool", ["pool"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, "H", "W"])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2, 1, 1])]
    graph = helper.make_graph(nodes, "pools", inputs, outputs)
    opset = [helper.make_opsetid("", 17)]
    compiled = tvm_ext.compile(helper.make_model(graph, opset_imports=opset, ir_version=9))
    assert compiled.run({"x": np.ones((1, 2, 16, 9), np.float32)})["y"].sum() == 2
    assert capfd.readouterr() == ("", "")


@pytest.mark.extended
def test_a_ceiling_within_a_size(capfd):
    """Sizes of an image that is scaled by no whole number are computed in floating point."""
    scales = numpy_helper.from_array(np.array([1, 1, 1.5, 1.5], np.float32), "scales")
    nodes = [
        helper.make_node("Resize", ["x", "", "scales"], ["large"], mode="nearest"),
        helper.make_node("GlobalAveragePool", ["large"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, "H", "W"])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2, 1, 1])]
    graph = helper.make_graph(nodes, "scaled", inputs, outputs, [scales])
    opset = [helper.make_opsetid("", 17)]
    compiled = tvm_ext.compile(helper.make_model(graph, opset_imports=opset, ir_version=9))
    assert compiled.run({"x": np.ones((1, 2, 5, 4), np.float32)})["y"].sum() == 2
    assert capfd.readouterr() == ("", "")


def test_a_converter_that_fails(monkeypatch, capfd):
    seen = []

    class Failing(OnnxOpConverter):
        @classmethod
        def _impl_v1(cls, bb, inputs, attr, params):
            seen.append(sys.stdout)
            raise FormError("no such form")

    monkeypatch.setitem(CONVERTERS, "Relu", Failing)
    stdout = sys.stdout
    with pytest.raises(ModelError, match=r"Relu node 'relu' cannot be converted: no such form"):
        tvm_ext.compile(model())
    # Another thread may print meanwhile: its output is not ours to swallow.
    assert seen == [stdout]
    assert sys.stdout is stdout
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
@pytest.mark.parametrize("operator", ["ScatterND", "ScatterElements"])
def test_a_kernel_that_tvm_warns_about(operator, capfd):
    places = np.array([[1], [3]]) if operator == "ScatterND" else np.array([1, 3])
    nodes = [
        helper.make_node("Neg", ["x"], ["a"]),
        helper.make_node(operator, ["a", "places", "u"], ["b"]),
        helper.make_node("Relu", ["b"], ["y"]),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [5]),
        helper.make_tensor_value_info("u", TensorProto.FLOAT, [2]),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [5])]
    stored = [numpy_helper.from_array(places, "places")]
    graph = helper.make_graph(nodes, "small", inputs, outputs, stored)
    opsets = [helper.make_opsetid("", 17)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    x, u = np.arange(-2, 3, dtype=np.float32), np.array([7, 8], np.float32)
    for level in ("O0", "O3"):
        found = tvm_ext.compile(proto, opt_level=level).run({"x": x, "u": u})["y"]
        np.testing.assert_array_equal(found, [2, 7, 0, 8, 0])
    assert capfd.readouterr() == ("", "")
