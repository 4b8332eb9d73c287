"""Before and after IR, numbers and refusals of GroupedConvolution."""

import numpy as np
import pytest
from conv_modules import apply, bindings, draw, kernels, module, operators, run
from hypothesis import given, settings
from hypothesis import strategies as st
from thoroughness import DRAWS, one_in
from tvm import relax, tirx
from tvm_ffi import structural_equal

from tvm_ext.hardware.targets import compiling_for, resolve_target
from tvm_ext.relay_passes.graph_pass import recording
from tvm_ext.relay_passes.grouped_convolution import GroupedConvolution
from tvm_ext.relay_passes.spans import origins_of
from tvm_ext.tir_schedules.schedule_kernels import schedule_kernel

op, nn = relax.op, relax.op.nn
rewrite = apply(GroupedConvolution())


def names(rank, last):
    letters = "DHW"[-rank:]
    return {
        "data_layout": f"N{letters}C" if last else f"NC{letters}",
        "kernel_layout": f"{letters}IO" if last else f"OI{letters}",
    }


def one(x_shape, w_shape, groups, last=False, dtype="float32", **attrs):
    """A grouped convolution; both shapes are given with channels first."""
    weight = draw(*w_shape, dtype=dtype, seed=1)
    rank = len(x_shape) - 2
    shape = x_shape
    if last:
        weight = np.ascontiguousarray(weight.transpose(*range(2, rank + 2), 1, 0))
        shape = (x_shape[0], *x_shape[2:], x_shape[1])
    convolve = getattr(nn, f"conv{rank}d")
    options = {**attrs, **names(rank, last), "groups": groups}
    return module(shape, lambda emit, x: [convolve(x, relax.const(weight), **options)], dtype)


def check(mod):
    """The rewritten module, after comparing its numbers with TVM's own kernel."""
    after = rewrite(mod)
    shape = [int(extent) for extent in mod["main"].params[0].ty.shape]
    x = draw(*shape)
    np.testing.assert_allclose(run(after, x)[0], run(mod, x)[0], rtol=1e-5, atol=1e-5)
    return after


def test_channels_last_has_group_and_channel_as_the_last_axes():
    after = check(one((1, 8, 5, 6), (12, 4, 3, 3), 2, last=True, padding=1))
    assert operators(after) == ["call_tir", "reshape"]
    made, image = (b.var.ty for b in bindings(after))
    assert list(map(int, made.shape)) == [1, 5, 6, 2, 6]
    assert list(map(int, image.shape)) == [1, 5, 6, 12]


def test_channels_first_has_group_and_channel_behind_the_batch():
    after = check(one((2, 8, 5, 6), (12, 4, 3, 3), 2, padding=1))
    made = bindings(after)[0].var.ty
    assert list(map(int, made.shape)) == [2, 2, 6, 5, 6]
    weight = bindings(after)[0].value.args[1].fields[1]
    assert list(map(int, weight.ty.shape)) == [2, 6, 4, 3, 3]


@pytest.mark.extended
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    ("x_shape", "w_shape", "groups", "attrs"),
    [
        ((2, 6, 9), (9, 2, 4), 3, {"strides": 2, "padding": (1, 2)}),
        ((1, 6, 7, 5), (4, 3, 1, 1), 2, {"strides": 2}),
        ((1, 4, 7, 9), (6, 2, 3, 2), 2, {"dilation": 2, "padding": (0, 1, 2, 3)}),
        ((1, 3, 5, 5), (6, 1, 3, 3), 3, {"padding": 1}),
        ((1, 4, 3, 4, 5), (4, 2, 2, 1, 3), 2, {"padding": 1, "strides": (1, 2, 1)}),
    ],
    ids=["1d", "1x1", "dilated", "multiplier", "3d"],
)
def test_numbers(x_shape, w_shape, groups, attrs, last):
    check(one(x_shape, w_shape, groups, last, **attrs))


@pytest.mark.extended
@given(st.data())
@settings(max_examples=4 * DRAWS, deadline=None)
def test_numbers_of_any_attributes(data):
    groups = data.draw(st.integers(2, 3))
    inputs, outputs, kernel = (data.draw(st.integers(1, 4)) for _ in range(3))
    length = data.draw(st.integers(kernel, 7))
    check(
        one(
            (data.draw(st.integers(1, 2)), groups * inputs, length),
            (groups * (outputs + 1), inputs, kernel),
            groups,
            data.draw(st.booleans()),
            strides=data.draw(st.integers(1, 3)),
            padding=(data.draw(st.integers(0, 2)), data.draw(st.integers(0, 2))),
        )
    )


@pytest.mark.extended
def test_a_weight_that_is_not_constant_is_only_reshaped():
    weight = relax.Var("w", relax.TensorType((6, 2, 3, 3), "float32"))
    before = module((1, 4, 5, 5), lambda emit, x: [nn.conv2d(x, weight, groups=2)], extra=[weight])
    after = rewrite(before)
    assert operators(after) == ["reshape", "call_tir", "reshape"]
    x, w = draw(1, 4, 5, 5), draw(6, 2, 3, 3, seed=1)
    np.testing.assert_allclose(run(after, x, w)[0], run(before, x, w)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.extended
def test_wider_results_and_integers():
    before = one((1, 4, 5, 5), (6, 2, 3, 3), 2, dtype="int8", out_dtype="int32")
    after = rewrite(before)
    x = draw(1, 4, 5, 5, dtype="int8")
    got, wanted = run(after, x)[0], run(before, x)[0]
    assert got.dtype == wanted.dtype == "int32"
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.extended
def test_origin_and_second_user_and_shared_weight():
    weight = relax.const(draw(4, 2, 3, 3, seed=1))

    def body(emit, x):
        first = emit(nn.conv2d(x, weight, padding=1, groups=2))
        second = emit(nn.conv2d(first, weight, padding=1, groups=2))
        return [relax.op.add(first, second), first]

    before = module((1, 4, 5, 5), body)
    after = rewrite(before)
    x = draw(1, 4, 5, 5)
    for got, wanted in zip(run(after, x), run(before, x), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    assert [origins_of(b.var) for b in bindings(after)][:4] == [("node0",)] * 2 + [("node1",)] * 2
    assert len(kernels(after)) == 1


@pytest.mark.parametrize("last", [False, True])
def test_a_template_takes_the_kernel(last):
    after = rewrite(one((1, 8, 6, 16), (32, 4, 3, 3), 2, last, padding=1))
    (func,) = (f for f in after.functions.values() if isinstance(f, tirx.PrimFunc))
    _, choice = schedule_kernel(func, resolve_target("avx512"))
    assert choice.source == "template", choice


@pytest.mark.extended
@pytest.mark.parametrize("last", [False, True])
def test_batch_of_any_size(last):
    mod = one((tirx.Var("n", "int64"), 8, 5, 6), (12, 4, 3, 3), 2, last, padding=1)
    after = rewrite(mod)
    assert operators(after) == ["call_tir", "reshape"]
    for batch in (1, 3):
        x = draw(batch, *((5, 6, 8) if last else (8, 5, 6)))
        np.testing.assert_allclose(run(after, x)[0], run(mod, x)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.extended
@pytest.mark.parametrize("last", [False, True])
def test_images_of_any_size(last):
    sides = (tirx.Var("h", "int64"), tirx.Var("w", "int64"))
    mod = one((1, 8, *sides), (6, 4, 3, 3), 2, last, padding=1, strides=2)
    after = rewrite(mod)
    assert not any(name.startswith("nn.conv2d") for name in operators(after))
    for height, width in ((5, 6), (1, 9)):
        x = draw(1, *((height, width, 8) if last else (8, height, width)))
        np.testing.assert_allclose(run(after, x)[0], run(mod, x)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "mod",
    [one((1, 4, 5, 5), (4, 1, 3, 3), 4), one((1, 4, 5, 5), (6, 4, 3, 3), 1)],
    ids=["depthwise", "one group"],
)
def test_no_near_match_no_word(mod):
    with recording() as decisions:
        assert structural_equal(rewrite(mod), mod)
    assert decisions == []


def test_other_targets_are_left_alone():
    mod = one((1, 4, 5, 5), (6, 2, 3, 3), 2)
    with compiling_for(resolve_target("mesh16")):
        assert GroupedConvolution()(mod).same_as(mod)


def test_groups_of_several_inputs_on_a_gpu():
    with resolve_target("cuda").tvm_target():
        several, single = (one((1, 4, 5, 5), (8, n, 3, 3), 4 // n) for n in (2, 1))
        assert not GroupedConvolution()(several).same_as(several)
        assert GroupedConvolution()(single).same_as(single)


def test_padded_groups_lie_one_after_the_other():
    """The copy that pads brings together what one group reads."""
    after = rewrite(one((1, 8, 5, 6), (8, 4, 3, 3), 2, last=True, padding=1))
    (func,) = (f for f in after.functions.values() if isinstance(f, tirx.PrimFunc))
    shapes = [list(map(int, buffer.shape)) for buffer in func.body.block.alloc_buffers]
    assert shapes == [[1, 2, 7, 8, 4]]


def of_bytes(w_shape, groups, last=True, dtype="uint8", zero_point=7, of_run=False, **attrs):
    """A convolution of 8-bit numbers less their zero point, as AccumulateInFloat32 leaves it."""
    channels = w_shape[1] * groups
    shape = (2, 7, 6, channels) if last else (2, channels, 7, 6)
    weight = np.random.default_rng(0).integers(-128, 128, w_shape).astype("float32")
    weight = np.ascontiguousarray(weight.transpose(2, 3, 1, 0)) if last else weight
    zero = relax.Var("zero", relax.TensorType((), dtype))

    def body(emit, x):
        wide = emit(op.astype(x, "int16"))
        if of_run:
            wide = emit(op.subtract(wide, emit(op.astype(zero, "int16"))))
        elif zero_point is not None:
            wide = emit(op.subtract(wide, relax.const(zero_point, "int16")))
        image = emit(op.astype(wide, "float32"))
        sums = emit(nn.conv2d(image, relax.const(weight), groups=groups, **names(2, last), **attrs))
        total = emit(op.astype(sums, "int32"))
        return [emit(op.multiply(emit(op.astype(total, "float32")), relax.const(np.float32(0.1))))]

    return module(shape, body, dtype, [zero] if of_run else [])


BYTES = {
    "depthwise": dict(w_shape=(20, 1, 3, 3), groups=20, padding=1),
    "depthwise, channels first": dict(w_shape=(5, 1, 3, 3), groups=5, padding=1, last=False),
    "depthwise of int8": dict(w_shape=(20, 1, 5, 5), groups=20, padding=2, dtype="int8"),
    "without a zero point": dict(w_shape=(20, 1, 3, 3), groups=20, strides=2, zero_point=None),
    "zero point of the run": dict(w_shape=(20, 1, 3, 3), groups=20, padding=(0, 1), of_run=True),
    "several results a channel": dict(w_shape=(12, 1, 3, 3), groups=6, padding=1),
    "groups": dict(w_shape=(12, 4, 3, 3), groups=3, padding=1),
    "groups without padding": dict(w_shape=(12, 4, 1, 1), groups=3, of_run=True),
    "groups, channels first": dict(w_shape=(12, 4, 3, 3), groups=3, padding=1, last=False),
}


@pytest.mark.extended
@pytest.mark.parametrize("case", one_in(3, BYTES))
def test_bytes_are_read_and_weights_stay_in_int8(case):
    before = of_bytes(**BYTES[case])
    after = rewrite(before)
    is_depthwise = BYTES[case]["w_shape"][0] == BYTES[case]["groups"]
    assert operators(after) == ["call_tir", *([] if is_depthwise else ["reshape"]), "multiply"]
    fields = bindings(after)[0].value.args[1].fields
    dtype = BYTES[case].get("dtype", "uint8")
    zero = [dtype] if BYTES[case].get("of_run") else []
    zero = zero or (["int16"] if BYTES[case].get("zero_point", 7) else [])
    assert [str(field.ty.dtype) for field in fields] == [dtype, "int8", *zero]
    shape = [int(extent) for extent in before["main"].params[0].ty.shape]
    arrays = [np.random.default_rng(1).integers(-128, 128, shape).astype(dtype)]
    arrays += [np.array(9, dtype)] if BYTES[case].get("of_run") else []
    np.testing.assert_array_equal(run(after, *arrays)[0], run(before, *arrays)[0])


@pytest.mark.extended
@pytest.mark.parametrize("case", BYTES)
def test_a_template_takes_kernels_of_bytes(case):
    after = rewrite(of_bytes(**BYTES[case]))
    (func,) = (f for f in after.functions.values() if isinstance(f, tirx.PrimFunc))
    _, choice = schedule_kernel(func, resolve_target("avx512"))
    assert choice.source == "template", choice
    if case in ("depthwise", "depthwise of int8", "zero point of the run"):
        assert choice.schedule == "depthwise convolution", choice


def test_weights_that_int8_does_not_hold_stay_in_float32():
    weight = np.full((3, 3, 1, 4), 0.5, "float32")

    def body(emit, x):
        image = emit(op.astype(emit(op.astype(x, "int16")), "float32"))
        return [nn.conv2d(image, relax.const(weight), groups=4, **names(2, True))]

    mod = module((1, 6, 6, 4), body, "uint8")
    assert structural_equal(rewrite(mod), mod)


@pytest.mark.extended
def test_sums_that_others_use_as_integers_are_rounded_once_more():
    def body(emit, x):
        image = emit(op.astype(emit(op.astype(x, "int16")), "float32"))
        weight = relax.const(draw(3, 3, 1, 4, dtype="int8").astype("float32"))
        sums = emit(nn.conv2d(image, weight, groups=4, **names(2, True)))
        total = emit(op.astype(sums, "int32"))
        return [emit(op.astype(total, "float32")), emit(op.add(total, total))]

    both = module((1, 6, 6, 4), body, "uint8")
    x = np.arange(144, dtype="uint8").reshape(1, 6, 6, 4)
    for got, wanted in zip(run(rewrite(both), x), run(both, x), strict=True):
        np.testing.assert_array_equal(got, wanted)
