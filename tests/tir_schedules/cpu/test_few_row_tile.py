"""Products of few rows with a large matrix of the run, against NumPy."""

import numpy as np
import pytest
from combinations import pairwise
from lowering import f32, kernel_of, statements
from symbolic_extents import built, call, close, random, scheduled, size
from thoroughness import one_in
from tvm import relax, tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.polyhedral.check_schedules import check_schedule
from tvm_ext.tir_schedules.analysis.buffer_access import CONSTANTS_ATTRIBUTE, static_extent
from tvm_ext.tir_schedules.apply_template import ScheduledKernel, apply_template
from tvm_ext.tir_schedules.cpu.few_row_tile import FewRowTile

op = relax.op

# A matrix of some columns is large for it.
SMALL_L2 = host_description().model_copy(update={"l2_bytes": 8192, "cores": 2})


def product(rows: int, depth: int, columns: int) -> tirx.PrimFunc:
    return kernel_of(
        lambda x, w, bias: op.nn.relu(op.add(op.matmul(x, w), bias)),
        f32(rows, depth),
        f32(depth, columns),
        f32(columns),
    )


def tiled(func: tirx.PrimFunc) -> tirx.PrimFunc:
    found = apply_template(FewRowTile(), func, SMALL_L2)
    assert isinstance(found, ScheduledKernel), found
    return found.func


def columns_of(func: tirx.PrimFunc) -> set[int | None]:
    found = [s.buffer for s in statements(func.body) if isinstance(s, tirx.AllocBuffer)]
    return {static_extent(array.shape[0]) for array in found if array.name == "sums"}


@pytest.mark.extended
@pairwise(rows=[1, 2, 3, 4], columns=[256, 512, 1000, 2111])
def test_known_sizes(rows: int, columns: int) -> None:
    for depth in (24, 31):
        function = built(tiled(product(rows, depth, columns)))
        x, w, bias = random(rows, depth), random(depth, columns), random(columns)
        result = call(function, [x, w, bias], (rows, columns))
        close(result, np.maximum(x @ w + bias, 0))


def test_sums_of_one_row_are_shared_by_the_cores() -> None:
    assert columns_of(tiled(product(1, 24, 1024))) == {512}


@pytest.mark.extended
def test_columns_that_are_no_whole_tile_of_one_core() -> None:
    machine = SMALL_L2.with_cores(1)
    found = apply_template(FewRowTile(), product(1, 24, 1100), machine)
    assert isinstance(found, ScheduledKernel)
    (size_of_tile,) = columns_of(found.func)
    assert size_of_tile in range(550, 600)
    x, w, bias = random(1, 24), random(24, 1100), random(1100)
    result = call(built(found.func), [x, w, bias], (1, 1100))
    close(result, np.maximum(x @ w + bias, 0))


@pytest.mark.extended
@pytest.mark.parametrize("rows", [1, 3])
def test_threads_do_not_race(rows: int) -> None:
    assert not check_schedule(tiled(product(rows, 24, 1000))).races


@pytest.mark.extended
def test_batches_have_matrices_of_their_own() -> None:
    function = built(tiled(kernel_of(op.matmul, f32(3, 1, 18), f32(3, 18, 512))))
    x, w = random(3, 1, 18), random(3, 18, 512)
    close(call(function, [x, w], (3, 1, 512)), x @ w)


@pytest.mark.extended
@pytest.mark.parametrize("columns", one_in(3, [512, 700, None]))
def test_open_sizes(columns: int | None) -> None:
    width = size("columns") if columns is None else columns
    func = kernel_of(op.matmul, ((size("rows"), 2053), "float32"), ((2053, width), "float32"))
    found = scheduled(func, SMALL_L2).func
    assert max(n for n in columns_of(found) if n is not None) > 64
    function = built(found)
    for rows in (0, 1, 2, 3, 4, 7, 9):
        for count in (1, 16, 300, 4099) if columns is None else (columns,):
            x, w = random(rows, 2053), random(2053, count)
            result = call(function, [x, w], (rows, count))
            np.testing.assert_allclose(result, x @ w, rtol=1e-4, atol=1e-3)


@pytest.mark.extended
def test_a_short_or_open_sum_in_one_row() -> None:
    func = kernel_of(op.matmul, ((1, size("steps")), "float32"), ((size("steps"), 4096), "float32"))
    function = built(scheduled(func, SMALL_L2).func)
    for steps in (0, 1, 3, 4, 5, 18):
        x, w = random(1, steps), random(steps, 4096)
        close(call(function, [x, w], (1, 4096)), x @ w)


@pytest.mark.parametrize(
    ("func", "reason"),
    [
        (lambda: product(5, 24, 512), "more than 4 rows"),
        (lambda: product(1, 4, 64), "no large operand of the run lies along the columns"),
        (
            lambda: product(1, 24, 512).with_attr(CONSTANTS_ATTRIBUTE, [1]),
            "no large operand of the run lies along the columns",
        ),
        (
            lambda: kernel_of(op.matmul, ((size("rows"), 24), "float32"), f32(24, 512)),
            "an extent is symbolic",
        ),
    ],
)
def test_what_it_leaves(func, reason: str) -> None:
    assert apply_template(FewRowTile(), func(), SMALL_L2) == NotApplicable(reason)
