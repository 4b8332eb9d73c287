"""Stencils on a mesh: right numbers, and exactly the neighbours that a star or a box reads."""

from functools import partial

import pytest
import wafer_kernels
from decision_cases import check_random_numbers, knobs_of
from hypothesis import given, settings
from hypothesis import strategies as st
from lowering import f32, kernel_of
from thoroughness import ALL_CASES, DRAWS, one_in
from tvm import relax, te, tirx
from wafer_kernels import MESH, refusal

from tvm_ext.hardware.wafer.program import BlockWork, Transfer, WaferProgram
from tvm_ext.tir_schedules.schedule_kernels import schedule_kernel
from tvm_ext.tir_schedules.wafer.stencil import WaferStencil

nn, op = relax.op.nn, relax.op
TEMPLATE = WaferStencil()
program = partial(wafer_kernels.program, TEMPLATE)


def five_points(height: int, width: int) -> tirx.PrimFunc:
    """The mean of the four neighbours inside, the grid itself on its border."""
    a = te.placeholder((height, width), name="A")

    def body(i, j):
        inside = te.all(i > 0, i < height - 1, j > 0, j < width - 1)
        mean = 0.25 * (a[i - 1, j] + a[i + 1, j] + a[i, j - 1] + a[i, j + 1])
        return te.if_then_else(inside, mean, a[i, j])

    return te.create_prim_func([a, te.compute((height, width), body, name="B")])


def padded(height: int, width: int, radius: int, points: list[tuple[int, int]]) -> tirx.PrimFunc:
    """Points of a grid that is larger all around, each times its number."""
    a = te.placeholder((height + 2 * radius, width + 2 * radius), name="A")

    def body(i, j):
        parts = [
            a[i + radius + di, j + radius + dj] * float(number + 1)
            for number, (di, dj) in enumerate(points)
        ]
        return sum(parts[1:], parts[0])

    return te.create_prim_func([a, te.compute((height, width), body, name="B")])


def with_zeros_around(height: int, width: int, points: list[tuple[int, int]]) -> tirx.PrimFunc:
    """The same of a grid that a block of the kernel pads with one zero."""
    a = te.placeholder((height, width), name="A")

    def border(i, j):
        inside = te.all(i > 0, i < height + 1, j > 0, j < width + 1)
        return te.if_then_else(inside, a[i - 1, j - 1], 0.0)

    p = te.compute((height + 2, width + 2), border, name="P")

    def body(i, j):
        parts = [p[i + 1 + di, j + 1 + dj] * float(n + 1) for n, (di, dj) in enumerate(points)]
        return sum(parts[1:], parts[0])

    return te.create_prim_func([a, te.compute((height, width), body, name="B")])


def wave(x: int, y: int, z: int, radius: int = 4) -> tirx.PrimFunc:
    """A step of the acoustic wave equation: a star of 3 * 2 * radius + 1 points, two time steps."""
    a = te.placeholder((x + 2 * radius, y + 2 * radius, z + 2 * radius), name="A")
    before = te.placeholder((x, y, z), name="before")
    speed = te.placeholder((z,), name="speed")

    def body(i, j, k):
        i, j, k = i + radius, j + radius, k + radius
        total = a[i, j, k] * speed[k - radius]
        for d in range(1, radius + 1):
            aside = a[i - d, j, k] + a[i + d, j, k] + a[i, j - d, k] + a[i, j + d, k]
            total = total + (aside + a[i, j, k - d] + a[i, j, k + d]) * (1.0 / d)
        return 2.0 * total - before[i - radius, j - radius, k - radius]

    result = te.compute((x, y, z), body, name="B")
    return te.create_prim_func([a, before, speed, result])


STAR = [(0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)]
BOX = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1)]
UPWIND = [(0, 0), (-1, 0), (0, -1)]
KERNELS = {
    "border": five_points(23, 30),
    "star": padded(21, 18, 1, STAR),
    "box": padded(21, 18, 1, BOX),
    "upwind": padded(21, 18, 1, UPWIND),
    "zeros around a star": with_zeros_around(19, 22, STAR),
    "zeros around a box": with_zeros_around(19, 22, BOX),
    "wave": wave(9, 7, 11, 2),
    "slices": kernel_of(
        lambda x: op.add(op.strided_slice(x, [1], [0], [10]), op.strided_slice(x, [1], [2], [12])),
        f32(7, 12),
    ),
}


def transfers(found: WaferProgram) -> list[Transfer]:
    return [leaf for leaf, _ in found.leaves() if isinstance(leaf, Transfer)]


def works(found: WaferProgram) -> list[BlockWork]:
    return [leaf for leaf, _ in found.leaves() if isinstance(leaf, BlockWork)]


@pytest.mark.extended
@pytest.mark.parametrize("name", one_in(2, KERNELS))
def test_every_cut_computes_the_same(name):
    count = 5 if ALL_CASES else 2
    check_random_numbers(TEMPLATE, {name: KERNELS[name]}, count=count, machine=MESH.with_grid(5, 4))


@settings(max_examples=6 * DRAWS, deadline=None)
@given(
    height=st.integers(3, 20),
    width=st.integers(3, 20),
    points=st.lists(
        st.tuples(st.integers(-2, 2), st.integers(-2, 2)), min_size=3, max_size=9, unique=True
    ),
    seed=st.integers(0, 99),
)
def test_random_points_compute_the_same(height, width, points, seed):
    func = padded(height, width, 2, points)
    check_random_numbers(
        TEMPLATE, {"random": func}, count=3, seed=seed, machine=MESH.with_grid(4, 3)
    )


def test_a_star_takes_the_edges_of_four_neighbours():
    found = program(five_points(64, 64), MESH, axes=0, rows=8, columns=8, vector=1)
    rows, columns = transfers(found)
    # 8x8 cells: two rows and two columns of eight, no corner; each from two sides.
    assert [one.pattern for one in (rows, columns)] == ["halo", "halo"]
    assert (rows.words, columns.words) == (16, 16)
    assert (rows.group, columns.group) == (2, 2)
    assert (rows.distance, columns.distance) == (1, 1)
    (work,) = works(found)
    # Three additions, a product and the condition, in eight instructions for eight rows each.
    assert (work.instructions, work.length) == (5 * 8, 8)
    assert work.flops == 4 * 64
    assert found.shards == {"A": 256, "B": 256}
    assert found.buffers == {"A_along_0": 10 * 8 * 4, "A_along_1": 8 * 10 * 4}


def test_a_box_takes_corners_as_well():
    found = program(padded(64, 64, 1, BOX), MESH, axes=0, rows=8, columns=8)
    (halo,) = transfers(found)
    assert (halo.words, halo.group) == (10 * 10 - 8 * 8, 4)


def test_neighbours_on_one_side_are_counted():
    found = program(padded(64, 64, 1, UPWIND), MESH, axes=0, rows=8, columns=8)
    (halo,) = transfers(found)
    assert halo.words == 9 * 9 - 8 * 8


def test_a_direction_that_is_not_cut_needs_no_messages():
    found = program(five_points(64, 64), MESH, axes=0, rows=8, columns=1)
    (halo,) = transfers(found)
    assert (halo.words, halo.group) == (2 * 64, 2)
    alone = program(five_points(64, 64), MESH, axes=0, rows=1, columns=1)
    assert transfers(alone) == []


def test_a_column_of_the_wave_equation_lies_in_each_pe():
    # SC22: x and y over the mesh, z in the PE. A star of 25 points sends the columns
    # of 16 neighbours, four in each direction.
    found = program(wave(16, 16, 32), MESH, axes=0, rows=16, columns=16, vector=2)
    halos = [one for one in transfers(found) if one.pattern == "halo"]
    assert [one.words for one in halos] == [8 * 32, 8 * 32]
    assert [one.distance for one in halos] == [4, 4]
    (speed,) = [one for one in transfers(found) if one.pattern == "multicast"]
    assert speed.words == 32
    (work,) = works(found)
    assert work.length == 32
    assert found.shards["before"] == found.shards["B"] == 32 * 4


def test_the_default_heuristic_keeps_long_vectors_in_the_pe():
    func = wave(16, 16, 64, 1)
    knobs = knobs_of(TEMPLATE, func, MESH)
    assert list(knobs) == ["axes", "rows", "columns", "vector"]
    found = program(func, MESH)
    assert (found.rows, found.columns) == (16, 16)
    assert works(found)[0].length == 64


@pytest.mark.parametrize(
    ("func", "reason"),
    [
        (kernel_of(op.exp, f32(8, 9)), "no tensor is read at several offsets"),
        (kernel_of(lambda x: op.flip(x, 1), f32(8, 9)), "not read at a constant offset"),
        (kernel_of(lambda x: op.sum(x, axis=[1]), f32(8, 9)), "a block sums"),
        (kernel_of(lambda x: nn.pad(x, [1, 1, 2, 2]), f32(8, 9)), "no tensor is read at several"),
        (
            kernel_of(
                lambda x: op.add(
                    op.strided_slice(x, [1], [0], [32]), op.strided_slice(x, [1], [32], [64])
                ),
                f32(8, 64),
            ),
            "what it reads is not near the result",
        ),
    ],
)
def test_other_kernels_are_left_alone(func, reason):
    assert reason in refusal(TEMPLATE, func, MESH)


@pytest.mark.parametrize("name", KERNELS)
def test_it_is_what_a_stencil_is_scheduled_by(name):
    _, choice = schedule_kernel(KERNELS[name], MESH)
    assert choice.schedule == "wafer stencil"
