"""A model in float16 on a Hopper GPU, from its file to the numbers, in the emulator."""

import numpy as np
import onnxruntime
import pytest
from emulated_models import emulated_model
from onnx import TensorProto
from small_models import model, node, rand, value

from tvm_ext.hardware.targets import resolve_target


def test_a_layer_in_float16_is_one_kernel_of_warpgroups():
    weights, bias = rand(128, 136).astype("float16"), rand(136).astype("float16")
    layer = model(
        [
            node("MatMul", ["x", "w"], ["p"]),
            node("Add", ["p", "b"], ["s"]),
            node("Relu", ["s"], ["y"]),
        ],
        [value("x", [256, 128], TensorProto.FLOAT16)],
        [value("y", [256, 136], TensorProto.FLOAT16)],
        w=weights,
        b=bias,
    )
    compiled = emulated_model(layer, target=resolve_target("nvidia-h200").with_cores(2))
    assert [kernel.schedule for kernel in compiled.report.kernels] == ["warpgroup contraction"]
    x = rand(256, 128).astype("float16")
    (found,) = compiled.run({"x": x}).values()
    product = (x.astype("float32") @ weights.astype("float32")).astype("float16")
    np.testing.assert_allclose(found, np.maximum(product + bias, 0), rtol=2e-3, atol=2e-3)


def test_weights_of_float32_are_kept_with_neighbouring_steps_for_tf32():
    weights = rand(128, 136)
    layer = model(
        [node("MatMul", ["x", "w"], ["y"])],
        [value("x", [256, 128])],
        [value("y", [256, 136])],
        w=weights,
    )
    target = resolve_target("nvidia-h200").with_cores(2).with_tf32()
    compiled = emulated_model(layer, target=target)
    assert [kernel.schedule for kernel in compiled.report.kernels] == ["warpgroup contraction"]
    x = rand(256, 128)
    (found,) = compiled.run({"x": x}).values()
    np.testing.assert_allclose(found, x @ weights, rtol=2e-3, atol=2e-2)


@pytest.mark.slow
def test_convolutions_with_a_shortcut_are_three_kernels_of_warpgroups():
    half = TensorProto.FLOAT16
    shapes = {"w": (64, 64, 3, 3), "v": (128, 64, 3, 3), "u": (128, 64, 1, 1), "b": (64,)}
    block = model(
        [
            node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
            node("Relu", ["c"], ["r"]),
            node("Conv", ["r", "v"], ["d"], pads=[1, 1, 1, 1], strides=[2, 2]),
            node("Conv", ["r", "u"], ["e"], strides=[2, 2]),
            node("Add", ["d", "e"], ["y"]),
        ],
        [value("x", [4, 64, 32, 32], half)],
        [value("y", [4, 128, 16, 16], half)],
        **{name: (rand(*shape) * 0.1).astype("float16") for name, shape in shapes.items()},
    )
    target = resolve_target("nvidia-h200").with_cores(1)
    compiled = emulated_model(block, target=target)
    schedules = [kernel.schedule for kernel in compiled.report.kernels]
    assert schedules.count("warpgroup contraction") == 3
    x = rand(4, 64, 32, 32).astype("float16")
    (found,) = compiled.run({"x": x}).values()
    session = onnxruntime.InferenceSession(
        block.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (expected,) = session.run(None, {"x": x})
    np.testing.assert_allclose(found, expected, rtol=1e-2, atol=1e-2)


def test_attention_in_float16_is_one_kernel_of_warpgroups():
    shape, scale = [1, 1, 256, 128], np.float16(0.0625)
    attention = model(
        [
            node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
            node("MatMul", ["q", "kt"], ["s"]),
            node("Mul", ["s", "scale"], ["t"]),
            node("Softmax", ["t"], ["w"], axis=-1),
            node("MatMul", ["w", "v"], ["y"]),
        ],
        [value(name, shape, TensorProto.FLOAT16) for name in "qkv"],
        [value("y", shape, TensorProto.FLOAT16)],
        scale=np.array(scale),
    )
    compiled = emulated_model(attention, target=resolve_target("nvidia-h200").with_cores(2))
    assert [kernel.schedule for kernel in compiled.report.kernels] == ["warpgroup attention"]
    arrays = {name: rand(*shape).astype("float16") for name in "qkv"}
    (found,) = compiled.run(arrays).values()
    q, k, v = (arrays[name].astype("float64") for name in "qkv")
    weights = np.exp(q @ k.swapaxes(2, 3) * 0.0625)
    wanted = weights / weights.sum(-1, keepdims=True) @ v
    np.testing.assert_allclose(found, wanted, rtol=4e-3, atol=4e-3)
