"""AlgebraicSimplification: chains of rules, what it leaves alone, symbolic sizes, fast_math."""

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from tvm_ext.relay_passes.algebraic_simplification import AlgebraicSimplification
from tvm_ext.relay_passes.graph_pass import recording
from tvm_ext.relay_passes.spans import bindings_of, origins_of, write_origins

op = relax.op
Emit = Callable[[relax.Expr], relax.Var]
N = tvm.tirx.Var("n", "int64")


def number(value: float, dtype: str = "float32") -> relax.Expr:
    return relax.const(np.asarray(value, dtype))


def build(
    body: Callable[..., list[relax.Expr]], *shapes: list, dtype: str = "float32"
) -> tvm.IRModule:
    """A function of tensors of these shapes whose results are those of ``body``."""
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", relax.TensorType(s, dtype)) for i, s in enumerate(shapes)]
    with builder.function("main", params):
        with builder.dataflow():
            results = [builder.emit_output(one) for one in body(builder.emit, *params)]
        builder.emit_func_output(results[0] if len(results) == 1 else relax.Tuple(results))
    return builder.get()


def simplified(mod: tvm.IRModule, fast_math: bool = False) -> list[str]:
    """The operators that are left; checks what holds for every graph pass."""
    text, make = mod.script(show_meta=True), AlgebraicSimplification(fast_math=fast_math)
    new = make(mod)
    assert mod.script(show_meta=True) == text
    relax.analysis.well_formed(new)
    assert make(new).same_as(new)
    tvm.ir.assert_structural_equal(new["main"].ret_ty, mod["main"].ret_ty, map_free_vars=True)
    calls = [one.value for one in bindings_of(new["main"]) if isinstance(one.value, relax.Call)]
    return [str(call.op.name).removeprefix("relax.") for call in calls]


def test_a_rule_may_open_the_next_one() -> None:
    def body(emit: Emit, x: relax.Var) -> list[relax.Expr]:
        y = emit(op.permute_dims(x, [1, 0]))
        y = emit(op.multiply(y, number(1)))
        y = emit(op.nn.relu(y))
        y = emit(op.permute_dims(emit(op.add(y, number(-0.0))), [1, 0]))
        y = emit(op.reshape(emit(op.expand_dims(y, 0)), [24]))
        return [emit(op.reshape(y, [4, 6]))]

    assert simplified(build(body, [4, 6])) == ["nn.relu"]


def test_a_long_chain_of_constants_becomes_one() -> None:
    def body(emit: Emit, x: relax.Var) -> list[relax.Expr]:
        for value in range(1, 13):
            x = emit(op.add(x, number(value)))
        return [x]

    assert simplified(build(body, [4])) == ["add"]


def test_a_chain_of_bounds_becomes_two_as_importers_write_clip() -> None:
    def body(emit: Emit, x: relax.Var) -> list[relax.Expr]:
        for low, high in ((-3, 5), (0, 6), (-1, 4)):
            x = emit(op.minimum(number(high), emit(op.maximum(number(low), x))))
        return [x]

    assert sorted(simplified(build(body, [4]))) == ["maximum", "minimum"]


def test_what_has_other_readers_is_not_computed_twice() -> None:
    def body(emit: Emit, x: relax.Var) -> list[relax.Expr]:
        first = emit(op.multiply(x, number(2)))
        return [emit(op.multiply(first, number(3))), first]

    assert simplified(build(body, [4])) == ["multiply", "multiply"]


@pytest.mark.parametrize("step", [op.round, op.floor, lambda x: op.astype(x, "int8")])
def test_rounding_stays_in_front_of_steps(step: Callable[[relax.Expr], relax.Expr]) -> None:
    """A quantisation that is written out: a last place decides between two integers."""

    def body(emit: Emit, x: relax.Var) -> list[relax.Expr]:
        return [emit(step(emit(op.divide(x, number(0.3)))))]

    assert "divide" in simplified(build(body, [4]))


def test_rounding_stays_in_front_of_what_leads_to_steps() -> None:
    """A step size that the run decides, as DynamicQuantizeLinear has."""

    def body(emit: Emit, x: relax.Var) -> list[relax.Expr]:
        step = emit(op.divide(emit(op.max(x)), number(255)))
        return [emit(op.round(emit(op.divide(x, step)))), emit(op.divide(x, number(255)))]

    assert sorted(simplified(build(body, [4]))) == ["divide", "divide", "max", "multiply", "round"]


def test_division_by_a_power_of_two_is_exact_there_too() -> None:
    def body(emit: Emit, x: relax.Var) -> list[relax.Expr]:
        return [emit(op.round(emit(op.divide(x, number(0.25)))))]

    assert simplified(build(body, [4])) == ["multiply", "round"]


def test_an_operand_that_broadcasts_its_neutral_partner_stays() -> None:
    def body(emit: Emit, x: relax.Var) -> list[relax.Expr]:
        return [emit(op.multiply(x, relax.const(np.ones((4, 1), np.float32))))]

    assert simplified(build(body, [6])) == ["multiply"]


def test_symbolic_sizes_are_compared_by_what_they_are() -> None:
    def body(emit: Emit, x: relax.Var) -> list[relax.Expr]:
        y = emit(op.reshape(x, [N * 4]))
        same = emit(op.reshape(emit(op.nn.relu(y)), [N, 4]))
        return [same, emit(op.reshape(emit(op.tanh(x)), [4, N])), emit(op.broadcast_to(x, [N, 4]))]

    assert sorted(simplified(build(body, [N, 4]))) == ["nn.relu", "reshape", "tanh"]


def test_unknown_shapes_are_left_alone() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(None, "float32", ndim=2))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(builder.emit(op.multiply(x, number(1))))
        builder.emit_func_output(y)

    assert simplified(builder.get()) == ["multiply"]


def test_only_fast_math_takes_finite_numbers_for_granted() -> None:
    def body(emit: Emit, x: relax.Var) -> list[relax.Expr]:
        return [emit(op.tanh(emit(op.add(x, number(0.0)))))]

    mod = build(body, [4])
    assert simplified(mod) == ["add", "tanh"]
    assert simplified(mod, fast_math=True) == ["tanh"]


def test_origins_of_all_operators_stay() -> None:
    def body(emit: Emit, x: relax.Var) -> list[relax.Expr]:
        return [op.permute_dims(emit(op.nn.relu(emit(op.permute_dims(x)))))]

    mod = build(body, [4, 6])
    names = ("Transpose_0", "Relu_1", "Transpose_2")
    bound = [one.var for one in bindings_of(mod["main"]) if isinstance(one.value, relax.Call)]
    mod = write_origins(mod, {var: (name,) for var, name in zip(bound, names, strict=True)})
    with recording() as log:
        new = AlgebraicSimplification()(mod)

    assert [entry.where for entry in log] == [" + ".join(names)]
    assert [origins_of(one.var) for one in bindings_of(new["main"])] == [names]


@I.ir_module
class Branches:
    @R.function
    def main(x: R.Tensor((4, 6), "float32"), flag: R.Tensor((), "bool")):
        with R.dataflow():
            a = R.permute_dims(x)
            R.output(a)
        if flag:
            b = R.nn.relu(a)
            c = R.permute_dims(b)
            r = c
        else:
            d = R.permute_dims(a)
            e = R.tanh(d)
            r = e
        return r


def test_rules_reach_into_branches() -> None:
    assert sorted(simplified(Branches)) == ["nn.relu", "tanh"]
