"""Where concatenation and padding change their choice, and the loops that result."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lowering import f32, kernel_of, loops_of, lowered
from machines import MACHINE
from tvm import relax, s_tir, te, tirx
from tvm.relax.op import nn

from tvm_ext.tir_schedules.cpu.parallel_vectorize import (
    MAX_PIECES,
    Borders,
    borders_of,
    changes,
    split_at_borders,
)

op = relax.op


def borders(func: tirx.PrimFunc) -> list[Borders]:
    sch = s_tir.Schedule(func)
    (block,) = sch.get_child_blocks(sch.get_sblock("root"))
    return borders_of(sch, block)


def partitioned(func: tirx.PrimFunc) -> tirx.PrimFunc:
    sch = s_tir.Schedule(func)
    (block,) = sch.get_child_blocks(sch.get_sblock("root"))
    found = borders_of(sch, block)
    split_at_borders(sch, sch.get_loops(block)[-1], found[-1])
    return lowered(sch.mod["main"], MACHINE)


def test_concatenation() -> None:
    func = kernel_of(lambda *v: op.concat(list(v), 1), f32(3, 5), f32(3, 7), f32(3, 1))
    assert borders(func) == [Borders(), Borders((5, 12))]
    assert [loop.extent for loop in loops_of(partitioned(func))] == [3, 5, 7]
    assert "if_then_else" not in partitioned(func).script()


def test_padding() -> None:
    func = kernel_of(lambda x: nn.pad(x, [0, 0, 2, 3]), f32(3, 24))
    assert borders(func) == [Borders(), Borders((2, 26))]
    assert [loop.extent for loop in loops_of(partitioned(func))] == [3, 2, 24, 3]
    assert "if_then_else" not in partitioned(func).script()


def test_padding_of_outer_loops() -> None:
    func = kernel_of(lambda x: nn.pad(x, [0, 0, 1, 1, 0, 0]), f32(1, 5, 24))
    assert borders(func)[1:] == [Borders((1, 6)), Borders()]


@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        (lambda i: i < 5, Borders((5,))),
        (lambda i: i <= 5, Borders((6,))),
        (lambda i: i > 5, Borders((6,))),
        (lambda i: i >= 5, Borders((5,))),
        (lambda i: tirx.const(5, "int32") < i, Borders((6,))),
        (lambda i: tirx.const(5, "int32") >= i, Borders((6,))),
        (lambda i: 7 - i > 2, Borders((5,))),
        (lambda i: 7 - i <= 2, Borders((5,))),
        (lambda i: i.equal(5), Borders((5, 6))),
        (lambda i: tirx.all(i >= 2, i < 9), Borders((2, 9))),
        (lambda i: i < 40, Borders()),
        (lambda i: i % 2 < 1, Borders(known=False)),
        (lambda i: 2 * i < 9, Borders((5,))),
    ],
)
def test_conditions(condition: object, wanted: Borders) -> None:
    a = te.placeholder((16,), name="a")
    picked = te.compute(
        (16,),
        lambda i: tirx.if_then_else(condition(i), a[i], tirx.const(0.0, "float32")),  # type: ignore[operator]
    )
    func = te.create_prim_func([a, picked])
    (found,) = borders(func)
    assert found == wanted
    # The borders are where the condition, evaluated, changes.
    if wanted.known:
        values = [int(tvm_bool(condition, i)) for i in range(16)]
        assert tuple(i for i in range(1, 16) if values[i] != values[i - 1]) == wanted.positions


def tvm_bool(condition: object, value: int) -> bool:
    from tvm.sym import Analyzer

    result = Analyzer().simplify(condition(tirx.const(value, "int32")))  # type: ignore[operator]
    return bool(result)


def test_many_pieces_stay_one_loop() -> None:
    count = MAX_PIECES + 1
    func = kernel_of(lambda *v: op.concat(list(v), 1), *[f32(3, 2)] * count)
    assert [loop.extent for loop in loops_of(partitioned(func))] == [3, 2 * count]


def loops(*extents: int) -> list[tuple[tirx.Var, int]]:
    return [(tirx.Var(f"v{i}", "int64"), extent) for i, extent in enumerate(extents)]


@pytest.mark.parametrize(
    ("limit", "wanted"),
    [(512, (0, (2,))), (500, (0, (1, 2))), (-1, (0, ())), (62 * 256, (0, ())), (100, (0, (1,)))],
)
def test_condition_on_two_loops(limit: int, wanted: tuple[int, tuple[int, ...]]) -> None:
    """The steepest loop decides, but for the iterations in which the other one has a say."""
    (row, column) = pair = loops(62, 256)
    assert changes(row[0] * 256 + column[0] < limit, pair) == wanted


@pytest.mark.extended
@given(
    slopes=st.lists(st.integers(-5, 5), min_size=1, max_size=3),
    offset=st.integers(-20, 20),
    kind=st.sampled_from([tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE]),
)
@settings(max_examples=60, deadline=None)
def test_between_changes_nothing_changes(slopes: list[int], offset: int, kind: type) -> None:
    """Outside of the stretches around a change the comparison has one value for all other loops."""
    shape = [7, 4, 3][: len(slopes)]
    pair = loops(*shape)
    total = sum(
        (v * s for (v, _), s in zip(pair, slopes, strict=True)), tirx.const(offset, "int64")
    )
    found = changes(kind(total, tirx.const(0, "int64")), pair)
    assert found is not None
    axis, positions = found
    grid = np.indices(shape)
    sums = sum(np.asarray(g) * s for g, s in zip(grid, slopes, strict=True)) + offset
    holds = COMPARED[kind](sums)
    by_row = np.moveaxis(holds, axis, 0).reshape(shape[axis], -1)
    bounds = [0, *positions, shape[axis]]
    for start, end in itertools.pairwise(bounds):
        part = by_row[start:end]
        settled = part.all() or not part.any()
        # Other loops have a say: the stretch lies between two changes of one comparison.
        assert settled or len(slopes) > 1 or kind in (tirx.EQ, tirx.NE)
        if len(slopes) == 1:
            assert settled


COMPARED = {
    tirx.LT: lambda x: x < 0,
    tirx.LE: lambda x: x <= 0,
    tirx.GT: lambda x: x > 0,
    tirx.GE: lambda x: x >= 0,
    tirx.EQ: lambda x: x == 0,
    tirx.NE: lambda x: x != 0,
}


def test_not_linear() -> None:
    ((var, _),) = pair = loops(9)
    assert changes(var * var < 5, pair) is None
