from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import GPU

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.targets import resolve_target
from tvm_ext.tir_schedules.cuda.matmul.matmul_decision import (
    MatmulProblem,
    MatmulTileSizes,
    decide_tiles,
)
from tvm_ext.tir_schedules.cuda.matmul.matmul_mainloop import OWN, REGISTER_TILES
from tvm_ext.tir_schedules.template import (
    DEFAULT_DECISIONS,
    DecisionError,
    FixedDecisions,
    SampledDecisions,
)

HALF = MatmulProblem(1, 4096, 4096, 4096, "float16", 2, 16)


def decided(product: MatmulProblem, machine=GPU, **given: int) -> MatmulTileSizes:
    tiles = decide_tiles(product, machine, FixedDecisions(given))
    assert isinstance(tiles, MatmulTileSizes)
    return tiles


def test_large_products_have_large_tiles_and_a_deep_pipeline():
    tiles = decided(HALF)
    assert tiles.rows * tiles.columns >= 128 * 128
    assert tiles.stages >= 3
    assert 4 <= tiles.warps <= 8


def test_a_product_of_few_tiles_has_smaller_ones():
    small, large = decided(replace(HALF, m=512, n=512)), decided(HALF)
    assert small.rows * small.columns < large.rows * large.columns


def test_thin_products_have_thin_tiles():
    assert decided(replace(HALF, m=16)).rows == 16
    assert decided(replace(HALF, n=24)).columns <= 32


SINGLE = MatmulProblem(1, 4096, 4096, 4096, "float32", 4, 4, REGISTER_TILES, OWN)


def test_narrow_products_in_registers_waste_no_lanes():
    for m, n in ((4096, 8), (5, 4096), (3000, 16)):
        tiles = decided(replace(SINGLE, m=m, n=n))
        assert (tiles.warp_rows, tiles.warp_columns) != (32, 64)
        assert min(tiles.rows, tiles.columns) < 2 * max(8, min(m, n))
    assert {decided(SINGLE).warp_rows, decided(SINGLE).warp_columns} == {32, 64}


@pytest.mark.parametrize("m", [2, 9, 30, 70])
@pytest.mark.parametrize("n", [2, 9, 30, 70])
def test_some_tile_in_registers_fits_every_matmul(m, n):
    decided(replace(SINGLE, m=m, n=n))


def test_a_short_reduction_has_no_more_stages_than_tiles():
    for k in (8, 16, 40, 64):
        tiles = decided(replace(HALF, k=k))
        assert tiles.stages <= -(-k // tiles.depth)


@settings(max_examples=20, deadline=None)
@given(
    m=st.integers(2, 5000),
    n=st.integers(2, 5000),
    k=st.integers(2, 5000),
    machine=st.sampled_from(["nvidia-a100", "nvidia-h100", "nvidia-rtx4090"]),
    generator=st.randoms(use_true_random=False),
)
def test_whatever_is_sampled_fits(m, n, k, machine, generator):
    gpu = resolve_target(machine)
    product = replace(HALF, m=m, n=n, k=k)
    tiles = decide_tiles(product, gpu, SampledDecisions(generator))
    assert isinstance(tiles, MatmulTileSizes)
    threads = tiles.warps * 32
    assert threads <= gpu.max_threads_per_block
    assert tiles.shared_bytes(2) <= gpu.dynamic_shared_memory_bytes
    assert tiles.registers(2, 16) * threads <= gpu.registers_per_block
    assert tiles.rows % tiles.warp_rows == tiles.columns % tiles.warp_columns == 0


def test_what_does_not_fit_is_not_offered():
    with pytest.raises(DecisionError, match="tile_columns=256"):
        decided(HALF, tile_rows=256, tile_columns=256)


def test_a_machine_without_room_is_refused():
    tiny = GPU.model_copy(update={"dynamic_shared_memory_bytes": 512})
    with pytest.raises(NotApplicable, match="512 bytes"):
        decide_tiles(HALF, tiny, DEFAULT_DECISIONS)
