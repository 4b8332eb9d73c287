"""Reductions on a mesh: whole rows, rows cut over a line of PEs, and the right numbers."""

import numpy as np
import pytest
from decision_cases import assert_defaults_give_the_default_schedule, random_decisions
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import CASES, REDUCTIONS
from lowering import f32, kernel_of, kernels_of
from thoroughness import DRAWS, some_of
from tvm import relax, te, tirx
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

from tvm_ext.tir_schedules.wafer.reduction import COMBINATIONS, WaferReduction

op = relax.op
TEMPLATE = WaferReduction()
SUM = kernel_of(lambda x: op.sum(x, 1), f32(12, 40))
SOFTMAX = kernel_of(lambda x: nn.softmax(x, 1), f32(12, 40))
NORM = with_constants(
    kernel_of(lambda x, g, b: nn.layer_norm(x, g, b, [-1]), f32(12, 40), f32(40), f32(40)), 1, 2
)


def test_whole_rows_need_no_messages() -> None:
    found = program(TEMPLATE, SUM, split=1)
    # 12 rows over 3 x 4 PEs, one in each.
    assert (found.rows, found.columns) == (3, 4)
    assert transfers(found) == {}
    start, add = works(found).values()
    assert (start.elements, add.scalar_operations, add.length) == (1, 40, 40)
    assert found.shards == {"x0": 40 * 4, "x0_red": 4}


@pytest.mark.parametrize("combination", range(len(COMBINATIONS)))
def test_parts_of_rows_are_combined_by_the_pattern_that_was_decided(combination: int) -> None:
    found = program(TEMPLATE, SUM, split=5, combination=combination)
    assert (found.rows, found.columns) == (3, 5)
    (sent,) = transfers(found).values()
    # 4 rows in each PE, of which it has 8 elements.
    assert message(sent) == (COMBINATIONS[combination], 4, 5)
    assert works(found)["x0_red_rf_update"].scalar_operations == 4 * 8
    assert found.shards["x0"] == 4 * 8 * 4
    assert found.buffers["x0_red.rf"] == 4 * 4
    x = random(12, 40)
    (result,) = computed(scheduled(TEMPLATE, SUM, split=5, combination=combination), x)
    np.testing.assert_allclose(result, x.sum(1), atol=1e-5)


def test_groups_of_two_phases_are_decided_as_well() -> None:
    func = kernel_of(lambda x: op.sum(x, 1), f32(12, 64))
    two_phase = COMBINATIONS.index("two_phase")
    (offered,) = (
        choice
        for name, choice in options(TEMPLATE, func, MESH, split=16, combination=two_phase).items()
        if name == "group"
    )
    assert offered == (2, 4, 8)
    for group in offered:
        decisions = {"split": 16, "combination": two_phase, "group": group}
        (sent,) = transfers(program(TEMPLATE, func, MESH, **decisions)).values()
        assert sent.group == group


def test_few_words_are_combined_by_a_tree_and_many_in_two_phases() -> None:
    few = kernel_of(lambda x: op.sum(x, 1), f32(16, 64))
    many = kernel_of(lambda x: op.sum(x, 2), f32(16, 12, 64))
    (sent,) = transfers(program(TEMPLATE, few, WAFER)).values()
    assert message(sent) == ("tree", 1, 64)
    (sent,) = transfers(program(TEMPLATE, many, WAFER)).values()
    assert message(sent) == ("two_phase", 12, 64)
    assert sent.group == 8


def test_rows_are_cut_only_where_they_do_not_fill_the_mesh() -> None:
    assert options(TEMPLATE, SUM)["split"] == (1, 2, 3, 4, 5)
    # 12 rows of a mesh of 3 x 5 and of 16 x 16.
    assert transfers(program(TEMPLATE, SUM)) == {}
    assert [sent.extent for sent in transfers(program(TEMPLATE, SUM, MESH)).values()] == [14]


def test_what_reads_a_sum_gets_it_in_every_pe_of_the_row() -> None:
    found = program(TEMPLATE, SOFTMAX, split=5, combination=0)
    sent = transfers(found)
    assert [message(one) for one in sent.values()] == [
        ("chain", 4, 5),
        ("multicast_row", 4, 5),
        ("chain", 4, 5),
        ("multicast_row", 4, 5),
    ]
    done = works(found)
    assert done["T_softmax_exp"].scalar_operations == 4 * 8 * 16
    # One reciprocal a row, in the first PE of it, and a product for each element.
    assert done["T_softmax_norm_row0"].scalar_operations == 4 * 8
    assert done["T_softmax_norm_row0"].column_share.tolist() == [1, 0, 0, 0, 0]
    assert done["T_softmax_norm"].scalar_operations == 0
    # What one nest leaves for the next stays in the PE.
    assert found.buffers["T_softmax_exp"] == 4 * 8 * 4


def test_what_was_sent_once_stays() -> None:
    """The mean is read by the sum of squares and by the result, and sent once."""
    x = te.placeholder((12, 40), name="x")
    k, m = te.reduce_axis((0, 40)), te.reduce_axis((0, 40))
    total = te.compute((12,), lambda i: te.sum(x[i, k], k), name="total")
    squares = te.compute(
        (12,), lambda i: te.sum((x[i, m] - total[i]) * (x[i, m] - total[i]), m), name="squares"
    )
    last = te.compute(x.shape, lambda i, j: x[i, j] - total[i] + squares[i], name="last")
    func = te.create_prim_func([x, last])
    found = program(TEMPLATE, func, split=5, combination=0)
    assert [one.pattern for one in transfers(found).values()] == ["chain", "multicast_row"] * 2
    assert list(transfers(found)) == ["total", "total_local", "squares", "squares_local"]
    check_numbers(TEMPLATE, {"squares": func}, split=5)


def test_constants_of_a_norm_are_not_sent_and_roots_are_taken_once_a_row() -> None:
    found = program(TEMPLATE, NORM, split=5, combination=1)
    patterns = [one.pattern for one in transfers(found).values()]
    assert patterns.count("tree") == 2
    assert "multicast_column" not in patterns
    *_, last = works(found).values()
    assert last.scalar_operations == 0
    assert found.shards["x1"] == found.shards["x2"] == 8 * 4


def test_first_axes_are_reduced_along_columns_of_pes() -> None:
    """The tensor lies with its first axis over the rows of the mesh."""
    func = kernel_of(lambda x: op.mean(x, [1, 2]), f32(1, 9, 7, 20))
    found = program(TEMPLATE, func, split=3, combination=0)
    assert (found.rows, found.columns) == (3, 5)
    (sent,) = transfers(found).values()
    assert message(sent) == ("chain", 4, 3)
    assert works(found)["x0_red_rf_update"].scalar_operations == 4 * 3 * 7
    assert works(found)["T_divide"].row_share.tolist() == [1, 0, 0]
    assert found.shards["x0"] == 3 * 7 * 4 * 4
    check_numbers(TEMPLATE, {"mean": func}, split=3)


def test_a_sum_of_everything_uses_a_row_of_pes() -> None:
    func = kernel_of(lambda x: op.sum(x), f32(7, 19))
    found = program(TEMPLATE, func)
    assert (found.rows, found.columns) == (1, 5)
    (sent,) = transfers(found).values()
    assert (sent.words, sent.extent) == (1, 5)
    # All 7 rows and 4 of 19 columns.
    assert works(found)["x0_red_rf_update"].scalar_operations == 7 * 4


def test_a_mask_of_all_rows_is_sent_to_them() -> None:
    func = kernel_of(lambda x, mask: op.max(op.add(x, mask), 2), f32(6, 9, 10), f32(1, 1, 10))
    sent = transfers(program(TEMPLATE, func, split=1))
    assert [message(one) for one in sent.values()] == [("multicast", 10, 3 + 5 - 1)]
    check_numbers(TEMPLATE, {"mask": func})


NAMES = [
    name
    for name in REDUCTIONS
    if not name.startswith(("arg", "max pool", "avg", "adaptive", "group", "sum of"))
    and "pool" not in name
]


@pytest.mark.slow
@pytest.mark.parametrize("split", [0, 1])
def test_numbers(split: int) -> None:
    """Cut and whole rows; 0 is the template's own choice."""
    kernels = {
        f"{name} {kernel}": func
        for name in (some_of(NAMES) if split else NAMES)
        # Rows of one element cannot be cut.
        if not split or name != "softmax one"
        for kernel, func in kernels_of(CASES[name].expression, *CASES[name].inputs).items()
    }
    decisions = {"split": split} if split else {}
    check_numbers(TEMPLATE, kernels, [SMALL] if split else [SMALL, MESH], **decisions)


@pytest.mark.extended
@given(rows=st.integers(1, 17), length=st.integers(2, 41), seed=st.integers(0, 99))
@settings(max_examples=3 * DRAWS, deadline=None)
def test_numbers_of_any_extents_and_decisions(rows: int, length: int, seed: int) -> None:
    func = kernel_of(lambda x: nn.softmax(x, 1), f32(rows, length))
    x = random(rows, length)
    (values,) = random_decisions(TEMPLATE, func, SMALL, 1, seed)
    found = computed(scheduled(TEMPLATE, func, **values), x)[0]
    powers = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(found, powers / powers.sum(1, keepdims=True), atol=1e-5)


@pytest.mark.extended
def test_every_decision_changes_the_schedule() -> None:
    offered = assert_defaults_give_the_default_schedule(TEMPLATE, SOFTMAX, MESH)
    assert list(offered) == ["split", "rows", "combination"]


@pytest.mark.parametrize(
    ("expression", "inputs", "reason"),
    [
        (op.exp, (f32(5, 7),), "nothing is reduced"),
        (op.matmul, (f32(5, 7), f32(7, 9)), "it is a matmul"),
        (lambda x: nn.max_pool2d(x, (3, 3)), (f32(1, 3, 8, 8),), "at other places"),
        (lambda x: op.argmax(x, 1), (f32(5, 7),), "more than to assign one element"),
        (lambda x: op.sum(x, 1), (((tirx.Var("n", "int64"), 5), "float32"),), "is not known"),
    ],
)
def test_not_applicable(expression: object, inputs: tuple, reason: str) -> None:
    assert reason in refusal(TEMPLATE, kernel_of(expression, *inputs))


def test_not_applicable_to_reductions_over_different_rows() -> None:
    x = te.placeholder((5, 7), name="x")
    i, j = te.reduce_axis((0, 5)), te.reduce_axis((0, 7))
    columns = te.compute((7,), lambda n: te.sum(x[i, n], i))
    rows = te.compute((5,), lambda n: te.sum(x[n, j], j))
    func = te.create_prim_func([x, columns, rows])
    assert "different rows" in refusal(TEMPLATE, func)
