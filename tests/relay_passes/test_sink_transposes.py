"""Before and after IR, numbers and refusals of SinkTransposes and CancelTransposes."""

import numpy as np
import pytest
from conv_modules import apply, bindings, draw, module, operators, run
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T
from tvm_ffi import structural_equal

from tvm_ext.relay_passes.cancel_transposes import CancelTransposes
from tvm_ext.relay_passes.graph_pass import recording
from tvm_ext.relay_passes.sink_transposes import SinkTransposes
from tvm_ext.relay_passes.spans import origins_of

op, nn = relax.op, relax.op.nn
sink, cancel = apply(SinkTransposes()), apply(CancelTransposes())

IMAGE = (2, 5, 6, 4)


def from_image_to_sequence(between, extra=()):
    """``between`` on an image with channels first, which then becomes a sequence of pixels."""

    def whole(emit, x):
        y = between(emit, emit(op.permute_dims(x, [0, 3, 1, 2])))
        flat = emit(op.reshape(y, [2, 4, 30]))
        return [op.permute_dims(flat, [0, 2, 1])]

    return module(IMAGE, whole, extra=extra)


def check(before, *more):
    after = sink(before)
    inputs = (draw(*IMAGE), *more)
    np.testing.assert_array_equal(run(after, *inputs)[0], run(before, *inputs)[0])
    return after


def test_before_and_after_with_sizes_of_a_run() -> None:
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor(("n", "h", "w", 4), "float32"), b: R.Tensor((4,), "float32")):
            n, h, w = T.int64(), T.int64(), T.int64()
            with R.dataflow():
                first = R.permute_dims(x, [0, 3, 1, 2])
                y = R.nn.relu(first)
                flat = R.reshape(y, R.shape([n, 4, h * w]))
                z = R.permute_dims(flat, [0, 2, 1])
                R.output(z)
            return z

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor(("n", "h", "w", 4), "float32"), b: R.Tensor((4,), "float32")):
            n, h, w = T.int64(), T.int64(), T.int64()
            with R.dataflow():
                y = R.nn.relu(x)
                z = R.reshape(y, R.shape([n, h * w, 4]))
                R.output(z)
            return z

    before = Before.script()
    with recording() as log:
        after = SinkTransposes()(Before)

    assert structural_equal(after, Expected)
    assert Before.script() == before
    assert SinkTransposes()(after).same_as(after)
    assert [entry.reason for entry in log] == [
        "moved elementwise operators in front of its transposes"
    ]


@pytest.mark.parametrize("shape", [(), (1,), (4, 1, 1), (1, 4, 5, 1), (2, 4, 5, 6)], ids=str)
def test_constants_follow(shape) -> None:
    constant = relax.const(draw(*shape, seed=2))
    after = check(from_image_to_sequence(lambda emit, y: emit(op.multiply(constant, y))))
    assert operators(after) == ["multiply", "reshape"]


def test_an_activation_in_parts() -> None:
    def silu(emit, y):
        return emit(op.multiply(y, emit(op.sigmoid(y))))

    assert operators(check(from_image_to_sequence(silu))) == ["sigmoid", "multiply", "reshape"]


def test_another_reader_keeps_the_transposes() -> None:
    def whole(emit, x):
        y = emit(nn.relu(emit(op.permute_dims(x, [0, 3, 1, 2]))))
        flat = emit(op.reshape(y, [2, 4, 30]))
        return [op.permute_dims(flat, [0, 2, 1]), op.exp(y)]

    before = module(IMAGE, whole)
    assert structural_equal(sink(before), before)


def test_an_operand_of_a_run_keeps_the_transposes() -> None:
    other = relax.Var("other", relax.TensorType((2, 4, 5, 6), "float32"))
    before = from_image_to_sequence(lambda emit, y: emit(op.add(y, other)), extra=[other])
    assert structural_equal(sink(before), before)


def test_another_order_keeps_the_transposes() -> None:
    def whole(emit, x):
        y = emit(nn.relu(emit(op.permute_dims(x, [0, 3, 1, 2]))))
        return [op.permute_dims(y, [0, 3, 2, 1])]

    before = module(IMAGE, whole)
    assert structural_equal(sink(before), before)


def test_origins_stay() -> None:
    after = sink(from_image_to_sequence(lambda emit, y: emit(nn.relu(y))))
    assert next(origins_of(b.var) for b in bindings(after)) == ("node1",)


def turned(chain):
    """``chain`` of transposes and reshapes, as CancelTransposes leaves it, and checked."""
    before = module(IMAGE, chain)
    after = cancel(before)
    x = draw(*IMAGE)
    np.testing.assert_array_equal(run(after, x)[0], run(before, x)[0])
    return operators(after)


def test_transposes_cancel_across_reshapes() -> None:
    def there_and_back(emit, x):
        flat = emit(op.reshape(emit(op.permute_dims(x, [0, 3, 1, 2])), [2, 4, 30]))
        image = emit(op.reshape(flat, [2, 4, 5, 6]))
        return [op.permute_dims(image, [0, 2, 3, 1])]

    assert turned(there_and_back) == []


def test_transposes_across_a_reshape_become_one() -> None:
    def windows(emit, x):
        first = emit(op.permute_dims(x, [1, 0, 2, 3]))
        parts = emit(op.reshape(first, [5, 2, 3, 2, 4]))
        return [op.permute_dims(parts, [1, 2, 0, 3, 4])]

    assert turned(windows) == ["reshape", "permute_dims", "reshape"]


def test_a_transpose_of_unit_axes_is_a_reshape() -> None:
    def unit(emit, x):
        return [op.permute_dims(emit(op.reshape(x, [1, 60, 1, 4])), [1, 0, 3, 2])]

    assert turned(unit) == ["reshape"]
