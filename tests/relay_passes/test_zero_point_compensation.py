"""Before and after IR, numbers and refusals of ZeroPointCompensation."""

from functools import partial
from itertools import product

import numpy as np
import pytest
from conv_modules import module, operators
from emulated_arm import arm
from side_by_side import Rewrite, assert_all_same
from thoroughness import one_in, some_of
from tvm import relax
from tvm_ffi import structural_equal

from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.hardware.targets import compiling_for, resolve_target
from tvm_ext.relay_passes.graph_pass import recording
from tvm_ext.relay_passes.zero_point_compensation import ZeroPointCompensation

op, nn = relax.op, relax.op.nn
MACHINE = resolve_target("avx512-amx")
RANDOM = np.random.default_rng(0)


def rewrite(mod, machine=MACHINE):
    with compiling_for(machine):
        new = ZeroPointCompensation()(mod)
        assert structural_equal(ZeroPointCompensation()(new), new)
    assert relax.analysis.check_well_formed(new)
    return new


def weights(*shape, low=-128, high=128):
    array = RANDOM.integers(low, high, shape).astype("int16")
    # Both ends, so that the range is what the case says.
    array.reshape(-1)[:2] = low, high - 1
    return array


def matmul(w, zero_point=7, dtype="uint8", shape=(2, 5, 16)):
    def body(emit, x):
        centred = emit(op.astype(x, "int16"))
        if zero_point is not None:
            centred = emit(op.subtract(centred, relax.const(np.int16(zero_point))))
        return [op.matmul(centred, relax.const(w), out_dtype="int32")]

    return module(shape, body, dtype)


def convolution(w, zero_point=7, padding=1, dtype="uint8", layouts=("NHWC", "HWIO"), **attrs):
    def body(emit, x):
        centred = emit(op.subtract(emit(op.astype(x, "int16")), relax.const(np.int16(zero_point))))
        return [
            nn.conv2d(
                centred,
                relax.const(w),
                padding=padding,
                data_layout=layouts[0],
                kernel_layout=layouts[1],
                out_dtype="int32",
                **attrs,
            )
        ]

    return module((1, 5, 6, w.shape[-2]), body, dtype)


def convolution_with_a_zero_point_of_the_run(w, dtype):
    """It follows from the first element, as a function of the data."""

    def body(emit, x):
        first = emit(op.strided_slice(emit(op.reshape(x, [-1])), [0], [0], [1]))
        zero_point = emit(op.astype(emit(op.reshape(first, [])), "int16"))
        centred = emit(op.subtract(emit(op.astype(x, "int16")), zero_point))
        layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
        return [nn.conv2d(centred, relax.const(w), padding=1, out_dtype="int32", **layouts)]

    return module((1, 5, 6, w.shape[-2]), body, dtype)


def rewritten(mod, new):
    """With numbers of all that the type holds."""
    shape = [int(extent) for extent in mod["main"].params[0].ty.shape]
    dtype = str(mod["main"].params[0].ty.dtype)
    bounds = np.iinfo(dtype)
    x = RANDOM.integers(bounds.min, bounds.max + 1, shape).astype(dtype)
    return Rewrite(mod, new, [[x]])


def assert_same(new, mod):
    assert_all_equal({"": rewritten(mod, new)})


assert_all_equal = partial(assert_all_same, rtol=0, atol=0)


def product_calls(mod):
    values = [b.value for block in mod["main"].body.blocks for b in block.bindings]
    return [v for v in values if str(v.op.name) in ("relax.matmul", "relax.nn.conv2d")]


def products(mod):
    """Types of the operands of the matmul or convolution."""
    return [tuple(str(arg.ty.dtype) for arg in call.args) for call in product_calls(mod)]


def test_the_zero_point_leaves_the_sum():
    mod = matmul(weights(16, 8))
    new = rewrite(mod)
    assert products(new) == [("uint8", "int8")]
    assert operators(new)[-1] == "subtract"
    assert "sum" not in operators(new)
    assert_same(new, mod)


RANGES = [(-128, 128), (0, 256), (-120, 136), (-255, 1)]


def test_numbers_of_matmuls():
    found = {}
    # A third of them has all ranges, zero points and types.
    for case in some_of(product(["uint8", "int8"], [None, 0, 3], RANGES)):
        dtype, zero_point, (low, high) = case
        mod = matmul(weights(16, 8, low=low, high=high), zero_point, dtype)
        new = rewrite(mod)
        assert products(new) == [("uint8", "int8")], case
        assert ("sum" in operators(new)) == (low < -128 or high > 128), case
        found[str(case)] = rewritten(mod, new)
    assert_all_equal(found)


@pytest.mark.extended
def test_numbers_of_convolutions_whose_padding_is_the_zero_point():
    found = {}
    for case in product([0, 1], ["uint8", "int8"]):
        padding, dtype = case
        mod = convolution(weights(3, 3, 8, 4), 7 if dtype == "uint8" else -7, padding, dtype)
        new = rewrite(mod)
        assert products(new) == [("uint8", "int8")], case
        found[str(case)] = rewritten(mod, new)
    assert_all_equal(found)


@pytest.mark.extended
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_padding_may_have_a_value_of_the_run(dtype):
    mod = convolution_with_a_zero_point_of_the_run(weights(3, 3, 6, 4), dtype)
    new = rewrite(mod)
    assert products(new) == [("uint8", "int8")]
    assert_same(new, mod)


WINDOWS = [
    {},
    {"strides": (2, 3)},
    {"dilation": (2, 1)},
    {"padding": (0, 1, 2, 3), "strides": (1, 2), "dilation": (1, 2)},
]


@pytest.mark.extended
def test_columns_of_windows_on_one_channel_are_summed_together():
    found = {}
    # A third of them has each window once, and each number of columns.
    for case in some_of(product([2, 4, 5], WINDOWS)):
        columns, attrs = case
        mod = convolution(weights(2, columns, 1, 8), **{"padding": (1, 4), **attrs})
        new = rewrite(mod)
        assert products(new) == [("uint8", "int8")], case
        assert [int(n) for n in product_calls(new)[0].args[1].ty.shape][:2] == [2, 1], case
        found[str(case)] = rewritten(mod, new)
    assert_all_equal(found)


@pytest.mark.extended
@pytest.mark.parametrize("channels", one_in(3, [1, 3, 8]))
def test_windows_are_summed_where_weights_leave_int8(channels):
    found = {}
    for attrs, dtype in product(WINDOWS, ["uint8", "int8"]):
        numbers = weights(3, 2, channels, 8, low=0, high=256)
        # One column of int8, to which nothing is added.
        numbers[..., 1] //= 2
        mod = convolution(numbers, 9, **{"padding": 1, "dtype": dtype, **attrs})
        new = rewrite(mod)
        assert products(new) == [("uint8", "int8")], attrs
        found[f"{attrs} {dtype}"] = rewritten(mod, new)
    for dtype in ("uint8", "int8"):
        numbers = weights(3, 3, channels, 8, low=-255, high=1)
        mod = convolution_with_a_zero_point_of_the_run(numbers, dtype)
        found[f"of the run {dtype}"] = rewritten(mod, rewrite(mod))
    assert_all_equal(found)


def of_length(length):
    return (
        matmul(weights(length, 8), shape=(2, length)),
        matmul(weights(length, 8, low=0, high=256), shape=(3, 2, length)),
        convolution(weights(3, 3, length + 1, 4)),
        convolution(weights(1, 1, length + 1, 4), padding=0, dtype="int8", zero_point=-5),
    )


@pytest.mark.extended
def test_sums_of_any_length_are_filled_up_to_whole_steps():
    found = {}
    # A third of them has all lengths, and each kind of product with a length that is filled up.
    for case in some_of(product((1, 2, 17, 18, 19), range(4))):
        length, kind = case
        mod = of_length(length)[kind]
        new = rewrite(mod)
        assert products(new) == [("uint8", "int8")], case
        lengths = {int(call.args[1].ty.shape[-2]) % 4 for call in product_calls(new)}
        assert lengths == {0}, case
        found[str(case)] = rewritten(mod, new)
    assert_all_equal(found)


@pytest.mark.parametrize(
    ("mod", "reason"),
    [
        (convolution(weights(3, 1, 1, 4)), "no neighbours"),
        (convolution(weights(3, 3, 8, 3)), "few channels"),
        (convolution(weights(4, 5, 6, 6), layouts=("NCHW", "OIHW")), "not innermost"),
    ],
)
def test_what_stays_as_it_is(mod, reason):
    with recording() as decisions:
        new = rewrite(mod)
    assert structural_equal(new, mod)
    assert any(reason in decision.reason for decision in decisions), decisions


@pytest.mark.parametrize(
    "mod",
    [
        matmul(weights(16, 8, low=-300, high=300)),
        matmul(weights(16, 8), zero_point=30_000),
        matmul(weights(16, 8), zero_point=-32_768),
        convolution(weights(3, 3, 8, 4), zero_point=-5),
        convolution(weights(3, 3, 8, 4), zero_point=128, dtype="int8"),
        matmul(np.zeros((16, 0), "int16")),
    ],
)
def test_numbers_that_no_byte_holds_stay_as_they_are(mod):
    assert rewrite(mod).same_as(mod)


# What instructions take beside int8: of CPUs with dotprod alone, int8; of those with i8mm both.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("features", "taken"),
    [
        (("dotprod",), {"uint8": "int8", "int8": "int8"}),
        (("i8mm",), {"uint8": "uint8", "int8": "uint8"}),
        (("dotprod", "i8mm"), {"uint8": "uint8", "int8": "int8"}),
    ],
)
def test_data_have_the_type_that_an_instruction_takes(features, taken):
    found = {}
    for dtype, zero_point, (low, high) in some_of(product(taken, [None, 0, 3, 127], RANGES)):
        mod = matmul(weights(17, 8, low=low, high=high), zero_point, dtype, (2, 5, 17))
        new = rewrite(mod, arm(*features))
        assert products(new) == [(taken[dtype], "int8")]
        found[f"matmul {dtype} {zero_point} {low}"] = rewritten(mod, new)
    for dtype, zero_point in product(taken, [0, 5]):
        mod = convolution(weights(3, 3, 6, 4), zero_point, 1, dtype)
        new = rewrite(mod, arm(*features))
        assert products(new) == [(taken[dtype], "int8")]
        found[f"convolution {dtype} {zero_point}"] = rewritten(mod, new)
    assert_all_equal(found)


@pytest.mark.extended
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_padding_of_the_run_has_the_type_that_an_instruction_takes(dtype):
    mod = convolution_with_a_zero_point_of_the_run(weights(3, 3, 6, 4), dtype)
    new = rewrite(mod, arm("dotprod"))
    assert products(new) == [("int8", "int8")]
    assert_same(new, mod)


def test_a_cpu_without_the_instruction_keeps_int16():
    mod = matmul(weights(16, 8))
    assert rewrite(mod, resolve_target("avx2")).same_as(mod)
    assert rewrite(mod, resolve_target("aarch64-neon")).same_as(mod)
    narrow = CpuDescription(**(resolve_target("avx2").model_dump() | {"mattr": ("+avxvnni",)}))
    assert products(rewrite(mod, narrow)) == [("uint8", "int8")]
