"""Masks for vectors beyond a border: where they appear, numbers of odd sizes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from cpu_kernels import tiled
from hypothesis import given, settings
from hypothesis import strategies as st
from lowering import assert_same, lowered, run, scalar_stores, statements
from machines import MACHINE, NARROW
from masked_kernels import (
    PANELS,
    SMALL_CACHE,
    Index,
    assert_numbers,
    masks,
    padded_product,
    vectorised,
    with_epilogue,
)
from thoroughness import DRAWS, one_in
from tvm import s_tir, te, tirx
from unoptimised import HOST

from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.relay_passes.gemm_epilogue import GemmCompute
from tvm_ext.tir_schedules.cpu.masked_tails import with_masked_tails
from tvm_ext.tir_schedules.schedule_kernels import schedule_kernel


def test_store_of_the_last_columns() -> None:
    a, b = te.placeholder((40, 20), name="a"), te.placeholder((20, 208), name="b")
    product = GemmCompute(False, False, "float32", columns=197).compute(a, b)
    before = tiled(te.create_prim_func([a, b, product]))
    after = with_masked_tails(before)
    assert masks(before) == (0, 0)
    assert scalar_stores(before, MACHINE) > 0
    assert masks(after) == (0, 1)
    assert scalar_stores(after, MACHINE) == 0
    assert "T.where" not in after.script()


@pytest.mark.extended
def test_padding_and_result_of_a_panel() -> None:
    func = te.create_prim_func(padded_product((2, 40, 20), (2, 20, 197)))
    before = tiled(func, PANELS)
    after = with_masked_tails(before)
    assert scalar_stores(before, PANELS) > 0
    assert masks(after) == (1, 1)
    assert scalar_stores(after, PANELS) == 0
    assert "if_then_else" not in lowered(after, PANELS).script()
    assert_numbers(func, after)


def test_second_run_changes_nothing() -> None:
    once = with_masked_tails(tiled(te.create_prim_func(padded_product((40, 20), (20, 197)))))
    assert with_masked_tails(once).same_as(once)


@pytest.mark.extended
def test_each_operand_of_the_epilogue_has_a_mask() -> None:
    bias, residual = te.placeholder((197,), name="bias"), te.placeholder((40, 197), name="more")
    func = with_epilogue(lambda x, i, j: x + bias[j] * residual[i, j], bias, residual)
    masked, choice = schedule_kernel(func, MACHINE)
    assert choice.schedule == "register tile"
    assert masks(masked) == (3, 1)
    assert_numbers(func, masked)


@pytest.mark.extended
def test_both_branches_of_a_choice_between_columns() -> None:
    first, second = te.placeholder((40, 60), name="one"), te.placeholder((40, 137), name="two")
    func = with_epilogue(
        lambda x, i, j: x + tirx.if_then_else(j < 60, first[i, j], second[i, j - 60]),
        first,
        second,
    )
    masked, _ = schedule_kernel(func, MACHINE)
    assert masks(masked) == (3, 1)
    assert_numbers(func, masked)


def test_condition_that_all_lanes_share_stays_a_branch() -> None:
    x = te.placeholder((7, 19), name="x")
    func = te.create_prim_func([x, te.compute((7, 19), lambda i, j: x[i, j] + 1.0, "y")])
    sch = s_tir.Schedule(func)
    row, column = sch.get_loops(sch.get_sblock("y"))
    sch.split(row, factors=[None, 4])
    _, vector = sch.split(column, factors=[None, 8])
    sch.vectorize(vector)
    masked = with_masked_tails(sch.mod["main"])
    branches = [s for s in statements(masked.body) if isinstance(s, tirx.IfThenElse)]
    assert len(branches) == 1
    assert masks(masked) == (1, 1)
    assert scalar_stores(masked, MACHINE) == 0
    assert_numbers(func, masked)


@pytest.mark.parametrize("columns", [19, 24, 5])
def test_store_has_no_mask_where_all_lanes_hold(columns: int) -> None:
    x = te.placeholder((7, columns), name="x")
    func = te.create_prim_func([x, te.compute((7, columns), lambda i, j: x[i, j] + 1.0, "y")])
    sch = s_tir.Schedule(func)
    _, vector = sch.split(sch.get_loops(sch.get_sblock("y"))[1], factors=[None, 8])
    sch.vectorize(vector)
    masked = with_masked_tails(sch.mod["main"], plain_in_full=True)
    branches = [s for s in statements(masked.body) if isinstance(s, tirx.IfThenElse)]
    assert len(branches) == (columns % 8 > 0)
    assert_numbers(func, masked)


def test_padding_that_all_lanes_share_stays_a_branch() -> None:
    x = te.placeholder((7, 16), name="x")
    padded = te.compute(
        (9, 16),
        lambda i, j: tirx.if_then_else(tirx.all(i >= 1, i < 8), x[i - 1, j], tirx.const(0.0)),
        "y",
    )
    func = vectorised(x, padded)
    assert with_masked_tails(func).same_as(func)


def in_range(x: te.Tensor, low: int, high: int) -> Index:
    """``x`` moved by ``low``, and zero outside of it."""
    zero = tirx.const(0, x.dtype)
    return lambda i: tirx.if_then_else(tirx.all(i >= low, i < high), x[i - low], zero)


@pytest.mark.extended
@pytest.mark.parametrize(("low", "high"), [(0, 5), (3, 11), (8, 16), (13, 24), (0, 24)])
def test_numbers_of_padding(low: int, high: int) -> None:
    x = te.placeholder((high - low,), name="x")
    func = te.create_prim_func([x, te.compute((24,), in_range(x, low, high), "y")])
    masked = with_masked_tails(vectorised(x, te.compute((24,), in_range(x, low, high), "y")))
    assert masks(masked) == (1, 0)
    assert_numbers(func, masked)


CONDITIONS: dict[str, Callable[[tirx.Var, tirx.Var], Any]] = {
    "less": lambda i, j: j < 11,
    "greater": lambda i, j: j > 11,
    "equal": lambda i, j: j.equal(11),
    "not equal": lambda i, j: tirx.NE(j, tirx.const(11, "int32")),
    "or": lambda i, j: tirx.any(j < 3, j > 15),
    "not": lambda i, j: tirx.Not(tirx.all(j >= 3, j <= 15)),
    "nowhere": lambda i, j: j < 0,
    "below the diagonal": lambda i, j: j <= i,
    "falling": lambda i, j: 2 * i - j > 3,
    "two lanes a step": lambda i, j: i + 2 * j < 17,
    "with the row": lambda i, j: tirx.all(i > 1, j < 11),
}


@pytest.mark.extended
@pytest.mark.parametrize("name", CONDITIONS)
def test_conditions(name: str) -> None:
    x, y = (te.placeholder((5, 19), name=name) for name in "xy")
    condition = CONDITIONS[name]
    chosen = te.compute(
        (5, 19), lambda i, j: tirx.if_then_else(condition(i, j), x[i, j], y[i, j]), "z"
    )
    masked = with_masked_tails(vectorised(x, y, chosen))
    assert masks(masked) == (2, 1)
    assert scalar_stores(masked, MACHINE) == 0
    assert_numbers(te.create_prim_func([x, y, chosen]), masked)


@pytest.mark.extended
@pytest.mark.parametrize(
    "dtype", one_in(2, ["float16", "float64", "int8", "uint8", "int32", "int64"])
)
def test_types_of_products(dtype: str) -> None:
    func = te.create_prim_func(padded_product((2, 19, 7), (2, 7, 197), dtype))
    masked, _ = schedule_kernel(func, PANELS)
    assert masks(masked)[1] == 1
    a, b, found = run({"masked": masked})["masked"]
    assert_same([a @ b], [found], dtype)


def test_masks_and_results_of_bool() -> None:
    choice = te.placeholder((40, 197), "bool", "choice")
    chosen = with_epilogue(
        lambda x, i, j: tirx.Select(choice[i, j], x, tirx.const(-1.0, "float32")), choice
    )
    bound = te.placeholder((197,), name="bound")
    compared = with_epilogue(lambda x, i, j: x > 8 * bound[j], bound)
    for func in (chosen, compared):
        masked, _ = schedule_kernel(func, MACHINE)
        assert masks(masked) == (2, 1)
        assert_numbers(func, masked)


@settings(max_examples=4 * DRAWS, deadline=None, derandomize=True)
@given(
    rows=st.integers(1, 70),
    depth=st.integers(1, 70),
    columns=st.integers(1, 70),
    batch=st.integers(1, 3),
    machine=st.sampled_from([MACHINE, PANELS, NARROW, NARROW.model_copy(update=SMALL_CACHE)]),
)
def test_numbers_of_products(
    rows: int, depth: int, columns: int, batch: int, machine: MachineDescription
) -> None:
    tensors = [
        padded_product((rows, depth), (depth, columns)),
        padded_product((batch, rows, depth), (batch, depth, columns)),
        padded_product((batch, rows, depth), (depth, columns)),
    ]
    functions = [schedule_kernel(te.create_prim_func(t), machine)[0] for t in tensors]
    for a, b, found in run({str(i): func for i, func in enumerate(functions)}).values():
        assert_same([a @ b], [found], "product")


@pytest.mark.extended
@pytest.mark.parametrize("columns", [197, 243, 1003])
def test_numbers_of_large_products(columns: int) -> None:
    machine = host_description().with_cores(2)
    small = machine.model_copy(update=SMALL_CACHE)
    plain = te.create_prim_func(padded_product((197, 64), (64, columns)))
    batch = te.create_prim_func(padded_product((3, 197, 64), (3, 64, columns)))
    functions = {
        "plain": schedule_kernel(plain, machine)[0],
        "batch": schedule_kernel(batch, small)[0],
    }
    for name, (a, b, found) in run(functions).items():
        assert_same([a @ b], [found], name)


@pytest.mark.extended
@pytest.mark.parametrize("columns", [19, 37, 61])
def test_nothing_is_written_beyond_the_result(columns: int) -> None:
    func, _ = schedule_kernel(te.create_prim_func(padded_product((3, 5), (5, columns))), MACHINE)
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    library = tirx.build(mod, target=HOST.tvm_target())
    memory = np.full(3 * columns + 128, -1.0, "float32")
    start = -memory.ctypes.data % 64 // 4
    result = memory[start : start + 3 * columns].reshape(3, columns)
    ones = [tvm.runtime.tensor(np.ones(shape, "float32")) for shape in ((3, 5), (5, columns))]
    library["main"](*ones, tvm.runtime.from_dlpack(result))
    assert (result == 5.0).all()
    assert (memory == -1.0).sum() == 128
