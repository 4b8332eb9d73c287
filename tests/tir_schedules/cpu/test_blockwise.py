"""The generic schedule: normalisations, reductions along rows, symbolic extents."""

import math
from functools import partial

import pytest
from cpu_kernels import scheduled
from decision_cases import knobs_of
from kernel_cases import REDUCTIONS
from lowering import f32, kernel_of, kernels_of, loops_of
from machines import MACHINE
from tvm import relax, te, tirx
from tvm.relax.op import nn

from tvm_ext.tir_schedules.cpu.blockwise import Blockwise

op = relax.op
applied = partial(scheduled, Blockwise())


def kinds(func: tirx.PrimFunc) -> list[tuple[str, int | None]]:
    return [(loop.kind, loop.extent) for loop in loops_of(func)]


def test_rows_are_reduced_in_the_lanes_of_vectors() -> None:
    func = kernel_of(lambda x: op.sum(x, axis=[1]), f32(4096, 512))
    before = func.script()
    found = applied(func)
    assert func.script() == before
    top = [loop for loop in loops_of(found) if not loop.path]
    assert (top[0].kind, top[0].extent) == ("parallel", 4096)
    assert ("vectorized", 64) in kinds(found)
    vectors = [loop for loop in loops_of(found) if loop.kind == "vectorized"]
    assert vectors[-1].path == ("parallel", "serial") or vectors[0].path == ("parallel",)


def test_a_fallback_has_nothing_to_decide() -> None:
    func = kernel_of(lambda x: op.sum(x, axis=[1]), f32(4096, 512))
    assert knobs_of(Blockwise(), func, MACHINE) == {}


def test_tiny_rows_stay_on_one_thread() -> None:
    func = kernel_of(lambda x: op.sum(x, axis=[1]), f32(3, 64))
    assert "parallel" not in [kind for kind, _ in kinds(applied(func))]


def test_columns_are_reduced_each_in_its_lane() -> None:
    func = kernel_of(lambda x: nn.softmax(x, 0), f32(17, 64))
    vectors = [extent for kind, extent in kinds(applied(func)) if kind == "vectorized"]
    assert len(vectors) >= 4
    assert min(vectors) >= 16


def test_softmax_on_threads() -> None:
    found = applied(kernel_of(lambda x: nn.softmax(x, 1), f32(8192, 256)))
    top = [loop.kind for loop in loops_of(found) if not loop.path]
    assert set(top) == {"parallel"}


def test_results_of_extent_1_behind_the_last_loop() -> None:
    func = kernel_of(lambda x: op.max(x, axis=[1], keepdims=True), f32(3, 5, 32))
    found = applied(func)
    assert ("vectorized", 16) in kinds(found)


@pytest.mark.parametrize("rows", [3, 100_000])
def test_argmax_uses_threads_only_when_it_is_large(rows: int) -> None:
    func = kernel_of(lambda x: op.argmax(x, axis=1), f32(rows, 19))
    parallel = [kind for kind, _ in kinds(applied(func)) if kind == "parallel"]
    assert bool(parallel) == (rows > 3)


def test_symbolic_batch() -> None:
    batch = tirx.Var("n", "int64")
    func = kernel_of(
        lambda x, w, b: nn.relu(op.add(op.matmul(x, w), b)),
        ((batch, 13), "float32"),
        f32(13, 32),
        f32(32),
    )
    found = applied(func)
    assert [loop.kind for loop in loops_of(found) if not loop.path] == ["parallel", "parallel"]
    assert [e for kind, e in kinds(found) if kind == "vectorized"] == [16, 16, 16]


def test_symbolic_only() -> None:
    size = tirx.Var("n", "int64")
    assert kinds(applied(kernel_of(op.exp, ((size,), "float32")))) == [("parallel", None)]
    one_core = applied(kernel_of(op.exp, ((size,), "float32")), MACHINE.with_cores(1))
    assert kinds(one_core) == [("serial", None)]


@pytest.mark.parametrize("name", ["layer norm", "instance norm", "softmax last", "log softmax"])
def test_every_reduction_has_vectors(name: str) -> None:
    for func in kernels_of(REDUCTIONS[name].expression, *REDUCTIONS[name].inputs).values():
        assert "vectorized" in [kind for kind, _ in kinds(applied(func))]


@pytest.mark.parametrize("identity", [math.inf, None])
def test_all_of_a_tensor_of_a_symbolic_size_is_reduced_in_vectors(identity) -> None:
    """From infinity as well, as models ask for it, of which TVM knows no identity."""

    def minimum(x: te.Tensor) -> te.Tensor:
        start = tirx.max_value("float32") if identity is None else tirx.const(identity, "float32")
        least = te.comm_reducer(lambda a, b: tirx.min(a, b), lambda dtype: start)
        axes = [te.reduce_axis((0, size)) for size in x.shape]
        return te.compute((), lambda: least(x(*axes), axis=axes), "least")

    x = te.placeholder((tirx.Var("n", "int64"), 3, 32), "float32", "x")
    func = te.create_prim_func([x, minimum(x)])
    found = applied(func)
    assert kinds(found).count(("vectorized", 32)) == 2
    starts = "inf" if identity else "3402823466"
    assert found.script().count(starts) == 2


def test_a_reduction_whose_start_tvm_does_not_know_keeps_its_loops() -> None:
    either = te.comm_reducer(lambda a, b: tirx.any(a, b), lambda dtype: tirx.const(False, dtype))
    x = te.placeholder((tirx.Var("n", "int64"), 64), "bool", "x")
    axes = [te.reduce_axis((0, size)) for size in x.shape]
    func = te.create_prim_func([x, te.compute((), lambda: either(x(*axes), axis=axes), "y")])
    assert kinds(applied(func)) == [("serial", None), ("serial", 64)]


def test_rows_of_a_matrix_that_the_run_chooses_are_reduced_in_vectors() -> None:
    """The outputs beside each other are in other rows: to gather them would be slow."""
    count = tirx.Var("n", "int64")
    rows = te.placeholder((count, 64), "float32", "rows")
    places = te.placeholder((count,), "int64", "places")
    weights = te.placeholder((8, 48, 64), "float32", "weights")
    inner = te.reduce_axis((0, 64))

    def product(row: tirx.Var, output: tirx.Var) -> tirx.Expr:
        return te.sum(rows[row, inner] * weights[places[row], output, inner], axis=inner)

    func = te.create_prim_func([rows, places, weights, te.compute((count, 48), product)])
    found = applied(func)
    assert [extent for kind, extent in kinds(found) if kind == "vectorized"] == [64, 64]
    assert [loop.kind for loop in loops_of(found) if not loop.path] == ["parallel"]
