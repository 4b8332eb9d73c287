"""ConvBnReluFold: what it leaves alone, whole or in part, and why."""

import numpy as np
import pytest
from fold_modules import (
    Body,
    assert_refused,
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
from tvm import relax


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
