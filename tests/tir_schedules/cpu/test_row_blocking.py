"""Rows of register tiles: as many as pay although the last tile repeats some, and in blocks."""

import numpy as np
import pytest
from decision_cases import check_numbers, knobs_of
from emulated_arm import arm, compiled, emulated, run_on_arm
from kernel_cases import nhwc
from lowering import f32, kernel_of
from machines import NARROW
from tvm import relax, tirx

from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.tir_schedules.analysis.buffer_access import CONSTANTS_ATTRIBUTE, nodes
from tvm_ext.tir_schedules.apply_template import (
    ScheduledKernel,
    apply_template,
    finished_schedule,
)
from tvm_ext.tir_schedules.cpu.register_tile import RegisterTile
from tvm_ext.tir_schedules.template import DEFAULT_DECISIONS

TILE = RegisterTile()
SMALL_L2 = {"l2_bytes": 128 * 1024}
LANES = NARROW.vector_lanes("float32")


def product(rows: int, constant: int | None = None) -> tirx.PrimFunc:
    func = kernel_of(relax.op.matmul, f32(rows, 24), f32(24, 2 * LANES))
    return func if constant is None else func.with_attr(CONSTANTS_ATTRIBUTE, [constant])


@pytest.mark.parametrize(
    ("rows", "found"),
    [(128, 6), (49, 5), (7, 4), (14, 5), (24, 6), (8, 4), (56, 6)],
)
def test_rows_that_save_most_though_some_are_repeated(rows: int, found: int) -> None:
    assert knobs_of(TILE, product(rows), NARROW)["rows_0"].default == found


def test_constant_rows_leave_no_rest() -> None:
    """They are packed by tiles."""
    assert knobs_of(TILE, product(128, constant=0), NARROW)["rows_0"].default == 4


def patches(images: int) -> tirx.PrimFunc:
    """Patches of 8 x 8 pixels, channels last: short pieces of an input that L2 does not hold."""

    def convolution(x: relax.Expr, w: relax.Expr, b: relax.Expr) -> relax.Expr:
        return nhwc(x, w, b, strides=(8, 8))

    func = kernel_of(convolution, f32(images, 32, 32, 3), f32(8, 8, 3, 16 * LANES), f32(16 * LANES))
    return func.with_attr(CONSTANTS_ATTRIBUTE, [1, 2])


def test_columns_pass_by_blocks_of_rows_that_stay_in_l2() -> None:
    machine = NARROW.with_cores(1).model_copy(update=SMALL_L2)
    knobs = knobs_of(TILE, patches(40), machine)
    assert knobs["columns_first"].default == 1
    assert knobs["row_block"].default == 1
    assert "row_block" not in knobs_of(TILE, patches(2), machine)


def test_long_runs_come_ahead_of_their_use() -> None:
    """Rows of 3072 bytes follow each other: no blocks, as weights would be read for each."""
    machine = NARROW.with_cores(1).model_copy(update=SMALL_L2)
    func = kernel_of(relax.op.matmul, f32(512, 768), f32(768, 8 * LANES))
    knobs = knobs_of(TILE, func.with_attr(CONSTANTS_ATTRIBUTE, [1]), machine)
    assert knobs["row_block"].default == 0


def test_numbers() -> None:
    machine = host_description().with_cores(1).model_copy(update=SMALL_L2)
    kernels = {"patches": patches(40), "odd": product(49), "few": product(7)}
    decisions = {
        "patches": [{}, {"row_block": 0}, {"row_block": 1, "columns_first": 1}],
        "odd": [{}],
        "few": [{}],
    }
    check_numbers(TILE, kernels, decisions, machine)


def test_padded_input_is_read_again_by_the_last_tile() -> None:
    """The border is written ahead of all tiles, so that rows may be repeated without a branch."""
    func = kernel_of(
        lambda x, w, b: nhwc(x, w, b, padding=(1, 1)),
        f32(1, 7, 7, 8),
        f32(3, 3, 8, 2 * LANES),
        f32(2 * LANES),
    )
    machine = NARROW.with_cores(1)
    scheduled = finished_schedule(TILE.apply(func, machine, DEFAULT_DECISIONS), func, machine)
    assert nodes(scheduled.body, tirx.Min)
    check_numbers(TILE, {"padded": func}, {"padded": [{}]})


def test_rows_that_each_take_a_vector_of_their_own_are_none() -> None:
    """Vectors of pixels serve all channels, and no other line of the image."""
    func = kernel_of(
        lambda x, w: relax.op.nn.conv2d(x, w), f32(1, 32, 42, 42), f32(4, 32, 3, 3)
    ).with_attr(CONSTANTS_ATTRIBUTE, [1])
    knobs = knobs_of(TILE, func, NARROW)
    assert (knobs["rows_1"].default, knobs["rows_2"].default) == (4, 2)


@pytest.mark.parametrize(("width", "copied"), [(256, 1), (196, 0)])
def test_columns_whose_rows_share_sets_of_l1_are_copied(width: int, copied: int) -> None:
    """Rows of 1024 bytes: 32 of them have places in L1, and a tile reads all 64 of a column."""
    func = kernel_of(
        lambda x, w: relax.op.nn.conv1d(x, w), f32(1, 64, width), f32(32, 64, 1)
    ).with_attr(CONSTANTS_ATTRIBUTE, [1])
    assert knobs_of(TILE, func, NARROW)["column_panel"].default == copied


@emulated
@pytest.mark.parametrize("rows", [49, 128])
def test_rows_on_arm(rows: int) -> None:
    """Of 31 registers as many rows as pay, the last of which are computed twice."""
    found = apply_template(TILE, product(rows), arm())
    assert isinstance(found, ScheduledKernel)
    assert nodes(found.func.body, tirx.Min)
    generator = np.random.default_rng(rows)
    shapes = (rows, 24), (24, 2 * LANES)
    x, w = (generator.standard_normal(shape).astype("float32") for shape in shapes)
    nothing = np.full((rows, 2 * LANES), np.nan, "float32")
    result = run_on_arm(compiled(found.func, arm()), [x, w, nothing])
    np.testing.assert_allclose(result, x @ w, rtol=1e-4, atol=1e-4)
