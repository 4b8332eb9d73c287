"""Before and after IR, equal numbers, and refusals of NormalizationFusion."""

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from conv_modules import kernels, run
from hypothesis import given, settings
from hypothesis import strategies as st
from thoroughness import DRAWS
from tvm import relax, tirx
from tvm_ffi import structural_equal

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
        spelled_out((3, 4, 8), [2], variance_axes=[1]),
        module((3, 8), lambda emit, x: op.divide(x, emit(op.sqrt(emit(op.add(x, x)))))),
        spelled_out((3, 8), [1], eps=np.full((1, 1, 1), EPS, "float32")),
    ],
    ids=["other axes", "no mean", "a constant that adds an axis"],
)
def test_left_alone(mod):
    assert structural_equal(fused(mod), mod)


def test_rows_of_any_number():
    mod = spelled_out((tirx.Var("n", "int64"), tirx.Var("l", "int64"), 8), [2])
    calls = [name for name in map(str, fused(mod).get_global_vars()) if "layer_norm" in name]
    assert len(calls) == 1


def test_a_number_of_rows_that_is_computed_is_left_alone():
    """TVM cannot fuse what follows into kernels of such sizes."""
    mod = spelled_out((tirx.Var("n", "int64"), tirx.Var("h", "int64") // 2, 8), [2])
    assert structural_equal(fused(mod), mod)


def test_symbolic_row_is_refused():
    mod = spelled_out((3, tirx.Var("n", "int64")), [1])
    with recording() as decisions:
        assert structural_equal(fused(mod), mod)
    assert [(d.applied, "not known" in d.reason) for d in decisions] == [(False, True)]
