"""ConvBnReluFold: what is folded, that numbers stay, what is left alone and why."""

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from tvm_ext.relay_passes.conv_bn_relu_fold import ConvBnReluFold
from tvm_ext.relay_passes.origin import origins_of, span_of
from tvm_ext.relay_passes.pass_log import PassDecision, recording

nn = relax.op.nn
Body = Callable[[relax.BlockBuilder, relax.Var], relax.Expr]
RNG = np.random.default_rng(7)


def rand(*shape: int, dtype: str = "float32") -> np.ndarray:
    return RNG.uniform(-1, 1, shape).astype(dtype)


def const(*shape: int, dtype: str = "float32") -> relax.Expr:
    return relax.const(rand(*shape, dtype=dtype))


def build(shape: tuple, body: Body, dtype: str = "float32") -> tvm.IRModule:
    """A module whose main(x) is ``body``, in one dataflow block."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(list(shape), dtype))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(body(builder, x))
        builder.emit_func_output(out)
    return builder.get()


def batch_norm(
    data: relax.Expr, channels: int, axis: int = 1, dtype: str = "float32", **options: float
) -> relax.Expr:
    """Batch normalisation for inference; TVM's default is training."""
    gamma, beta, mean = (const(channels, dtype=dtype) for _ in range(3))
    variance = relax.const((np.abs(rand(channels)) + 0.5).astype(dtype))
    return nn.batch_norm(data, gamma, beta, mean, variance, axis, training=False, **options)


def bn(builder: relax.BlockBuilder, data: relax.Expr, *args: int, **options: float) -> relax.Expr:
    return relax.TupleGetItem(builder.emit(batch_norm(data, *args, **options)), 0)


def op_names(mod: tvm.IRModule) -> list[str]:
    names = []
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            value = binding.value
            named = isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op)
            names.append(value.op.name.rsplit(".", 1)[-1] if named else type(value).__name__)
    return names


def fold(mod: tvm.IRModule) -> tuple[tvm.IRModule, list[PassDecision]]:
    """Folds, and checks what holds for every graph pass."""
    before = mod.script(show_meta=True)
    with recording() as log:
        new = ConvBnReluFold()(mod)
    assert mod.script(show_meta=True) == before
    relax.analysis.well_formed(new)
    assert ConvBnReluFold()(new).same_as(new)
    return new, log


def evaluate(mod: tvm.IRModule, *inputs: np.ndarray) -> np.ndarray:
    lowered = relax.transform.LegalizeOps()(relax.transform.DecomposeOpsForInference()(mod))
    machine = relax.VirtualMachine(tvm.compile(lowered, target="llvm"), tvm.cpu())
    return machine["main"](*[tvm.runtime.tensor(value) for value in inputs]).numpy()


def assert_same_numbers(mod: tvm.IRModule, new: tvm.IRModule, x: np.ndarray) -> None:
    expected = evaluate(mod, x)
    tolerance = 2e-2 if expected.dtype == np.float16 else 2e-5
    np.testing.assert_allclose(evaluate(new, x), expected, rtol=tolerance, atol=tolerance)


def assert_refused(mod: tvm.IRModule, reason: str) -> None:
    new, log = fold(mod)
    assert new.same_as(mod)
    assert [decision.applied for decision in log] == [False]
    assert reason in log[0].reason


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


@pytest.mark.parametrize("case", LINEAR_CASES)
def test_every_linear_operator_keeps_its_numbers(case: str) -> None:
    shape, body = LINEAR_CASES[case]
    mod = build(shape, body)
    new, log = fold(mod)
    assert [decision.applied for decision in log] == [True]
    assert op_names(new)[1:] == ["add", "relu"]
    assert_same_numbers(mod, new, rand(*shape))


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


def test_gemm_with_transposed_weight_and_bias() -> None:
    def body(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        weight = builder.emit(relax.op.permute_dims(const(7, 3)))
        product = builder.emit(relax.op.matmul(x, weight))
        return bn(builder, builder.emit(relax.op.add(product, const(7))), 7)

    mod = build((5, 3), body)
    new, _ = fold(mod)
    assert op_names(new) == ["matmul", "add"]
    assert_same_numbers(mod, new, rand(5, 3))


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


def test_chained_batch_norms() -> None:
    def body(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        value = builder.emit(nn.conv2d(x, const(4, 3, 1, 1)))
        value = builder.emit(bn(builder, value, 4, epsilon=1e-2))
        return bn(builder, value, 4, epsilon=1e-5, scale=False)

    mod = build((1, 3, 5, 7), body)
    new, _ = fold(mod)
    assert op_names(new) == ["conv2d", "add"]
    assert_same_numbers(mod, new, rand(1, 3, 5, 7))


def test_float16_with_batch_norm_in_float32() -> None:
    def body(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        conv = builder.emit(nn.conv2d(x, const(4, 3, 3, 3, dtype="float16")))
        wide = builder.emit(relax.op.astype(conv, "float32"))
        return relax.op.astype(builder.emit(bn(builder, wide, 4)), "float16")

    mod = build((1, 3, 5, 7), body, "float16")
    new, _ = fold(mod)
    assert op_names(new) == ["conv2d", "add"]
    assert new["main"].ret_ty.dtype == "float16"
    assert_same_numbers(mod, new, rand(1, 3, 5, 7, dtype="float16"))


def test_float16_epsilon_is_not_rounded_to_zero() -> None:
    weight = np.full((1, 1, 1, 1), 2.0**-10, "float16")
    parameters = [relax.const(np.full(1, value, "float16")) for value in (1, 0, 0, 0)]

    def body(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        conv = builder.emit(nn.conv2d(x, relax.const(weight)))
        normal = builder.emit(
            nn.batch_norm(conv, *parameters, axis=1, epsilon=2.0**-28, training=False)
        )
        return relax.TupleGetItem(normal, 0)

    new, _ = fold(build((1, 1, 1, 1), body, "float16"))
    folded = new["main"].body.blocks[0].bindings[0].value.args[1].value.numpy()
    assert folded.dtype == np.float16
    assert folded.item() == 2.0**4


def test_wider_result_than_weights() -> None:
    def body(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        weight = const(4, 3, 3, 3, dtype="float16")
        return bn(builder, builder.emit(nn.conv2d(x, weight, out_dtype="float32")), 4)

    new, _ = fold(build((1, 3, 5, 7), body, "float16"))
    conv, add = (binding.value for binding in new["main"].body.blocks[0].bindings)
    assert (conv.args[1].ty.dtype, add.args[1].ty.dtype) == ("float16", "float32")


def test_bfloat16() -> None:
    def body(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        conv = builder.emit(nn.conv2d(x, relax.const(rand(4, 3, 1, 1), "bfloat16")))
        return relax.op.multiply(conv, relax.const(rand(1, 4, 1, 1), "bfloat16"))

    new, _ = fold(build((1, 3, 5, 7), body, "bfloat16"))
    assert op_names(new) == ["conv2d"]
    assert new["main"].ret_ty.dtype == "bfloat16"


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


def test_only_a_bias_is_left_alone_without_a_word() -> None:
    def body(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        conv = builder.emit(nn.conv2d(x, const(4, 3, 1, 1)))
        return nn.relu(builder.emit(relax.op.add(conv, const(1, 4, 1, 1))))

    mod = build((1, 3, 5, 7), body)
    new, log = fold(mod)
    assert new.same_as(mod)
    assert log == []


def test_scale_that_needs_a_second_use_stays_beside_the_folded_part() -> None:
    def body(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        value = builder.emit(bn(builder, builder.emit(nn.conv2d(x, const(4, 3, 1, 1))), 4))
        return relax.op.add(builder.emit(relax.op.multiply(value, const(1, 4, 1, 1))), value)

    mod = build((1, 3, 5, 7), body)
    new, log = fold(mod)
    assert op_names(new) == ["conv2d", "add", "multiply", "add"]
    assert {decision.applied for decision in log} == {True, False}
    assert_same_numbers(mod, new, rand(1, 3, 5, 7))


def test_constant_along_another_axis_ends_the_run() -> None:
    def body(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        value = builder.emit(bn(builder, builder.emit(nn.conv2d(x, const(4, 3, 1, 1))), 4))
        return relax.op.add(value, const(1, 1, 1, 7))

    mod = build((1, 3, 5, 7), body)
    new, _ = fold(mod)
    assert op_names(new) == ["conv2d", "add", "add"]
    assert_same_numbers(mod, new, rand(1, 3, 5, 7))


def _used_after(index: int) -> Body:
    def body(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        values = [builder.emit(nn.conv2d(x, const(4, 3, 1, 1)))]
        values.append(builder.emit(relax.op.add(values[-1], const(1, 4, 1, 1))))
        values.append(builder.emit(bn(builder, values[-1], 4)))
        return relax.op.add(values[-1], builder.emit(nn.relu(values[index])))

    return body


def _statistics_used(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
    normal = builder.emit(batch_norm(builder.emit(nn.conv2d(x, const(4, 3, 1, 1))), 4))
    return relax.Tuple([relax.TupleGetItem(normal, 0), relax.TupleGetItem(normal, 1)])


def _with_parameters(variance: float = 1.0, gamma: float = 1.0, **options: float) -> Body:
    def body(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        values = [relax.const(np.full(4, v, "float32")) for v in (gamma, 0.0, 0.0, variance)]
        options.setdefault("training", False)
        conv = builder.emit(nn.conv2d(x, const(4, 3, 1, 1)))
        return relax.TupleGetItem(builder.emit(nn.batch_norm(conv, *values, **options)), 0)

    return body


def _scaled_by(constant: np.ndarray, weight_value: float = 1.0) -> Body:
    def body(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        weight = relax.const(np.full((4, 3, 1, 1), weight_value, constant.dtype))
        return relax.op.multiply(builder.emit(nn.conv2d(x, weight)), relax.const(constant))

    return body


def _run_time_weights(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
    return bn(builder, builder.emit(nn.conv2d(x, x)), 1)


def _run_time_gamma(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
    conv = builder.emit(nn.conv2d(x, const(1, 3, 1, 1)))
    gamma = builder.emit(relax.op.mean(x, axis=[1, 2, 3]))
    values = [relax.const(np.full(1, value, "float32")) for value in (0.0, 0.0, 1.0)]
    return relax.TupleGetItem(
        builder.emit(nn.batch_norm(conv, gamma, *values, axis=1, training=False)), 0
    )


def _float32_behind_float16(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
    half = builder.emit(relax.op.astype(x, "float16"))
    conv = builder.emit(nn.conv2d(half, const(4, 3, 1, 1, dtype="float16")))
    return bn(builder, builder.emit(relax.op.astype(conv, "float32")), 4)


def _on_axis(axis: int) -> Body:
    return lambda builder, x: bn(builder, builder.emit(nn.conv2d(x, const(7, 3, 1, 1))), 7, axis)


def _after_relu(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
    conv = builder.emit(nn.conv2d(x, const(4, 3, 1, 1)))
    return bn(builder, builder.emit(nn.relu(conv)), 4)


REFUSALS = {
    "convolution used twice": (_used_after(0), "used elsewhere"),
    "biased value used twice": (_used_after(1), "used elsewhere"),
    "statistics used": (_statistics_used, "more than the normalised value"),
    "training": (_with_parameters(axis=1, training=True), "training mode"),
    "negative variance": (_with_parameters(-1.0, axis=1), "not positive"),
    "infinite gamma": (_with_parameters(1.0, np.inf, axis=1), "not finite"),
    "run-time weights": (_run_time_weights, "weights of conv2d are not constant"),
    "run-time gamma": (_run_time_gamma, "gamma of batch_norm: not constant"),
    "wider result": (_float32_behind_float16, "expected the same type at both ends"),
    "other axis": (_on_axis(3), "expected one value per output channel"),
    "after relu": (_after_relu, "the result of relu"),
    "input": (lambda builder, x: bn(builder, x, 3), "an input of the function"),
    "nan weights": (_scaled_by(np.full((4, 1, 1), 2.0, "float32"), np.nan), "not finite"),
    "division by zero": (_with_parameters(0.0, axis=1, epsilon=0.0), "not positive"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refuses_with_a_reason(case: str) -> None:
    body, reason = REFUSALS[case]
    shape = (1, 3, 7, 7)
    assert_refused(build(shape, body), reason)


@pytest.mark.parametrize(
    ("factor", "reason"), [(60000.0, "not finite in float16"), (6e-8, "too small for float16")]
)
def test_refuses_what_float16_weights_cannot_hold(factor: float, reason: str) -> None:
    constant = np.full((4, 1, 1), factor, "float16")
    mod = build((1, 3, 5, 7), _scaled_by(constant, 100.0 if factor > 1 else 1.0), "float16")
    assert_refused(mod, reason)


def test_integers_are_left_alone() -> None:
    mod = build((1, 3, 5, 7), _scaled_by(np.full((4, 1, 1), 2, "int32")), "int32")
    new, _ = fold(mod)
    assert new.same_as(mod)


def test_does_not_pull_values_out_of_their_dataflow_block() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([1, 3, 5, 7], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            inner = builder.emit(nn.relu(x))
            conv = builder.emit_output(nn.conv2d(inner, const(4, 3, 1, 1)))
        between = builder.emit(nn.relu(x))
        with builder.dataflow():
            out = builder.emit_output(bn(builder, conv, 4))
        builder.emit_func_output(relax.Tuple([out, between]))
    assert_refused(builder.get(), "another dataflow block")
