"""PropagateSpans: bindings without an origin take the one of their neighbours."""

import tvm
from tvm import relax

from tvm_ext.relay_passes.propagate_spans import PropagateSpans
from tvm_ext.relay_passes.spans import bindings_of, origins_of, write_origins

TYPE = relax.TensorType([2, 3], "float32")
op = relax.op


def chain(*names: str) -> tvm.IRModule:
    """x -> exp -> tanh -> ...: one unary operator for each name; "" for no origin."""
    operators = (op.exp, op.tanh, op.negative, op.abs)
    builder = relax.BlockBuilder()
    value = relax.Var("x", TYPE)
    with builder.function("main", [value]):
        with builder.dataflow():
            for operator, _ in zip(operators, names, strict=False):
                value = builder.emit(operator(value))
            out = builder.emit_output(value)
        builder.emit_func_output(out)
    return name_bindings(builder.get(), *names, "")


def name_bindings(mod: tvm.IRModule, *names: str) -> tvm.IRModule:
    bindings = bindings_of(mod["main"])
    return write_origins(
        mod, {b.var: (name,) for b, name in zip(bindings, names, strict=True) if name}
    )


def origins(mod: tvm.IRModule) -> list[tuple[str, ...]]:
    return [origins_of(binding.var) for binding in bindings_of(mod["main"])]


def inherit(mod: tvm.IRModule) -> list[tuple[str, ...]]:
    text, named = mod.script(), origins(mod)
    new = PropagateSpans()(mod)
    assert (mod.script(), origins(mod)) == (text, named)
    relax.analysis.well_formed(new)
    tvm.ir.assert_structural_equal(new, mod)
    assert PropagateSpans()(new).same_as(new)
    return origins(new)


def test_a_binding_takes_the_origin_of_its_first_reader():
    assert inherit(chain("", "", "c", "d"))[:4] == [("c",), ("c",), ("c",), ("d",)]


def test_the_end_of_a_chain_takes_the_origin_of_what_it_reads():
    assert inherit(chain("a", "b", "", "")) == [("a",), ("b",), ("b",), ("b",), ("b",)]


def test_known_origins_are_left_alone():
    assert inherit(chain("a", "", "c"))[:3] == [("a",), ("c",), ("c",)]


def test_a_module_that_is_named_throughout_is_returned_itself():
    mod = PropagateSpans()(chain("a", "b"))
    assert PropagateSpans()(mod).same_as(mod)


def test_nothing_is_invented_where_nothing_is_known():
    mod = chain("", "")
    assert PropagateSpans()(mod).same_as(mod)


def test_merged_names_are_inherited_whole():
    mod = chain("", "b")
    (_, second, _) = bindings_of(mod["main"])
    mod = write_origins(mod, {second.var: ("conv", "relu")})
    assert inherit(mod)[0] == ("conv", "relu")


def test_of_several_readers_the_first_one_counts():
    builder = relax.BlockBuilder()
    x = relax.Var("x", TYPE)
    with builder.function("main", [x]):
        with builder.dataflow():
            shared = builder.emit(op.permute_dims(x))
            late = builder.emit(op.tanh(shared))
            later = builder.emit(op.exp(shared))
            out = builder.emit_output(op.add(late, later))
        builder.emit_func_output(out)
    mod = name_bindings(builder.get(), "", "tanh", "exp", "add")
    assert inherit(mod)[0] == ("tanh",)


def test_fields_of_a_tuple_take_the_origin_of_the_tuple():
    builder = relax.BlockBuilder()
    x = relax.Var("x", TYPE)
    with builder.function("main", [x]):
        with builder.dataflow():
            parts = builder.emit(op.split(x, 3, axis=1))
            fields = [builder.emit_output(relax.TupleGetItem(parts, i)) for i in range(3)]
        builder.emit_func_output(relax.Tuple(fields))
    mod = name_bindings(builder.get(), "split", "", "", "")
    assert inherit(mod) == [("split",)] * 4


def branching() -> tvm.IRModule:
    """a = relu(x); r = if flag: neg(exp(a)) else: tanh(a); y = abs(r)."""
    builder = relax.BlockBuilder()
    x, flag = relax.Var("x", TYPE), relax.Var("flag", relax.TensorType([], "bool"))
    with builder.function("main", [x, flag]):
        a = builder.emit(op.nn.relu(x))
        branches = [relax.SeqExpr([], e) for e in (op.negative(op.exp(a)), op.tanh(a))]
        r = builder.emit(relax.If(flag, *branches))
        builder.emit_func_output(builder.emit(op.abs(r)))
    return builder.get()


def test_bindings_inside_branches_belong_to_the_if():
    mod = branching()
    named = {b.var: ("choose",) for b in bindings_of(mod["main"]) if isinstance(b.value, relax.If)}
    last = bindings_of(mod["main"])[-1]
    mod = write_origins(mod, {**named, last.var: ("after",)})
    found = inherit(mod)
    assert found[0] == ("choose",)
    assert set(found[:-1]) == {("choose",)}
    assert found[-1] == ("after",)


def test_names_inside_branches_stay():
    mod = branching()
    bindings = bindings_of(mod["main"])
    (exp,) = [b for b in bindings if isinstance(b.value, relax.Call) and "exp" in b.value.op.name]
    mod = write_origins(mod, {exp.var: ("inside",), bindings[-1].var: ("after",)})
    found = dict(
        zip(
            (
                str(b.value.op.name) if isinstance(b.value, relax.Call) else ""
                for b in bindings_of(mod["main"])
            ),
            inherit(mod),
            strict=True,
        )
    )
    assert found["relax.exp"] == ("inside",)
    assert found["relax.nn.relu"] == ("inside",)
    assert found["relax.abs"] == ("after",)


def test_parameters_and_kernels_are_no_bindings():
    mod = relax.transform.LegalizeOps()(chain("a", ""))
    assert inherit(mod)[:2] == [("a",), ("a",)]
