"""Elementwise kernels on a mesh: who computes what, what is sent, and the right numbers."""

import numpy as np
import pytest
from decision_cases import assert_defaults_give_the_default_schedule, random_decisions
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import POINTWISE
from lowering import f32, kernel_of, kernels_of
from thoroughness import DRAWS
from tvm import relax, tirx
from tvm.relax.op import nn
from wafer_kernels import (
    MESH,
    SMALL,
    WAFER,
    check_numbers,
    computed,
    message,
    options,
    program,
    random,
    refusal,
    scheduled,
    transfers,
    with_constants,
    works,
)

from tvm_ext.tir_schedules.wafer.elementwise import WaferElementwise

op = relax.op
TEMPLATE = WaferElementwise()
ADD = kernel_of(op.add, f32(12, 20), f32(12, 20))


def test_tensors_of_one_shape_stay_where_they_are() -> None:
    found = program(TEMPLATE, kernel_of(op.add, f32(64, 384), f32(64, 384)), MESH)
    assert (found.rows, found.columns) == (16, 16)
    assert transfers(found) == {}
    (work,) = works(found).values()
    # 4 x 24 elements in each PE, one vector instruction for each row of them.
    assert (work.elements, work.length, work.instructions) == (96, 24, 4)
    assert work.row_share.tolist() == work.column_share.tolist() == [1] * 16
    assert list(found.shards.values()) == [4 * 24 * 4] * 3
    assert found.buffers == {}


def test_last_pieces_may_be_short() -> None:
    (work,) = works(program(TEMPLATE, kernel_of(op.exp, f32(10, 17)))).values()
    # 4 + 4 + 2 rows, and 4 + 4 + 4 + 4 + 1 columns.
    assert work.row_share.tolist() == [1, 1, 0.5]
    assert work.column_share.tolist() == [1, 1, 1, 1, 0.25]


@pytest.mark.extended
@pytest.mark.parametrize(
    ("shape", "wanted"),
    [
        ((20,), ("multicast_column", 4, 3)),
        ((12, 1), ("multicast_row", 4, 5)),
        ((1, 1), ("multicast", 1, 3 + 5 - 1)),
    ],
)
def test_what_is_the_same_for_many_pes_is_sent(
    shape: tuple[int, ...], wanted: tuple[str, float, int]
) -> None:
    """Tiles of the result are 4 x 4."""
    func = kernel_of(op.add, f32(12, 20), f32(*shape))
    (sent,) = transfers(program(TEMPLATE, func)).values()
    assert message(sent) == wanted
    x, y = random(12, 20), random(*shape)
    np.testing.assert_allclose(computed(scheduled(TEMPLATE, func), x, y)[0], x + y, rtol=1e-6)


def test_constants_lie_where_they_are_used() -> None:
    func = with_constants(kernel_of(op.add, f32(12, 20), f32(20)), 1)
    found = program(TEMPLATE, func)
    assert transfers(found) == {}
    assert found.shards[func.params[1].name] == 4 * 4


def test_one_large_dimension_is_cut_over_rows_and_columns() -> None:
    func = kernel_of(op.exp, f32(1, 100, 1))
    found = program(TEMPLATE, func)
    assert (found.rows, found.columns) == (3, 5)
    (work,) = works(found).values()
    assert work.elements == 0  # exp is no vector instruction
    assert work.scalar_operations == 7 * 16
    assert list(found.shards.values()) == [7 * 4] * 2
    x = random(1, 100, 1)
    np.testing.assert_allclose(computed(scheduled(TEMPLATE, func), x)[0], np.exp(x), rtol=1e-5)


def test_a_short_dimension_is_not_worth_an_axis() -> None:
    """2 x 4096 elements occupy more PEs of 16 x 16 if only the long dimension is cut."""
    found = program(TEMPLATE, kernel_of(op.exp, f32(2, 4096)), MESH)
    assert (found.rows, found.columns) == (16, 16)
    assert list(found.shards.values()) == [2 * 16 * 4] * 2


def test_what_is_computed_once_for_many_elements_is_sent_from_where_it_was_computed() -> None:
    func = kernel_of(lambda x, y: op.multiply(x, op.exp(y)), f32(12, 20), f32(20))
    found = program(TEMPLATE, func)
    (sent,) = transfers(found).values()
    assert message(sent) == ("multicast_column", 4, 3)
    once, each = works(found).values()
    assert once.row_share.tolist() == [1, 0, 0]
    assert each.row_share.tolist() == [1, 1, 1]
    assert (once.scalar_operations, each.elements) == (4 * 16, 4 * 4)
    check_numbers(TEMPLATE, {"exp": func})


def test_fewer_pes_may_be_chosen() -> None:
    found = program(TEMPLATE, ADD, rows=2, columns=1)
    assert (found.rows, found.columns) == (2, 1)
    assert options(TEMPLATE, ADD) == {"rows": (1, 2, 3), "columns": (1, 2, 3, 4, 5)}
    assert_defaults_give_the_default_schedule(TEMPLATE, ADD, SMALL)


def test_a_wafer_has_an_element_for_each_pe() -> None:
    func = kernel_of(op.add, f32(1, 224, 224, 3), f32(1, 224, 224, 3))
    found = program(TEMPLATE, func, WAFER)
    assert (found.rows, found.columns) == (224, 224)
    assert all(len(choice) <= 12 for choice in options(TEMPLATE, func, WAFER).values())


NAMES = [name for name in POINTWISE if "empty" not in name and "nothing" not in name]


def test_numbers() -> None:
    kernels = {
        f"{name} {kernel}": func
        for name in NAMES
        for kernel, func in kernels_of(POINTWISE[name].expression, *POINTWISE[name].inputs).items()
    }
    check_numbers(TEMPLATE, kernels, [SMALL, MESH])


@pytest.mark.extended
@given(rows=st.integers(1, 13), columns=st.integers(1, 40), seed=st.integers(0, 99))
@settings(max_examples=3 * DRAWS, deadline=None)
def test_numbers_of_any_extents_and_decisions(rows: int, columns: int, seed: int) -> None:
    func = kernel_of(
        lambda x, y, z: nn.relu(op.add(op.add(x, y), z)),
        *(f32(2, rows, columns), f32(rows, 1), f32(columns)),
    )
    inputs = random(2, rows, columns), random(rows, 1), random(columns)
    (values,) = random_decisions(TEMPLATE, func, SMALL, 1, seed)
    found = computed(scheduled(TEMPLATE, func, **values), *inputs)[0]
    np.testing.assert_allclose(found, np.maximum(sum(inputs[1:], inputs[0]), 0), atol=1e-5)


@pytest.mark.parametrize(
    ("expression", "inputs", "reason"),
    [
        (lambda x: op.sum(x, 1), (f32(5, 7),), "reduces or scans"),
        (lambda x, y: op.add(op.permute_dims(x), y), (f32(20, 12), f32(12, 20)), "transposed"),
        (lambda x: op.exp(op.reshape(x, [6, 10])), (f32(4, 15),), "at other places"),
        (lambda x, i: op.take(x, i, 0), (f32(7, 24), ((5,), "int64")), "at other places"),
        (op.exp, (f32(0, 5),), "nothing to compute"),
        (op.exp, (((tirx.Var("n", "int64"), 5), "float32"),), "extent is not known"),
    ],
)
def test_not_applicable(expression: object, inputs: tuple, reason: str) -> None:
    assert reason in refusal(TEMPLATE, kernel_of(expression, *inputs))
