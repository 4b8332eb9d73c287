"""Clusters of two blocks that share the columns of a product: numbers, faults, choice."""

from unittest import mock

import pytest
from cuda_emulation import CudaEmulationError
from matmul_kernels import product
from warpgroup_cases import H200, check_numbers

from tvm_ext.tir_schedules.cuda.matmul.matmul_decision import MatmulProblem
from tvm_ext.tir_schedules.cuda.warpgroup import warpgroup_instructions as hopper
from tvm_ext.tir_schedules.cuda.warpgroup.warpgroup_decision import (
    WarpgroupGemmTiles,
    decide_group_tiles,
)
from tvm_ext.tir_schedules.template import DEFAULT_DECISIONS, FixedDecisions

SMALL = {"tile_rows": 64, "tile_columns": 128, "cluster": 2}


def test_numbers_with_columns_as_neighbours():
    check_numbers(product(128, 128, 320, written="float16"), 2, **SMALL, stages=2)


def test_numbers_of_several_tiles_with_steps_as_neighbours():
    kernel = product(248, 250, 136, b_transposed=True, written="float16")
    check_numbers(kernel, 4, tile_rows=64, tile_columns=64, cluster=2, stages=3)


@pytest.mark.slow
@pytest.mark.parametrize("columns", [192, 256])
def test_numbers_of_a_batch_in_groups_of_tiles(columns):
    kernel = product(
        500, 250, 200, batch=(3,), dtype="bfloat16", a_transposed=True, b_transposed=True
    )
    decided = {"tile_rows": 128, "tile_columns": columns, "cluster": 2, "tile_group": 2}
    check_numbers(kernel, 4, **decided)


def test_a_block_that_ends_before_the_other_has_told_it_is_found():
    meet = hopper.cluster_meet

    def only_at_the_start(*, barriers_are_new=False):
        return meet(barriers_are_new=True) if barriers_are_new else hopper.commit()

    with (
        mock.patch.object(hopper, "cluster_meet", only_at_the_start),
        pytest.raises(CudaEmulationError),
    ):
        check_numbers(product(128, 128, 320, b_transposed=True), 2, **SMALL)


def test_a_stage_that_the_other_block_still_reads_is_found():
    init = hopper.barrier_init

    def own_readers(address, arrivals):
        return init(address, max(1, arrivals // 2))

    patched = mock.patch.object(hopper, "barrier_init", own_readers)
    with patched, pytest.raises(CudaEmulationError, match="race"):
        check_numbers(product(128, 128, 320, b_transposed=True), 2, **SMALL, stages=2)


@pytest.mark.parametrize(
    ("shape", "blocks"),
    [((4096, 4096, 4096), 2), ((1024, 1024, 1024), 2), ((4000 + 128, 4096, 4096), 1)],
    ids=["large", "small", "an odd number of tiles"],
)
def test_blocks_pair_up_where_tiles_do(shape, blocks):
    tiles = decide_group_tiles(MatmulProblem(1, *shape, "float16", 2, 16), H200, DEFAULT_DECISIONS)
    assert isinstance(tiles, WarpgroupGemmTiles)
    assert tiles.cluster == blocks
    assert tiles.group % blocks == 0


def test_columns_that_are_neighbours_are_halved_in_whole_boxes():
    asked = FixedDecisions({"tile_rows": 128, "tile_columns": 192, "split_blocks": 0})
    wanted = MatmulProblem(1, 4096, 4096, 4096, "float16", 2, 16)
    decide_group_tiles(wanted, H200, asked, across=True)
    assert asked.knobs["cluster"].options == (1,)
    decide_group_tiles(wanted, H200, asked, across=False)
    assert asked.knobs["cluster"].options == (1, 2)
