"""Before and after IR, numbers and refusals of SplitToSlices."""

import numpy as np
import pytest
from conv_modules import apply, draw, module, operators, run
from tvm import relax, tirx
from tvm_ffi import structural_equal

from tvm_ext.relay_passes.split_to_slices import SplitToSlices

op, nn = relax.op, relax.op.nn
to_slices = apply(SplitToSlices())

SHAPE = (2, 6, 12)


def parts_of(body, sections=3, axis=-1):
    def whole(emit, x):
        parts = emit(op.split(x, sections, axis))
        count = sections if isinstance(sections, int) else len(sections) + 1
        return body(emit, [emit(relax.TupleGetItem(parts, i)) for i in range(count)])

    return module(SHAPE, whole)


def check(before):
    after = to_slices(before)
    x = draw(*SHAPE)
    for ours, theirs in zip(run(after, x), run(before, x), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    return operators(after)


@pytest.mark.extended
@pytest.mark.parametrize("sections", [3, [4, 8]], ids=str)
def test_elementwise_readers_read_slices(sections) -> None:
    def body(emit, parts):
        return [op.multiply(parts[0], emit(op.sigmoid(parts[1]))), op.exp(parts[2])]

    found = check(parts_of(body, sections))
    assert sorted(found) == sorted(["strided_slice"] * 3 + ["sigmoid", "multiply", "exp"])


@pytest.mark.extended
def test_transposes_behind_reshapes_read_slices() -> None:
    def body(emit, parts):
        heads = [emit(op.reshape(part, [2, 6, 2, 2])) for part in parts]
        return [op.permute_dims(part, [0, 2, 1, 3]) for part in heads]

    assert check(parts_of(body)).count("strided_slice") == 3


def test_parts_that_are_joined_again() -> None:
    def body(emit, parts):
        return [op.concat(parts[::-1], 1)]

    assert check(parts_of(body)).count("strided_slice") == 3


def test_products_keep_the_split() -> None:
    def body(emit, parts):
        return [op.matmul(part, relax.const(draw(4, 5))) for part in parts]

    before = parts_of(body)
    assert structural_equal(to_slices(before), before)


def test_results_keep_the_split() -> None:
    before = parts_of(lambda emit, parts: [op.reshape(part, [2, 24]) for part in parts])
    assert structural_equal(to_slices(before), before)


def test_parts_whose_size_is_computed_in_the_run_are_left_alone() -> None:
    rows = tirx.Var("rows", "int64")

    def whole(emit, x):
        parts = emit(op.split(x, [2], 1))
        return [op.exp(emit(relax.TupleGetItem(parts, i))) for i in range(2)]

    before = module((4, rows, 7), whole)
    assert to_slices(before).same_as(before)


def test_reshapes_to_sizes_of_a_run_keep_the_split() -> None:
    batch = tirx.Var("batch", "int64")
    x = relax.Var("x", relax.TensorType((batch, 6, 12), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            parts = builder.emit(op.split(x, 2, 2))
            first = builder.emit(relax.TupleGetItem(parts, 0))
            heads = builder.emit(op.reshape(first, [batch, 6, 2, 3]))
            result = builder.emit_output(op.permute_dims(heads, [0, 2, 1, 3]))
        builder.emit_func_output(result)
    before = builder.get()
    assert structural_equal(to_slices(before), before)
