"""A model in float16 on a Hopper GPU, from its file to the numbers, in the emulator."""

import numpy as np
from emulated_models import emulated_model
from onnx import TensorProto
from small_models import model, node, rand, value

from tvm_ext.hardware.targets import resolve_target


def test_a_layer_in_float16_is_one_kernel_of_warp_groups():
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
    assert [kernel.schedule for kernel in compiled.report.kernels] == ["warp group contraction"]
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
    assert [kernel.schedule for kernel in compiled.report.kernels] == ["warp group contraction"]
    x = rand(256, 128)
    (found,) = compiled.run({"x": x}).values()
    np.testing.assert_allclose(found, x @ weights, rtol=2e-3, atol=2e-2)


def test_attention_in_float16_is_one_kernel_of_warp_groups():
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
    assert [kernel.schedule for kernel in compiled.report.kernels] == ["warp group attention"]
    arrays = {name: rand(*shape).astype("float16") for name in "qkv"}
    (found,) = compiled.run(arrays).values()
    q, k, v = (arrays[name].astype("float64") for name in "qkv")
    weights = np.exp(q @ k.swapaxes(2, 3) * 0.0625)
    wanted = weights / weights.sum(-1, keepdims=True) @ v
    np.testing.assert_allclose(found, wanted, rtol=4e-3, atol=4e-3)
