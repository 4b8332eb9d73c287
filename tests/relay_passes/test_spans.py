"""Origins on variables: written, read back, merged, and kept by TVM's passes."""

import pytest
import tvm
from tvm import relax
from tvm.ir.base import SequentialSpan, Span

from tvm_ext.relay_passes.spans import (
    bindings_of,
    describe_origin,
    origins_of,
    retyped_var,
    span_of,
    write_origins,
)

TYPE = relax.TensorType([2, 3], "float32")

ODD_NAMES = [
    "Conv_1",
    "layer 1",
    "/model/layer.0/Conv",
    "Schicht·größe/卷积",
    "a + b",
    'quote"d \\ back',
    "line\nbreak",
]


def var(*names: str) -> relax.Var:
    return relax.Var("v", TYPE, span_of(names))


@pytest.mark.parametrize("name", ODD_NAMES)
def test_any_name_comes_back_as_it_was(name):
    assert origins_of(var(name)) == (name,)
    assert origins_of(var(name, "other")) == (name, "other")


def test_no_names_make_no_span():
    assert span_of([]) is None
    assert span_of(["", ""]) is None
    assert origins_of(var()) == ()


def test_one_name_is_a_plain_span_and_several_are_a_sequence():
    assert isinstance(span_of(["a"]), Span)
    assert isinstance(span_of(["a", "b"]), SequentialSpan)


def test_names_keep_their_order_and_come_once():
    assert origins_of(var("c", "a", "c", "b", "a")) == ("c", "a", "b")
    assert origins_of(var("b", "a"), var("c", "b")) == ("b", "a", "c")


def test_a_place_without_origin_is_described_by_its_variables():
    assert describe_origin(var("conv", "relu")) == "conv + relu"
    assert describe_origin(var()) == "v"
    assert describe_origin(var(), var("conv")) == "conv"


@pytest.mark.parametrize("kind", [relax.Var, relax.DataflowVar])
def test_a_retyped_variable_stays_of_its_kind(kind):
    old = kind("v", TYPE, span_of(["a"]))
    new = retyped_var(old, relax.TensorType([6], "float16"), ["b", "c"])
    assert type(new) is kind
    assert new.name == "v"
    assert new.ty == relax.TensorType([6], "float16")
    assert origins_of(new) == ("b", "c")


def test_names_survive_being_saved_and_read():
    saved = tvm.ir.save_json(var("a b", "größe"))
    assert origins_of(tvm.ir.load_json(saved)) == ("a b", "größe")


def branching() -> tvm.IRModule:
    """a = relu(x); r = if flag: exp(a) else: tanh(a); y = neg(r)."""
    builder = relax.BlockBuilder()
    x, flag = relax.Var("x", TYPE), relax.Var("flag", relax.TensorType([], "bool"))
    with builder.function("main", [x, flag]):
        a = builder.emit(relax.op.nn.relu(x), "a")
        branches = [relax.SeqExpr([], op(a)) for op in (relax.op.exp, relax.op.tanh)]
        r = builder.emit(relax.If(flag, *branches), "r")
        builder.emit_func_output(builder.emit(relax.op.negative(r), "y"))
    return builder.get()


def test_bindings_come_in_program_order_with_branches_ahead_of_their_if():
    mod = branching()
    values = [binding.value for binding in bindings_of(mod["main"])]
    names = [v.op.name.split(".")[-1] if isinstance(v, relax.Call) else v for v in values]
    assert [name for name in names if isinstance(name, str)] == ["relu", "exp", "tanh", "negative"]
    (position,) = [i for i, name in enumerate(names) if isinstance(name, relax.If)]
    assert names.index("tanh") < position < names.index("negative")


def test_bindings_of_functions_inside_functions_are_found():
    builder = relax.BlockBuilder()
    x, inner_x = relax.Var("x", TYPE), relax.Var("inner_x", TYPE)
    body = relax.SeqExpr([], relax.op.exp(inner_x))
    with builder.function("main", [x]):
        inner = builder.emit(relax.Function([inner_x], body, TYPE), "inner")
        builder.emit_func_output(builder.emit(relax.Call(inner, [x]), "y"))
    values = [binding.value for binding in bindings_of(builder.get()["main"])]
    assert [type(value) for value in values] == [relax.Call, relax.Function, relax.Call]


def test_writing_nothing_returns_the_module_itself():
    mod = branching()
    assert write_origins(mod, {}).same_as(mod)


def test_writing_reaches_branches_and_leaves_the_module_as_it_was():
    mod = branching()
    text = mod.script()
    wanted = {b.var: (f"node {i}",) for i, b in enumerate(bindings_of(mod["main"]))}
    new = write_origins(mod, wanted)
    assert all(not origins_of(b.var) for b in bindings_of(mod["main"]))
    assert mod.script() == text
    assert [origins_of(b.var) for b in bindings_of(new["main"])] == list(wanted.values())
    tvm.ir.assert_structural_equal(new, mod)
    relax.analysis.well_formed(new)


def test_writing_keeps_other_origins_and_attributes():
    mod = write_origins(branching(), {})
    mod["main"] = mod["main"].with_attr("num_input", 2)
    first, *others = bindings_of(mod["main"])
    named = write_origins(mod, {first.var: ("first",)})
    again = write_origins(named, {bindings_of(named["main"])[-1].var: ("last",)})
    found = [origins_of(b.var) for b in bindings_of(again["main"])]
    assert found[0] == ("first",)
    assert found[-1] == ("last",)
    assert found[1:-1] == [()] * (len(others) - 1)
    assert again["main"].attrs["num_input"] == 2
