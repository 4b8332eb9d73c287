"""Before and after IR, numbers and refusals of MinMaxFusion."""

import numpy as np
import pytest
from conv_modules import apply, bindings, draw, kernels, module, operators, run
from tvm import relax, tirx
from tvm_ffi import structural_equal

from tvm_ext.hardware.targets import compiling_for, resolve_target
from tvm_ext.relay_passes.min_max_fusion import MinMaxFusion
from tvm_ext.relay_passes.spans import origins_of
from tvm_ext.tir_schedules.schedule_kernels import schedule_kernel

op = relax.op
rewrite = apply(MinMaxFusion())


def number(value, dtype="float32"):
    return relax.const(np.asarray(value, dtype))


def quantised(emit, x):
    """What DynamicQuantizeLinear means."""
    low = emit(op.minimum(emit(op.min(x)), number(0)))
    high = emit(op.maximum(emit(op.max(x)), number(0)))
    span = emit(op.subtract(high, low))
    scale = emit(op.divide(span, number(255)))
    scale = emit(op.where(emit(op.equal(span, number(0))), number(1), scale))
    steps = emit(op.clip(emit(op.divide(emit(op.negative(low)), scale)), 0, 255))
    zero_point = emit(op.astype(emit(op.astype(emit(op.round(steps)), "int32")), "uint8"))
    shift = emit(op.astype(zero_point, "float32"))
    ratio = emit(op.round(emit(op.divide(x, scale))))
    return [emit(op.add(ratio, shift)), scale, zero_point]


def assert_same(mod, x):
    after = rewrite(mod)
    for got, wanted in zip(run(after, x), run(mod, x), strict=True):
        np.testing.assert_array_equal(got, wanted)
    return after


@pytest.mark.extended
@pytest.mark.parametrize("offset", [0, 3, -3])
def test_scale_and_zero_point_come_from_one_kernel(offset):
    mod = module((2, 7, 33), quantised)
    after = assert_same(mod, draw(2, 7, 33) + np.float32(offset))
    assert operators(after) == ["call_tir", "astype", "divide", "round", "add"]
    made = bindings(after)[0]
    assert [str(field.dtype) for field in made.var.ty.fields] == ["float32", "uint8"]
    assert set(origins_of(made.var)) >= {"node0", "node2"}


@pytest.mark.slow
def test_numbers_that_are_all_equal():
    for value in (0, 5):
        assert_same(module((4, 5), quantised), np.full((4, 5), value, "float32"))


@pytest.mark.extended
@pytest.mark.parametrize("keepdims", [False, True])
def test_rows(keepdims):
    def body(emit, x):
        low = emit(op.min(x, axis=[-1], keepdims=keepdims))
        high = emit(op.max(x, axis=[-1], keepdims=keepdims))
        return [low, emit(op.subtract(high, low))]

    after = assert_same(module((5, 3, 19), body), draw(5, 3, 19))
    assert operators(after) == ["call_tir"]


def test_infinities_are_extrema_as_well():
    def body(emit, x):
        return [emit(op.min(x)), emit(op.max(x))]

    after = rewrite(module((6,), body))
    assert [a.item() for a in run(after, np.full(6, np.inf, "float32"))] == [np.inf] * 2


@pytest.mark.extended
def test_what_depends_on_another_tensor_stays():
    other = relax.Var("other", relax.TensorType((), "float32"))

    def body(emit, x):
        span = emit(op.subtract(emit(op.max(x)), emit(op.min(x))))
        return [emit(op.multiply(span, other))]

    before = module((3, 8), body, extra=[other])
    after = rewrite(before)
    assert operators(after) == ["call_tir", "multiply"]
    x, factor = draw(3, 8), np.float32(3).reshape(())
    np.testing.assert_array_equal(run(after, x, factor)[0], run(before, x, factor)[0])


def test_two_tensors_have_a_kernel_each():
    def body(emit, x):
        y = emit(op.exp(x))
        spans = [emit(op.subtract(emit(op.max(t)), emit(op.min(t)))) for t in (x, y)]
        return [emit(op.divide(*spans))]

    after = assert_same(module((3, 8), body), draw(3, 8))
    assert operators(after).count("call_tir") == 2
    assert len(kernels(after)) == 1


@pytest.mark.parametrize("shape", [(1, 96, 112, 112), (tirx.Var("n", "int64"), 40)])
def test_a_template_takes_the_kernel_and_shares_it_among_threads(shape):
    after = rewrite(module(shape, quantised))
    (func,) = (f for f in after.functions.values() if isinstance(f, tirx.PrimFunc))
    new, choice = schedule_kernel(func, resolve_target("avx512").with_cores(2))
    assert choice.schedule == "reduction", choice
    if len(shape) == 4:
        assert "T.parallel" in new.script()


def other_axes(emit, x):
    return [emit(op.min(x, axis=[0])), emit(op.max(x, axis=[1]))]


def two_tensors(emit, x):
    return [emit(op.min(x)), emit(op.max(emit(op.exp(x))))]


@pytest.mark.parametrize(
    ("body", "dtype"),
    [
        (other_axes, "float32"),
        (two_tensors, "float32"),
        (lambda emit, x: [emit(op.min(x)), emit(op.max(x))], "int32"),
        (lambda emit, x: [emit(op.min(x)), emit(op.sum(x))], "float32"),
    ],
    ids=["other axes", "two tensors", "integers", "no maximum"],
)
def test_what_stays_as_it_is(body, dtype):
    mod = module((4, 4), body, dtype)
    assert structural_equal(rewrite(mod), mod)


def test_other_targets_are_left_alone():
    mod = module((4, 4), quantised)
    with compiling_for(resolve_target("nvidia-h200")):
        assert MinMaxFusion()(mod).same_as(mod)
