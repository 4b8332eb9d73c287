"""Loop features are finite, the same for the same loops, and say what a schedule changed."""

import math

import numpy as np
import pytest
from drawn_candidates import MACHINE, SHAPES, drawn, drawn_of
from small_kernels import add_task, matmul_task
from tvm import s_tir

from tvm_ext.tuning.candidate import KernelTask
from tvm_ext.tuning.cpu.loop_features import FEATURE_NAMES, loop_features

KERNELS = {"matmul": matmul_task(48, 64, 32), "add": add_task(8192)}


def features(sch: s_tir.Schedule) -> dict[str, float]:
    return dict(zip(FEATURE_NAMES, loop_features(sch.mod, MACHINE), strict=True))


def schedule(task: KernelTask) -> tuple[s_tir.Schedule, list]:
    sch = s_tir.Schedule(task.workload)
    return sch, list(sch.get_loops(sch.get_sblock("result")))


def tiled(rows: int, columns: int = 32) -> s_tir.Schedule:
    """A matmul with a tile of sums that stays in registers."""
    sch, (i, j, k) = schedule(matmul_task(64, 64, 64))
    i_out, i_in = sch.split(i, [None, rows])
    j_out, j_in = sch.split(j, [None, columns])
    sch.reorder(i_out, j_out, k, i_in, j_in)
    sch.unroll(i_in)
    sch.vectorize(j_in)
    sch.decompose_reduction(sch.get_sblock("result"), k)
    return sch


def test_names_are_distinct_and_fit_the_numbers():
    assert len(set(FEATURE_NAMES)) == len(FEATURE_NAMES)
    sch, _ = schedule(KERNELS["add"])
    assert loop_features(sch.mod, MACHINE).shape == (len(FEATURE_NAMES),)


@pytest.mark.parametrize("task", KERNELS.values(), ids=KERNELS)
def test_features_of_drawn_schedules_are_finite_and_differ(task):
    candidates = drawn_of(task, 12)
    found = np.array([loop_features(one.mod, MACHINE) for one in candidates])
    assert np.isfinite(found).all()
    assert len(np.unique(found, axis=0)) == len(candidates)


def test_equal_loops_have_equal_features():
    first, again = drawn_of(matmul_task(*SHAPES[0]), 6, seed=3), drawn(SHAPES[0], 6, seed=3)
    for one, other in zip(first, again, strict=True):
        assert one.mod is not other.mod
        np.testing.assert_array_equal(
            loop_features(one.mod, MACHINE), loop_features(other.mod, MACHINE)
        )


def test_module_is_left_as_it_is():
    candidate = drawn(SHAPES[0])[1]
    before = candidate.mod.script()
    loop_features(candidate.mod, MACHINE)
    assert candidate.mod.script() == before


def test_vectors():
    sch, (i,) = schedule(add_task(4096))
    plain = features(sch)
    _, inner = sch.split(i, [None, 64])
    sch.vectorize(inner)
    vector = features(sch)
    assert plain["vectorised_stores"] == 0
    assert plain["store_lanes"] == pytest.approx(1 / 16)
    assert vector["vectorised_stores"] == vector["store_lanes"] == vector["lane_use"] == 1
    assert vector["modelled"] < plain["modelled"] - 1


@pytest.mark.parametrize(("lanes", "use"), [(8, 0.5), (12, 12 / 32), (48, 1.0)])
def test_vectors_that_fill_no_register_waste_lanes(lanes, use):
    sch, (i,) = schedule(add_task(48 * 64))
    _, inner = sch.split(i, [None, lanes])
    sch.vectorize(inner)
    found = features(sch)
    assert found["lane_use"] == pytest.approx(use)
    assert found["odd_vectors"] == float(lanes == 48)


@pytest.mark.parametrize(("extent", "imbalance"), [(8, 1.0), (2, 2.0), (5, 8 / 5)])
def test_threads(extent, imbalance):
    sch, (i,) = schedule(add_task(40 * 4096))
    serial = features(sch)
    outer, _ = sch.split(i, [extent, None])
    sch.parallel(outer)
    found = features(sch)
    assert serial["parallel_loops"] == serial["parallel_work"] == serial["launches"] == 0
    assert found["parallel_loops"] == found["parallel_work"] == found["launches"] == 1
    assert found["iterations_per_core"] == pytest.approx(math.log2(1 + extent / MACHINE.cores))
    assert found["imbalance"] == pytest.approx(imbalance)
    assert found["compute"] < serial["compute"]


def test_tile_of_sums_in_registers():
    small, large = features(tiled(2)), features(tiled(8))
    for found, rows in ((small, 2), (large, 8)):
        assert found["hot_registers"] == pytest.approx((2 * rows + 2) / 32)
        assert found["spilled"] == 0
    # Two rows of two vectors: each sum waits for itself, and each load serves two rows only.
    assert small["waiting"] > 0.9 > large["waiting"]
    assert small["loads_per_operation"] > large["loads_per_operation"]
    assert small["modelled"] > large["modelled"]


def test_tile_that_is_too_large_spills():
    found = features(tiled(32))
    assert found["spilled"] > 0.5
    assert found["stores"] > 0.5
    assert found["modelled"] > features(tiled(8))["modelled"]


def test_strided_reads_are_told_apart():
    sch, (i, j, k) = schedule(matmul_task(32, 32, 32))
    sch.reorder(k, j, i)
    sch.vectorize(i)
    found = features(sch)
    assert found["strided"] > 0.5
    assert found["broadcast"] > 0
    assert found["gathered"] == 0


def test_block_of_rows_fetches_less():
    sch, (i, j, k) = schedule(matmul_task(256, 512, 512))
    plain = features(sch)
    j_out, j_in = sch.split(j, [None, 16])
    k_out, k_in = sch.split(k, [None, 64])
    sch.reorder(j_out, k_out, i, k_in, j_in)
    blocked = features(sch)
    assert blocked["l1_traffic"] < plain["l1_traffic"] - 1
    assert blocked["from_l2"] < plain["from_l2"]
