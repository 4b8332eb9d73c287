"""Races in scheduled kernels: those of templates have none, and one made on purpose is found."""

from functools import partial

import numpy as np
import pytest
import tvm
import unoptimised
from decision_checks import checked_decisions
from kernel_cases import CASES
from loop_kernels import gathered, matmul, wave
from lowering import kernel_of, kernels_of
from machines import MACHINE
from tvm import relax, s_tir, te, tirx
from tvm.relax.op import nn
from tvm.script import tirx as T
from tvm_ffi import structural_map

from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.polyhedral.check_schedules import check_schedule
from tvm_ext.tir_schedules.analysis.buffer_access import nodes
from tvm_ext.tir_schedules.apply_template import apply_template
from tvm_ext.tir_schedules.backend import scheduling_of
from tvm_ext.tir_schedules.schedule_kernels import schedule_kernel
from tvm_ext.tir_schedules.statements import changed_loop
from tvm_ext.tir_schedules.template import FixedDecisions

# Random decisions of each template for each kernel.
DRAWS = 12


def with_kind(func, name, kind):
    def changed(loop):
        return changed_loop(loop, kind=kind) if loop.loop_var.name == name else loop

    return func.with_body(structural_map(func.body, (tirx.For, changed)))


@pytest.mark.extended
@pytest.mark.parametrize("kind", [tirx.ForKind.PARALLEL, tirx.ForKind.VECTORIZED])
def test_a_race_is_found(kind):
    found = check_schedule(with_kind(matmul(4, 5, 6), "l", kind))
    assert len(found.races) == 1
    assert found.races[0].dependence.buffer == "C"
    assert not found.proved


def test_a_loop_without_dependence_is_proved():
    found = check_schedule(with_kind(wave(8), "j", tirx.ForKind.PARALLEL))
    assert (found.proved, found.races) == (["a parallel loop j"], [])


def test_what_is_not_affine_is_listed():
    found = check_schedule(with_kind(gathered(8), "i", tirx.ForKind.PARALLEL))
    assert not found.races
    assert len(found.not_proved) == 1
    assert "where[i] is loaded from memory" in found.not_proved[0]


def test_a_schedule_broken_on_purpose_is_caught():
    a = te.placeholder((16, 32), name="a")
    k = te.reduce_axis((0, 32), "k")
    total = te.compute((16,), lambda i: te.sum(a[i, k], axis=k), name="total")
    sch = s_tir.Schedule(te.create_prim_func([a, total]))
    i, k = sch.get_loops(sch.get_sblock("total"))
    sch.parallel(i)
    assert not check_schedule(sch.mod["main"]).races
    broken = with_kind(sch.mod["main"], str(sch.get(k).loop_var.name), tirx.ForKind.PARALLEL)
    assert check_schedule(broken).races


@pytest.mark.extended
@pytest.mark.parametrize("name", list(CASES)[::12])
def test_templates_make_no_races(name):
    check_case(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CASES))
def test_no_template_makes_a_race(name):
    check_case(name)


TILES = {
    "columns": 8,
    "rows_2": 7,
    "rows_1": 3,
    "column_panel": 0,
    "columns_first": 1,
    "threads": 1,
}
ROWS = {"vectors": 1, "columns": 9, "threads": 1, "parts": 4, "row_by_row": 0}
STAGED = {"lanes": 4, "rows": 2, "staged_rows": 4, "threads": 1}


@pytest.mark.extended
@pytest.mark.parametrize(
    ("case", "template", "values"),
    [
        ("conv nhwc 1x1", "register tile", TILES),
        ("conv nhwc depthwise", "depthwise convolution", ROWS),
        ("conv nchw depthwise", "depthwise convolution", STAGED),
    ],
)
def test_a_tile_that_is_moved_back_is_no_race(case, template, values):
    machine = MACHINE.with_cores(2)
    (kernel,) = kernels_of(CASES[case].expression, *CASES[case].inputs).values()
    chosen = next(one for one in scheduling_of(machine).templates if one.name == template)
    scheduled = apply_template(chosen, kernel, machine, FixedDecisions(values))
    found = check_schedule(scheduled.func)
    assert (found.races, found.not_proved) == ([], [])
    assert [one.dependence.kind for one in found.moved_back] == ["output"]


@pytest.mark.extended
def test_a_tile_that_is_moved_back_has_to_write_the_same():
    @T.prim_func(private=True)
    def same(x: T.Buffer((16, 10), "float32"), y: T.Buffer((10,), "float32")):
        for tile in T.parallel(3):
            for element in range(4):
                y[T.min(tile * 4, 6) + element] = x[0, T.min(tile * 4, 6) + element]

    @T.prim_func(private=True)
    def another(x: T.Buffer((16, 10), "float32"), y: T.Buffer((10,), "float32")):
        for tile in T.parallel(3):
            for element in range(4):
                y[T.min(tile * 4, 6) + element] = x[0, element]

    @T.prim_func(private=True)
    def added(x: T.Buffer((16, 10), "float32"), y: T.Buffer((10,), "float32")):
        for tile in T.parallel(3):
            for element in range(4):
                y[T.min(tile * 4, 6) + element] = y[T.min(tile * 4, 6) + element] + T.float32(1)

    assert check_schedule(same).moved_back
    for racing in (another, added):
        found = check_schedule(racing)
        assert found.races
        assert not found.moved_back


@T.prim_func(private=True)
def read_behind_the_loop(x: T.Buffer((10,), "float32"), y: T.Buffer((10,), "float32")):
    total = T.alloc_buffer((10,), "float32")
    for tile in T.parallel(3):
        for element in range(4):
            total[T.min(tile * 4, 6) + element] = x[T.min(tile * 4, 6) + element]
    for element in range(10):
        y[element] = total[element] + T.float32(1)


@T.prim_func(private=True)
def read_in_the_loop(x: T.Buffer((10,), "float32"), y: T.Buffer((10,), "float32")):
    for tile in T.parallel(3):
        for element in range(4):
            y[T.min(tile * 4, 6) + element] = x[T.min(tile * 4, 6) + element]
        for element in range(4):
            y[T.min(tile * 4, 6) + element] = y[T.min(tile * 4, 6) + element] + T.float32(1)


def test_what_reads_moved_tiles_waits_for_all_of_them():
    found = check_schedule(read_behind_the_loop)
    assert (found.races, found.not_proved) == ([], [])
    assert found.moved_back
    assert check_schedule(read_in_the_loop).races


@pytest.mark.slow
def test_an_epilogue_behind_moved_tiles_is_applied_once():
    """A scale for each channel, as squeeze-and-excitation has it, of a batch that a run decides."""
    batch = tirx.Var("batch", "int64")

    def scaled(x, w, y):
        total = nn.conv2d(x, w, data_layout="NHWC", kernel_layout="HWIO")
        return relax.op.add(y, relax.op.multiply(total, relax.op.add(total, y)))

    shapes = ((batch, 1, 1, 64), (1, 1, 64, 256), (batch, 7, 7, 256))
    func = kernel_of(scaled, *((shape, "float32") for shape in shapes))
    scheduled, _ = schedule_kernel(func, host_description().with_cores(4))
    found = check_schedule(scheduled)
    # Each branch for a few rows has tiles of its own.
    assert not found.races
    assert found.moved_back
    run = unoptimised.built({"main": scheduled})["main"]
    rng = np.random.default_rng(0)
    for items in (8, 9, 15, 23):
        x, w, y = (
            rng.integers(-2, 3, [items if n is batch else n for n in shape]).astype("float32")
            for shape in shapes
        )
        total = x.reshape(items, 64) @ w.reshape(64, 256)
        expected = y + total[:, None, None] * (total[:, None, None] + y)
        result = tvm.runtime.tensor(np.zeros_like(expected))
        arrays = [tvm.runtime.tensor(array) for array in (x, w, y)]
        for _ in range(50):
            run(*arrays, result)
            np.testing.assert_array_equal(result.numpy(), expected)


@pytest.mark.slow
def test_views_of_items_are_followed():
    batch = tirx.Var("batch", "int64")
    conv = partial(nn.conv2d, padding=(1, 1), data_layout="NHWC", kernel_layout="HWIO")
    cases = [
        (conv, [(batch, 9, 10, 16), (3, 3, 16, 40)]),
        (partial(relax.op.permute_dims, axes=[0, 2, 1]), [(batch, 40, 48)]),
    ]
    for expression, shapes in cases:
        func = kernel_of(expression, *((shape, "float32") for shape in shapes))
        scheduled, _ = schedule_kernel(func, host_description().with_cores(2))
        assert nodes(scheduled.body, tirx.DeclBuffer)
        found = check_schedule(scheduled)
        assert (found.races, found.not_proved) == ([], [])
        assert found.proved


def test_a_statement_that_never_runs_is_no_error():
    @T.prim_func(private=True)
    def never(y: T.Buffer((8,), "float32")):
        for element in T.parallel(8):
            y[element] = T.float32(0)
            if element >= 8:
                y[0] = T.float32(1)

    found = check_schedule(never)
    assert (found.races, found.not_proved) == ([], [])
    assert found.proved == ["a parallel loop element"]


@pytest.mark.parametrize("size_of_view", [4, 5])
def test_views_that_overlap_are_a_race(size_of_view):
    @T.prim_func(private=True)
    def rows(y: T.Buffer((6, 4), "float32")):
        for row in T.parallel(5):
            own = T.decl_buffer((size_of_view,), data=T.address_of(y[row, 0]))
            for element in range(size_of_view):
                own[element] = T.Cast("float32", row)

    assert bool(check_schedule(rows).races) == (size_of_view == 5)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CASES))
def test_random_decisions_make_no_race(name):
    counts, wrong = checked_decisions([name], DRAWS, seed=0)
    assert wrong == []
    assert counts["legal"] + counts["legal, a tile is moved back"] == counts["schedules"]


def check_case(name):
    machine = host_description().with_cores(2)
    for func in kernels_of(CASES[name].expression, *CASES[name].inputs).values():
        scheduled, _ = schedule_kernel(func, machine)
        found = check_schedule(scheduled)
        assert (found.races, found.not_proved) == ([], [])
