"""Before and after IR, equal numbers, and refusals of NormalizationFusion, for rows."""

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from conv_modules import kernels, run
from hypothesis import given, settings
from hypothesis import strategies as st
from thoroughness import DRAWS, one_in
from tvm import relax, tirx
from tvm_ffi import structural_equal

from tvm_ext.relay_passes.expressions import numpy_dtype
from tvm_ext.relay_passes.graph_pass import recording
from tvm_ext.relay_passes.normalization_fusion import NormalizationFusion

op = relax.op
EPS = 1e-5


def module(shape, build: Callable, dtype="float32", others=()):
    x = relax.Var("x", relax.TensorType(shape, dtype))
    extra = [relax.Var(f"p{i}", relax.TensorType(s, dtype)) for i, s in enumerate(others)]
    builder = relax.BlockBuilder()
    with builder.function("main", [x, *extra]):
        with builder.dataflow():
            result = builder.emit_output(build(builder.emit, x, *extra))
        builder.emit_func_output(result)
    return builder.get()


def parts(emit, x, axes, square, quotient, variance_axes=None, eps=EPS):
    centred = emit(op.subtract(x, emit(op.mean(x, axes, keepdims=True))))
    squares = {
        "power": lambda: op.power(centred, relax.const(2.0)),
        "product": lambda: op.multiply(centred, centred),
        "square": lambda: op.square(centred),
    }[square]()
    variance = emit(op.mean(emit(squares), variance_axes or axes, keepdims=True))
    total = emit(op.add(variance, relax.const(eps)))
    if quotient == "divide":
        return op.divide(centred, emit(op.sqrt(total)))
    if quotient == "rsqrt":
        return op.multiply(emit(op.rsqrt(total)), centred)
    return op.multiply(centred, emit(op.divide(relax.const(1.0), emit(op.sqrt(total)))))


def spelled_out(shape, axes, square="power", quotient="divide", **kwargs):
    return module(shape, lambda emit, x: parts(emit, x, axes, square, quotient, **kwargs))


def fused(mod):
    return tvm.transform.Sequential([NormalizationFusion()])(mod)


def expected(x, axes):
    x = x.astype("float64")
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + EPS)


def test_one_kernel_and_log():
    with recording() as decisions:
        once = fused(spelled_out((2, 5, 24), [-1]))
    assert kernels(once) == ["layer_norm"]
    assert len(once["main"].body.blocks[0].bindings) == 1
    assert decisions[0].reason == "over axis 2 of its input"
    assert structural_equal(fused(once), once)
    assert relax.analysis.check_well_formed(once)


@pytest.mark.parametrize("square", ["power", "product", "square"])
@pytest.mark.parametrize("quotient", ["divide", "rsqrt", "reciprocal"])
def test_spellings(square, quotient):
    assert kernels(fused(spelled_out((3, 8), [1], square, quotient))) == ["layer_norm"]


@settings(max_examples=4 * DRAWS, deadline=None)
@given(
    st.lists(st.integers(1, 9), min_size=2, max_size=4),
    st.sets(st.integers(0, 3), min_size=1, max_size=2),
)
def test_numbers(shape, chosen):
    axes = sorted({axis % len(shape) for axis in chosen})
    x = np.random.default_rng(1).normal(size=shape).astype("float32")
    (found,) = run(fused(spelled_out(shape, axes)), x)
    np.testing.assert_allclose(found, expected(x, tuple(axes)), rtol=2e-5, atol=2e-5)


@pytest.mark.extended
def test_operator_with_scale_and_shift_keeps_its_digits_far_from_zero():
    random = np.random.default_rng(2)
    x = (1000 + random.normal(size=(4, 64))).astype("float32")
    scale, shift = random.normal(size=(2, 64)).astype("float32")

    def build(emit, x, scale, shift):
        return op.nn.layer_norm(x, scale, shift, axes=[-1], epsilon=EPS)

    mod = fused(module((4, 64), build, others=[(64,), (64,)]))
    assert kernels(mod) == ["layer_norm"]
    wanted = expected(x, (1,)) * scale + shift
    (found,) = run(mod, x, scale, shift)
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "mod",
    [
        module((3, 8), lambda emit, x: op.divide(x, emit(op.sqrt(emit(op.add(x, x)))))),
        spelled_out((3, 8), [1], eps=np.full((1, 1, 1), EPS, "float32")),
        spelled_out((3, 0), [1]),
    ],
    ids=["no sum", "a constant that adds an axis", "empty"],
)
def test_left_alone(mod):
    assert structural_equal(fused(mod), mod)


@pytest.mark.extended
def test_deviations_over_one_axis_divided_by_their_mean_square_over_another():
    mod = fused(spelled_out((3, 4, 8), [2], variance_axes=[1]))
    assert kernels(mod) == ["rms_norm"]
    x = np.random.default_rng(3).normal(size=(3, 4, 8)).astype("float32")
    centred = x - x.mean(2, keepdims=True)
    wanted = centred / np.sqrt((centred**2).mean(1, keepdims=True) + EPS)
    np.testing.assert_allclose(run(mod, x)[0], wanted, rtol=2e-5, atol=2e-5)


def kernel_count(mod):
    found = [b.value for b in mod["main"].body.blocks[0].bindings]
    return len([v for v in found if isinstance(v, relax.Call) and v.op.name == "relax.call_tir"])


N, L, K = (tirx.Var(name, "int64") for name in "nlk")


@pytest.mark.extended
def test_rows_of_any_number_and_length():
    mod = fused(spelled_out((N, L, K), [2]))
    assert kernel_count(mod) == 1
    for shape in ((2, 3, 5), (1, 1, 1), (4, 2, 33)):
        x = np.random.default_rng(4).normal(size=shape).astype("float32")
        np.testing.assert_allclose(run(mod, x)[0], expected(x, (2,)), rtol=2e-5, atol=2e-5)


def test_a_number_of_rows_that_is_computed_is_left_alone():
    """TVM cannot fuse what follows into kernels of such sizes."""
    mod = spelled_out((N, L // 2, 8), [2])
    with recording() as decisions:
        assert structural_equal(fused(mod), mod)
    assert [(d.applied, "computed" in d.reason) for d in decisions] == [(False, True)]


# What is divided by, in each spelling; x is not centred.


def total(emit, x, axis=-1):
    return emit(op.sum(emit(op.multiply(x, x)), axis, keepdims=True))


def mean_square(emit, x):
    return emit(op.mean(emit(op.power(x, relax.const(2.0))), -1, keepdims=True))


def root(emit, value):
    return emit(op.sqrt(value))


def plus(emit, value, number=EPS):
    return emit(op.add(relax.const(number), value))


def rsqrt(emit, x):
    return op.multiply(x, emit(op.rsqrt(plus(emit, mean_square(emit, x)))))


def inverse_power(emit, x):
    return op.multiply(x, emit(op.power(plus(emit, mean_square(emit, x)), relax.const(-0.5))))


def root_as_power(emit, x):
    return op.divide(x, emit(op.power(plus(emit, mean_square(emit, x)), relax.const(0.5))))


def sum_over_count(emit, x):
    mean = emit(op.divide(total(emit, x), relax.const(8.0)))
    return op.divide(x, root(emit, plus(emit, mean)))


def sum_times_number(emit, x):
    mean = emit(op.multiply(relax.const(0.125), total(emit, x)))
    return op.divide(x, root(emit, plus(emit, mean)))


def eps_outside(emit, x):
    return op.divide(x, plus(emit, root(emit, mean_square(emit, x)), 0.1))


def at_least_outside(emit, x):
    limited = emit(op.maximum(root(emit, total(emit, x)), relax.const(0.5)))
    return op.divide(x, emit(op.broadcast_to(limited, x.ty.shape)))


def at_least_by_clip(emit, x):
    limited = emit(op.clip(root(emit, total(emit, x)), 0.5, float("inf")))
    return op.divide(x, limited)


def at_least_inside(emit, x):
    limited = emit(op.maximum(total(emit, x), relax.const(0.5)))
    return op.multiply(x, emit(op.rsqrt(limited)))


def one_for_zero(emit, x):
    norm = root(emit, total(emit, x))
    zero = emit(op.equal(norm, relax.const(0.0)))
    return op.divide(x, emit(op.where(zero, relax.const(1.0), norm)))


def norm_of(x):
    return np.sqrt((x * x).sum(-1, keepdims=True))


def rms_of(x):
    return np.sqrt((x * x).mean(-1, keepdims=True) + EPS)


SPELLINGS = {
    rsqrt: ("rms_norm", rms_of),
    inverse_power: ("rms_norm", rms_of),
    root_as_power: ("rms_norm", rms_of),
    sum_over_count: ("rms_norm", rms_of),
    sum_times_number: ("rms_norm", rms_of),
    eps_outside: ("rms_norm", lambda x: np.sqrt((x * x).mean(-1, keepdims=True)) + 0.1),
    at_least_outside: ("l2_norm", lambda x: np.maximum(norm_of(x), 0.5)),
    at_least_by_clip: ("l2_norm", lambda x: np.maximum(norm_of(x), 0.5)),
    at_least_inside: ("l2_norm", lambda x: np.maximum(norm_of(x), np.sqrt(0.5))),
    one_for_zero: ("l2_norm", lambda x: np.where(norm_of(x) == 0, 1, norm_of(x))),
}


@pytest.mark.extended
@pytest.mark.parametrize("spelling", one_in(2, SPELLINGS), ids=lambda spelling: spelling.__name__)
def test_divisors(spelling):
    mod = fused(module((4, 8), spelling))
    name, divisor = SPELLINGS[spelling]
    assert kernels(mod) == [name]
    assert len(mod["main"].body.blocks[0].bindings) == 1
    x = np.random.default_rng(5).normal(size=(4, 8)).astype("float32")
    x[1] *= 1e-3
    x[2] = 0
    np.testing.assert_allclose(run(mod, x)[0], x / divisor(x), rtol=1e-5, atol=1e-6)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float16", 2e-3), ("bfloat16", 2e-2), ("float64", 1e-12)]
)
def test_types(dtype, tolerance):
    def build(emit, x):
        mean = emit(op.mean(x, -1, keepdims=True))
        centred = emit(op.subtract(x, mean))
        variance = emit(op.mean(emit(op.multiply(centred, centred)), -1, keepdims=True))
        deviation = emit(op.sqrt(emit(op.add(variance, relax.const(EPS, dtype)))))
        return op.divide(centred, deviation)

    mod = fused(module((3, 40), build, dtype))
    assert kernels(mod) == ["layer_norm"]
    x = np.random.default_rng(6).normal(size=(3, 40)).astype(numpy_dtype(dtype))
    (found,) = run(mod, x)
    assert found.dtype == x.dtype
    wide = x.astype("float64")
    wanted = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + EPS)
    np.testing.assert_allclose(found.astype("float64"), wanted, rtol=tolerance, atol=tolerance)


def test_squares_of_narrow_numbers_do_not_overflow():
    mod = fused(module((2, 16), rsqrt_of_cast, "float16"))
    x = np.full((2, 16), 3000, "float16")
    np.testing.assert_allclose(run(mod, x)[0], np.ones((2, 16)), rtol=1e-5)


def rsqrt_of_cast(emit, x):
    return rsqrt(emit, emit(op.astype(x, "float32")))


@pytest.mark.extended
def test_a_cast_to_float32_is_read_through():
    """Llama in float16: the cast has two readers, and both become the kernel."""
    mod = fused(module((N, 16), rsqrt_of_cast, "float16"))
    (binding,) = mod["main"].body.blocks[0].bindings
    assert str(binding.value.args[1][0].ty.dtype) == "float16"
    assert str(binding.var.ty.dtype) == "float32"
    x = np.random.default_rng(7).normal(size=(3, 16)).astype("float16")
    wide = x.astype("float32")
    np.testing.assert_allclose(run(mod, x)[0], wide / rms_of(wide), rtol=1e-5)


def test_a_deviation_that_is_used_elsewhere_is_refused():
    def build(emit, x):
        deviation = root(emit, plus(emit, mean_square(emit, x)))
        return op.add(emit(op.divide(x, deviation)), deviation)

    mod = module((4, 8), build)
    with recording() as decisions:
        assert structural_equal(fused(mod), mod)
    assert ["used elsewhere" in d.reason for d in decisions] == [True]


def test_a_repetition_beyond_the_input_is_left_alone():
    def build(emit, x):
        inverse = emit(op.rsqrt(plus(emit, mean_square(emit, x))))
        return op.multiply(x, emit(op.broadcast_to(inverse, (5, 1))))

    mod = module((1, 8), build)
    assert structural_equal(fused(mod), mod)


def test_operator_rms_norm():
    mod = fused(module((4, 8), lambda emit, x, w: op.nn.rms_norm(x, w, [-1], EPS), others=[(8,)]))
    assert kernels(mod) == ["rms_norm"]
    x, scale = np.random.default_rng(8).normal(size=(2, 4, 8)).astype("float32")
    np.testing.assert_allclose(run(mod, x, scale[0])[0], x / rms_of(x) * scale[0], rtol=1e-5)
