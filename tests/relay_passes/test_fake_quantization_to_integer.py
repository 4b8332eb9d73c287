"""Before and after IR, numbers and refusals of FakeQuantizationToInteger."""

import numpy as np
import pytest
from conv_modules import module, operators, run
from thoroughness import one_in
from tvm import relax
from tvm_ffi import structural_equal

from tvm_ext.hardware.targets import compiling_for, resolve_target
from tvm_ext.relay_passes.fake_quantization_to_integer import FakeQuantizationToInteger
from tvm_ext.relay_passes.graph_pass import recording

op, nn = relax.op, relax.op.nn
RANDOM = np.random.default_rng(0)


def rewrite(mod, target="avx512-amx"):
    with compiling_for(resolve_target(target)):
        new = FakeQuantizationToInteger()(mod)
        assert structural_equal(FakeQuantizationToInteger()(new), new)
    assert relax.analysis.check_well_formed(new)
    return new


def const(array, dtype="float32"):
    return relax.const(np.asarray(array, dtype))


def whole(*shape, low=-128, high=128):
    return RANDOM.integers(low, high, shape).astype("float32")


def dequantized(emit, x, zero_point=7, scale=0.02):
    wide = emit(op.astype(x, "float32"))
    if zero_point is not None:
        wide = emit(op.subtract(wide, const(zero_point)))
    return emit(op.multiply(wide, const(scale)))


def matmul(w, w_scale, transposed=False, shape=(2, 5, 16), dtype="uint8", **data):
    def body(emit, x):
        weights = emit(op.multiply(const(w), const(w_scale)))
        if transposed:
            weights = emit(op.permute_dims(weights))
        return [op.matmul(dequantized(emit, x, **data), weights)]

    return module(shape, body, dtype)


def convolution(w, w_scale, groups=1, dtype="uint8", **data):
    def body(emit, x):
        weights = emit(op.multiply(const(w), const(w_scale)))
        image = dequantized(emit, x, **data)
        return [nn.conv2d(image, weights, padding=1, groups=groups)]

    return module((1, w.shape[1] * groups, 5, 6), body, dtype)


def scales(*shape):
    return RANDOM.uniform(0.001, 0.02, shape).astype("float32")


TAKEN = {
    "a scale for all": lambda: matmul(whole(16, 8), 0.01),
    "a scale for each column": lambda: matmul(whole(16, 8), scales(8)),
    "transposed weights": lambda: matmul(whole(8, 16), scales(8, 1), transposed=True),
    "weights less a zero point": lambda: matmul(whole(16, 8, low=-200, high=56), scales(8)),
    "a convolution of a zero point for each output": lambda: convolution(
        whole(8, 4, 3, 3, high=-1) + (127 * RANDOM.integers(-1, 3, (8, 1, 1, 1))).astype("float32"),
        0.01,
    ),
    "a convolution in groups less a zero point": lambda: convolution(
        whole(6, 1, 3, 3, low=0), 0.01, groups=6
    ),
    "data with a sign": lambda: matmul(whole(16, 8), scales(8), dtype="int8", zero_point=-3),
    "no zero point": lambda: matmul(whole(16, 8), scales(1, 8), zero_point=None),
    "a convolution": lambda: convolution(whole(8, 4, 3, 3), scales(8, 1, 1, 1)),
    "a convolution of one scale": lambda: convolution(whole(8, 4, 3, 3), 0.01, zero_point=None),
    "a convolution in groups": lambda: convolution(whole(8, 2, 3, 3), scales(8, 1, 1, 1), groups=4),
    "a depthwise convolution": lambda: convolution(whole(6, 1, 3, 3), 0.01, groups=6, dtype="int8"),
}


@pytest.mark.extended
@pytest.mark.parametrize("case", one_in(3, TAKEN))
def test_integers_are_multiplied(case):
    mod = TAKEN[case]()
    new = rewrite(mod)
    product = operators(new).index("matmul" if "conv" not in case else "nn.conv2d")
    assert operators(new)[product + 1 :] == ["astype", "multiply"]
    bindings = [b for block in new["main"].body.blocks for b in block.bindings]
    call = next(b.value for b in bindings if str(b.var.ty.dtype) == "int32")
    assert [str(arg.ty.dtype) for arg in call.args] == ["int16", "int16"]
    x = RANDOM.integers(-128, 128, [int(n) for n in mod["main"].params[0].ty.shape])
    x = x.astype(str(mod["main"].params[0].ty.dtype))
    np.testing.assert_allclose(run(new, x)[0], run(mod, x)[0], rtol=1e-5, atol=1e-4)


LEFT = {
    "weights that are no whole numbers": lambda: matmul(whole(16, 8) / 2, 0.01),
    "weights of more than 8 bits": lambda: matmul(whole(16, 8, high=300), 0.01),
    "columns of more than 8 bits": lambda: matmul(whole(16, 8, low=-200, high=200), 0.01),
    "a scale for each input": lambda: matmul(whole(16, 8), scales(16, 1)),
    "a scale for each pixel of the window": lambda: convolution(whole(8, 4, 3, 3), scales(3)),
    "batches of weights": lambda: matmul(whole(2, 16, 8), 0.01),
    "groups of many inputs": lambda: convolution(np.full((2, 60, 3, 3), 127.0), 0.01, groups=2),
    "one channel and one column": lambda: convolution(whole(8, 1, 3, 1), 0.01),
    "few outputs": lambda: convolution(whole(3, 8, 3, 3), 0.01),
    "data that are no integers": lambda: matmul(whole(16, 8), 0.01, dtype="float32"),
    "integers of 16 bits": lambda: matmul(whole(16, 8), 0.01, dtype="int16"),
    "numbers that are no zero point": lambda: matmul(whole(16, 8), 0.01, zero_point=127.5),
    "a scale of more axes": lambda: matmul(whole(16, 8), 0.01, scale=np.full((1,) * 4, 0.1)),
    "a zero point of more axes": lambda: matmul(
        whole(16, 8), 0.01, zero_point=np.full((1,) * 4, 3.0)
    ),
    "a zero point below uint8": lambda: matmul(whole(16, 8), 0.01, zero_point=-5),
    "a zero point beyond int8": lambda: matmul(whole(16, 8), 0.01, dtype="int8", zero_point=128),
    "a zero point of more than 8 bits": lambda: matmul(whole(16, 8), 0.01, zero_point=300),
    "a scale that is no number": lambda: matmul(whole(16, 8), float("nan")),
    "scales without an end": lambda: matmul(whole(16, 8), 0.01, scale=float("inf")),
    "scales whose product is below float32": lambda: matmul(whole(16, 8), 1e-30, scale=1e-30),
    "sums beyond int32": lambda: matmul(np.full((70_000, 1), 127.0), 0.01, shape=(2, 70_000)),
    "empty weights": lambda: matmul(whole(16, 0), 0.01),
}


@pytest.mark.parametrize("case", LEFT)
def test_what_stays_as_it_is(case):
    mod = LEFT[case]()
    assert structural_equal(rewrite(mod), mod)


def test_data_of_many_scales_stay_and_the_report_says_why():
    mod = matmul(whole(16, 8), 0.01, scale=scales(16))
    with recording() as decisions:
        assert structural_equal(rewrite(mod), mod)
    assert [d.reason for d in decisions if not d.applied] == [
        "scale or zero point of the data are not one stored number"
    ]


def test_groups_are_taken_by_cpus_without_such_an_instruction_as_well():
    mod = TAKEN["a depthwise convolution"]()
    assert "multiply" in operators(rewrite(mod, "avx2"))[-1]
    assert not structural_equal(rewrite(mod, "avx2"), mod)
    assert structural_equal(rewrite(mod, "nvidia-h200"), mod)


@pytest.mark.parametrize("target", ["avx2", "nvidia-h200"])
def test_machines_without_such_an_instruction_stay_with_float32(target):
    mod = TAKEN["a scale for all"]()
    assert structural_equal(rewrite(mod, target), mod)


def requantized(divisor, integers=True):
    """Scaled sums with a bias and a rectifier, or dequantised data alone, divided by a scale."""

    def body(emit, x):
        real = dequantized(emit, x)
        if integers:
            weights = emit(op.multiply(const(whole(16, 8)), const(0.01)))
            real = emit(nn.relu(emit(op.add(emit(op.matmul(real, weights)), const(np.ones(8))))))
        return [emit(op.round(emit(op.divide(real, const(divisor)))))]

    return module((2, 5, 16), body, "uint8")


def test_sums_of_integers_are_multiplied_by_the_reciprocal_of_a_scale():
    mod = requantized(0.1)
    new = rewrite(mod)
    assert "divide" in operators(mod)
    assert "divide" not in operators(new)
    x = RANDOM.integers(0, 256, (2, 5, 16)).astype("uint8")
    before, after = (np.asarray(run(one, x)) for one in (mod, new))
    # At the border between two steps it may be the other one.
    assert np.abs(before - after).max() <= 1
    assert np.mean(before != after) < 0.05


@pytest.mark.parametrize(
    ("divisor", "integers"), [(0.1, False), (np.full(8, 0.1), True), (1e-45, True), (0.0, True)]
)
def test_other_divisions_stay(divisor, integers):
    assert "divide" in operators(rewrite(requantized(divisor, integers)))
