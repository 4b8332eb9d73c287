"""NormalizationFusion of images: GroupNorm and InstanceNorm, as exporters and Relax write them."""

import numpy as np
import pytest
from conv_modules import kernels, operators, run
from test_normalization_fusion import EPS, fused, module
from tvm import relax, tirx
from tvm_ffi import structural_equal

op = relax.op
N, H, W = (tirx.Var(name, "int64") for name in "nhw")


def instance_norm(emit, x, axes):
    """As the operator InstanceNormalization is imported."""
    centred = emit(op.subtract(x, emit(op.mean(x, axes, keepdims=True))))
    variance = emit(op.variance(x, axes, keepdims=True))
    deviation = emit(op.sqrt(emit(op.add(variance, relax.const(EPS)))))
    return emit(op.divide(centred, deviation))


def draw(*shape):
    return np.random.default_rng([len(shape), *shape]).normal(size=shape).astype("float32")


def expected(x, axes):
    x = x.astype("float64")
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + EPS)


def expected_in_groups(x, groups):
    return expected(x.reshape(x.shape[0], groups, -1), (2,)).reshape(x.shape)


@pytest.mark.extended
@pytest.mark.parametrize("axes", [[2, 3], [1, 2]], ids=["NCHW", "NHWC"])
def test_instance_norm_of_any_size(axes):
    shape = (N, 4, H, W) if axes == [2, 3] else (N, H, W, 4)
    mod = fused(module(shape, lambda emit, x: instance_norm(emit, x, axes)))
    assert len(kernels(mod)) == 1
    x = draw(2, 4, 3, 4)
    np.testing.assert_allclose(run(mod, x)[0], expected(x, tuple(axes)), rtol=2e-5, atol=2e-5)


def grouped(shape, scale, shift, groups=2, back=None):
    """GroupNorm as the exporters of PyTorch write it."""
    ones, zeros = (relax.const(np.full((groups, 1), n, "float32")) for n in (scale, shift))
    total = shape[1] // groups
    for size in shape[2:]:
        total = total * size

    def build(emit, x):
        rows = emit(op.reshape(x, [shape[0], groups, total]))
        normal = instance_norm(emit, rows, [2])
        normal = emit(op.add(emit(op.multiply(normal, ones)), zeros))
        return op.reshape(normal, back or shape)

    return module(shape, build)


@pytest.mark.parametrize("shape", [(2, 6, 3, 5), (1, 4, 7), (N, 4, H, W)], ids=str)
def test_group_norm_is_one_kernel_of_the_tensor_itself(shape):
    mod = fused(grouped(shape, 1.0, 0.0))
    assert operators(mod) == ["call_tir"]
    x = draw(*(n if isinstance(n, int) else 3 for n in shape))
    np.testing.assert_allclose(run(mod, x)[0], expected_in_groups(x, 2), rtol=2e-5, atol=2e-5)
    assert structural_equal(fused(mod), mod)


def test_scale_and_shift_of_groups_become_those_of_channels():
    mod = fused(grouped((2, 6, 3, 5), 2.0, 3.0))
    assert operators(mod) == ["call_tir", "multiply", "add"]
    x = draw(2, 6, 3, 5)
    wanted = 2 * expected_in_groups(x, 2) + 3
    np.testing.assert_allclose(run(mod, x)[0], wanted, rtol=2e-5, atol=2e-5)


def test_another_shape_behind_leaves_the_reshape():
    mod = fused(grouped((2, 6, 3, 5), 1.0, 0.0, back=(2, 6, 15)))
    assert operators(mod)[0] == "reshape"
    assert [name for name in kernels(mod) if "group" in name] == []


@pytest.mark.extended
@pytest.mark.parametrize("kind", ["group", "instance"])
def test_operators_of_relax(kind):
    def build(emit, x, scale, shift):
        if kind == "group":
            return op.nn.group_norm(x, scale, shift, 2, 1, [2, 3], EPS)
        return op.nn.instance_norm(x, scale, shift, 1, [2, 3], EPS)

    mod = fused(module((2, 4, 3, 5), build, others=[(4,), (4,)]))
    assert kernels(mod) == ["group_norm" if kind == "group" else "layer_norm"]
    x, (scale, shift) = 100 + draw(2, 4, 3, 5), draw(2, 4)
    normal = expected_in_groups(x, 2) if kind == "group" else expected(x, (2, 3))
    wanted = normal * scale.reshape(-1, 1, 1) + shift.reshape(-1, 1, 1)
    (found,) = run(mod, x, scale, shift)
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3)
    assert relax.analysis.check_well_formed(mod)
