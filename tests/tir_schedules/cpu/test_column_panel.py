"""Panels of a matrix that is no constant: where they are written, who has none, and numbers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import conv_bias_relu, nhwc
from lowering import assert_same, f32, kernel_of, loops_of, lowered, run, scalar_stores, statements
from machines import MACHINE, NARROW
from thoroughness import DRAWS
from tvm import relax, s_tir, te, tirx
from tvm.relax.op import nn

from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.relay_passes.gemm_epilogue import GemmCompute
from tvm_ext.tir_schedules.analysis.buffer_access import (
    CONSTANTS_ATTRIBUTE,
    access_of,
    is_data_parallel,
    kernel_blocks,
    static_extent,
)
from tvm_ext.tir_schedules.cpu.register_blocking import (
    LEAST_TILES,
    OperandStage,
    RegisterTileDecision,
    column_panel,
    decide_tile,
)
from tvm_ext.tir_schedules.inlining import inline_blocks
from tvm_ext.tir_schedules.schedule_kernels import schedule_kernel

op = relax.op

# So small that every matrix is too large for it.
SMALL_CACHE = {"l2_bytes": 1024}
PANELS = MACHINE.model_copy(update=SMALL_CACHE).with_cores(1)
NARROW_PANELS = NARROW.model_copy(update=SMALL_CACHE)


def product(*shapes: tuple[int, ...]) -> tirx.PrimFunc:
    return kernel_of(op.matmul, *(f32(*shape) for shape in shapes))


def stage_of(
    func: tirx.PrimFunc, machine: CpuDescription = PANELS
) -> tuple[OperandStage | None, RegisterTileDecision]:
    sch = s_tir.Schedule(func)
    inline_blocks(sch)
    (anchor,) = (block for block in kernel_blocks(sch) if not is_data_parallel(sch, block))
    access = access_of(sch, anchor)
    assert access is not None
    decision = decide_tile(access, machine, "float32")
    assert isinstance(decision, RegisterTileDecision), decision
    return column_panel(sch, access, decision, machine, True), decision


def array_sizes(func: tirx.PrimFunc, machine: CpuDescription) -> dict[str, int]:
    """Elements of each array of the kernel, in the code that goes to LLVM."""
    found = [s for s in statements(lowered(func, machine).body) if isinstance(s, tirx.AllocBuffer)]
    return {str(s.buffer.name): static_extent(s.buffer.shape[0]) or 0 for s in found}


def test_panel_is_written_inside_of_the_loop_over_columns() -> None:
    func = product((96, 20), (20, 192))
    before = func.script()
    scheduled, choice = schedule_kernel(func, PANELS)
    assert func.script() == before
    assert choice.schedule == "register tile"
    assert choice.packed is None
    outermost, *inner = loops_of(scheduled)
    assert outermost.extent == 192 // 32
    assert all(loop.path for loop in inner)
    # The copy of 20 rows of 32 columns, and then the tiles that read it.
    assert [(loop.kind, loop.extent) for loop in inner[:3]] == [
        ("serial", 20),
        ("serial", 1),
        ("vectorized", 32),
    ]
    assert [loop.extent for loop in inner if loop.kind == "serial"][2:] == [96 // 12, 20]
    assert array_sizes(scheduled, PANELS)["x1_global"] == 20 * 32
    assert scalar_stores(scheduled, PANELS) == 0


def test_matrix_that_stays_in_cache_has_no_panel() -> None:
    scheduled, _ = schedule_kernel(product((96, 20), (20, 192)), MACHINE)
    assert "x1_global" not in scheduled.script()


def test_constant_is_packed_and_has_no_panel() -> None:
    func = product((96, 20), (20, 192)).with_attr(CONSTANTS_ATTRIBUTE, [1])
    scheduled, choice = schedule_kernel(func, PANELS)
    assert choice.packed is not None
    assert "x1_global" not in scheduled.script()


def test_stage_of_one_core_is_all_rows() -> None:
    stage, decision = stage_of(product((96, 20), (20, 192)))
    assert stage is not None
    assert (stage.axis, stage.tiles, stage.per_column) == (0, 96 // decision.rows[0], True)


@pytest.mark.parametrize(
    ("rows", "columns", "cores", "shares"),
    [(96, 192, 1, 1), (96, 192, 4, 2), (96, 32, 8, 8), (96, 192, 6, 1), (96, 192, 16, 2)],
)
def test_rows_are_shared_where_panels_are_fewer_than_cores(
    rows: int, columns: int, cores: int, shares: int
) -> None:
    stage, decision = stage_of(product((rows, 20), (20, columns)), PANELS.with_cores(cores))
    assert stage is not None
    assert rows // decision.rows[0] // stage.tiles == shares


@given(rows=st.integers(1, 400), columns=st.integers(2, 400), cores=st.integers(1, 64))
@settings(max_examples=8 * DRAWS, deadline=None, derandomize=True)
def test_tiles_of_a_piece_divide_those_of_the_rows(rows: int, columns: int, cores: int) -> None:
    stage, decision = stage_of(product((rows, 5), (5, columns)), PANELS.with_cores(cores))
    tiles = -(-rows // decision.rows.get(0, 1))
    assert (stage is None) == (tiles < LEAST_TILES)
    if stage is not None:
        assert tiles % stage.tiles == 0
        assert tiles // stage.tiles <= cores


def test_a_matrix_for_each_image() -> None:
    stage, decision = stage_of(product((3, 96, 20), (3, 20, 192)))
    assert stage is not None
    assert (stage.axis, stage.tiles) == (1, 96 // decision.rows[1])


def test_one_matrix_for_all_images() -> None:
    """Panels stay while the images pass, but a few images are no reason for a copy."""
    stage, _ = stage_of(product((8, 96, 20), (20, 192)))
    assert stage is not None
    assert (stage.axis, stage.tiles) == (0, 8)
    stage, _ = stage_of(product((2, 96, 20), (20, 192)))
    assert stage is None


WITHOUT_PANEL = {
    "few rows": product((24, 20), (20, 192)),
    "one row": product((1, 20), (20, 192)),
    "windows": kernel_of(conv_bias_relu, f32(1, 3, 16, 34), f32(64, 3, 3, 3), f32(1, 64, 1, 1)),
    "images around matrices": product((8, 1, 96, 20), (1, 3, 20, 192)),
}


@pytest.mark.parametrize("name", [*WITHOUT_PANEL])
def test_no_panel(name: str) -> None:
    stage, _ = stage_of(WITHOUT_PANEL[name])
    assert stage is None


def test_weights_of_a_convolution() -> None:
    stage, _ = stage_of(kernel_of(nhwc, f32(1, 30, 30, 16), f32(3, 3, 16, 64), f32(64)))
    assert stage is not None
    assert (stage.axis, stage.tiles) == (1, 28)


def test_input_of_a_convolution_with_one_tap() -> None:
    """Without windows it is a matrix: channels by pixels."""
    stage, decision = stage_of(kernel_of(nn.conv1d, f32(1, 20, 192), f32(96, 20, 1)))
    assert stage is not None
    assert (stage.axis, stage.tiles) == (1, 96 // decision.rows[1])
    stage, _ = stage_of(kernel_of(nn.conv1d, f32(1, 20, 194), f32(96, 20, 3)))
    assert stage is None


def with_exponentials(calls: int, used_again: bool = False) -> tirx.PrimFunc:
    """A product with a matrix that the kernel computes, by ``calls`` functions an element."""
    a, b = te.placeholder((96, 20), name="a"), te.placeholder((20, 192), name="b")

    def element(i: tirx.Var, j: tirx.Var) -> tirx.Expr:
        value = b[i, j]
        for _ in range(calls):
            value = tirx.exp(value)
        return value

    matrix, k = te.compute((20, 192), element, "matrix"), te.reduce_axis((0, 20), "k")
    product = te.compute((96, 192), lambda i, j: te.sum(a[i, k] * matrix[k, j], axis=k), "c")
    more = [te.compute((20, 192), lambda i, j: matrix[i, j] * 2.0, "more")] if used_again else []
    return te.create_prim_func([a, b, product, *more])


@pytest.mark.parametrize(
    ("calls", "used_again", "expected"), [(1, False, True), (2, False, False), (1, True, False)]
)
def test_matrix_that_the_kernel_computes(calls: int, used_again: bool, expected: bool) -> None:
    """It may be computed once for each share of the rows, if that is cheap."""
    stage, _ = stage_of(with_exponentials(calls, used_again))
    assert (stage is not None) == expected


@pytest.mark.extended
@pytest.mark.parametrize("calls", [1, 2])
def test_numbers_with_a_matrix_that_the_kernel_computes(calls: int) -> None:
    func = with_exponentials(calls)
    scheduled, choice = schedule_kernel(func, PANELS)
    assert choice.schedule == "register tile"
    results = run({"plain": func, "scheduled": scheduled})
    assert_same(results["plain"], results["scheduled"], "computed")


@settings(max_examples=3 * DRAWS, deadline=None, derandomize=True)
@given(
    rows=st.integers(1, 70),
    depth=st.integers(1, 70),
    columns=st.integers(1, 70),
    cores=st.integers(1, 4),
    machine=st.sampled_from([PANELS, NARROW_PANELS]),
)
def test_numbers_of_products(
    rows: int, depth: int, columns: int, cores: int, machine: CpuDescription
) -> None:
    functions = {
        "plain": product((rows, depth), (depth, columns)),
        "images": product((3, rows, depth), (3, depth, columns)),
        "one matrix": product((5, rows, depth), (depth, columns)),
        "groups": product((2, 1, rows, depth), (1, 2, depth, columns)),
    }
    machine = machine.with_cores(cores)
    scheduled = {name: schedule_kernel(func, machine)[0] for name, func in functions.items()}
    for name, (a, b, found) in run(scheduled).items():
        assert_same([a @ b], [found], name)


@pytest.mark.extended
@pytest.mark.parametrize(("rows", "columns"), [(197, 192), (192, 197), (509, 224), (96, 1024)])
def test_numbers_of_large_products(rows: int, columns: int) -> None:
    scheduled, _ = schedule_kernel(product((rows, 197), (197, columns)), PANELS.with_cores(2))
    assert "x1_global" in scheduled.script()
    a, b, found = run({"scheduled": scheduled})["scheduled"]
    assert_same([a @ b], [found], "product")


@pytest.mark.extended
def test_numbers_of_a_matrix_that_is_transposed() -> None:
    a, b = te.placeholder((96, 20), name="a"), te.placeholder((197, 20), name="b")
    k = te.reduce_axis((0, 20), "k")
    transposed = te.compute((96, 197), lambda i, j: te.sum(a[i, k] * b[j, k], axis=k), "c")
    scheduled, _ = schedule_kernel(te.create_prim_func([a, b, transposed]), PANELS)
    x, y, found = run({"scheduled": scheduled})["scheduled"]
    assert_same([x @ y.T], [found], "transposed")


@pytest.mark.extended
def test_numbers_of_a_square() -> None:
    """One array is both operands."""
    x, k = te.placeholder((2, 96, 96), name="x"), te.reduce_axis((0, 96), "k")
    square = te.compute(
        (2, 96, 96), lambda n, i, j: te.sum(x[n, i, k] * x[n, k, j], axis=k), "square"
    )
    scheduled, _ = schedule_kernel(te.create_prim_func([x, square]), PANELS)
    values, found = run({"scheduled": scheduled})["scheduled"]
    assert_same([values @ values], [found], "square")


@pytest.mark.extended
@pytest.mark.parametrize("dtype", ["float16", "float64", "int32"])
def test_numbers_of_types(dtype: str) -> None:
    func = kernel_of(op.matmul, ((101, 19), dtype), ((19, 96), dtype))
    scheduled, _ = schedule_kernel(func, PANELS)
    assert "x1_global" in scheduled.script()
    a, b, found = run({"scheduled": scheduled})["scheduled"]
    assert_same([a @ b], [found], dtype)


def test_padded_matrix_has_a_panel_in_any_case() -> None:
    a, b = te.placeholder((197, 768), name="a"), te.placeholder((768, 197), name="b")
    c = GemmCompute(False, False, "float32", columns=197, extra_columns=11).compute(a, b)
    func = schedule_kernel(te.create_prim_func([a, b, c]), MACHINE)[0]
    assert "masked_load" in func.script()
    assert [loop.kind for loop in loops_of(func) if not loop.path] == ["parallel"]
