"""What papers say of algorithms by grid comes out of the cost function, in sign.

C. He et al., "WaferLLM: large language model inference at wafer scale", OSDI 2025, section 7.
Elements are float16, as there; the times themselves are only in its figures.
"""

from unittest import mock

import pytest
from tvm import te
from wafer_matmuls import WSE2

from tvm_ext.hardware.wafer.program_cost import WaferCost, program_cost
from tvm_ext.tir_schedules.apply_template import ScheduledKernel, apply_template
from tvm_ext.tir_schedules.template import FixedDecisions
from tvm_ext.tir_schedules.wafer import matmul as matmul_decision
from tvm_ext.tir_schedules.wafer import mesh_partition
from tvm_ext.tir_schedules.wafer.gemv import COMBINATIONS, WaferGemv
from tvm_ext.tir_schedules.wafer.matmul import CANNON, INTERLEAVED, SUMMA, WaferMatmul
from tvm_ext.tuning.wafer.cost_model import read_program


def half_product(m: int, n: int, k: int):
    a, b = te.placeholder((m, k), "float16"), te.placeholder((k, n), "float16")
    r = te.reduce_axis((0, k))
    c = te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r))
    return te.create_prim_func([a, b, c])


def cost(module, template, func, grid: int, **decisions) -> WaferCost:
    """On ``grid`` x ``grid`` PEs, whether the template would offer that or not."""
    with mock.patch.object(module, "grid_options", return_value=[grid]):
        chosen = FixedDecisions({"rows": grid, **decisions})
        found = apply_template(template, func, WSE2, chosen)
    assert isinstance(found, ScheduledKernel)
    return program_cost(read_program(found.func), WSE2)


def gemm(size: int, grid: int, algorithm: int) -> WaferCost:
    columns = {"columns": grid, "steps": grid} if algorithm == SUMMA else {}
    func = half_product(size, size, size)
    return cost(matmul_decision, WaferMatmul(), func, grid, algorithm=algorithm, **columns)


def gemv(size: int, grid: int, pattern: str) -> WaferCost:
    func = half_product(1, size, size)
    combination = COMBINATIONS.index(pattern)
    options = {"columns": grid, "combination": combination}
    return cost(mesh_partition, WaferGemv(), func, grid, **options)


def test_near_720_only_mesh_gemm_keeps_the_pes_busy():
    share = {a: gemm(2880, 720, a).shares["compute"] for a in (SUMMA, CANNON, INTERLEAVED)}
    assert share[INTERLEAVED] > 0.7
    assert share[SUMMA] < 0.5
    assert share[CANNON] < 0.5


@pytest.mark.extended
def test_from_360_to_720_a_small_product_gets_slower_but_with_mesh_gemm():
    ratio = {
        a: gemm(2048, 683, a).cycles / gemm(2048, 342, a).cycles
        for a in (SUMMA, CANNON, INTERLEAVED)
    }
    assert ratio[SUMMA] > 1.5
    assert ratio[CANNON] > 1.5
    assert ratio[INTERLEAVED] == pytest.approx(1, abs=0.15)


def test_messages_of_a_large_product_take_less_time_on_more_pes():
    few, many = (gemm(8192, grid, INTERLEAVED).communication_cycles for grid in (180, 360))
    assert many < 0.8 * few


@pytest.mark.extended
def test_a_matrix_times_a_vector_gets_faster_and_then_slower_with_the_grid():
    cycles = [gemv(16384, grid, "chain").cycles for grid in (120, 240, 360, 480, 600, 720)]
    least = cycles.index(min(cycles))
    assert 0 < least < len(cycles) - 1
    assert cycles[: least + 1] == sorted(cycles[: least + 1], reverse=True)
    assert cycles[least:] == sorted(cycles[least:])


def test_messages_are_most_of_a_matrix_times_a_vector_on_a_large_grid():
    found = gemv(4096, 720, "chain")
    assert 0.8 < found.communication_cycles / found.cycles < 0.99


def test_a_k_tree_beats_the_chain_on_a_large_grid():
    assert gemv(16384, 720, "chain").cycles > 1.8 * gemv(16384, 720, "k_tree").cycles
