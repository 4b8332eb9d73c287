"""FuseBlockIntegerMatmul: before and after IR, numbers, dropped rounding, refusals."""

import numpy as np
import pytest
from gemm_modules import operators_of, run, tensor, values_of
from tvm import relax
from tvm_ffi import structural_equal

from tvm_ext.hardware.targets import compiling_for, resolve_target
from tvm_ext.passes.fuse_block_integer_matmul import FuseBlockIntegerMatmul
from tvm_ext.relay_passes.graph_pass import recording
from tvm_ext.tir_schedules.operators.block_integers import ATTRIBUTE, BlockIntegers

op = relax.op
RANDOM = np.random.default_rng(0)
DEPTH, COLUMNS, BLOCK = 64, 24, 32


def number(value):
    return relax.const(np.float32(value))


def product(integers, block=BLOCK, largest=127, rounding=op.round):
    """Rows of ``[2, 3, 64]`` rounded in blocks, times integers with a scale for each block."""
    scale = RANDOM.uniform(0.01, 0.02, (DEPTH // BLOCK, COLUMNS)).astype("float32")

    def body(emit, x):
        cut = emit(op.reshape(x, (6, DEPTH // block, block)))
        most = emit(op.max(emit(op.abs(cut)), axis=[-1], keepdims=True))
        factor = emit(op.divide(number(largest), emit(op.maximum(most, number(1e-30)))))
        numbers = emit(rounding(emit(op.multiply(cut, factor))))
        rounded = emit(op.multiply(numbers, emit(op.multiply(most, number(1 / 127)))))
        wide = emit(op.astype(relax.const(integers), "float32"))
        weights = emit(op.multiply(wide, emit(op.repeat(relax.const(scale), BLOCK, 0))))
        return op.matmul(emit(op.reshape(rounded, (2, 3, DEPTH))), weights)

    return written(body)


def written(body):
    builder = relax.BlockBuilder()
    x = tensor("x", (2, 3, DEPTH))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(body(builder.emit, x))
        builder.emit_func_output(result)
    return builder.get()


def drawn(low, high):
    found = RANDOM.integers(low, high + 1, (DEPTH, COLUMNS))
    found[:2, 0] = low, high
    return found.astype("int16")


def rewrite(mod, target="avx512-amx"):
    with compiling_for(resolve_target(target)), recording() as decisions:
        changed = FuseBlockIntegerMatmul()(mod)
    assert relax.analysis.check_well_formed(changed)
    return changed, decisions


def kernel(mod):
    """What the one kernel of a module computes."""
    calls = [v for v in values_of(mod) if isinstance(v, relax.Call)]
    (called,) = [v.args[0] for v in calls if v.op.name == "relax.call_tir"]
    func = mod[called]
    return BlockIntegers.from_attribute(str(func.attrs[ATTRIBUTE]))


@pytest.mark.parametrize(("low", "high", "zero"), [(-8, 7, 8), (0, 15, None), (-15, 0, None)])
def test_a_product_is_one_function_with_the_same_numbers(low, high, zero):
    before = product(drawn(low, high))
    after, decisions = rewrite(before)
    assert [decision.applied for decision in decisions] == [True]
    assert operators_of(after) == ["relax.call_tir"]
    found = kernel(after)
    assert (found.depth, found.columns, found.block, found.zero) == (DEPTH, COLUMNS, BLOCK, zero)
    x = RANDOM.standard_normal((2, 3, DEPTH)).astype("float32")
    np.testing.assert_allclose(run(after, [x]), run(before, [x]), rtol=1e-5, atol=1e-5)


@pytest.mark.extended
def test_blocks_can_have_zero_points_of_their_own():
    integers = drawn(0, 9)
    integers[BLOCK:] -= 12
    before = product(integers)
    after, _ = rewrite(before)
    assert kernel(after).zero is None
    x = RANDOM.standard_normal((2, 3, DEPTH)).astype("float32")
    np.testing.assert_allclose(run(after, [x]), run(before, [x]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("target", ["x86-64", "nvidia-h100"])
def test_rounding_is_dropped_without_an_instruction_for_bytes(target):
    after, _ = rewrite(product(drawn(-8, 7)), target)
    assert "relax.round" not in operators_of(after)
    assert "relax.matmul" in operators_of(after)


def test_rounding_is_dropped_where_weights_take_more_than_4_bits():
    after, _ = rewrite(product(drawn(-100, 100)))
    assert "relax.round" not in operators_of(after)
    assert "relax.matmul" in operators_of(after)


@pytest.mark.parametrize("change", [{"largest": 100}, {"rounding": op.floor}])
def test_what_is_rounded_in_another_way_stays(change):
    before = product(drawn(-8, 7), **change)
    after, decisions = rewrite(before)
    assert not decisions
    assert structural_equal(after, before)


@pytest.mark.extended
def test_products_of_the_same_rows_become_one():
    first, second = drawn(-8, 7), drawn(-8, 7)
    scale = np.full((DEPTH // BLOCK, COLUMNS), 0.01, "float32")

    def twice(emit, x):
        cut = emit(op.reshape(x, (6, DEPTH // BLOCK, BLOCK)))
        most = emit(op.max(emit(op.abs(cut)), axis=[-1], keepdims=True))
        factor = emit(op.divide(number(127), emit(op.maximum(most, number(1e-30)))))
        numbers = emit(op.round(emit(op.multiply(cut, factor))))
        rounded = emit(op.multiply(numbers, emit(op.multiply(most, number(1 / 127)))))
        rows = emit(op.reshape(rounded, (2, 3, DEPTH)))
        made = []
        for integers in (first, second):
            wide = emit(op.astype(relax.const(np.tile(integers, 4)), "float32"))
            factors = emit(op.repeat(relax.const(np.tile(scale, 4)), BLOCK, 0))
            made.append(emit(op.matmul(rows, emit(op.multiply(wide, factors)))))
        return op.subtract(*made)

    before = written(twice)
    after, _ = rewrite(before)
    assert operators_of(after).count("relax.call_tir") == 1
    assert kernel(after).columns == 2 * 4 * COLUMNS
    x = RANDOM.standard_normal((2, 3, DEPTH)).astype("float32")
    np.testing.assert_allclose(run(after, [x]), run(before, [x]), rtol=1e-5, atol=1e-4)
