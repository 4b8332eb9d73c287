"""CancelTransposes: what it joins and drops, and what it leaves alone."""

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst
from tvm.script import ir as I
from tvm.script import relax as R

from tvm_ext.relay_passes.cancel_transposes import CancelTransposes
from tvm_ext.relay_passes.graph_pass import recording


def test_inverse_transposes_cancel() -> None:
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((1, 3, 4, 5), "float32")) -> R.Tensor((1, 3, 4, 5), "float32"):
            with R.dataflow():
                a = R.permute_dims(x, [0, 2, 3, 1])
                b = R.permute_dims(a, [0, 3, 1, 2])
                c = R.nn.relu(b)
                R.output(c)
            return c

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((1, 3, 4, 5), "float32")) -> R.Tensor((1, 3, 4, 5), "float32"):
            with R.dataflow():
                c = R.nn.relu(x)
                R.output(c)
            return c

    before = Before.script()
    with recording() as log:
        after = CancelTransposes()(Before)

    tvm.ir.assert_structural_equal(after, Expected)
    assert Before.script() == before
    assert [entry.reason for entry in log] == ["removed: transposes that cancel"]
    assert CancelTransposes()(after).same_as(after)


def test_chain_joins_and_inner_user_keeps_its_transpose() -> None:
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((2, 3, 4), "float32")):
            with R.dataflow():
                a = R.permute_dims(x, [1, 2, 0])
                b = R.permute_dims(a)
                c = R.nn.relu(a)
                R.output(b, c)
            return (b, c)

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((2, 3, 4), "float32")):
            with R.dataflow():
                a = R.permute_dims(x, [1, 2, 0])
                b = R.permute_dims(x, [0, 2, 1])
                c = R.nn.relu(a)
                R.output(b, c)
            return (b, c)

    tvm.ir.assert_structural_equal(CancelTransposes()(Before), Expected)


def test_repeated_transpose_is_made_once() -> None:
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((2, 3), "float32")) -> R.Tensor((3, 2), "float32"):
            with R.dataflow():
                a = R.permute_dims(x, [1, 0])
                b = R.permute_dims(x, [-1, 0])
                c = R.add(a, b)
                R.output(c)
            return c

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((2, 3), "float32")) -> R.Tensor((3, 2), "float32"):
            with R.dataflow():
                a = R.permute_dims(x, [1, 0])
                c = R.add(a, a)
                R.output(c)
            return c

    tvm.ir.assert_structural_equal(CancelTransposes()(Before), Expected)


def test_result_of_a_function_keeps_its_binding() -> None:
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((2, 3), "float32")) -> R.Tensor((2, 3), "float32"):
            with R.dataflow():
                a = R.permute_dims(x, [1, 0])
                b = R.permute_dims(a, [1, 0])
                R.output(b)
            return b

    after = CancelTransposes()(Before)

    relax.analysis.well_formed(after)
    assert "permute_dims" not in after.script()
    assert CancelTransposes()(after).same_as(after)


def test_branches_do_not_share_transposes() -> None:
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((2, 3), "float32"), c: R.Tensor((), "bool")):
            if c:
                a = R.permute_dims(x, [1, 0])
                y = R.nn.relu(a)
            else:
                b = R.permute_dims(x, [1, 0])
                y = R.negative(b)
            return y

    assert CancelTransposes()(Before).same_as(Before)


def test_constant_shared_by_two_transposes_is_transposed_once() -> None:
    weight = relax.const(np.arange(6, dtype="float32").reshape(2, 3))
    x = relax.Var("x", relax.TensorType((3, 2), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            first = builder.emit(relax.op.permute_dims(weight, [1, 0]))
            second = builder.emit(relax.op.permute_dims(weight, [1, 0]))
            total = builder.emit(relax.op.add(relax.op.add(x, first), second))
            plain = builder.emit(relax.op.matmul(total, weight))
            result = builder.emit_output(plain)
        builder.emit_func_output(result)
    after = CancelTransposes()(builder.get())

    found: list[GenericConst] = []
    relax.analysis.post_order_visit(
        after["main"], lambda e: found.append(e) if isinstance(e, GenericConst) else None
    )
    relax.analysis.well_formed(after)
    assert "permute_dims" not in after.script()
    transposed = [item for item in found if item.value.shape == (3, 2)]
    assert all(item.same_as(transposed[0]) for item in transposed)
    np.testing.assert_array_equal(transposed[0].value.numpy(), weight.value.numpy().T)


def test_transpose_apart_by_another_operator_is_left_alone() -> None:
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor(("n", 3), "float32")) -> R.Tensor(("n", 3), "float32"):
            with R.dataflow():
                a = R.permute_dims(x, [1, 0])
                b = R.nn.relu(a)
                c = R.permute_dims(b, [1, 0])
                R.output(c)
            return c

    assert CancelTransposes()(Before).same_as(Before)


def test_inner_variable_of_another_block_is_not_reached_for() -> None:
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((2, 3), "float32")) -> R.Tensor((2, 3), "float32"):
            with R.dataflow():
                inner = R.nn.relu(x)
                a = R.permute_dims(inner, [1, 0])
                R.output(a)
            b = R.permute_dims(a, [1, 0])
            return b

    assert CancelTransposes()(Before).same_as(Before)
