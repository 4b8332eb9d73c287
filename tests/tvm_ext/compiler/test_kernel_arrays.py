"""What kernels allocate for themselves is counted as TVM's pools of memory grow."""

from collections.abc import Callable

import pytest
import tvm
from tvm import relax, s_tir, te, tirx
from tvm.script import relax as R

from tvm_ext.compiler.kernel_arrays import (
    KernelArrays,
    arrays_of_whole_calls,
    kernel_arrays,
    with_arrays_of_calls,
)
from tvm_ext.report.memory_plan import FunctionPlan, StoragePlan

ROWS, COLUMNS = 64, 4096
ROW_BYTES = COLUMNS * 4
MIB = 1 << 20


def staged(x: te.Tensor) -> te.Tensor:
    """Twice the sum of a row, by way of an array that holds twice every element."""
    twice = te.compute(x.shape, lambda i, j: x[i, j] * 2.0, "twice")
    k = te.reduce_axis((0, x.shape[1]), "k")
    return te.compute((x.shape[0],), lambda i: te.sum(twice[i, k], k), "total")


def program(*rows: int | tirx.Var, columns: int = COLUMNS) -> tvm.IRModule:
    """A call of ``staged`` for each number of rows, each in a kernel of its own."""
    builder = relax.BlockBuilder()
    inputs = [relax.Var(f"x{i}", R.Tensor((n, columns), "float32")) for i, n in enumerate(rows)]
    with builder.function("main", inputs):
        found = [
            builder.emit_te(staged, x, primfunc_name_hint=f"sum_{i}") for i, x in enumerate(inputs)
        ]
        builder.emit_func_output(relax.Tuple(found))
    return builder.get()


def scheduled(mod: tvm.IRModule, change: Callable[[s_tir.Schedule], None]) -> tvm.IRModule:
    schedule = s_tir.Schedule(mod)
    schedule.work_on("sum_0")
    change(schedule)
    return schedule.mod


def stage_in_rows(schedule: s_tir.Schedule) -> None:
    row, _ = schedule.get_loops(schedule.get_sblock("total"))
    schedule.compute_at(schedule.get_sblock("twice"), row)


def stage_in_parallel_rows(schedule: s_tir.Schedule) -> None:
    stage_in_rows(schedule)
    schedule.parallel(schedule.get_loops(schedule.get_sblock("total"))[0])


def test_an_array_of_a_whole_kernel_is_that_of_the_calling_thread():
    mod = program(ROWS)
    assert kernel_arrays(mod, mod, {}) == KernelArrays(MIB, 0)


def test_an_array_within_a_loop_is_as_large_as_one_iteration_needs():
    mod = program(ROWS)
    assert kernel_arrays(mod, scheduled(mod, stage_in_rows), {}) == KernelArrays(ROW_BYTES, 0)


def test_an_array_within_a_parallel_loop_is_one_for_each_thread():
    mod = program(ROWS)
    found = kernel_arrays(mod, scheduled(mod, stage_in_parallel_rows), {})
    assert found == KernelArrays(ROW_BYTES, ROW_BYTES)


def test_a_parallel_loop_with_one_iteration_has_no_further_threads():
    mod = program(1, columns=ROWS * COLUMNS)
    found = kernel_arrays(mod, scheduled(mod, stage_in_parallel_rows), {})
    assert found == KernelArrays(MIB, 0)


@pytest.mark.parametrize("rows", [(ROWS, 2 * ROWS), (2 * ROWS, ROWS), (2 * ROWS, 2 * ROWS)])
def test_kernels_share_the_largest_array(rows):
    mod = program(*rows)
    assert kernel_arrays(mod, mod, {}) == KernelArrays(2 * MIB, 0)


def test_symbolic_sizes_are_those_that_are_given():
    mod = program(tirx.Var("n", "int64"))
    assert kernel_arrays(mod, mod, {"n": 3 * ROWS}) == KernelArrays(3 * MIB, 0)
    assert kernel_arrays(mod, mod, {}) == KernelArrays()


def test_small_arrays_are_not_counted():
    mod = program(1, columns=512)
    assert kernel_arrays(mod, mod, {}) == KernelArrays()


def test_a_kernel_alone_has_what_its_call_takes():
    mod = program(ROWS, 2 * ROWS)
    found = kernel_arrays(mod, mod, {})
    assert found.by_kernel == {"sum_0": KernelArrays(MIB), "sum_1": KernelArrays(2 * MIB)}


def test_every_thread_has_its_own():
    found = KernelArrays(3 * MIB, MIB, {"k": KernelArrays(2 * MIB, MIB)})
    assert (found.bytes_on(1), found.bytes_on(4)) == (3 * MIB, 6 * MIB)
    function = FunctionPlan("main", ("a", "b"), (), MIB, MIB, ("k", "other"))
    (planned,) = with_arrays_of_calls(StoragePlan((function,)), found, 2).functions
    assert planned.workspace_bytes == (3 * MIB, 0)
    assert planned.live_bytes == [3 * MIB, 0]
    assert (planned.peak_call, planned.workspace_at(0), planned.workspace_at(1)) == (0, 3 * MIB, 0)


def test_an_array_of_a_whole_call_is_told_from_that_of_an_iteration():
    mod = program(ROWS)
    (found,) = arrays_of_whole_calls(mod["sum_0"], 1 << 16)
    assert found.name == "twice"
    assert not arrays_of_whole_calls(mod["sum_0"], 2 * MIB)
    for change in (stage_in_rows, stage_in_parallel_rows):
        assert not arrays_of_whole_calls(scheduled(mod, change)["sum_0"], 1 << 12)
