"""BindingRewriter: replaces what a pass asks for, keeps origins, refuses what cannot be done."""

import pytest
import tvm
from tvm import relax

from tvm_ext.relay_passes.binding_rewriter import (
    MAX_ROUNDS,
    BindingRewriter,
    GraphView,
    Replacement,
)
from tvm_ext.relay_passes.graph_pass import recording
from tvm_ext.relay_passes.propagate_spans import PropagateSpans
from tvm_ext.relay_passes.spans import bindings_of, origins_of, write_origins

op = relax.op
TYPE = relax.TensorType([2, 3], "float32")


class DropAbsOfExp(BindingRewriter):
    """abs(exp(x)) is exp(x)."""

    pass_name = "DropAbsOfExp"

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        outer = self.view.call(value, "relax.abs")
        inner = None if outer is None else self.view.call(outer.args[0], "relax.exp")
        if outer is None or inner is None:
            return None
        if self.view.uses(outer.args[0]) > 1:
            self.refuse("the exp has another reader", outer.args[0], var)
            return None
        return Replacement(inner, (outer.args[0],), "dropped the abs of an exp")


class NegTwiceAsNested(BindingRewriter):
    """tanh(x) becomes negative(tanh(negative(x))): nested calls, nothing absorbed."""

    pass_name = "NegTwiceAsNested"
    done = False

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        call = self.view.call(value, "relax.tanh")
        if call is None or self.done:
            return None
        self.done = True
        return Replacement(op.negative(op.tanh(op.negative(call.args[0]))), (), "negated twice")


class Endless(BindingRewriter):
    """exp(x) becomes abs(exp(x)) for ever: an exp is left each time."""

    pass_name = "Endless"
    rounds = 0

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        call = self.view.call(value, "relax.exp")
        if call is None:
            return None
        self.rounds += 1
        return Replacement(op.abs(op.exp(call.args[0])), (), "added an abs")


class BoundOnce(BindingRewriter):
    """exp(x) becomes a bound negative, and asks how often for each binding."""

    pass_name = "BoundOnce"
    roots = frozenset({"relax.exp"})

    def __init__(self) -> None:
        self.asked: list[str] = []

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        self.asked.append(str(var.name))
        inner = self.bind(op.negative(value.args[0]), var)
        return Replacement(op.abs(inner), (), "abs of the negative")


def chain(*operators, dataflow: bool = True) -> tvm.IRModule:
    """x -> first -> second -> ...; bindings are called after their operator."""
    builder = relax.BlockBuilder()
    value = relax.Var("x", TYPE)
    with builder.function("main", [value]):
        if dataflow:
            with builder.dataflow():
                for operator in operators[:-1]:
                    value = builder.emit(operator(value))
                value = builder.emit_output(operators[-1](value))
        else:
            for operator in operators:
                value = builder.emit(operator(value))
        builder.emit_func_output(value)
    mod = builder.get()
    return write_origins(mod, {b.var: (node(b),) for b in bindings_of(mod["main"])})


def node(binding: relax.VarBinding) -> str:
    return binding.value.op.name.removeprefix("relax.")


def program(mod: tvm.IRModule) -> list[tuple[str, tuple[str, ...]]]:
    return [(node(b), origins_of(b.var)) for b in bindings_of(mod["main"])]


def run(rewriter: BindingRewriter, mod: tvm.IRModule):
    text = mod.script()
    with recording() as log:
        new = rewriter.run(mod)
    assert mod.script() == text
    relax.analysis.well_formed(new)
    return new, [(d.applied, d.where, d.reason) for d in log]


@pytest.mark.parametrize("dataflow", [True, False])
def test_what_is_absorbed_gives_its_origin_and_goes(dataflow):
    new, log = run(DropAbsOfExp(), chain(op.tanh, op.exp, op.abs, op.negative, dataflow=dataflow))
    assert program(new) == [
        ("tanh", ("tanh",)),
        ("exp", ("exp", "abs")),
        ("negative", ("negative",)),
    ]
    assert log == [(True, "exp + abs", "dropped the abs of an exp")]


def test_nothing_to_do_returns_the_module_itself():
    mod = chain(op.tanh, op.exp)
    new, log = run(DropAbsOfExp(), mod)
    assert new.same_as(mod)
    assert log == []


def test_one_rewrite_may_open_the_next():
    new, log = run(DropAbsOfExp(), chain(op.exp, op.abs, op.abs, op.abs))
    assert program(new) == [("exp", ("exp", "abs"))]
    assert log == [(True, "exp + abs", "dropped the abs of an exp")]


def test_a_second_reader_is_refused_with_both_places():
    builder = relax.BlockBuilder()
    x = relax.Var("x", TYPE)
    with builder.function("main", [x]):
        with builder.dataflow():
            e = builder.emit(op.exp(x))
            out = builder.emit_output(op.add(builder.emit(op.abs(e)), e))
        builder.emit_func_output(out)
    mod = builder.get()
    mod = write_origins(mod, {b.var: (node(b),) for b in bindings_of(mod["main"])})
    new, log = run(DropAbsOfExp(), mod)
    assert new.same_as(mod)
    assert log == [(False, "exp + abs", "the exp has another reader")]


def test_calls_nested_in_a_replacement_get_its_origin():
    new, _ = run(NegTwiceAsNested(), chain(op.exp, op.tanh))
    assert program(new) == [
        ("exp", ("exp",)),
        ("negative", ("tanh",)),
        ("tanh", ("tanh",)),
        ("negative", ("tanh",)),
    ]


@pytest.mark.parametrize("dataflow", [True, False])
def test_a_pass_is_asked_once_for_each_binding_although_it_binds(dataflow):
    rewriter = BoundOnce()
    after = rewriter.run(chain(op.tanh, op.exp, op.exp, dataflow=dataflow))
    assert len(rewriter.asked) == 2
    names = [str(one.value.op.name).removeprefix("relax.") for one in bindings_of(after["main"])]
    assert names == ["tanh", "negative", "abs", "negative", "abs"]
    assert relax.analysis.check_well_formed(after)


def test_a_pass_that_never_ends_is_stopped():
    rewriter = Endless()
    new, _ = run(rewriter, chain(op.tanh, op.exp))
    assert rewriter.rounds == MAX_ROUNDS
    assert len(program(new)) == MAX_ROUNDS + 2


def test_a_value_of_another_dataflow_block_is_refused():
    """The exp stays inside its block: what reads its output cannot be built on its inside."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", TYPE)
    with builder.function("main", [x]):
        with builder.dataflow():
            t = builder.emit(op.tanh(x))
            e = builder.emit_output(op.exp(t))
        builder.emit(op.negative(x))  # blocks that touch would become one
        with builder.dataflow():
            out = builder.emit_output(op.abs(e))
        builder.emit_func_output(out)
    new, log = run(DropAbsOfExp(), PropagateSpans()(builder.get()))
    assert [d[0] for d in log] == [False]
    assert log[0][2] == "needs a value from inside another dataflow block"
    assert [name for name, _ in program(new)] == ["tanh", "exp", "negative", "abs"]


def test_every_function_of_a_module_is_rewritten_and_the_rest_stays():
    first, second = chain(op.exp, op.abs), chain(op.tanh, op.exp, op.abs)
    untouched = chain(op.tanh)
    mod = tvm.IRModule(
        {
            name: m["main"].with_attr("global_symbol", name)
            for name, m in {"main": first, "other": second, "third": untouched}.items()
        }
    )
    new, log = run(DropAbsOfExp(), mod)
    assert [len(bindings_of(new[name])) for name in ("main", "other", "third")] == [1, 2, 1]
    tvm.ir.assert_structural_equal(new["third"], mod["third"])
    assert [where for _, where, _ in log] == ["exp + abs"]  # the same words are noted once


def branching() -> tvm.IRModule:
    """y = if flag: abs(exp(x)) else: exp(x)."""
    builder = relax.BlockBuilder()
    x, flag = relax.Var("x", TYPE), relax.Var("flag", relax.TensorType([], "bool"))
    with builder.function("main", [x, flag]):
        branches = [relax.SeqExpr([], e) for e in (op.abs(op.exp(x)), op.exp(x))]
        builder.emit_func_output(builder.emit(relax.If(flag, *branches)))
    return builder.get()


def test_branches_are_rewritten():
    new, log = run(DropAbsOfExp(), branching())
    calls = [b.value for b in bindings_of(new["main"]) if isinstance(b.value, relax.Call)]
    assert [call.op.name for call in calls] == ["relax.exp", "relax.exp"]
    assert len(log) == 1


def view_of(build) -> tuple[GraphView, dict[str, relax.Var]]:
    """A view of ``build(builder, x, flag)``, and the variables by name."""
    builder = relax.BlockBuilder()
    x, flag = relax.Var("x", TYPE), relax.Var("flag", relax.TensorType([], "bool"))
    with builder.function("main", [x, flag]):
        builder.emit_func_output(build(builder, x, flag))
    main = builder.get()["main"]
    found = {v.name: v for v in relax.analysis.all_vars(main)}
    return GraphView(main), found


def test_uses_count_operands_fields_conditions_results_and_aliases():
    def build(builder, x, flag):
        a = builder.emit(op.exp(x), "a")
        b = builder.emit(op.add(a, a), "b")
        c = builder.emit(relax.Tuple([a, b]), "c")
        builder.emit(relax.TupleGetItem(c, 0), "d")
        builder.emit(b, "alias")
        builder.match_cast(b, TYPE)
        r = builder.emit(relax.If(flag, relax.SeqExpr([], x), relax.SeqExpr([], a)), "r")
        return r

    view, found = view_of(build)
    uses = {name: view.uses(var) for name, var in found.items()}
    assert uses["a"] >= 4
    assert uses["b"] == 3
    assert uses["c"] == 1
    assert uses["d"] == 0
    assert uses["flag"] == 1
    assert uses["r"] == 1
    assert uses["x"] == 2


def test_values_are_found_through_aliases_and_parameters_are_their_own():
    def build(builder, x, flag):
        a = builder.emit(op.exp(x), "a")
        b = builder.emit(a, "b")
        return builder.emit(b, "c")

    view, found = view_of(build)
    assert view.value(found["c"]).op.name == "relax.exp"
    assert view.value(found["x"]).same_as(found["x"])
    assert view.call(found["c"], "relax.tanh", "relax.exp") is not None
    assert view.call(found["c"], "relax.tanh") is None
    assert view.call(found["x"], "relax.exp") is None
