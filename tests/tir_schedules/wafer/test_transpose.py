"""Kernels that only move data, on a mesh: what has to come from where, and the right numbers."""

import numpy as np
import pytest
from decision_cases import assert_defaults_give_the_default_schedule, random_decisions
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import MOVES
from lowering import f32, kernel_of
from thoroughness import DRAWS
from tvm import relax, tirx
from tvm.relax.op import nn
from wafer_kernels import (
    MESH,
    SMALL,
    check_numbers,
    computed,
    message,
    options,
    program,
    random,
    refusal,
    scheduled,
    transfers,
    works,
)

from tvm_ext.tir_schedules.wafer.annotations import HOME
from tvm_ext.tir_schedules.wafer.transpose import WaferTranspose

op = relax.op
TEMPLATE = WaferTranspose()
TRANSPOSE = kernel_of(op.permute_dims, f32(12, 20))
HEADS = kernel_of(
    lambda x: op.permute_dims(op.reshape(x, [1, 16, 12, 32]), [0, 2, 1, 3]), f32(1, 16, 384)
)


def homes(func: tirx.PrimFunc, **decisions: int) -> dict[str, str]:
    notes = scheduled(TEMPLATE, func, **decisions).body.block.annotations
    return {str(key).removeprefix(HOME): str(value) for key, value in notes.items()}


def test_result_and_operand_are_cut_by_their_own_two_largest_axes() -> None:
    found = program(TEMPLATE, TRANSPOSE)
    # 20 x 12 over 3 x 5: tiles of 7 x 3, which 4 columns of PEs are enough for.
    assert (found.rows, found.columns) == (3, 4)
    assert homes(TRANSPOSE) == {"0": "row/3 column/4"}
    assert found.shards == {"x0": 4 * 5 * 4, "T_transpose": 7 * 3 * 4}
    assert found.buffers == {"x0_tile": 7 * 3 * 4}
    (sent,) = transfers(found).values()
    assert sent.pattern == "gather"
    assert sent.words == 7 * 3
    assert sent.distance > 0
    (work,) = works(found).values()
    assert (work.elements, work.length) == (7 * 3, 7)


def test_reversed_rows_come_from_the_other_end() -> None:
    (sent,) = transfers(program(TEMPLATE, kernel_of(lambda x: op.flip(x, 0), f32(12, 20)))).values()
    assert message(sent)[:2] == ("gather", 4 * 4)
    assert sent.distance == 2


def test_nothing_moves_while_pieces_stay_the_same() -> None:
    """Channels go to the end, and the two large axes are cut as before."""
    func = kernel_of(lambda x: op.permute_dims(x, [0, 2, 3, 1]), f32(1, 3, 24, 40))
    found = program(TEMPLATE, func)
    assert homes(func) == {"0": "- - row/3 column/5"}
    assert (transfers(found), found.buffers) == ({}, {})
    assert found.shards == {"x0": 3 * 8 * 8 * 4, "T_transpose": 3 * 8 * 8 * 4}


def test_nothing_moves_along_an_axis_that_is_not_cut() -> None:
    """Images joined along their channels, and a part of the channels."""
    joined = kernel_of(lambda *v: op.concat(list(v), 1), f32(1, 3, 24, 40), f32(1, 2, 24, 40))
    part = kernel_of(
        lambda x: op.strided_slice(x, [1], [1], [3], assume_inbound=True), f32(1, 5, 24, 40)
    )
    for func in (joined, part):
        assert transfers(program(TEMPLATE, func)) == {}
    check_numbers(TEMPLATE, {"joined": joined, "part": part})


def test_a_transposed_square_crosses_the_mesh() -> None:
    machine = MESH.with_grid(4, 4)
    (sent,) = transfers(
        program(TEMPLATE, kernel_of(op.permute_dims, f32(12, 12)), machine)
    ).values()
    assert message(sent)[:2] == ("gather", 3 * 3)
    # From the lower left corner to the upper right one.
    assert sent.distance == 3 + 3


def test_a_pe_gets_no_more_than_its_tile() -> None:
    found = program(TEMPLATE, HEADS, MESH)
    (sent,) = transfers(found).values()
    # All of it but what it has itself.
    assert 0.9 * 24 < sent.words < 24


def test_joined_rows_come_from_both_tensors() -> None:
    func = kernel_of(lambda *v: op.concat(list(v), 1), f32(12, 40), f32(12, 10))
    found = transfers(program(TEMPLATE, func))
    assert sorted(found) == ["x0_tile", "x1_tile"]


MOVED = (
    *("concat inner", "concat inner odd", "concat outer", "concat first", "split", "split outer"),
    *("slice", "slice dense", "slice backwards", "transpose", "transpose nchw", "pad", "pad outer"),
    *("pad reflect", "repeat", "tile"),
)
KERNELS = {
    "heads": HEADS,
    "odd reshape": kernel_of(lambda x: op.reshape(x, [10, 6, 4]), f32(15, 16)),
    "transposed and joined": kernel_of(
        lambda a, b: op.permute_dims(op.concat([a, b], 1)), f32(19, 33), f32(19, 20)
    ),
    "part of a reshape": kernel_of(
        lambda x: op.strided_slice(
            op.reshape(x, [21, 5]), [0], [2], [20], [3], assume_inbound=True
        ),
        f32(15, 7),
    ),
    "padded and transposed": kernel_of(
        lambda x: op.permute_dims(nn.pad(x, [1, 2, 3, 0])), f32(7, 11)
    ),
}


def test_numbers() -> None:
    known = {name: kernel_of(MOVES[name].expression, *MOVES[name].inputs) for name in MOVED}
    check_numbers(TEMPLATE, {**known, **KERNELS}, [SMALL, MESH])


@given(rows=st.integers(2, 23), columns=st.integers(2, 23), seed=st.integers(0, 99))
@settings(max_examples=3 * DRAWS, deadline=None)
def test_numbers_of_any_extents_and_decisions(rows: int, columns: int, seed: int) -> None:
    func = kernel_of(lambda x: op.permute_dims(x, [2, 0, 1]), f32(rows, 3, columns))
    x = random(rows, 3, columns)
    (values,) = random_decisions(TEMPLATE, func, SMALL, 1, seed)
    found = computed(scheduled(TEMPLATE, func, **values), x)[0]
    np.testing.assert_array_equal(found, x.transpose(2, 0, 1))


def test_fewer_pes_may_be_chosen() -> None:
    assert options(TEMPLATE, TRANSPOSE) == {"rows": (1, 2, 3), "columns": (1, 2, 3, 4)}
    found = program(TEMPLATE, TRANSPOSE, rows=2, columns=3)
    assert (found.rows, found.columns) == (2, 3)
    assert homes(TRANSPOSE, rows=2, columns=3) == {"0": "row/2 column/3"}
    assert_defaults_give_the_default_schedule(TEMPLATE, TRANSPOSE, SMALL)


@pytest.mark.parametrize(
    ("expression", "inputs", "reason"),
    [
        (lambda x: op.sum(x, 1), (f32(5, 7),), "reduces or scans"),
        (lambda x: op.exp(op.permute_dims(x)), (f32(5, 7),), "it computes values"),
        (lambda x: op.broadcast_to(x, [3, 5, 7]), (f32(5, 1),), "stays at its index"),
        (lambda x, i: op.take(x, i, 0), (f32(7, 24), ((5,), "int64")), "depends on data"),
        (op.permute_dims, (((tirx.Var("n", "int64"), 5), "float32"),), "extent is not known"),
    ],
)
def test_not_applicable(expression: object, inputs: tuple, reason: str) -> None:
    assert reason in refusal(TEMPLATE, kernel_of(expression, *inputs))
