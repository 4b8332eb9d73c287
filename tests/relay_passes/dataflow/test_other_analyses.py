"""Liveness, memory use, equal values, effects, and equal symbolic sizes."""

import numpy as np
from analysed_models import if_model, loop_model
from small_models import mlp, model, node, value
from tvm import relax, tirx
from tvm.script import ir as I
from tvm.script import relax as R

from tvm_ext.onnx_frontend import import_model
from tvm_ext.relay_passes.dataflow.liveness import live_ranges, needed
from tvm_ext.relay_passes.dataflow.memory_usage import memory_usage
from tvm_ext.relay_passes.dataflow.side_effects import (
    Effect,
    SideEffects,
    may_be_duplicated,
    may_be_moved,
    may_be_removed,
)
from tvm_ext.relay_passes.dataflow.symbolic_shapes import symbolic_shapes
from tvm_ext.relay_passes.dataflow.value_numbering import value_numbers
from tvm_ext.relay_passes.spans import all_bindings_of, bindings_of


@I.ir_module
class Diamond:
    @R.function(private=True)
    def both(x: R.Tensor((4,), "float32")) -> R.Tuple(
        R.Tensor((4,), "float32"), R.Tensor((4,), "float32")
    ):
        a = R.exp(x)
        b = R.abs(x)
        c = (a, b)
        return c

    @R.function
    def main(x: R.Tensor((4,), "float32"), y: R.Tensor((4,), "float32")) -> R.Tensor(
        (4,), "float32"
    ):
        cls = Diamond
        p = R.add(x, y)
        q = R.add(y, x)
        r = R.multiply(p, q)
        t = cls.both(r)
        u = t[0]
        unused = R.negative(u)  # noqa: F841
        return u


def variables(func):
    return {str(binding.var.name): binding.var for binding in all_bindings_of(func)}


def test_needed_looks_through_tuples_and_calls():
    found = needed(Diamond)
    main, both = variables(Diamond["main"]), variables(Diamond["both"])
    assert found.of(both["a"]) is True
    assert found.of(both["b"]) is None
    assert found.of(main["p"]) is True
    assert found.of(main["unused"]) is None


def test_needed_in_a_loop():
    mod = import_model(loop_model([node("Mul", ["a", "x"], ["b"])])).mod
    found = needed(mod)
    assert all(found.of(param) is True for param in mod["main"].params)


def test_a_field_keeps_its_tuple_alive():
    main = Diamond["main"]
    names, ranges = variables(main), live_ranges(main)
    assert ranges[hash(names["p"])].last == 2
    assert ranges[hash(names["t"])].last == len(names)
    assert ranges[hash(main.params[0])].first == -1


def test_memory_has_its_peak_where_most_is_alive():
    usage = memory_usage(Diamond)["main"]
    # x, y, p and q while q is computed; the two results of ``both`` are in it at its own peak.
    assert usage.after[:2] == (48, 64)
    assert usage.peak == max(usage.after)
    assert usage.is_complete


def test_memory_of_symbolic_sizes_is_a_formula():
    usage = memory_usage(import_model(mlp()).mod)["main"]
    assert "N" in usage.formula
    assert usage.peak > 0
    looping = memory_usage(import_model(loop_model([node("Abs", ["a"], ["b"])])).mod)
    assert not looping["main"].is_complete


def test_equal_values_have_one_number():
    names = variables(Diamond["main"])
    found = value_numbers(Diamond)
    assert found.equal(names["p"], names["q"])
    assert found.leader(names["q"]).same_as(names["p"])
    assert not found.equal(names["p"], names["r"])


def test_branches_do_not_share_values():
    @I.ir_module
    class Module:
        @R.function
        def main(c: R.Tensor((), "bool"), x: R.Tensor((4,), "float32")) -> R.Tensor(
            (4,), "float32"
        ):
            if c:
                a = R.exp(x)
                z = a
            else:
                b = R.exp(x)
                z = b
            return z

    names = variables(Module["main"])
    found = value_numbers(Module)
    assert found.leader(names["b"]).same_as(names["b"])
    assert not found.equal(names["a"], names["b"])


def test_effects():
    mod = import_model(loop_model([node("Abs", ["a"], ["b"])])).mod
    effects = SideEffects(mod)
    looping = effects.of_function(mod.get_global_var("main"))
    assert Effect.MAY_NOT_END in looping
    assert not may_be_moved(looping)
    pure = effects.of(bindings_of(mod["loop_iteration"])[0])
    assert may_be_removed(pure)
    assert may_be_moved(pure)
    assert may_be_duplicated(pure)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([4], "float32"))
    with builder.function("main", [x], pure=False):
        printed = builder.emit(relax.op.print(x, format="{}"))
        builder.emit_func_output(x)
    printing = SideEffects(builder.get())
    binding = next(b for b in bindings_of(builder.get()["main"]) if b.var.same_as(printed))
    assert not may_be_removed(printing.of(binding))
    assert not may_be_duplicated(printing.of(binding))


def test_functions_of_an_if_have_the_sizes_of_their_callers():
    mod = import_model(if_model("Relu", "Abs", "n")).mod
    shapes = symbolic_shapes(mod, {"n": (1, 16)})
    outside = mod["main"].params[0].ty
    branch = next(p for p in mod["choice_then"].params if isinstance(p.ty, relax.TensorType))
    assert shapes.same_shape(outside, branch.ty)
    assert shapes.bounds(branch.ty.shape.values[0]) == (1, 16)


def test_casts_and_products_make_sizes_equal():
    n, m, k = (tirx.Var(name, "int64") for name in "nmk")
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([n, m], "float32"))
    y = relax.Var("y", relax.TensorType([k, 3], "float32"))
    with builder.function("main", [x, y]):
        with builder.dataflow():
            product = builder.emit(relax.op.matmul(x, y))
            flat = builder.emit(relax.op.reshape(product, [n * 3]))
            result = builder.emit_output(flat)
        builder.emit_func_output(result)
    shapes = symbolic_shapes(builder.get())
    assert shapes.equal(m, k)
    assert not shapes.equal(n, m)
    assert shapes.equal(n * k, m * n)


def test_a_model_with_equal_names_keeps_other_sizes_apart():
    proto = model(
        [node("Add", ["x", "y"], ["z"])],
        [value("x", ["a", 3]), value("y", ["b", 3])],
        [value("z", None)],
        w=np.float32(1),
    )
    mod = import_model(proto).mod
    shapes = symbolic_shapes(mod)
    first, second = (param.ty.shape.values[0] for param in mod["main"].params)
    assert shapes.equal(first, first)
    assert shapes.equal(first, second) == first.same_as(second)
