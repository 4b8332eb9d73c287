"""Before and after IR, numbers and refusals of FuseDequantizeMatmul."""

import numpy as np
import pytest
import tvm
from combinations import pairwise
from conv_modules import module, operators, run
from tvm import relax, tirx
from tvm_ffi import structural_equal

from tvm_ext.hardware.targets import compiling_for, resolve_target
from tvm_ext.relay_passes.fuse_dequantize_matmul import FuseDequantizeMatmul
from tvm_ext.relay_passes.graph_pass import recording

op = relax.op
RANDOM = np.random.default_rng(0)


def rewrite(mod, target="avx512"):
    with compiling_for(resolve_target(target)):
        new = FuseDequantizeMatmul()(mod)
        assert structural_equal(FuseDequantizeMatmul()(new), new)
    assert relax.analysis.check_well_formed(new)
    return new


def integers(low, high, depth=64, columns=12):
    """The first and the last of the range are there."""
    drawn = RANDOM.integers(low, high + 1, (depth, columns))
    drawn[:2, 0] = low, high
    return drawn.astype("int16")


def product(numbers, block, rows=3, dtype="float32", transposed=False, blocks_axis=0):
    """``x @ (numbers * scales by block)``."""
    shape = [
        -(-size // block) if n == blocks_axis else size for n, size in enumerate(numbers.shape)
    ]
    scale = RANDOM.uniform(0.01, 0.02, shape).astype("float32")
    size = numbers.shape[blocks_axis]

    def body(emit, x):
        wide = emit(op.astype(relax.const(numbers), "float32"))
        if block == size and scale.shape[blocks_axis] == 1:
            factor = relax.const(scale)
        else:
            factor = emit(op.repeat(relax.const(scale), block, blocks_axis))
            if factor.ty.shape[blocks_axis] != size:
                factor = emit(op.strided_slice(factor, [blocks_axis], [0], [size]))
        weights = emit(op.multiply(wide, factor))
        if dtype != "float32":
            weights = emit(op.astype(weights, dtype))
        if transposed:
            weights = emit(op.permute_dims(weights))
        return [op.matmul(x, weights)]

    depth = numbers.shape[1] if transposed else numbers.shape[0]
    return module((2, rows, depth), body, dtype)


def stored(mod):
    """The constants of the function."""
    found = []

    def look(expr):
        if isinstance(expr, tvm.ir.GenericConst):
            found.append(expr.value.numpy())

    relax.analysis.post_order_visit(mod["main"], look)
    return found


@pytest.mark.extended
@pytest.mark.parametrize(
    ("low", "high", "words"),
    [(-2, 1, 4), (-8, 7, 8), (0, 15, 8), (-15, 0, 8), (-128, 127, 16), (0, 255, 16)],
)
def test_words_hold_the_integers_and_a_scale_for_each_block(low, high, words):
    before = product(integers(low, high), block=64)
    after = rewrite(before)
    assert "relax.matmul" not in operators(after)
    (packed,) = stored(after)
    assert packed.dtype == np.uint32
    assert packed.shape == (words + 1, 12)
    x = RANDOM.standard_normal((2, 3, 64)).astype("float32")
    np.testing.assert_allclose(run(after, x), run(before, x), rtol=2e-5, atol=2e-5)


@pytest.mark.extended
@pairwise(transposed=[False, True], block=[16, 32, 48], dtype=["float32", "float16"])
def test_blocks_along_what_is_summed(transposed, block, dtype):
    numbers = integers(-8, 7, depth=96)
    numbers = np.ascontiguousarray(numbers.T) if transposed else numbers
    before = product(numbers, block, 3, dtype, transposed, int(transposed))
    after = rewrite(before)
    assert "relax.matmul" not in operators(after)
    x = RANDOM.standard_normal((2, 3, 96)).astype(dtype)
    tolerance = 2e-5 if dtype == "float32" else 2e-2
    np.testing.assert_allclose(run(after, x), run(before, x), rtol=tolerance, atol=tolerance)


@pytest.mark.extended
@pairwise(blocks=[1, 2, 3, 8, 16], bits=[2, 4, 8])
def test_blocks_with_zero_points_of_their_own(blocks, bits):
    steps = 1 << bits
    drawn = RANDOM.integers(0, steps, (blocks, 32, 12))
    zeros = RANDOM.integers(0, steps, (blocks, 1, 12))
    zeros[0, 0, :2] = 0, steps - 1
    drawn[0, :2, :2] = [[0, 0], [steps - 1, steps - 1]]
    before = product((drawn - zeros).reshape(blocks * 32, 12).astype("int16"), 32)
    after = rewrite(before)
    assert "relax.matmul" not in operators(after)
    x = RANDOM.standard_normal((2, 3, blocks * 32)).astype("float32")
    np.testing.assert_allclose(run(after, x), run(before, x), rtol=2e-5, atol=1e-4 * steps)


def test_the_width_of_bytes_is_found_without_wrapping_around():
    numbers = np.tile(np.array([-10, 127], "int8"), 32)[:, None].repeat(12, 1)
    before = product(numbers, block=32)
    after = rewrite(before)
    x = RANDOM.standard_normal((2, 3, 64)).astype("float32")
    np.testing.assert_allclose(run(after, x), run(before, x), rtol=2e-5, atol=1e-3)


def test_a_cast_to_whole_numbers_is_no_part_of_the_weights():
    def body(emit, x):
        wide = emit(op.astype(relax.const(integers(-8, 7)), "float32"))
        scaled = emit(
            op.multiply(wide, emit(op.repeat(relax.const(np.ones((2, 12), "float32") / 3), 32, 0)))
        )
        whole = emit(op.astype(emit(op.astype(scaled, "int32")), "float32"))
        return [op.matmul(x, whole)]

    mod = module((2, 3, 64), body)
    assert rewrite(mod).same_as(mod)


def test_a_last_block_that_is_shorter():
    before = product(integers(-8, 7, depth=80), block=32)
    after = rewrite(before)
    (packed,) = stored(after)
    assert packed.shape == (5 * 3, 12)
    x = RANDOM.standard_normal((2, 3, 80)).astype("float32")
    np.testing.assert_allclose(run(after, x), run(before, x), rtol=2e-5, atol=2e-5)


def test_bytes_are_widened_for_few_rows_and_for_rows_of_the_run():
    many = product(integers(-128, 127), block=64, rows=9)
    rows = tirx.Var("rows", "int64")
    assert rewrite(many).same_as(many)
    for count in (8, rows):
        mod = product(integers(-128, 127), block=64, rows=count)
        assert "relax.matmul" not in operators(rewrite(mod))


@pytest.mark.parametrize(
    "mod",
    [
        product(integers(-8, 7), block=8),
        product(integers(-200, 200), block=32),
        product(integers(-8, 7, depth=72), block=32),
    ],
    ids=["few in a block", "wide integers", "short blocks"],
)
def test_what_is_left_alone_is_recorded(mod):
    with recording() as decisions:
        assert rewrite(mod).same_as(mod)
    (refused,) = (d for d in decisions if not d.applied)
    assert "block" in refused.reason


@pytest.mark.parametrize("target", ["nvidia-h200", "wse3"])
def test_other_targets(target):
    mod = product(integers(-8, 7), block=32)
    assert rewrite(mod, target).same_as(mod)
