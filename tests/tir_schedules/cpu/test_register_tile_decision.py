"""What a tuner may decide about register tiles: the options, what they change, and the numbers."""

import math

import pytest
from decision_cases import (
    SampledDecisions,
    assert_defaults_give_the_default_schedule,
    check_numbers,
    check_random_numbers,
    knobs_of,
    scheduled_with,
)
from kernel_cases import conv_bias_relu, nhwc
from lowering import Loop, f32, kernel_of, loops_of, scalar_stores
from machines import MACHINE, NARROW
from thoroughness import one_in, some_of
from tvm import relax, s_tir, te, tirx

from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.tir_schedules.analysis.buffer_access import CONSTANTS_ATTRIBUTE, access_of
from tvm_ext.tir_schedules.apply_template import finished_schedule
from tvm_ext.tir_schedules.cpu.reduction_blocking import decide_reduction_blocking
from tvm_ext.tir_schedules.cpu.register_blocking import (
    RegisterTileDecision,
    column_options,
    decide_tile,
    row_options,
    vector_registers,
)
from tvm_ext.tir_schedules.cpu.register_tile import RegisterTile
from tvm_ext.tir_schedules.packing import packed_operand
from tvm_ext.tir_schedules.template import DecisionError, FixedDecisions

op = relax.op
TILE = RegisterTile()

# So small that a matrix is too large for it and a padded map is cut into pieces.
SMALL_CACHE = {"l2_bytes": 24000}


def _turned() -> tirx.PrimFunc:
    a, b = te.placeholder((33, 19), name="a"), te.placeholder((64, 19), name="b")
    k = te.reduce_axis((0, 19), "k")
    product = te.compute((33, 64), lambda i, j: te.sum(a[i, k] * b[j, k], axis=k), "product")
    return te.create_prim_func([a, b, product])


def _weight_gradient(items: int, size: int, inputs: int, outputs: int) -> tirx.PrimFunc:
    """Of a convolution with 3 x 3 taps, channels last."""
    data = te.placeholder((items, size + 2, size + 2, inputs), name="data")
    given = te.placeholder((items, size, size, outputs), name="given")
    n, y, x = (te.reduce_axis((0, extent)) for extent in (items, size, size))

    def value(h: tirx.Var, w: tirx.Var, i: tirx.Var, o: tirx.Var) -> tirx.Expr:
        return te.sum(data[n, y + h, x + w, i] * given[n, y, x, o], axis=[n, y, x])

    gradient = te.compute((3, 3, inputs, outputs), value, "gradient")
    return te.create_prim_func([data, given, gradient])


def _constant(func: tirx.PrimFunc) -> tirx.PrimFunc:
    return func.with_attr(CONSTANTS_ATTRIBUTE, [1])


def _padded(x: relax.Expr, w: relax.Expr, b: relax.Expr) -> relax.Expr:
    return nhwc(x, w, b, padding=(1, 1))


def _strided(x: relax.Expr, w: relax.Expr, b: relax.Expr) -> relax.Expr:
    return nhwc(x, w, b, padding=(1, 1), strides=(2, 2))


def _channels_first(x: relax.Expr, w: relax.Expr, b: relax.Expr) -> relax.Expr:
    return conv_bias_relu(x, w, b, padding=(1, 1))


NHWC = f32(1, 14, 15, 12), f32(3, 3, 12, 64), f32(64)
KERNELS = {
    "odd columns": kernel_of(op.matmul, f32(33, 65), f32(65, 47)),
    "odd rows": kernel_of(op.matmul, f32(47, 33), f32(33, 192)),
    "constant": _constant(kernel_of(op.matmul, f32(37, 20), f32(20, 192))),
    "one row": _constant(kernel_of(op.matmul, f32(1, 24), f32(24, 192))),
    "transposed": _turned(),
    "batch": kernel_of(op.matmul, f32(3, 37, 12), f32(3, 12, 48)),
    "weight gradient": _weight_gradient(3, 8, 24, 32),
    "nhwc": kernel_of(_padded, *NHWC),
    "nhwc constant": _constant(kernel_of(_padded, *NHWC)),
    "nhwc stride": kernel_of(_strided, f32(2, 29, 31, 8), f32(3, 3, 8, 32), f32(32)),
    "nchw": kernel_of(_channels_first, f32(1, 12, 14, 32), f32(22, 12, 3, 3), f32(1, 22, 1, 1)),
}


SMALL = NARROW.model_copy(update=SMALL_CACHE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "machine"),
    [*((name, MACHINE) for name in KERNELS), *((name, SMALL) for name in some_of(KERNELS))],
)
def test_the_default_heuristic_is_the_default(name: str, machine: CpuDescription) -> None:
    knobs = assert_defaults_give_the_default_schedule(TILE, KERNELS[name], machine)
    assert {"columns", "threads"} <= {*knobs}


@pytest.mark.extended
@pytest.mark.parametrize(
    ("cache", "seed"), one_in(2, [({}, 0), (SMALL_CACHE, 1)]), ids=["own", "small"]
)
def test_numbers_of_random_decisions(cache: dict[str, int], seed: int) -> None:
    machine = host_description().with_cores(2).model_copy(update=cache)
    check_random_numbers(TILE, KERNELS, seed=seed, machine=machine)


@pytest.mark.parametrize(
    ("extent", "lanes", "one_row", "wanted"),
    [
        (192, 16, False, {16, 32, 64}),
        (192, 16, True, {16, 32, 64, 96}),
        (128, 8, True, {8, 16, 32, 64}),
        (24, 16, False, {8}),
        (47, 16, False, {1, 47}),
        (51, 16, False, {3, 17, 51}),
        (97, 16, False, {1}),
    ],
)
def test_columns_worth_a_try(extent: int, lanes: int, one_row: bool, wanted: set[int]) -> None:
    assert column_options(extent, lanes, one_row) == wanted


@pytest.mark.parametrize(
    ("extent", "limit", "wanted"),
    [
        (12, 15, {1, 2, 3, 4, 6, 12}),
        (33, 15, {1, 3, 9, 11}),
        (197, 7, {1, 4, 5, 6, 7}),
        (2, 15, {1, 2}),
        (5, 1, {1}),
    ],
)
def test_rows_worth_a_try(extent: int, limit: int, wanted: set[int]) -> None:
    assert row_options(extent, limit) == wanted


@pytest.mark.extended
@pytest.mark.parametrize("machine", [MACHINE, NARROW], ids=lambda m: m.name)
@pytest.mark.parametrize("seed", range(6))
def test_random_tiles_fit(machine: CpuDescription, seed: int) -> None:
    sch = s_tir.Schedule(kernel_of(nhwc, f32(2, 16, 30, 16), f32(3, 3, 16, 96), f32(96)))
    access = access_of(sch, sch.get_sblock("conv2d_nhwc"))
    assert access is not None
    decision = decide_tile(access, machine, "float32", SampledDecisions(seed))
    assert isinstance(decision, RegisterTileDecision)
    vectors = decision.columns // machine.vector_lanes("float32")
    assert vectors >= 1
    assert (math.prod(decision.rows.values()) + 1) * vectors <= vector_registers(machine)


def applied(func: tirx.PrimFunc, machine: CpuDescription = MACHINE, **values: int) -> list[Loop]:
    decisions = FixedDecisions(values)
    sch = TILE.apply(func, machine, decisions)
    assert isinstance(sch, s_tir.Schedule), sch
    assert decisions.unused() == []
    return loops_of(sch.mod["main"])


def extents(loops: list[Loop], kind: str) -> list[int | None]:
    return [loop.extent for loop in loops if loop.kind == kind]


def test_size_of_the_tile() -> None:
    loops = applied(kernel_of(op.matmul, f32(12, 20), f32(20, 96)), columns=48, rows_0=4)
    assert {*extents(loops, "vectorized")} == {48}
    assert {*extents(loops, "unrolled")} == {4}


def test_unrolled_reduction() -> None:
    func = kernel_of(op.matmul, f32(12, 20), f32(20, 96))
    before, after = applied(func), applied(func, reduction_unroll=4)
    assert 20 in extents(before, "serial")
    assert 4 not in extents(before, "unrolled")
    assert 20 // 4 in extents(after, "serial")
    assert 4 in extents(after, "unrolled")


def test_a_short_reduction_is_unrolled_in_full() -> None:
    """The three columns of a window, since the reduction inside of it has one step."""
    func = kernel_of(_channels_first, f32(1, 1, 14, 34), f32(22, 1, 3, 3), f32(1, 22, 1, 1))
    assert knobs_of(TILE, func, MACHINE)["reduction_unroll"].options == (1, 3)
    assert knobs_of(TILE, KERNELS["odd columns"], MACHINE)["reduction_unroll"].options == (1,)


def test_threads() -> None:
    large, small = (kernel_of(op.matmul, f32(n, 65), f32(65, 192)) for n in (512, 5))
    assert "parallel" in {loop.kind for loop in applied(large)}
    assert "parallel" not in {loop.kind for loop in applied(large, threads=0)}
    assert "parallel" in {loop.kind for loop in applied(small, threads=1)}
    assert "threads" not in knobs_of(TILE, large, MACHINE.with_cores(1))
    one_tile = kernel_of(op.matmul, f32(5, 65), f32(65, 32))
    assert "threads" not in knobs_of(TILE, one_tile, MACHINE)


def test_order_of_the_tiles() -> None:
    func = _constant(kernel_of(op.matmul, f32(56, 20), f32(20, 96)))
    orders = [
        scheduled_with(TILE, func, MACHINE, FixedDecisions({"columns_first": order}))
        for order in (0, 1)
    ]
    rows, columns = (sch.mod["main"].script() for sch in orders if isinstance(sch, s_tir.Schedule))
    assert "i0_0_i1_0_fused" in rows
    assert "i1_0_i0_0_fused" in columns
    alone = kernel_of(op.matmul, f32(7, 20), f32(20, 192))
    assert "columns_first" not in knobs_of(TILE, alone, MACHINE)


def test_packing() -> None:
    func = KERNELS["constant"]
    for packed in (0, 1):
        sch = TILE.apply(func, MACHINE, FixedDecisions({"packed": packed}))
        assert isinstance(sch, s_tir.Schedule)
        assert (packed_operand(sch) is not None) == bool(packed)
    assert "packed" not in knobs_of(TILE, KERNELS["odd rows"], MACHINE)


@pytest.mark.extended
def test_panels() -> None:
    func = KERNELS["odd rows"]
    assert knobs_of(TILE, func, MACHINE)["column_panel"].default == 0
    knobs = knobs_of(TILE, func, MACHINE, {"column_panel": 1})
    assert "columns_first" not in knobs
    assert knobs["panel_tiles"].options == (1, 2, 4)
    sch = scheduled_with(TILE, func, MACHINE, FixedDecisions({"column_panel": 1}))
    assert isinstance(sch, s_tir.Schedule)
    assert "x1_global" in sch.mod["main"].script()
    host = host_description().with_cores(2)
    rows = knobs_of(TILE, func, host)["rows_0"].options
    check_numbers(
        TILE,
        {"odd rows": func},
        {"odd rows": [{"column_panel": 1, "rows_0": size} for size in (rows[0], rows[-1])]},
        host,
    )


def test_columns_are_packed_where_many_tiles_read_them() -> None:
    many, few = (kernel_of(op.matmul, f32(rows, 20), f32(20, 192)) for rows in (512, 42))
    assert knobs_of(TILE, many, MACHINE)["packed_columns"].default == 1
    assert knobs_of(TILE, few, MACHINE)["packed_columns"].default == 0
    # A panel is such a copy, and what is constant is packed while compiling.
    assert "packed_columns" not in knobs_of(TILE, many, MACHINE, {"column_panel": 1})
    assert "packed_columns" not in knobs_of(TILE, KERNELS["constant"], MACHINE)
    # Each item has a matrix of its own.
    assert "packed_columns" not in knobs_of(TILE, KERNELS["batch"], MACHINE)


def test_blocks_of_a_long_reduction() -> None:
    """All tiles add up two small images before the next; of a large image, some rows."""
    for size, wanted in ((8, {4: 2}), (32, {4: 1, 5: 4})):
        func = _weight_gradient(16, size, 32, 64)
        sch = s_tir.Schedule(func)
        access = access_of(sch, sch.get_sblock("gradient"))
        assert access is not None
        tile = decide_tile(access, NARROW, "float32")
        lengths = decide_reduction_blocking(access, tile, NARROW)
        assert lengths == wanted
        outermost = [loop for loop in applied(func, NARROW) if not loop.path]
        assert (outermost[-1].kind, outermost[-1].extent) == ("serial", 16 // wanted[4])
    # Rows of a prime number of pixels would be cut into single ones, each a pass over all results.
    assert "reduction_block" not in knobs_of(TILE, _weight_gradient(1, 521, 32, 64), NARROW)
    # A product reads its rows along the reduction.
    long = kernel_of(op.matmul, f32(64, 4096), f32(4096, 64))
    assert "reduction_block" not in knobs_of(TILE, long, NARROW)


def test_padding_by_pieces() -> None:
    func = kernel_of(_padded, f32(1, 28, 14, 12), f32(3, 3, 12, 64), f32(64))
    machine = MACHINE.with_cores(2)
    knob = knobs_of(TILE, func, machine)["padding_tiles"]
    assert (knob.options, knob.default) == ((0, 2, 4, 7, 14), 14)
    together = applied(func, machine, padding_tiles=0, threads=1)
    pieces = applied(func, machine, padding_tiles=7, threads=1)
    assert len([loop for loop in together if not loop.path]) > 1
    assert [loop.extent for loop in pieces if loop.kind == "parallel"] == [28 // 7]
    assert len([loop for loop in pieces if not loop.path]) < len(
        [loop for loop in together if not loop.path]
    )
    assert "padding_tiles" not in knobs_of(TILE, func, machine, {"columns_first": 1})
    # Fewer pieces than cores would leave some without work.
    assert knobs_of(TILE, func, MACHINE)["padding_tiles"].options == (0,)
    assert knobs_of(TILE, func, MACHINE.with_cores(7))["padding_tiles"].options == (0, 2, 4)


@pytest.mark.extended
@pytest.mark.parametrize("name", ["odd rows", "constant", "nhwc", "nhwc stride"])
def test_no_decision_leaves_scalar_code(name: str) -> None:
    for seed in range(4):
        sch = scheduled_with(TILE, KERNELS[name], MACHINE, SampledDecisions(seed))
        assert isinstance(sch, s_tir.Schedule)
        assert scalar_stores(finished_schedule(sch, KERNELS[name], MACHINE), MACHINE) == 0


def test_other_values_are_refused() -> None:
    func = kernel_of(op.matmul, f32(12, 20), f32(20, 96))
    with pytest.raises(DecisionError, match="columns=24 is none of the options 16, 32, 48"):
        TILE.apply(func, MACHINE, FixedDecisions({"columns": 24}))
    decisions = FixedDecisions({"columns": 16, "rows_7": 2})
    TILE.apply(func, MACHINE, decisions)
    assert decisions.unused() == ["rows_7"]
