"""LastPositionOnly: what is computed of the last position alone, and what is left alone."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from conv_modules import run
from tvm import relax, tirx
from unoptimised import HOST

from tvm_ext.hardware.targets import compiling_for
from tvm_ext.relay_passes.expressions import operator_name
from tvm_ext.relay_passes.graph_pass import recording
from tvm_ext.relay_passes.last_position_only import LastPositionOnly, last_positions
from tvm_ext.relay_passes.spans import bindings_of

op = relax.op
BATCH, LENGTH = (tirx.Var(name, "int64") for name in ("batch", "length"))
NUMBERS = np.random.default_rng(0)
WEIGHTS, BIAS = (
    relax.const(NUMBERS.standard_normal(shape, dtype=np.float32)) for shape in ((8, 5), (5,))
)


def module(body: Callable[..., relax.Expr], length: Any = LENGTH) -> tvm.IRModule:
    """``main(x)``, which returns what ``body`` makes of ``x``, and ``x`` doubled."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([BATCH, length, 8], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            doubled = builder.emit(op.add(x, x))
            fields = [body(builder.emit, doubled), doubled]
            outputs = builder.emit_output(relax.Tuple(fields))
        builder.emit_func_output(outputs)
    return builder.get()


def narrowed(mod: tvm.IRModule, outputs: Any = ((0, 1),)) -> tuple[tvm.IRModule, list[str]]:
    """The module after the pass, and why it left outputs alone."""
    with compiling_for(HOST), recording() as decisions:
        after = LastPositionOnly(outputs=outputs)(mod)
        # A second run changes nothing.
        assert LastPositionOnly(outputs=outputs)(after).same_as(after)
        after = relax.transform.DeadCodeElimination()(after)
        relax.analysis.well_formed(after)
    return after, [one.reason for one in decisions if not one.applied]


def operators(mod: tvm.IRModule) -> list[str]:
    names = [operator_name(binding.value) for binding in bindings_of(mod["main"])]
    return [name.removeprefix("relax.") for name in names if name]


def with_bias(emit: Any, x: relax.Expr) -> relax.Expr:
    return emit(op.add(emit(op.matmul(emit(op.exp(x)), WEIGHTS)), BIAS))


def capped(emit: Any, x: relax.Expr) -> relax.Expr:
    scaled = emit(op.divide(emit(op.matmul(x, WEIGHTS)), relax.const(np.float32(30))))
    return emit(op.multiply(emit(op.tanh(scaled)), relax.const(np.float32(30))))


def quantised(emit: Any, x: relax.Expr) -> relax.Expr:
    """One scale for all positions, of which the largest decides."""
    scale = emit(op.divide(emit(op.max(emit(op.abs(x)))), relax.const(np.float32(127))))
    steps = emit(op.astype(emit(op.round(emit(op.divide(x, scale)))), "int8"))
    sums = emit(op.matmul(emit(op.astype(steps, "float32")), WEIGHTS))
    return emit(op.multiply(sums, scale))


@pytest.mark.extended
@pytest.mark.parametrize("body", [with_bias, capped, quantised])
@pytest.mark.parametrize("length", [LENGTH, 3], ids=str)
def test_the_last_position_has_the_same_numbers(body: Any, length: Any) -> None:
    before = module(body, length)
    after, refused = narrowed(before)
    assert refused == []
    assert last_positions(after) == [(0, 1)]
    found = operators(after)
    assert found.index("call_tir") < found.index("matmul")
    assert found.count("matmul") == 1
    x = NUMBERS.standard_normal((2, 3, 8), dtype=np.float32)
    ours, theirs = (run(mod, x) for mod in (after, before))
    assert ours[0].shape == (2, 1, 5)
    np.testing.assert_array_equal(ours[0], theirs[0][:, -1:])
    np.testing.assert_array_equal(ours[1], theirs[1])


def no_product(emit: Any, x: relax.Expr) -> relax.Expr:
    return emit(op.exp(x))


def summed(emit: Any, x: relax.Expr) -> relax.Expr:
    return emit(op.nn.softmax(emit(op.matmul(x, WEIGHTS)), 1))


def with_its_operand(emit: Any, x: relax.Expr) -> relax.Expr:
    return emit(op.add(emit(op.matmul(x, relax.const(np.eye(8, dtype="float32")))), x))


@pytest.mark.parametrize("body", [no_product, summed, with_its_operand])
def test_what_is_no_product_of_rows_stays(body: Any) -> None:
    before = module(body)
    with compiling_for(HOST), recording() as decisions:
        assert LastPositionOnly(outputs=((0, 1),))(before).same_as(before)
    assert [one.reason for one in decisions] == ["no product makes it, row by row"]


def test_one_position_stays_and_without_outputs_nothing_happens() -> None:
    before = module(with_bias, 1)
    with compiling_for(HOST), recording() as decisions:
        assert LastPositionOnly(outputs=((0, 1),))(before).same_as(before)
        assert LastPositionOnly()(module(with_bias)) is not None
    assert [one.reason for one in decisions] == ["it has one element along the axis"]
    assert last_positions(LastPositionOnly()(before)) == []
