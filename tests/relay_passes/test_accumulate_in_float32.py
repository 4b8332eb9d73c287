"""Before and after IR, numbers, and refusals of AccumulateInFloat32."""

from collections.abc import Callable

import ml_dtypes  # noqa: F401 - NumPy's bfloat16.
import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from unoptimised import machine_of

from tvm_ext.hardware.targets import compiling_for, resolve_target
from tvm_ext.relay_passes.accumulate_in_float32 import AccumulateInFloat32

WEIGHTS = np.linspace(-1, 1, 16 * 8).astype("float16").astype("float32").reshape(16, 8)
Expression = Callable[[relax.Var], relax.Expr]


def module_of(
    expression: Expression, dtype: str = "float16", *shape: int | tirx.Var
) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(list(shape or (4, 16)), dtype))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(expression(x)))
        builder.emit_func_output(result)
    return builder.get()


def narrowed(mod: tvm.IRModule, target: str = "nvidia-h100") -> tvm.IRModule:
    with compiling_for(resolve_target(target)):
        result = tvm.transform.Sequential(
            [
                relax.transform.CanonicalizeBindings(),
                AccumulateInFloat32(),
                relax.transform.DeadCodeElimination(),
            ]
        )(mod)
    relax.analysis.well_formed(result)
    return result


def wide(x: relax.Expr) -> relax.Expr:
    return relax.op.astype(x, "float32")


def product(x: relax.Var) -> relax.Expr:
    return relax.op.astype(relax.op.matmul(wide(x), relax.const(WEIGHTS)), "float16")


def test_weights_that_were_cast_are_float16_again():
    text = narrowed(module_of(product)).script()
    assert 'out_dtype="float32"' in text
    assert text.count("R.astype") == 1


def test_two_casts_and_a_bfloat16():
    def scores(x: relax.Var) -> relax.Expr:
        return relax.op.matmul(wide(x), relax.op.permute_dims(wide(x)))

    assert "R.astype" in narrowed(module_of(scores)).script()  # the transpose is in float32

    def own(x: relax.Var) -> relax.Expr:
        return relax.op.matmul(wide(x), wide(relax.op.permute_dims(x)))

    assert "R.astype" not in narrowed(module_of(own, "bfloat16")).script()


def test_convolutions_keep_their_attributes():
    weights = np.ones((8, 3, 3, 3), "float32")

    def convolution(x: relax.Var) -> relax.Expr:
        return relax.op.nn.conv2d(wide(x), relax.const(weights), strides=2, padding=1)

    text = narrowed(module_of(convolution, "float16", 1, 3, 16, 16)).script()
    assert "R.astype" not in text
    assert "strides=[2, 2], padding=[1, 1, 1, 1]" in text
    assert 'out_dtype="float32"' in text


def test_numbers_are_the_same():
    x = np.linspace(-2, 2, 64).astype("float16").reshape(4, 16)
    results = []
    for mod in (module_of(product), narrowed(module_of(product))):
        program = machine_of(mod)
        results.append(program["main"](tvm.runtime.tensor(x)).numpy())
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize(
    ("mod", "target"),
    [
        (module_of(product), "avx512"),
        (module_of(lambda x: relax.op.matmul(wide(x), relax.const(WEIGHTS / 3))), "nvidia-h100"),
        (module_of(lambda x: relax.op.matmul(x, relax.const(WEIGHTS)), "float32"), "nvidia-h100"),
    ],
    ids=["a CPU", "weights that would be rounded", "float32"],
)
def test_others_are_left_alone(mod: tvm.IRModule, target: str) -> None:
    before = mod.script()
    assert "out_dtype=None" in narrowed(mod, target).script()
    assert mod.script() == before


# Integers on CPUs.

RANDOM = np.random.default_rng(0)


def centred(x: relax.Var, zero_point: int = 7) -> relax.Expr:
    return relax.op.subtract(relax.op.astype(x, "int16"), relax.const(np.int16(zero_point)))


def integers(*shape: int, largest: int = 127) -> relax.Expr:
    return relax.const(RANDOM.integers(-largest, largest + 1, shape).astype("int16"))


def integer_matmul(rows: int, largest: int = 127) -> tvm.IRModule:
    weights = integers(rows, 8, largest=largest)

    def expression(x: relax.Var) -> relax.Expr:
        return relax.op.matmul(centred(x), weights, out_dtype="int32")

    return module_of(expression, "uint8", 4, rows)


def depthwise(x: relax.Var) -> relax.Expr:
    weights = integers(8, 1, 3, 3)
    return relax.op.nn.conv2d(centred(x), weights, groups=8, padding=1, out_dtype="int32")


def scores_of_integers(x: relax.Var) -> relax.Expr:
    other = relax.op.permute_dims(relax.op.astype(x, "int16"))
    return relax.op.matmul(centred(x), other, out_dtype="int32")


def sums_over_rows(x: relax.Var) -> relax.Expr:
    other = relax.op.astype(x, "int16")
    return relax.op.matmul(relax.op.permute_dims(centred(x)), other, out_dtype="int32")


def assert_same_integers(new: tvm.IRModule, mod: tvm.IRModule) -> None:
    shape = [int(size) for size in mod["main"].params[0].ty.shape]
    x = RANDOM.integers(0, 256, shape).astype("uint8")
    results = []
    for each in (new, mod):
        machine = machine_of(each)
        results.append(machine["main"](tvm.runtime.tensor(x)).numpy())
    assert results[0].dtype == np.int32
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize(
    ("mod", "target"),
    [
        (lambda: integer_matmul(64), "x86-64"),
        (lambda: module_of(depthwise, "uint8", 1, 8, 5, 6), "avx2"),
        (lambda: module_of(depthwise, "uint8", 1, 8, 5, 6), "avx512-amx"),
        (lambda: module_of(scores_of_integers, "uint8", 6, 200), "avx512-amx"),
    ],
    ids=["matmul", "depthwise", "depthwise beside dot products", "two operands of the run"],
)
def test_integers_are_summed_exactly(mod, target):
    before = mod()
    after = narrowed(before, target)
    assert 'out_dtype="int32"' not in after.script()
    assert_same_integers(after, before)


@pytest.mark.parametrize(
    ("mod", "target"),
    [
        (lambda: integer_matmul(64), "avx512-amx"),
        (lambda: integer_matmul(64), "nvidia-h100"),
        (lambda: integer_matmul(64), "avx2"),
        (lambda: integer_matmul(20_000), "avx2"),
        (lambda: integer_matmul(64, largest=30_000), "avx2"),
        (lambda: module_of(scores_of_integers, "uint8", 6, 300), "avx2"),
    ],
    ids=[
        "dot products",
        "a GPU",
        "pairs of int16",
        "a long sum",
        "numbers of 16 bits",
        "a long sum of the run",
    ],
)
def test_sums_of_integers_that_stay(mod, target):
    before = mod()
    after = narrowed(before, target)
    assert after.script().count('out_dtype="int32"') == 1


def test_sizes_that_are_not_summed_may_be_open():
    """As the scores of an attention over an open length; one that is summed may reach anything."""
    length = tirx.Var("length", "int64")
    scores = narrowed(module_of(scores_of_integers, "uint8", length, 200), "avx512-amx")
    assert 'out_dtype="int32"' not in scores.script()
    by_length = narrowed(module_of(sums_over_rows, "uint8", length, 200), "avx512-amx")
    assert 'out_dtype="int32"' in by_length.script()


def test_the_bound_is_that_of_the_weights():
    """One more in a weight, and a sum could be a number that float32 has not."""
    limit = (1 << 24) / 248  # 255 - 7
    for rest, stays in ((0, False), (2, True)):
        weights = np.full((64, 1), int(limit) // 64, "int16")
        weights[0, 0] += int(limit) - int(weights.sum()) + rest
        mod = module_of(
            lambda x, w=weights: relax.op.matmul(centred(x), relax.const(w), out_dtype="int32"),
            *("uint8", 4, 64),
        )
        assert ('out_dtype="int32"' in narrowed(mod, "avx2").script()) == stays
