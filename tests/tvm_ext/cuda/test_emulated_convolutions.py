"""A network of every kind of convolution, compiled for a GPU and run in the emulator."""

import numpy as np
import onnx
import pytest
from emulated_models import emulated_model
from small_models import model, node, rand, value

import tvm_ext

pytestmark = pytest.mark.slow


def network(batch: int, side: int) -> onnx.ModelProto:
    """First layer, groups, pooling, depthwise, both transposed forms, both resizes, one tap."""
    around = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    nodes = [
        node("Conv", ["x", "w0", "b0"], ["first"], strides=[2, 2], **around),
        node("Relu", ["first"], ["a"]),
        node("Conv", ["a", "w1"], ["grouped"], group=4, **around),
        node("Relu", ["grouped"], ["b"]),
        node("MaxPool", ["b"], ["c"], strides=[2, 2], **around),
        node("Conv", ["c", "w2"], ["d"], group=32, **around),
        node("ConvTranspose", ["d", "w3"], ["e"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Add", ["e", "b"], ["f"]),
        node("ConvTranspose", ["f", "w4"], ["g"], strides=[2, 2], output_padding=[1, 1], **around),
        node("Resize", ["g", "", "scales"], ["h"], mode="linear"),
        node("Resize", ["h", "", "scales"], ["i"], mode="nearest"),
        node("Conv", ["i", "w5"], ["y"], kernel_shape=[1, 1]),
    ]
    return model(
        nodes,
        [value("x", [batch, 3, side, side])],
        [value("y", [batch, 8, 4 * side, 4 * side])],
        w0=rand(32, 3, 3, 3),
        b0=rand(32),
        w1=rand(32, 8, 3, 3),
        w2=rand(32, 1, 3, 3),
        w3=rand(32, 32, 2, 2),
        w4=rand(32, 16, 3, 3),
        w5=rand(8, 16, 1, 1),
        scales=np.array([1, 1, 2, 2], "float32"),
    )


@pytest.mark.parametrize(("batch", "side"), [(1, 16), (8, 32)], ids=["small", "channels last"])
def test_all_kinds(batch: int, side: int) -> None:
    found = emulated_model(network(batch, side))
    schedules = {kernel.schedule for kernel in found.report.kernels}
    assert {"contraction", "depthwise convolution", "pooling", "elementwise"} >= schedules
    generator = np.random.default_rng(0)
    inputs = {"x": generator.standard_normal((batch, 3, side, side)).astype("float32")}
    expected = tvm_ext.compile(network(batch, side), target="cpu").run(inputs)
    largest = np.abs(expected["y"]).max()
    np.testing.assert_allclose(found.run(inputs)["y"], expected["y"], rtol=0, atol=1e-5 * largest)
