"""LayoutPlanning: what it converts, and what stays as it was."""

import numpy as np
import pytest
import tvm
from layout_modules import (
    Emit,
    LayoutCostMachine,
    assert_same_numbers,
    bindings,
    constant,
    conv,
    layouts,
    module,
    plan,
    transposes,
)
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from tvm_ext.relay_passes.graph_pass import recording
from tvm_ext.relay_passes.layout_planning import LayoutPlanning
from tvm_ext.relay_passes.spans import origins_of


def test_before_and_after() -> None:
    @I.ir_module
    class Before:
        @R.function
        def main(
            x: R.Tensor((1, 8, 7, 7), "float32"), w: R.Tensor((8, 8, 3, 3), "float32")
        ) -> R.Tensor((1, 8, 5, 5), "float32"):
            with R.dataflow():
                y = R.nn.conv2d(x, w)
                z = R.nn.max_pool2d(y, (1, 1))
                v = R.nn.conv2d(z, w, padding=1)
                R.output(v)
            return v

    @I.ir_module
    class Expected:
        @R.function
        def main(
            x: R.Tensor((1, 8, 7, 7), "float32"), w: R.Tensor((8, 8, 3, 3), "float32")
        ) -> R.Tensor((1, 8, 5, 5), "float32"):
            with R.dataflow():
                a = R.permute_dims(x, [0, 2, 3, 1])
                b = R.permute_dims(w, [2, 3, 1, 0])
                y = R.nn.conv2d(a, b, data_layout="NHWC", kernel_layout="HWIO", out_layout="NHWC")
                z = R.nn.max_pool2d(y, (1, 1), layout="NHWC", out_layout="NHWC")
                c = R.nn.conv2d(
                    z, b, padding=1, data_layout="NHWC", kernel_layout="HWIO", out_layout="NHWC"
                )
                v = R.permute_dims(c, [0, 3, 1, 2])
                R.output(v)
            return v

    planned, log = plan(Before)

    tvm.ir.assert_structural_equal(planned, Expected)
    assert [entry.applied for entry in log] == [True, True, True]
    assert "NHWC/HWIO" in log[0].reason
    assert "2 of 2 convolutions have channels last, with 2 conversions" in log[2].reason
    assert all("modelled" in entry.reason for entry in log)


@pytest.mark.extended
def test_branching_graph_converts_its_input_and_its_result_once() -> None:
    def body(emit: Emit, x: relax.Var) -> relax.Expr:
        left = emit(relax.op.nn.relu(emit(conv(x))))
        right = emit(relax.op.add(constant(8, 1, 1), emit(conv(x, 8, groups=8))))
        pointwise = emit(conv(x, 16, 1, strides=2))
        down = emit(relax.op.nn.max_pool2d(emit(relax.op.subtract(right, left)), 1, strides=2))
        joined = emit(relax.op.concat([down, pointwise], 1))
        return conv(joined, 32, 3)

    mod = module(body)
    planned, log = plan(mod)

    assert layouts(planned) == ["NHWC"] * 4
    assert transposes(planned) == 2
    assert "with 2 conversions" in log[-1].reason
    assert_same_numbers(mod, planned, 1, 8, 7, 7)


def test_weights_are_constants_and_a_shared_one_is_transposed_once() -> None:
    weight = constant(8, 8, 3, 3)

    def body(emit: Emit, x: relax.Var) -> relax.Expr:
        once = emit(relax.op.nn.conv2d(x, weight, padding=1))
        return relax.op.nn.conv2d(once, weight, padding=1)

    planned, _ = plan(module(body))

    first, second = (item.value.args[1] for item in bindings(planned, "relax.nn.conv2d"))
    assert first.same_as(second)
    np.testing.assert_array_equal(first.value.numpy(), weight.value.numpy().transpose(2, 3, 1, 0))


def test_origins_survive_and_conversions_have_none() -> None:
    def body(emit: Emit, x: relax.Var) -> relax.Expr:
        return emit(relax.op.sigmoid(emit(conv(emit(relax.op.nn.relu(x))))))

    planned, log = plan(module(body))

    (convolution,) = bindings(planned, "relax.nn.conv2d")
    assert origins_of(convolution.var) == ("op1",)
    assert origins_of(bindings(planned, "relax.nn.relu")[0].var) == ("op0",)
    assert origins_of(bindings(planned, "relax.sigmoid")[0].var) == ("op2",)
    assert log[0].where == "op1"
    inner = [i.var for i in bindings(planned, "relax.permute_dims") if "v" not in i.var.name]
    assert all(origins_of(var) == () for var in inner)


@pytest.mark.extended
def test_existing_transposes_become_the_conversions() -> None:
    def body(emit: Emit, x: relax.Var) -> relax.Expr:
        first = emit(relax.op.permute_dims(x, [0, 3, 1, 2]))
        convolved = emit(conv(first))
        return emit(relax.op.permute_dims(convolved, [0, 2, 3, 1]))

    mod = module(body, (1, 7, 7, 8))
    planned, _ = plan(mod, LayoutCostMachine(0.0, 1e3))

    assert layouts(planned) == ["NHWC"]
    assert transposes(planned) == 0
    assert_same_numbers(mod, planned, 1, 7, 7, 8)


@pytest.mark.extended
def test_existing_transposes_become_the_conversions_of_what_follows_them() -> None:
    def body(emit: Emit, x: relax.Var) -> relax.Expr:
        first = emit(relax.op.permute_dims(x, [0, 3, 1, 2]))
        convolved = emit(conv(emit(relax.op.nn.relu(first))))
        return emit(relax.op.permute_dims(emit(relax.op.tanh(convolved)), [0, 2, 3, 1]))

    mod = module(body, (1, 7, 7, 8))
    planned, _ = plan(mod, LayoutCostMachine(0.0, 1e3))

    assert transposes(planned) == 0
    assert_same_numbers(mod, planned, 1, 7, 7, 8)


@pytest.mark.extended
def test_with_one_spatial_axis_the_same_transpose_goes_either_way() -> None:
    def body(emit: Emit, x: relax.Var) -> relax.Expr:
        first = emit(relax.op.nn.relu(emit(relax.op.permute_dims(x, [0, 2, 1]))))
        convolved = emit(relax.op.nn.conv1d(first, constant(8, 8, 3), padding=1))
        added = emit(relax.op.add(first, convolved))
        return emit(relax.op.permute_dims(added, [0, 2, 1]))

    mod = module(body, (1, 9, 8))
    planned, _ = plan(mod, LayoutCostMachine(0.0, 1e3))

    assert transposes(planned) == 0
    assert_same_numbers(mod, planned, 1, 9, 8)


@pytest.mark.extended
def test_symbolic_batch_and_sides_are_planned() -> None:
    n, h = tvm.tirx.Var("n", "int64"), tvm.tirx.Var("h", "int64")
    mod = module(lambda emit, x: conv(emit(relax.op.nn.relu(emit(conv(x))))), (n, 8, h, 7))

    planned, _ = plan(mod)

    assert layouts(planned) == ["NHWC", "NHWC"]
    assert transposes(planned) == 2
    assert_same_numbers(mod, planned, 2, 8, 5, 7)


def test_two_functions_with_other_shapes_and_types() -> None:
    one = module(lambda emit, x: conv(x))["main"]
    weight = relax.const(np.ones((8, 4, 1, 1), "float16"))
    two = module(lambda emit, x: relax.op.nn.conv2d(x, weight), (2, 4, 5, 5), "float16")["main"]
    mod = tvm.IRModule(
        {"one": one.with_attr("global_symbol", "one"), "two": two.with_attr("global_symbol", "two")}
    )

    planned, log = plan(mod)

    assert planned.script().count('data_layout="NHWC"') == 2
    assert [entry.where for entry in log if "conversions" in entry.reason] == ["one", "two"]


@pytest.mark.extended
def test_tuple_of_an_operator_and_a_negative_axis() -> None:
    def body(emit: Emit, x: relax.Var) -> relax.Expr:
        parts = emit(relax.op.split(emit(conv(x)), 2, 1))
        joined = emit(relax.op.concat(parts, 1))
        pooled = emit(relax.op.mean(emit(conv(joined)), [2, 3], keepdims=True))
        return relax.op.squeeze(pooled, [-1, -2])

    mod = module(body)
    planned, _ = plan(mod)

    assert transposes(planned) == 1
    assert_same_numbers(mod, planned, 1, 8, 7, 7)


def test_machine_of_the_current_target_is_the_default() -> None:
    mod = module(lambda emit, x: conv(emit(conv(x, 64)), 64), (1, 64, 13, 13))
    target = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v4", "num-cores": 1}
    with tvm.target.Target(target), recording() as log:
        LayoutPlanning()(mod)
    assert log
