"""Before and after IR, equal numbers, and what FoldConstantCalls leaves alone."""

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from conv_modules import operators, run
from tvm import relax, tirx
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.tirx import Var

from tvm_ext.relay_passes.cancel_transposes import CancelTransposes
from tvm_ext.relay_passes.fold_constant_calls import FoldConstantCalls
from tvm_ext.relay_passes.graph_pass import recording

Emit = Callable[[relax.Expr], relax.Var]
WEIGHT = np.arange(6, dtype="float32").reshape(2, 3)


def build(body: Callable[[Emit, relax.Var], list[relax.Expr]], *shape: object) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(list(shape or (4, 3)), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            outputs = [builder.emit_output(value) for value in body(builder.emit, x)]
        builder.emit_func_output(outputs[0] if len(outputs) == 1 else relax.Tuple(outputs))
    return builder.get()


def fold(mod: tvm.IRModule) -> tvm.IRModule:
    """Folds, and checks what holds for every graph pass."""
    before = mod.script(show_meta=True)
    new = FoldConstantCalls()(mod)
    assert mod.script(show_meta=True) == before
    relax.analysis.well_formed(new)
    assert FoldConstantCalls()(new).same_as(new)
    return new


def assert_same(mod: tvm.IRModule, new: tvm.IRModule, *shape: int) -> None:
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    for ours, plain in zip(run(new, x), run(mod, x), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-6)


def test_before_and_expected() -> None:
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((2, 2), "float32")):
            with R.dataflow():
                w = R.permute_dims(R.const([[1.0, 2.0], [3.0, 4.0]], "float32"))
                s = R.add(w, R.const(1.0, "float32"))
                y = R.matmul(x, s)
                R.output(y)
            return y

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((2, 2), "float32")):
            with R.dataflow():
                y = R.matmul(x, R.const([[2.0, 4.0], [3.0, 5.0]], "float32"))
                R.output(y)
            return y

    with recording() as log:
        new = fold(Before)
    tvm.ir.assert_structural_equal(new, Expected)
    assert [(entry.applied, entry.where) for entry in log] == [(True, "w"), (True, "s")]


def test_shape_from_a_tensor() -> None:
    def body(emit: Emit, x: relax.Var) -> list[relax.Expr]:
        shape = emit(relax.op.tensor_to_shape(relax.const(np.array([2, 6]), "int64")))
        return [relax.op.reshape(x, shape)]

    new = fold(build(body))
    assert operators(new) == ["reshape"]
    x = np.random.default_rng(1).normal(size=(4, 3)).astype("float32")
    np.testing.assert_array_equal(run(new, x)[0], x.reshape(2, 6))


@pytest.mark.extended
def test_constant_results() -> None:
    def body(emit: Emit, x: relax.Var) -> list[relax.Expr]:
        folded = emit(relax.op.exp(relax.const(WEIGHT)))
        return [folded, relax.op.add(x, relax.const(1.0)), folded]

    mod = build(body)
    new = fold(mod)
    assert operators(new) == ["add"]
    assert_same(mod, new, 4, 3)


@pytest.mark.extended
def test_part_of_a_computed_tuple() -> None:
    def body(emit: Emit, x: relax.Var) -> list[relax.Expr]:
        first = emit(relax.TupleGetItem(emit(relax.op.split(relax.const(WEIGHT), 2)), 0))
        return [relax.op.multiply(x, emit(relax.op.add(first, first)))]

    mod = build(body)
    new = fold(mod)
    live = relax.transform.DeadCodeElimination()(new)
    assert operators(live) == ["multiply"]
    assert_same(mod, new, 4, 3)


@pytest.mark.parametrize("rows", [4, 2000, Var("n", "int64")], ids=["small", "large", "symbolic"])
def test_what_depends_on_no_tensor(rows: object) -> None:
    """Zeros: few are a constant, many are cheaper to make than to store."""

    def body(emit: Emit, x: relax.Var) -> list[relax.Expr]:
        return [relax.op.add(x, emit(relax.op.zeros(x.ty.shape, "float32")))]

    mod = build(body, rows, 3)
    assert fold(mod).same_as(mod) is (rows != 4 if isinstance(rows, int) else True)


def test_what_depends_on_an_input() -> None:
    mod = build(lambda emit, x: [relax.op.add(emit(relax.op.exp(x)), relax.const(1.0))])
    assert fold(mod).same_as(mod)


@pytest.mark.extended
def test_outside_of_a_dataflow_block() -> None:
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((2,), "float32")):
            w = R.exp(R.const([1.0, 2.0], "float32"))
            return R.add(x, w)

    new = fold(Module)
    assert operators(new) == ["add"]
    assert_same(Module, new, 2)


@pytest.mark.extended
def test_kernels_are_built_once_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[set[str]] = []
    real = tirx.build

    def counting(mod: tvm.IRModule, **options: object) -> tvm.runtime.Executable:
        built.append({global_var.name_hint for global_var in mod.functions})
        return real(mod, **options)

    monkeypatch.setattr(tirx, "build", counting)

    def body(emit: Emit, x: relax.Var) -> list[relax.Expr]:
        x = emit(relax.op.exp(x))
        parts = [emit(relax.op.exp(relax.const(np.full(3, n, "float32")))) for n in range(5)]
        tall = emit(relax.op.concat([emit(relax.op.tanh(part)) for part in parts]))
        return [relax.op.matmul(x, emit(relax.op.reshape(tall, (3, 5))))]

    mod = build(body)
    new = fold(mod)
    assert built == [{"tir_exp", "tir_tanh", "concatenate", "reshape"}]
    assert operators(relax.transform.DeadCodeElimination()(new)) == ["exp", "matmul"]
    assert_same(mod, new, 4, 3)


def test_a_table_much_larger_than_what_it_comes_from() -> None:
    def body(emit: Emit, x: relax.Var) -> list[relax.Expr]:
        one = relax.const(np.ones((1, 3), "float32"))
        return [relax.op.add(x, emit(relax.op.broadcast_to(one, (1 << 21, 3))))]

    mod = build(body, 1 << 21, 3)
    assert fold(mod).same_as(mod)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64", "bool"])
def test_views_keep_type_and_rank(dtype: str) -> None:
    def body(emit: Emit, x: relax.Var) -> list[relax.Expr]:
        one = relax.const(np.ones(1).astype("float32"))
        cast = emit(relax.op.astype(one, dtype))
        return [relax.op.reshape(cast, ()), relax.op.exp(x)]

    scalar = fold(build(body))["main"].body.body.fields[0]
    assert (scalar.ty.ndim, str(scalar.ty.dtype)) == (0, dtype)


def test_transposed_scalar_keeps_its_rank() -> None:
    mod = build(lambda emit, x: [relax.op.add(x, emit(relax.op.permute_dims(relax.const(2.0))))])
    for step in (FoldConstantCalls(), CancelTransposes()):
        assert relax.transform.DeadCodeElimination()(step(mod))["main"].ret_ty.ndim == 2
        assert step(mod)["main"].body.blocks[0].bindings[-1].value.args[1].ty.ndim == 0


def test_arithmetic_builds_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(emit: Emit, x: relax.Var) -> list[relax.Expr]:
        variance = relax.const(np.array([0.3, 2.0, 7.5], "float32"))
        deviation = emit(relax.op.sqrt(emit(relax.op.add(variance, relax.const(1e-5, "float32")))))
        column = emit(relax.op.expand_dims(deviation, [0]))
        return [emit(relax.op.divide(x, emit(relax.op.negative(column))))]

    mod = build(body)
    monkeypatch.setattr(tirx, "build", None)
    new = fold(mod)
    monkeypatch.undo()
    assert operators(new) == ["divide"]
    assert_same(mod, new, 4, 3)


def test_arithmetic_of_rows_and_columns_is_left_to_the_rule_for_large_results() -> None:
    def body(emit: Emit, x: relax.Var) -> list[relax.Expr]:
        row = relax.const(np.ones((1, 3000), "float32"))
        column = relax.const(np.ones((3000, 1), "float32"))
        return [emit(relax.op.add(emit(relax.op.multiply(row, column)), x))]

    mod = build(body, 1, 1)
    assert operators(fold(mod)) == ["multiply", "add"]


def test_scattered_constants_are_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    """TVM marks the statements of ScatterND, and warns of the mark."""
    table, places = np.zeros((4, 2), "float32"), np.array([[1], [3]], "int64")
    updates = np.ones((2, 2), "float32")

    def body(emit: Emit, x: relax.Var) -> list[relax.Expr]:
        constants = [relax.const(array) for array in (table, places, updates)]
        return [relax.op.add(x, emit(relax.op.scatter_nd(*constants)))]

    new = fold(build(body, 4, 2))
    assert operators(new) == ["add"]
    assert "pragma" not in capfd.readouterr().err


@pytest.mark.extended
def test_kernels_of_constants_hand_nan_on_and_divide_by_zero() -> None:
    numbers = np.array([np.nan, 300, -5, 0], "float32")

    def body(emit: Emit, x: relax.Var) -> list[relax.Expr]:
        clipped = emit(relax.op.clip(relax.const(numbers), 0, 255))
        endless = emit(relax.op.divide(emit(relax.op.tanh(clipped)), relax.const(0, "float32")))
        return [emit(relax.op.add(x, clipped)), emit(relax.op.add(x, endless))]

    new = fold(build(body, 4))
    assert operators(new) == ["add", "add"]
    clipped, endless = run(new, np.zeros(4, "float32"))
    np.testing.assert_array_equal(clipped, np.array([np.nan, 255, 0, 0], "float32"))
    np.testing.assert_array_equal(endless, np.array([np.nan, np.inf, np.nan, np.nan], "float32"))
