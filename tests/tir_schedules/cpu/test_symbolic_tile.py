"""Tiles of sums with symbolic extents: what they look like, and which kernels they leave."""

import pytest
import tvm
from kernel_cases import nhwc
from lowering import f32, kernel_of, loops_of, statements
from machines import MACHINE, NARROW
from symbolic_extents import matmul_bias_relu, scheduled, size
from tvm import relax, tirx
from tvm.relax.op import nn

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.targets import resolve_target
from tvm_ext.tir_schedules.analysis.buffer_access import static_extent
from tvm_ext.tir_schedules.apply_template import apply_template
from tvm_ext.tir_schedules.cpu.symbolic_tile import SymbolicTiles
from tvm_ext.tir_schedules.schedule_kernels import schedule_kernel

op = relax.op


def sums_of(func: tirx.PrimFunc) -> list[int]:
    """Elements of each row of sums, of one tile after the other."""
    found = [s.buffer for s in statements(func.body) if isinstance(s, tirx.AllocBuffer)]
    return [static_extent(array.shape[0]) for array in found if array.name == "sums"]


@pytest.mark.parametrize(
    ("machine", "columns", "tiles"),
    [
        (MACHINE, 64, [32] * (8 + 4 + 3 + 2 + 1)),
        (MACHINE, 48, [16] * (8 + 4 + 3 + 2 + 1)),
        (MACHINE, 6, [4] * (8 + 4 + 3 + 2 + 1)),
        (NARROW, 64, [16] * (6 + 4 + 3 + 2 + 1)),
    ],
)
def test_tiles_fit_into_registers(machine, columns: int, tiles: list[int]) -> None:
    before = matmul_bias_relu(columns)
    text = before.script()
    found = scheduled(before, machine).func
    assert before.script() == text
    assert sums_of(found) == tiles
    loops = loops_of(found)
    # Tiles on threads, then the reduction, the rows and their vectors.
    inner = [loop for loop in loops if loop.path == ("parallel", "serial")]
    assert {(loop.kind, loop.extent) for loop in inner} == {("vectorized", tiles[-1])}
    assert {loop.kind for loop in loops if not loop.path} == {"parallel"}
    # One way for rows in tiles, others for fewer rows than a tile has.
    assert len([loop for loop in loops if not loop.path]) == 5


def test_few_rows_have_several_parts_of_each_sum() -> None:
    """One multiplication and addition waits for the one before it, unless it adds elsewhere."""
    rows = ((size("rows"), 50), "float32")
    found = scheduled(kernel_of(op.matmul, rows, f32(50, 64)), MACHINE).func
    names = [s.buffer.name for s in statements(found.body) if isinstance(s, tirx.AllocBuffer)]
    # Of 8 vectors: a row of two has four parts, two rows have two, and three have too many.
    assert names.count("block") == 2 * 2 + 1 * 4


def test_few_rows_are_computed_once_where_a_tile_is_as_long() -> None:
    text = scheduled(matmul_bias_relu(64), MACHINE).func.script()
    (choice,) = [line for line in text.splitlines() if ">= T.int64(4) and" in line]
    assert "T.int64(3)) * T.int64(3)" in choice


def test_one_core_needs_no_threads() -> None:
    found = scheduled(matmul_bias_relu(64), MACHINE.with_cores(1)).func
    assert "parallel" not in {loop.kind for loop in loops_of(found)}


def test_sequences_of_a_batch_share_tiles() -> None:
    """The rows of all sequences are one loop where addresses allow it."""
    text = scheduled(matmul_bias_relu(64), MACHINE).func.script()
    assert "batch * rows >= T.int64(8)" in text


def test_rows_of_a_convolution_with_a_border_are_pixels_of_all_lines() -> None:
    func = kernel_of(
        lambda *v: nhwc(*v, padding=(1, 1)),
        ((size("batch"), size("height"), size("width"), 3), "float32"),
        f32(3, 3, 3, 32),
        f32(32),
    )
    text = scheduled(func, MACHINE).func.script()
    assert "if batch * height * width >= T.int64(8)" in text
    # TVM's own estimate of what tiles read of the padded input is not used.
    assert "explicit_read_region" in text


@pytest.mark.parametrize("target", ["avx2", "avx512", "aarch64-neon", "x86-64"])
def test_builds_for_other_machines(target: str) -> None:
    machine = resolve_target(target)
    func = scheduled(matmul_bias_relu(48), machine).func.with_attr("global_symbol", "main")
    assert tirx.build(tvm.IRModule({"main": func}), target=machine.tvm_target()) is not None


ROWS = ((size("rows"), 32), "float32")
REFUSALS = {
    "the kernel has 0 reductions, not one": (MACHINE, lambda: kernel_of(op.exp, ROWS)),
    "the kernel has 2 reductions, not one": (MACHINE, lambda: kernel_of(nn.softmax, ROWS)),
    "all extents are known, or a loop has no iterations": (
        MACHINE,
        lambda: kernel_of(op.matmul, f32(3, 4), f32(4, 5)),
    ),
    "its reduction is no sum": (MACHINE, lambda: kernel_of(lambda x: op.max(x, axis=[0]), ROWS)),
    "it sums up something other than products": (
        MACHINE,
        lambda: kernel_of(lambda x: op.sum(x, axis=[0]), ROWS),
    ),
    "no loop walks the output and the operands without a stride": (
        MACHINE,
        lambda: kernel_of(op.matmul, ROWS, f32(32, 1)),
    ),
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_refusals(reason: str) -> None:
    machine, func = REFUSALS[reason]
    assert apply_template(SymbolicTiles(), func(), machine) == NotApplicable(reason)


def test_is_asked_before_the_fallback() -> None:
    _, choice = schedule_kernel(matmul_bias_relu(64), MACHINE)
    assert (choice.schedule, choice.source) == ("symbolic tile", "template")
    assert choice.packed is not None
