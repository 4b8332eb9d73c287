"""Normalisations as exporters of TensorFlow, Keras, JAX and Paddle write them."""

from collections.abc import Callable

import numpy as np
import pytest
from conv_modules import kernels, module, operators, run
from thoroughness import one_in
from tvm import relax, tirx
from tvm_ffi import structural_equal

from tvm_ext.relay_passes.graph_pass import recording
from tvm_ext.relay_passes.normalization_fusion import NormalizationFusion

op = relax.op
EPS = 1e-3
N, L = (tirx.Var(name, "int64") for name in "nl")
RANDOM = np.random.default_rng(1)
SCALE, SHIFT = RANDOM.normal(size=(2, 6)).astype("float32")


def number(value: float) -> relax.Expr:
    return relax.const(value, "float32")


def mean(emit, x, axes=(-1,)):
    return emit(op.mean(x, list(axes), keepdims=True))


def inverse(emit, variance):
    return emit(op.divide(number(1.0), emit(op.sqrt(emit(op.add(variance, number(EPS)))))))


def scaled_inverse(emit, x, axes=(-1,)):
    """``scale / sqrt(var + eps)`` and the mean."""
    m = mean(emit, x, axes)
    deviation = emit(op.subtract(x, m))
    variance = mean(emit, emit(op.multiply(deviation, deviation)), axes)
    return m, emit(op.multiply(inverse(emit, variance), relax.const(SCALE)))


def tensorflow(emit, x):
    """tf.nn.batch_normalization of tf.nn.moments."""
    m, s = scaled_inverse(emit, x)
    rest = emit(op.subtract(relax.const(SHIFT), emit(op.multiply(m, s))))
    return [emit(op.add(emit(op.multiply(x, s)), rest))]


def keras(emit, x):
    """keras.layers.LayerNormalization."""
    m, s = scaled_inverse(emit, x)
    rest = emit(op.multiply(emit(op.negative(m)), s))
    rest = emit(op.add(rest, relax.const(SHIFT)))
    return [emit(op.add(emit(op.multiply(x, s)), rest))]


def negated_product(emit, x):
    m, s = scaled_inverse(emit, x)
    rest = emit(op.add(relax.const(SHIFT), emit(op.negative(emit(op.multiply(s, m))))))
    return [emit(op.add(rest, emit(op.multiply(s, x))))]


def without_shift(emit, x):
    m, s = scaled_inverse(emit, x)
    difference = emit(op.subtract(emit(op.multiply(x, s)), emit(op.multiply(m, s))))
    return [emit(op.add(difference, relax.const(SHIFT)))]


def scaled_numerator(emit, x):
    deviation = emit(op.subtract(x, mean(emit, x)))
    variance = mean(emit, emit(op.multiply(deviation, deviation)))
    root = emit(op.sqrt(emit(op.add(variance, number(EPS)))))
    scaled = emit(op.multiply(relax.const(SCALE), deviation))
    return [emit(op.add(emit(op.divide(scaled, root)), relax.const(SHIFT)))]


def sums_without_axes(emit, x):
    """jnp.mean and jnp.var: a sum drops the axis, and a reshape puts it back."""

    def jax_mean(value):
        total = emit(op.reshape(emit(op.sum(value, [-1])), [N, L, 1]))
        return emit(op.multiply(total, number(np.float32(1 / 6))))

    deviation = emit(op.subtract(x, jax_mean(x)))
    variance = jax_mean(emit(op.multiply(deviation, deviation)))
    factor = emit(op.multiply(inverse(emit, variance), relax.const(SCALE)))
    centred = emit(op.subtract(x, mean(emit, x)))
    return [emit(op.add(emit(op.multiply(centred, factor)), relax.const(SHIFT)))]


def difference(clamp: Callable | None, keepdims: bool = True):
    """flax: the mean of the squares less the squared mean."""

    def build(emit, x):
        m = emit(op.mean(x, [-1], keepdims=keepdims))
        squares = emit(op.mean(emit(op.multiply(x, x)), [-1], keepdims=keepdims))
        variance = emit(op.subtract(squares, emit(op.multiply(m, m))))
        variance = variance if clamp is None else emit(clamp(variance))
        if not keepdims:
            m, variance = (emit(op.expand_dims(value, [-1])) for value in (m, variance))
        factor = emit(op.multiply(inverse(emit, variance), relax.const(SCALE)))
        centred = emit(op.subtract(x, m))
        return [emit(op.add(emit(op.multiply(centred, factor)), relax.const(SHIFT)))]

    return build


SPELLINGS = {
    "TensorFlow": tensorflow,
    "Keras": keras,
    "negated product": negated_product,
    "without shift": without_shift,
    "scaled numerator": scaled_numerator,
    "sums without axes": sums_without_axes,
    "difference": difference(None),
    "difference from zero": difference(lambda v: op.maximum(number(0.0), v)),
    "clip from zero": difference(lambda v: op.clip(v, 0.0, float("inf"))),
    "difference without axes": difference(lambda v: op.maximum(v, number(0.0)), keepdims=False),
}


def fused(mod):
    return NormalizationFusion()(mod)


def expected(x):
    x = x.astype("float64")
    root = np.sqrt(x.var(-1, keepdims=True) + EPS)
    return (x - x.mean(-1, keepdims=True)) / root * SCALE + SHIFT


@pytest.mark.extended
@pytest.mark.parametrize("spelling", one_in(3, SPELLINGS.values()), ids=SPELLINGS)
def test_layer_norm(spelling):
    mod = fused(module([N, L, 6], spelling))
    assert kernels(mod) == ["layer_norm"]
    assert operators(mod) == ["call_tir", "multiply", "add"]
    assert structural_equal(fused(mod), mod)
    for shape in ((2, 3, 6), (1, 1, 6)):
        x = RANDOM.normal(size=shape).astype("float32")
        np.testing.assert_allclose(run(mod, x)[0], expected(x), rtol=1e-4, atol=1e-5)


@pytest.mark.extended
def test_a_difference_of_two_means_keeps_its_formula():
    """Far from zero nothing is left of it: what the model says is then the root of ``eps``."""
    x = np.array([[[4096.0, 4096.5, 4096, 4096.5, 4096, 4096.5]]], "float32")
    spelling = difference(lambda v: op.maximum(v, number(0.0)))
    (as_written,) = run(module([N, L, 6], spelling), x)
    (found,) = run(fused(module([N, L, 6], spelling)), x)
    np.testing.assert_allclose(found, as_written, rtol=1e-5)
    assert np.abs(found - expected(x)).max() > 1.0


def rms_of_keras(emit, x):
    squares = mean(emit, emit(op.multiply(x, x)))
    return [emit(op.multiply(x, emit(op.multiply(inverse(emit, squares), relax.const(SCALE)))))]


def rms_without_axis(emit, x):
    squares = emit(op.mean(emit(op.square(x)), [2]))
    squares = emit(op.reshape(squares, [N, L, 1]))
    return [emit(op.multiply(x, emit(op.multiply(relax.const(SCALE), inverse(emit, squares)))))]


@pytest.mark.parametrize("spelling", [rms_of_keras, rms_without_axis])
def test_rms_norm(spelling):
    mod = fused(module([N, L, 6], spelling))
    assert kernels(mod) == ["rms_norm"]
    x = RANDOM.normal(size=(2, 3, 6)).astype("float32")
    wanted = x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * SCALE
    np.testing.assert_allclose(run(mod, x)[0], wanted, rtol=1e-5, atol=1e-6)


def unit_of_keras(emit, x):
    """keras.layers.UnitNormalization: the inverse is limited, not the root."""
    total = emit(op.sum(emit(op.multiply(x, x)), [-1], keepdims=True))
    root = emit(op.divide(number(1.0), emit(op.sqrt(total))))
    return [emit(op.multiply(x, emit(op.minimum(root, number(10.0)))))]


def unit_of_paddle(emit, x):
    """paddle.nn.functional.normalize takes the squares of magnitudes."""
    size = emit(op.abs(x))
    total = emit(op.sum(emit(op.multiply(size, size)), [-1], keepdims=True))
    root = emit(op.power(total, number(0.5)))
    return [emit(op.divide(x, emit(op.maximum(root, number(0.1)))))]


@pytest.mark.parametrize("spelling", [unit_of_keras, unit_of_paddle])
def test_l2_norm(spelling):
    mod = fused(module([N, L, 6], spelling))
    assert kernels(mod) == ["l2_norm"]
    x = RANDOM.normal(size=(2, 3, 6)).astype("float32")
    x[0, 1] *= 1e-3
    x[1, 2] = 0
    wanted = x / np.maximum(np.sqrt((x * x).sum(-1, keepdims=True)), 0.1)
    np.testing.assert_allclose(run(mod, x)[0], wanted, rtol=1e-5, atol=1e-6)


def test_groups_of_channels_that_are_last():
    """keras.layers.GroupNormalization splits the last axis and normalises over three."""

    def build(emit, x):
        grouped = emit(op.reshape(x, [N, 3, 4, 2, 6]))
        m, s = scaled_inverse(emit, grouped, (1, 2, 4))
        rest = emit(op.multiply(emit(op.negative(m)), s))
        result = emit(op.add(emit(op.multiply(grouped, s)), rest))
        return [emit(op.reshape(result, [N, 3, 4, 12]))]

    mod = fused(module([N, 3, 4, 12], build))
    assert operators(mod) == ["reshape", "call_tir", "multiply", "reshape"]
    x = RANDOM.normal(size=(2, 3, 4, 2, 6)).astype("float32")
    centred = x - x.mean((1, 2, 4), keepdims=True)
    wanted = centred / np.sqrt((centred**2).mean((1, 2, 4), keepdims=True) + EPS) * SCALE
    (found,) = run(mod, x.reshape(2, 3, 4, 12))
    np.testing.assert_allclose(found, wanted.reshape(2, 3, 4, 12), rtol=1e-4, atol=1e-5)


def other_mean(emit, x):
    _, s = scaled_inverse(emit, x)
    rest = emit(op.multiply(emit(op.negative(mean(emit, x, (1,)))), s))
    return [emit(op.add(emit(op.multiply(x, s)), rest))]


def other_sign(emit, x):
    m, s = scaled_inverse(emit, x)
    return [emit(op.add(emit(op.multiply(x, s)), emit(op.multiply(m, s))))]


def sum_times_another_number(emit, x):
    m = emit(op.multiply(emit(op.sum(x, [-1], keepdims=True)), number(0.2)))
    deviation = emit(op.subtract(x, m))
    variance = mean(emit, emit(op.multiply(deviation, deviation)))
    return [emit(op.multiply(emit(op.subtract(x, m)), inverse(emit, variance)))]


def axis_that_stays_dropped(emit, x):
    """With six rows of six, a dropped axis broadcasts along another one."""
    squares = emit(op.mean(emit(op.multiply(x, x)), [2]))
    return [emit(op.multiply(x, inverse(emit, squares)))]


@pytest.mark.parametrize(
    "spelling",
    [other_mean, other_sign, axis_that_stays_dropped],
)
def test_left_alone(spelling):
    mod = module([1, 6, 6], spelling)
    assert structural_equal(fused(mod), mod)


@pytest.mark.extended
def test_a_sum_times_another_number_is_no_mean():
    mod = module([2, 3, 6], sum_times_another_number)
    x = RANDOM.normal(size=(2, 3, 6)).astype("float32")
    assert "layer_norm" not in kernels(fused(mod))
    np.testing.assert_allclose(run(fused(mod), x)[0], run(mod, x)[0], rtol=1e-5)


def test_a_scaled_inverse_that_is_used_elsewhere_is_refused():
    def build(emit, x):
        m, s = scaled_inverse(emit, x)
        rest = emit(op.subtract(relax.const(SHIFT), emit(op.multiply(m, s))))
        return [emit(op.add(emit(op.multiply(x, s)), rest)), s]

    mod = module([2, 3, 6], build)
    with recording() as decisions:
        assert structural_equal(fused(mod), mod)
    assert ["used elsewhere" in d.reason for d in decisions] == [True]
