"""The last tile of rows starts earlier: which rows each tile computes, numbers, and refusals."""

import itertools
from collections.abc import Iterator

import pytest
from cpu_kernels import tiled
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import nhwc
from lowering import Spec, assert_same, f32, kernel_of, run, statements
from machines import MACHINE, NARROW
from thoroughness import DRAWS
from tvm import relax, s_tir, te, tirx, topi
from tvm.relax.op import nn
from tvm.s_tir.schedule import LoopRV
from tvm.sym import Analyzer
from tvm_ffi import structural_map

from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.tir_schedules.analysis.buffer_access import nodes, static_extent
from tvm_ext.tir_schedules.analysis.loop_nest import substitute
from tvm_ext.tir_schedules.cpu.overlapping_tiles import with_overlapping_tiles
from tvm_ext.tir_schedules.schedule_kernels import schedule_kernel

op = relax.op


def product(*specs: Spec) -> tirx.PrimFunc:
    return kernel_of(lambda a, b, c: nn.relu(op.add(op.matmul(a, b), c)), *specs)


def blocks(func: tirx.PrimFunc) -> list[s_tir.SBlockRealize]:
    found = [s for s in statements(func.body) if isinstance(s, s_tir.SBlockRealize)]
    return [realize for realize in found if len(realize.iter_values)]


def conditions(func: tirx.PrimFunc) -> list[str]:
    """The blocks that ask for something at each of their iterations."""
    return [
        str(realize.block.name_hint)
        for realize in blocks(func)
        if not isinstance(realize.predicate, tirx.IntImm)
    ]


def rows_of(func: tirx.PrimFunc, block: str, position: int = 0) -> list[list[int]]:
    """What one iteration variable of a block runs through, a list for each tile."""
    (realize,) = (r for r in blocks(func) if r.block.name_hint == block)
    value = realize.iter_values[position]
    extents = {
        loop.loop_var: static_extent(loop.extent) or 0
        for loop in nodes(func.body, tirx.For)
        if any(loop.loop_var.same_as(used) for used in tirx.analysis.undefined_vars(value))
    }
    *_, row = extents
    tiles: dict[int, list[int]] = {}
    for number, values in enumerate(_combinations(extents)):
        found = Analyzer().simplify(substitute(value, values))
        tiles.setdefault(number // extents[row], []).append(int(found.value))
    return list(tiles.values())


def _combinations(extents: dict[tirx.Var, int]) -> Iterator[dict[tirx.Var, tirx.IntImm]]:
    for steps in itertools.product(*(range(extent) for extent in extents.values())):
        yield {var: tirx.const(step, str(var.ty)) for var, step in zip(extents, steps, strict=True)}


def test_no_condition_is_left() -> None:
    before = tiled(product(f32(197, 20), f32(20, 64), f32(64)))
    script = before.script()
    after = with_overlapping_tiles(before)
    assert before.script() == script
    assert len(conditions(before)) == 3
    assert conditions(after) == []
    assert [r.block.name_hint for r in blocks(after)] == [r.block.name_hint for r in blocks(before)]
    assert with_overlapping_tiles(after).same_as(after)


@pytest.mark.extended
@pytest.mark.parametrize("rows", [31, 38, 101, 197])
def test_every_row_is_in_a_tile_and_none_beyond(rows: int) -> None:
    before = tiled(product(f32(rows, 20), f32(20, 16), f32(16)))
    after = with_overlapping_tiles(before)
    for block in (realize.block.name_hint for realize in blocks(after)):
        tiles = rows_of(after, block)
        assert {row for tile in tiles for row in tile} == set(range(rows))
        height = len(tiles[0])
        assert all(tile == list(range(tile[0], tile[0] + height)) for tile in tiles)
        # Only the last one starts earlier than at a multiple of the height.
        assert {tile[0] for tile in tiles} == {*range(0, rows - height, height), rows - height}


def test_tiles_that_divide_the_rows_are_left_alone() -> None:
    before = tiled(product(f32(56, 20), f32(20, 64), f32(64)))
    assert conditions(before) == []
    assert with_overlapping_tiles(before).same_as(before)


@settings(max_examples=4 * DRAWS, deadline=None, derandomize=True)
@given(
    rows=st.integers(1, 70),
    depth=st.integers(1, 70),
    columns=st.integers(1, 70),
    machine=st.sampled_from([MACHINE, NARROW]),
)
def test_numbers_of_products(
    rows: int, depth: int, columns: int, machine: MachineDescription
) -> None:
    functions = {
        "plain": kernel_of(op.matmul, f32(rows, depth), f32(depth, columns)),
        "batch": kernel_of(op.matmul, f32(2, rows, depth), f32(2, depth, columns)),
    }
    scheduled = {name: schedule_kernel(func, machine)[0] for name, func in functions.items()}
    for name, (a, b, found) in run(scheduled).items():
        assert_same([a @ b], [found], name)


@pytest.mark.extended
@pytest.mark.parametrize("rows", [101, 197, 509])
def test_numbers_on_threads(rows: int) -> None:
    machine = host_description().with_cores(2)
    func = product(f32(rows, 197), f32(197, 96), f32(rows, 96))
    scheduled, _ = schedule_kernel(func, machine)
    assert "T.min(" in scheduled.script()
    (a, b, c, found) = run({"scheduled": scheduled})["scheduled"]
    assert_same([a @ b + c], [found], "product")


@pytest.mark.extended
def test_numbers_of_convolutions() -> None:
    specs = f32(3, 3, 5, 16), f32(16)
    plain = {
        "nhwc": kernel_of(nhwc, f32(1, 9, 39, 5), *specs),
        "stride": kernel_of(lambda *v: nhwc(*v, strides=(2, 2)), f32(1, 9, 75, 5), *specs),
    }
    scheduled = {name: schedule_kernel(func, MACHINE)[0] for name, func in plain.items()}
    assert [name for name, func in scheduled.items() if "T.min(" in func.script()] == list(plain)
    wanted, found = run(plain), run(scheduled)
    for name in plain:
        assert_same(wanted[name], found[name], name)


def staged(*factors: float) -> s_tir.Schedule:
    """Exponentials of 19 rows in an array of the kernel, and a multiple of them for each factor."""
    x = te.placeholder((19, 16), "float32", "x")
    own = te.compute((19, 16), lambda i, j: te.exp(x[i, j]), "own")
    results = [topi.multiply(own, tirx.const(factor, "float32")) for factor in factors]
    return s_tir.Schedule(te.create_prim_func([x, *results]))


def split_rows(sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV, height: int) -> LoopRV:
    """The loop over tiles of ``height`` rows."""
    return sch.split(sch.get_loops(block)[0], factors=[None, height])[0]


def test_array_of_one_tile() -> None:
    sch = staged(2.0)
    own = sch.get_sblock("own")
    (result,) = sch.get_consumers(own)
    sch.compute_at(own, split_rows(sch, result, 8))
    before = sch.mod["main"]
    after = with_overlapping_tiles(before)
    assert len(conditions(before)) == 2
    assert conditions(after) == []
    results = run({"before": before, "after": after})
    assert_same(results["before"], results["after"], "one tile")


def refused(sch: s_tir.Schedule) -> bool:
    before = sch.mod["main"]
    assert conditions(before)
    return with_overlapping_tiles(before).same_as(before)


def test_rows_that_a_block_outside_of_the_tiles_reads() -> None:
    sch = staged(2.0, 3.0)
    own = sch.get_sblock("own")
    inside, outside = sch.get_consumers(own)
    sch.reverse_compute_at(inside, split_rows(sch, own, 8))
    assert refused(sch)
    assert len(conditions(sch.mod["main"])) == 2
    split_rows(sch, outside, 8)
    assert refused(sch), "tiles of another loop"


def test_rows_that_a_block_outside_of_the_tiles_writes() -> None:
    """All of them are there before the first tile, and none is written twice."""
    sch = staged(2.0)
    (result,) = sch.get_consumers(sch.get_sblock("own"))
    split_rows(sch, result, 8)
    before = sch.mod["main"]
    after = with_overlapping_tiles(before)
    assert conditions(after) == []
    results = run({"before": before, "after": after})
    assert_same(results["before"], results["after"], "written before")


def test_array_that_takes_the_place_of_the_one_it_is_computed_from() -> None:
    """TVM may do so where a loop nest of its own reads what is computed: nothing is repeated."""
    x = te.placeholder((19, 16), "float32", "x")
    own = te.compute((19, 16), lambda i, j: te.exp(x[i, j]), "own")
    more = te.compute((19, 16), lambda i, j: own[i, j] * 2.0, "more")
    result = te.compute((19, 16), lambda i, j: more[i, j] + 1.0, "result")
    sch = s_tir.Schedule(te.create_prim_func([x, result]))
    for name in ("more", "result"):
        split_rows(sch, sch.get_sblock(name), 8)
    assert refused(sch)


def test_rows_that_are_written_for_a_tile_alone() -> None:
    """A tile that begins earlier would read rows that are those of the one before."""
    sch = staged(2.0)
    own = sch.get_sblock("own")
    (result,) = sch.get_consumers(own)
    split_rows(sch, result, 8)
    outer = sch.get_loops(result)[0]
    sch.compute_at(own, outer)
    inside = sch.get_loops(own)
    assert len(inside) > 1
    sch.split(inside[1], factors=[None, 2])
    before = sch.mod["main"]
    after = with_overlapping_tiles(before)
    results = run({"before": before, "after": after})
    assert_same(results["before"], results["after"], "a piece")


def test_parameter_outside_of_the_tiles() -> None:
    """What is computed twice goes to the result of the kernel, which no other block reads."""
    sch = staged(2.0)
    sch.compute_inline(sch.get_sblock("own"))
    (result,) = sch.get_child_blocks(sch.get_sblock("root"))
    split_rows(sch, result, 8)
    before = sch.mod["main"]
    after = with_overlapping_tiles(before)
    assert conditions(after) == []
    results = run({"before": before, "after": after})
    assert_same(results["before"], results["after"], "result")


def summed() -> tuple[s_tir.Schedule, s_tir.schedule.SBlockRV]:
    """19 sums of 13 steps each, in a parameter."""
    x, k = te.placeholder((19, 13), "float32", "x"), te.reduce_axis((0, 13), "k")
    total = te.compute((19,), lambda i: te.sum(x[i, k], axis=k), "total")
    sch = s_tir.Schedule(te.create_prim_func([x, total]))
    return sch, sch.get_sblock("total")


def test_sums_in_a_parameter() -> None:
    """The first rows of the last tile would be added to twice."""
    sch, block = summed()
    row, step = sch.get_loops(block)
    outer, inner = sch.split(row, factors=[None, 8])
    sch.reorder(step, outer, inner)
    sch.decompose_reduction(block, step)
    assert refused(sch)


def test_steps_of_a_sum() -> None:
    """Of 13 steps in pieces of 5 none may be taken twice."""
    sch, block = summed()
    outer, _ = sch.split(sch.get_loops(block)[1], factors=[None, 5])
    sch.decompose_reduction(block, outer)
    assert refused(sch)


def test_rows_in_vectors() -> None:
    sch = staged(2.0)
    sch.compute_inline(sch.get_sblock("own"))
    (result,) = sch.get_child_blocks(sch.get_sblock("root"))
    row, column = sch.get_loops(result)
    sch.reorder(column, row)
    _, lanes = sch.split(row, factors=[None, 8])
    sch.vectorize(lanes)
    assert refused(sch)


def test_rows_of_different_tiles() -> None:
    """Both blocks have a rest, of 8 and of 4 rows: there is no one row to start from."""
    sch = staged(2.0, 3.0)
    sch.compute_inline(sch.get_sblock("own"))
    first, second = sch.get_child_blocks(sch.get_sblock("root"))
    split_rows(sch, first, 8)
    split_rows(sch, second, 4)
    assert refused(sch)


def test_more_rows_in_a_tile_than_there_are() -> None:
    sch = staged(2.0)
    sch.compute_inline(sch.get_sblock("own"))
    (result,) = sch.get_child_blocks(sch.get_sblock("root"))
    sch.split(sch.get_loops(result)[0], factors=[1, 32])
    assert refused(sch)


def test_symbolic_number_of_rows() -> None:
    rows = tirx.Var("n", "int64")
    x = te.placeholder((rows, 16), "float32", "x")
    sch = s_tir.Schedule(te.create_prim_func([x, topi.multiply(x, tirx.const(2.0, "float32"))]))
    (result,) = sch.get_child_blocks(sch.get_sblock("root"))
    split_rows(sch, result, 8)
    assert refused(sch)


def test_condition_that_is_not_the_end_of_the_rows() -> None:
    """Rows below 17 of 19: the last tile would write what was to be left out."""
    sch = staged(2.0)
    sch.compute_inline(sch.get_sblock("own"))
    (result,) = sch.get_child_blocks(sch.get_sblock("root"))
    split_rows(sch, result, 8)
    func = sch.mod["main"]

    def narrower(condition: tirx.LT) -> tirx.LT:
        return tirx.LT(condition.a, tirx.const(17, str(condition.b.ty)))

    before = func.with_body(structural_map(func.body, (tirx.LT, narrower)))
    assert "17" in before.script()
    assert with_overlapping_tiles(before).same_as(before)


@pytest.mark.parametrize("order", ["steps", "rows"])
def test_sums_with_their_first_value_in_the_block(order: str) -> None:
    x, k = te.placeholder((19, 13), "float32", "x"), te.reduce_axis((0, 13), "k")
    total = te.compute((19,), lambda i: te.sum(x[i, k], axis=k), "total")
    sch = s_tir.Schedule(te.create_prim_func([x, total]))
    row, step = sch.get_loops(sch.get_sblock("total"))
    if order == "steps":
        sch.split(step, factors=[None, 5])
    else:
        outer, inner = sch.split(row, factors=[None, 8])
        sch.reorder(step, outer, inner)
    func = sch.mod["main"]
    assert with_overlapping_tiles(func).same_as(func)


def test_rows_of_the_outermost_loop() -> None:
    func = kernel_of(op.matmul, f32(1, 197, 20), f32(20, 64))
    assert "T.where" not in schedule_kernel(func, MACHINE)[0].script()
