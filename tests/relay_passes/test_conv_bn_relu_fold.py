"""ConvBnReluFold: what is folded, and that numbers stay."""

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from fold_modules import (
    Body,
    assert_same_numbers,
    batch_norm,
    bn,
    build,
    const,
    fold,
    nn,
    op_names,
    rand,
)
from side_by_side import Rewrite, assert_all_same
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from tvm_ext.relay_passes.spans import origins_of, span_of


@pytest.mark.extended
def test_before_and_expected() -> None:
    @I.ir_module
    class Before:
        @R.function
        def main(
            x: R.Tensor(("n", 3, 7, 5), "float32"),
            w: R.Tensor((4, 3, 3, 3), "float32"),
            b: R.Tensor((4,), "float32"),
            gamma: R.Tensor((4,), "float32"),
            beta: R.Tensor((4,), "float32"),
            mean: R.Tensor((4,), "float32"),
            var: R.Tensor((4,), "float32"),
        ):
            with R.dataflow():
                y = R.nn.conv2d(x, w, strides=(2, 1), padding=(1, 0, 1, 0))
                per_channel = R.reshape(b, (1, 4, 1, 1))
                biased = R.add(y, per_channel)
                normal = R.nn.batch_norm(
                    biased, gamma, beta, mean, var, axis=1, epsilon=1e-3, training=False
                )
                z = normal[0]
                out = R.nn.relu(z)
                R.output(out)
            return out

    @I.ir_module
    class Expected:
        @R.function
        def main(
            x: R.Tensor(("n", 3, 7, 5), "float32"),
            w: R.Tensor((4, 3, 3, 3), "float32"),
            b: R.Tensor((1, 4, 1, 1), "float32"),
        ):
            with R.dataflow():
                y = R.nn.conv2d(x, w, strides=(2, 1), padding=(1, 0, 1, 0))
                z = R.add(y, b)
                out = R.nn.relu(z)
                R.output(out)
            return out

    given = {
        "w": rand(4, 3, 3, 3),
        **{name: rand(4) for name in ("b", "gamma", "beta", "mean")},
        "var": np.abs(rand(4)) + np.float32(0.5),
    }
    wide = {name: value.astype("float64") for name, value in given.items()}
    scale = wide["gamma"] / np.sqrt(wide["var"] + 1e-3)
    shift = wide["b"] * scale + (wide["beta"] - wide["mean"] * scale)
    folded = {
        "w": (wide["w"] * scale[:, None, None, None]).astype("float32"),
        "b": shift.astype("float32").reshape(1, 4, 1, 1),
    }
    before = relax.transform.BindParams("main", given)(Before)
    expected = relax.transform.BindParams("main", folded)(Expected)
    new, _ = fold(before)
    tvm.ir.assert_structural_equal(new, expected)
    assert_same_numbers(before, new, rand(2, 3, 7, 5))


def conv_case(op: Callable, weight: tuple, channels: int, axis: int = 1, **attrs: object) -> Body:
    def body(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        conv = builder.emit(op(x, const(*weight), **attrs))
        return nn.relu(builder.emit(bn(builder, conv, channels, axis, epsilon=1e-4)))

    return body


NHWC = {"data_layout": "NHWC", "kernel_layout": "HWIO"}


LINEAR_CASES = {
    "conv1d": ((2, 3, 9), conv_case(nn.conv1d, (5, 3, 3), 5, padding=1)),
    "conv2d grouped": ((1, 4, 5, 7), conv_case(nn.conv2d, (6, 2, 3, 3), 6, groups=2)),
    "conv2d depthwise": ((1, 3, 5, 5), conv_case(nn.conv2d, (6, 1, 3, 3), 6, groups=3)),
    "conv2d nhwc": ((1, 5, 5, 3), conv_case(nn.conv2d, (3, 3, 3, 4), 4, 3, **NHWC)),
    "conv2d nhwc, last axis": ((1, 5, 5, 3), conv_case(nn.conv2d, (3, 3, 3, 4), 4, -1, **NHWC)),
    "conv3d": ((1, 2, 3, 4, 5), conv_case(nn.conv3d, (3, 2, 2, 2, 2), 3, dilation=1)),
    "conv1d transposed": ((1, 4, 5), conv_case(nn.conv1d_transpose, (4, 3, 3), 3, strides=2)),
    "conv2d transposed": ((1, 4, 3, 5), conv_case(nn.conv2d_transpose, (4, 3, 2, 3), 3)),
    "conv2d transposed, grouped": (
        (1, 6, 3, 4),
        conv_case(nn.conv2d_transpose, (6, 3, 2, 2), 6, groups=2, strides=2, padding=1),
    ),
    "conv3d transposed": ((1, 2, 2, 3, 3), conv_case(nn.conv3d_transpose, (2, 3, 2, 2, 2), 3)),
    "matmul": ((5, 3), conv_case(relax.op.matmul, (3, 7), 7)),
    "matmul, batched": ((2, 5, 3), conv_case(relax.op.matmul, (3, 7), 7, 2)),
}


@pytest.mark.slow
def test_every_linear_operator_keeps_its_numbers() -> None:
    folded = {}
    for case, (shape, body) in LINEAR_CASES.items():
        mod = build(shape, body)
        new, log = fold(mod)
        assert [decision.applied for decision in log] == [True], case
        assert op_names(new)[1:] == ["add", "relu"], case
        folded[case] = Rewrite(mod, new, [[rand(*shape)]])
    assert_all_same(folded, rtol=2e-5, atol=2e-5)


def test_relu_ends_up_in_the_kernel_of_the_convolution() -> None:
    new, _ = fold(build((1, 3, 5, 7), conv_case(nn.conv2d, (4, 3, 3, 3), 4)))
    fused = tvm.transform.Sequential(
        [
            relax.transform.LegalizeOps(),
            relax.transform.AnnotateTIROpPattern(),
            relax.transform.FuseOps(),
            relax.transform.FuseTIR(),
        ]
    )(new)
    assert op_names(fused) == ["call_tir"]


@pytest.mark.extended
def test_gemm_with_transposed_weight_and_bias() -> None:
    def body(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        weight = builder.emit(relax.op.permute_dims(const(7, 3)))
        product = builder.emit(relax.op.matmul(x, weight))
        return bn(builder, builder.emit(relax.op.add(product, const(7))), 7)

    mod = build((5, 3), body)
    new, _ = fold(mod)
    assert op_names(new) == ["matmul", "add"]
    assert_same_numbers(mod, new, rand(5, 3))


@pytest.mark.extended
def test_doubles_stay_doubles() -> None:
    def body(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        weight, scale, shift = (
            relax.const(rand(*shape, dtype="float64"), "float64") for shape in ((3, 7), (7,), (7,))
        )
        product = builder.emit(relax.op.matmul(x, weight))
        shifted = builder.emit(relax.op.add(product, shift))
        return relax.op.multiply(builder.emit(relax.op.add(shifted, shift)), scale)

    mod = build((5, 3), body, "float64")
    new, _ = fold(mod)
    assert op_names(new) == ["matmul", "add"]
    assert_same_numbers(mod, new, rand(5, 3, dtype="float64"))


@pytest.mark.extended
def test_batch_norm_taken_apart_and_scalars() -> None:
    def body(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        value = builder.emit(nn.conv2d(x, const(4, 3, 3, 3)))
        value = builder.emit(relax.op.subtract(value, const(4, 1, 1)))
        value = builder.emit(relax.op.divide(value, relax.const(np.float32(1.7))))
        value = builder.emit(relax.op.multiply(const(1, 4, 1, 1), value))
        value = builder.emit(relax.op.add(value, const(1, 4, 1, 1)))
        return relax.op.subtract(relax.const(np.float32(0.5)), value)

    mod = build((1, 3, 5, 7), body)
    new, log = fold(mod)
    assert op_names(new) == ["conv2d", "add"]
    assert "subtract + divide + multiply + add + subtract" in log[0].reason
    assert_same_numbers(mod, new, rand(1, 3, 5, 7))


def test_scale_without_shift_adds_no_bias() -> None:
    def body(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        conv = builder.emit(nn.conv2d(x, const(4, 3, 3, 3)))
        return relax.op.multiply(conv, const(1, 4, 1, 1))

    mod = build((1, 3, 5, 7), body)
    new, _ = fold(mod)
    assert op_names(new) == ["conv2d"]
    assert_same_numbers(mod, new, rand(1, 3, 5, 7))


def test_two_biases_become_one_and_the_weights_stay() -> None:
    weight = const(4, 3, 3, 3)

    def body(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        conv = builder.emit(nn.conv2d(x, weight))
        return relax.op.add(builder.emit(relax.op.add(conv, const(1, 4, 1, 1))), const(4, 1, 1))

    new, _ = fold(build((1, 3, 5, 7), body))
    assert op_names(new) == ["conv2d", "add"]
    assert new["main"].body.blocks[0].bindings[0].value.args[1].same_as(weight)


@pytest.mark.extended
def test_chained_batch_norms() -> None:
    def body(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        value = builder.emit(nn.conv2d(x, const(4, 3, 1, 1)))
        value = builder.emit(bn(builder, value, 4, epsilon=1e-2))
        return bn(builder, value, 4, epsilon=1e-5, scale=False)

    mod = build((1, 3, 5, 7), body)
    new, _ = fold(mod)
    assert op_names(new) == ["conv2d", "add"]
    assert_same_numbers(mod, new, rand(1, 3, 5, 7))


@pytest.mark.extended
def test_one_constant_shared_by_two_convolutions() -> None:
    weight = const(3, 3, 1, 1)
    kept = weight.value.numpy().copy()

    def body(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        left = builder.emit(bn(builder, builder.emit(nn.conv2d(x, weight)), 3, epsilon=1e-2))
        right = builder.emit(bn(builder, builder.emit(nn.conv2d(x, weight)), 3, epsilon=1e-5))
        return relax.op.multiply(left, right)

    mod = build((1, 3, 5, 7), body)
    new, log = fold(mod)
    assert len(log) == 2
    assert "batch_norm" not in op_names(new)
    np.testing.assert_array_equal(weight.value.numpy(), kept)
    assert_same_numbers(mod, new, rand(1, 3, 5, 7))


@pytest.mark.extended
def test_two_instances_with_different_shapes_and_epsilon_in_one_module() -> None:
    def body(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        value = builder.emit(nn.conv2d(x, const(4, 3, 3, 3)))
        value = builder.emit(nn.relu(builder.emit(bn(builder, value, 4, epsilon=1e-1))))
        value = builder.emit(nn.conv2d(value, const(2, 4, 1, 1)))
        return bn(builder, value, 2, epsilon=1e-6)

    mod = build((1, 3, 5, 7), body)
    new, log = fold(mod)
    assert len(log) == 2
    assert op_names(new) == ["conv2d", "add", "relu", "conv2d", "add"]
    assert_same_numbers(mod, new, rand(1, 3, 5, 7))


def test_unused_statistics_do_not_count_as_uses() -> None:
    def body(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        conv = builder.emit(nn.conv2d(x, const(4, 3, 1, 1)))
        normal = builder.emit(batch_norm(conv, 4))
        builder.emit(relax.TupleGetItem(normal, 1))
        return relax.TupleGetItem(normal, 0)

    new, _ = fold(build((1, 3, 5, 7), body))
    assert op_names(new) == ["conv2d", "add"]


def test_origins_are_merged() -> None:
    x = relax.Var("x", relax.TensorType([1, 3, 5, 7], "float32"))
    builder = relax.BlockBuilder()
    conv_call = builder.normalize(nn.conv2d(x, const(4, 3, 1, 1)))
    conv = relax.DataflowVar("conv", conv_call.ty, span_of(["/Conv"]))
    bn_call = builder.normalize(batch_norm(conv, 4))
    normal = relax.DataflowVar("normal", bn_call.ty, span_of(["/BatchNorm"]))
    item = relax.Var("item", bn_call.ty.fields[0], span_of(["/BatchNorm"]))
    block = relax.DataflowBlock(
        [
            relax.VarBinding(conv, conv_call),
            relax.VarBinding(normal, bn_call),
            relax.VarBinding(item, relax.TupleGetItem(normal, 0)),
        ]
    )
    func = relax.Function([x], relax.SeqExpr([block], item), item.ty)
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    new, log = fold(mod)
    variables = [binding.var for binding in new["main"].body.blocks[0].bindings]
    assert [origins_of(variable) for variable in variables] == [("/Conv", "/BatchNorm")] * 2
    assert log[0].where == "/Conv + /BatchNorm"
