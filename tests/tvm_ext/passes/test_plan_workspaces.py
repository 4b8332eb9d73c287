"""Arrays between the kernels of one function are planned with all other storage."""

import numpy as np
import onnx
import pytest
from emulated_models import emulated_model
from small_models import model, node, rand, value
from unoptimised import HOST

import tvm_ext


def split_product() -> onnx.ModelProto:
    """A product of one tile and a long reduction, twice: both share one kernel."""
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Relu", ["a"], ["b"]),
        node("MatMul", ["b", "w"], ["y"]),
    ]
    return model(
        nodes,
        [value("x", [24, 512])],
        [value("y", [24, 512])],
        w=rand(512, 512) / 16,
    )


@pytest.mark.emulated
def test_numbers_and_storage() -> None:
    source = split_product()
    compiled = emulated_model(source, target="nvidia-h100")
    weights = onnx.numpy_helper.to_array(source.graph.initializer[0])
    x = np.random.default_rng(0).standard_normal((24, 512)).astype("float32")
    found = compiled.run({"x": x})["y"]
    np.testing.assert_allclose(found, np.maximum(x @ weights, 0) @ weights, rtol=1e-4, atol=1e-4)
    # Besides the two results the partial sums, for which both kernels share one place.
    memory = compiled.report.memory
    assert memory.planned_peak_bytes >= (2 + 8) * 24 * 512 * 4
    assert memory.unplanned_bytes > 1.5 * memory.planned_peak_bytes


def convolutions() -> onnx.ModelProto:
    """Two of one kernel, which has the image with a border, and one that makes room for it."""
    nodes = [
        node("Conv", ["x", "w"], ["a"], pads=[2, 2, 2, 2]),
        node("Conv", ["a", "w"], ["b"], pads=[2, 2, 2, 2]),
        node("MaxPool", ["b"], ["y"], kernel_shape=[4, 4], strides=[4, 4]),
    ]
    inputs, outputs = [value("x", [1, 16, 40, 40])], [value("y", [1, 16, 10, 10])]
    return model(nodes, inputs, outputs, w=rand(16, 16, 5, 5) / 16)


@pytest.mark.skipif(
    HOST.vector_lanes("float32") < 16, reason="these convolutions keep no image of a whole call"
)
def test_on_a_cpu_arrays_of_whole_calls_lie_in_the_arena() -> None:
    source = convolutions()
    x = {"x": np.random.default_rng(0).standard_normal((1, 16, 40, 40)).astype("float32")}
    planned = tvm_ext.compile(source, HOST, threads=1)
    apart = tvm_ext.compile(source, HOST, threads=1, disabled_passes=["PlanWorkspaces"])
    np.testing.assert_array_equal(planned.run(x)["y"], apart.run(x)["y"])
    image = 16 * 44 * 44 * 4
    assert apart.report.memory.workspace_bytes >= image
    assert (
        planned.report.memory.workspace_bytes or 0
    ) <= apart.report.memory.workspace_bytes - image
    # The bytes of the image are those of other values while no convolution runs.
    assert planned.report.memory.planned_peak_bytes < apart.report.memory.planned_peak_bytes
