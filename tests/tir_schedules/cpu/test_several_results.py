"""Kernels with several results, all of which one loop nest stores."""

import pytest
from cpu_kernels import check_vectors_and_threads, scheduled
from decision_cases import assert_defaults_give_the_default_schedule
from lowering import Kernels, loops_of
from machines import MACHINE
from tvm import te, tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.tir_schedules.cpu.elementwise import CpuElementwise
from tvm_ext.tir_schedules.cpu.several_results import several_results


def two_results(*shape: int, second=None, dtype: str = "float32") -> tirx.PrimFunc:
    """The sum and the product of two tensors."""
    x, y = (te.placeholder(shape, dtype, name) for name in "xy")
    total = te.compute(shape, lambda *i: x[i] + y[i], "total")
    other = second(x, y) if second else te.compute(shape, lambda *i: x[i] * y[i], "product")
    return te.create_prim_func([x, y, total, other])


def test_one_parallel_vectorised_nest_stores_both() -> None:
    found = scheduled(CpuElementwise(), two_results(256, 4096))
    assert [(loop.kind, loop.extent) for loop in loops_of(found)] == [
        ("parallel", 256 * 64),
        ("vectorized", 64),
    ]


def test_results_of_other_shapes_and_the_same_elements() -> None:
    def flat(x, y):
        return te.compute((64 * 100,), lambda i: x[i // 100, i % 100] * y[i // 100, i % 100])

    found = scheduled(CpuElementwise(), two_results(64, 100, second=flat), MACHINE.with_cores(1))
    assert [(loop.kind, loop.extent) for loop in loops_of(found)] == [
        ("serial", 100),
        ("vectorized", 64),
    ]


def test_a_row_that_one_result_reads_again_keeps_the_loops_of_rows() -> None:
    x, row = te.placeholder((64, 100), "float32", "x"), te.placeholder((100,), "float32", "row")
    added = te.compute((64, 100), lambda i, j: x[i, j] + row[j], "added")
    doubled = te.compute((64, 100), lambda i, j: x[i, j] * 2, "doubled")
    func = te.create_prim_func([x, row, added, doubled])
    found = scheduled(CpuElementwise(), func, MACHINE.with_cores(1))
    assert [loop.extent for loop in loops_of(found)] == [64, 7, 16]


def symbolic(name: str) -> tirx.PrimFunc:
    return two_results(tirx.Var(name, "int64"), tirx.const(33, "int64"))


@pytest.mark.parametrize("extent", [1, 3, 17, 33, 1000])
def test_numbers(extent: int) -> None:
    plain: Kernels = {
        "rows": two_results(3, extent),
        "integers": two_results(extent, dtype="int8"),
    }
    check_vectors_and_threads(CpuElementwise(), plain)


def test_symbolic_rows_are_one_nest_with_a_version_for_few_elements() -> None:
    found = scheduled(CpuElementwise(), symbolic("n"))
    kinds = [loop.kind for loop in loops_of(found)]
    assert kinds.count("vectorized") == 1


def test_a_loop_of_symbolic_size_is_not_split_for_a_division() -> None:
    rows = tirx.Var("rows", "int64")
    x = te.placeholder((rows, 8), "float32", "x")
    steps = te.placeholder((rows // 4,), "float32", "steps")
    added = te.compute((rows, 8), lambda i, j: x[i, j] + steps[i // 4], "added")
    taken = te.compute((rows, 8), lambda i, j: x[i, j] - steps[i // 4], "taken")
    func = te.create_prim_func([x, steps, added, taken])
    with pytest.raises(NotApplicable, match="read along another axis"):
        several_results(func, MACHINE)


def test_decisions() -> None:
    func = two_results(7, 1000)
    knobs = assert_defaults_give_the_default_schedule(CpuElementwise(), func, MACHINE)
    assert set(knobs) == {"vectors", "threads"}


def refused(second) -> str:
    with pytest.raises(NotApplicable) as error:
        several_results(two_results(64, 100, second=second), MACHINE)
    return error.value.reason


def test_refusals() -> None:
    def longer(x, y):
        return te.compute((65, 100), lambda i, j: x[te.min(i, 63), j] + y[0, j])

    def transposed(x, y):
        return te.compute((100, 64), lambda i, j: x[j, i] + y[j, i])

    def reduced(x, y):
        axis = te.reduce_axis((0, 100), "k")
        return te.compute((64,), lambda i: te.sum(x[i, axis] * y[i, axis], axis=axis))

    def elsewhere(x, y):
        return te.compute((64, 100), lambda i, j: x[63 - i, j] * y[63 - i, j])

    assert refused(elsewhere) == "the results are computed from different elements"
    extents = "the loops of two results have different extents"
    assert refused(longer) == extents
    assert refused(transposed) == extents
    assert "not one assignment" in refused(reduced)
    one = te.placeholder((64,), "float32", "x")
    alone = te.create_prim_func([one, te.compute((64,), lambda i: one[i] + 1)])
    with pytest.raises(NotApplicable, match="1 loop nests"):
        several_results(alone, MACHINE)
