"""Before and after IR, numbers and refusals of CompressWeights."""

import ml_dtypes
import numpy as np
import pytest
import tvm
from conv_modules import module, operators, run
from tvm import relax, tirx
from tvm_ffi import structural_equal

from tvm_ext.configs.errors import TargetError
from tvm_ext.hardware.targets import compiling_for, resolve_target
from tvm_ext.relay_passes.compress_weights import CompressWeights
from tvm_ext.relay_passes.graph_pass import recording

op = relax.op
RANDOM = np.random.default_rng(0)


def small_cache(target="avx512", precision="float16"):
    """With caches that hold no weights, and a memory that takes its time."""
    machine = resolve_target(target).with_precision(precision)
    return machine.model_copy(
        update={"l2_bytes": 64, "l3_bytes": 0, "core_memory_gbs": 1e-3, "memory_gbs": 1e-2}
    )


ASKED, MODEL = small_cache(), small_cache(precision="model")


def rewrite(mod, machine=ASKED):
    with compiling_for(machine):
        new = CompressWeights()(mod)
        assert structural_equal(CompressWeights()(new), new)
    assert relax.analysis.check_well_formed(new)
    return new


def normal(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def matmul(weights, rows=3):
    def body(emit, x):
        return [emit(op.matmul(x, relax.const(weights)))]

    return module((2, rows, weights.shape[-2]), body)


def stored(mod):
    """The only constant of the function, used once or more often."""
    found = {}

    def look(expr):
        if isinstance(expr, tvm.ir.GenericConst):
            found[hash(expr)] = expr.value.numpy()

    relax.analysis.post_order_visit(mod["main"], look)
    (one,) = found.values()
    return one


@pytest.mark.parametrize("rows", [1, 3, tirx.Var("rows", "int64")])
def test_weights_are_rounded_and_nothing_else_is(rows):
    weights = normal(37, 21)
    weights[0, 0] = 65504.0
    before = matmul(weights, rows)
    after = rewrite(before)
    assert operators(after) == ["call_tir"]
    narrow = stored(after)
    assert narrow.dtype == np.float16
    np.testing.assert_array_equal(narrow, weights.astype(np.float16))
    x = normal(2, rows if isinstance(rows, int) else 5, 37)
    wanted = run(matmul(narrow.astype(np.float32), rows), x)
    np.testing.assert_allclose(run(after, x), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.extended
@pytest.mark.parametrize("machine", [ASKED, MODEL])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_weights_that_were_narrow_in_the_model_are_so_again(machine, dtype):
    narrow = normal(37, 21).astype(getattr(ml_dtypes, dtype, dtype))
    # What float16 has beside normal numbers; bfloat16 has larger ones.
    narrow[:, 0] = 2**-24 if dtype == "float16" else 2**30
    before = matmul(narrow.astype(np.float32))
    after = rewrite(before, machine)
    assert stored(after).dtype == narrow.dtype
    np.testing.assert_array_equal(stored(after), narrow)
    x = normal(2, 3, 37)
    np.testing.assert_allclose(run(after, x), run(before, x), rtol=1e-5, atol=1e-5)


@pytest.mark.extended
@pytest.mark.parametrize("machine", [ASKED, MODEL])
@pytest.mark.parametrize(("largest", "dtype"), [(127, "int8"), (128, "float16")])
def test_whole_weights_take_as_few_bytes_as_hold_them(machine, largest, dtype):
    weights = RANDOM.integers(-128, 128, (37, 21)).astype(np.float32)
    weights[0, 0] = largest
    before = matmul(weights)
    after = rewrite(before, machine)
    assert stored(after).dtype == dtype
    np.testing.assert_array_equal(stored(after), weights)
    x = normal(2, 3, 37)
    np.testing.assert_allclose(run(after, x), run(before, x), rtol=1e-5, atol=1e-3)


def test_infinite_weights_of_a_model_stay_so():
    weights = np.ones((37, 21), np.float32)
    weights[0, 0] = np.inf
    after = rewrite(matmul(weights), MODEL)
    assert np.isposinf(stored(after)[0, 0])


def test_weights_of_float32_stay_so_where_nobody_asked():
    mod = matmul(normal(37, 21))
    assert rewrite(mod, MODEL).same_as(mod)


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        (np.full((37, 21), 65505, np.float32), "no finite number"),
        (np.where(np.eye(37, 21) > 0, np.float32(np.nan), normal(37, 21)), "no finite number"),
        (normal(37, 21) * np.float32(1e-6), "below the normal numbers"),
        (np.where(np.arange(21) < 3, np.float32(1e-9), 1) * normal(37, 21), "a row or column"),
        (np.where(np.arange(37) < 3, np.float32(1e-9), 1)[:, None] * normal(37, 21), "a row or"),
        (normal(37, 15), "fewer columns"),
    ],
)
def test_what_stays_in_float32(weights, reason):
    mod = matmul(weights)
    with recording() as decisions:
        assert rewrite(mod).same_as(mod)
    assert reason in decisions[0].reason


def test_matmuls_that_share_weights_share_the_stored_ones():
    weights = relax.const(normal(64, 64))

    def body(emit, x):
        return [emit(op.matmul(emit(op.matmul(x, weights)), weights))]

    # All constants of the function: one.
    assert stored(rewrite(module((1, 64), body))).dtype == np.float16


def test_weights_that_stay_in_the_caches_of_the_cores():
    mod = matmul(normal(37, 21))
    for l2_bytes, same in ((37 * 21 * 4 // 2, True), (37 * 21 * 4 // 2 - 1, False)):
        machine = ASKED.with_cores(2).model_copy(update={"l2_bytes": l2_bytes})
        with recording() as decisions:
            assert rewrite(mod, machine).same_as(mod) is same
        assert ("stay in L2" in decisions[0].reason) is same


@pytest.mark.parametrize(("rows", "few"), [(2, True), (64, False), ("rows", True)])
def test_many_rows_whose_products_take_longer_than_reading_the_weights(rows, few):
    # Of 332 GFLOP/s and 24 GB/s: 28 rows.
    machine = resolve_target("avx512").with_threads(2).with_precision("float16")
    mod = matmul(normal(1024, 1024), tirx.Var(rows, "int64") if isinstance(rows, str) else rows)
    with recording() as decisions:
        assert rewrite(mod, machine).same_as(mod) is not few
    assert ("so many rows" in decisions[0].reason) is not few


def test_batches_of_matrices_are_no_weights_of_it():
    mod = matmul(normal(2, 37, 21))
    assert rewrite(mod).same_as(mod)


@pytest.mark.parametrize("target", ["nvidia-h200", "wse3"])
def test_other_machines_refuse_it_and_keep_all_as_it_is(target):
    machine = resolve_target(target)
    with pytest.raises(TargetError, match=r"'float16' was asked for .* has only 'model'"):
        machine.with_precision("float16")
    mod = matmul(normal(37, 21).astype(np.float16).astype(np.float32))
    assert rewrite(mod, machine).same_as(mod)


def integers(largest, steps=64):
    weights = RANDOM.integers(-largest, largest + 1, (steps, 40)).astype("int16")
    weights[0, 0] = largest

    def body(emit, x):
        x = emit(op.astype(op.astype(x, "uint8"), "int16"))
        return [emit(op.matmul(x, relax.const(weights), out_dtype="int32"))]

    return module((2, 3, steps), body), weights


def test_integers_for_pairs_of_int16_take_a_byte_each():
    mod, weights = integers(127)
    after = rewrite(mod, small_cache("avx2", "model"))
    assert stored(after).dtype == np.int8
    np.testing.assert_array_equal(stored(after), weights)
    x = RANDOM.integers(0, 256, (2, 3, 64)).astype("float32")
    np.testing.assert_array_equal(run(after, x), run(mod, x))


@pytest.mark.parametrize(
    ("largest", "steps", "target"), [(128, 64, "avx2"), (127, 63, "avx2"), (127, 64, "avx512-amx")]
)
def test_integers_that_no_instruction_takes_by_pairs(largest, steps, target):
    """Larger than a byte, an odd number of steps, and beside an instruction for bytes."""
    mod, _ = integers(largest, steps)
    assert stored(rewrite(mod, small_cache(target, "model"))).dtype == np.int16


def test_a_cpu_that_does_not_widen_float16():
    with pytest.raises(TargetError, match=r"no instruction that converts it.*f16c"):
        resolve_target("x86-64").with_precision("float16")
    machine = small_cache("x86-64", "model")
    narrow = normal(37, 21)
    halves = matmul(narrow.astype(np.float16).astype(np.float32))
    assert rewrite(halves, machine).same_as(halves)
    brains = matmul(narrow.astype(ml_dtypes.bfloat16).astype(np.float32))
    assert stored(rewrite(brains, machine)).dtype == ml_dtypes.bfloat16
    whole = matmul(np.round(narrow))
    assert stored(rewrite(whole, machine)).dtype == ml_dtypes.bfloat16
