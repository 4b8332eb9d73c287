"""Products whose last tiles several blocks of threads share: work, numbers, code, choice."""

import random

import numpy as np
import pytest
from cuda_kernels import needs_nvcc, scheduled
from emulated_kernels import run_emulated
from lowering import kernel_of
from matmul_kernels import f16, product
from warpgroup_cases import H200, assert_no_spills, check_numbers, code_of, residual

from tvm_ext.tir_schedules.cuda.matmul.matmul_decision import MatmulProblem
from tvm_ext.tir_schedules.cuda.warpgroup.stream_k import WarpgroupGemm, WarpgroupTileScheduler
from tvm_ext.tir_schedules.cuda.warpgroup.warpgroup_contraction import WarpgroupContraction
from tvm_ext.tir_schedules.cuda.warpgroup.warpgroup_decision import (
    WarpgroupGemmTiles,
    decide_group_tiles,
)
from tvm_ext.tir_schedules.template import DEFAULT_DECISIONS, FixedDecisions


def test_every_shared_step_belongs_to_one_block_and_every_part_has_a_number_of_its_own():
    generator = random.Random(0)
    for _ in range(80):
        cluster = generator.randint(1, 2)
        blocks, depth = generator.randint(2, 20) * cluster, generator.randint(1, 30)
        tiles = generator.randint(1, 60) * cluster
        left = tiles % blocks
        if not left:
            continue
        sharing = generator.randint(1, min(blocks, left * depth) // cluster) * cluster
        cut = WarpgroupGemmTiles(64, 64, split_blocks=sharing, cluster=cluster)
        whole = WarpgroupGemm((), 1, 64 * tiles, 64, depth * 64, "float16", cut, blocks)
        work = WarpgroupTileScheduler(whole, "int32")
        assert (work.shared, work.whole) == (left, tiles - left)
        parts = {}
        for block in range(sharing):
            own, rank = divmod(block, cluster)
            for step in range(work.border(own), work.border(own + 1)):
                assert work.owner(step) == own
                parts.setdefault((own, step // depth, rank), []).append(step)
        assert sum(map(len, parts.values())) == left * depth
        numbers = [work.part(*place) for place in parts]
        assert len(set(numbers)) == len(numbers)
        assert max(numbers) < work.parts


@pytest.mark.parametrize(
    ("rows", "sms", "sharing", "cluster"),
    [(190, 5, 5, 1), (420, 5, 4, 1), (380, 8, 8, 2)],
    ids=["ranges over two tiles", "after whole tiles, by some blocks", "by clusters"],
)
def test_numbers(rows, sms, sharing, cluster):
    """Operands are copied to aligned rows first: their copies and the parts lie apart."""
    kernel = product(rows, 62, 500, b_transposed=True, written="float16")
    decided = {"split_blocks": sharing, "cluster": cluster}
    check_numbers(kernel, sms, tile_rows=64, tile_columns=64, **decided)


def test_what_follows_is_applied_to_sums_of_parts():
    operands = (f16(2, 60, 520), f16(520, 72), f16(72), f16(2, 60, 72))
    kernel = kernel_of(residual, *operands)
    check_numbers(kernel, 4, tile_rows=128, tile_columns=128, split_blocks=2, stages=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "sms", "decided"),
    [
        ((200, 300, 1000), 7, {"tile_rows": 128, "tile_columns": 192, "split_blocks": 7}),
        ((130, 131, 1001), 7, {"tile_rows": 64, "tile_columns": 128, "split_blocks": 7}),
        ((200, 250, 600), 3, {"tile_rows": 128, "tile_columns": 256, "split_blocks": 3}),
    ],
)
def test_tiles_of_other_sizes(shape, sms, decided):
    check_numbers(product(*shape, dtype="bfloat16", a_transposed=True), sms, **decided)


def test_results_do_not_depend_on_the_order_of_blocks():
    machine = H200.with_cores(5)
    decided = FixedDecisions({"tile_rows": 64, "tile_columns": 64, "split_blocks": 5})
    generator = np.random.default_rng(0)
    a, b = (generator.standard_normal(s).astype("float16") for s in ((192, 512), (512, 64)))
    func = scheduled(WarpgroupContraction(), product(192, 64, 512), machine, decided)
    zeros = np.zeros((192, 64), "float32")
    first, second = (run_emulated(func, a, b, zeros, machine=machine, seed=s)[2] for s in (1, 7))
    assert np.array_equal(first, second)
    np.testing.assert_allclose(
        first, a.astype("float32") @ b.astype("float32"), rtol=1e-4, atol=1e-3
    )


@needs_nvcc
def test_nothing_spills(tmp_path):
    kernel = product(128, 4096, 16384, written="float16")
    source = code_of(kernel, tile_columns=256, split_blocks=128)
    assert source.count("__global__ void") == 2 * 2
    assert_no_spills(source, tmp_path, registers=[32, 168])


@pytest.mark.parametrize(
    ("shape", "shares"),
    [((128, 1024, 16384), True), ((5120, 5120, 5120), True), ((4096, 4096, 4096), False)],
    ids=["thin and long", "a nearly empty last round", "a nearly full last round"],
)
def test_steps_are_shared_where_that_takes_less_time(shape, shares):
    tiles = decide_group_tiles(MatmulProblem(1, *shape, "float16", 2, 16), H200, DEFAULT_DECISIONS)
    assert isinstance(tiles, WarpgroupGemmTiles)
    assert bool(tiles.split_blocks) == shares


def test_a_product_of_1024_has_a_tile_for_nearly_every_multiprocessor():
    product = MatmulProblem(1, 1024, 1024, 1024, "float16", 2, 16)
    tiles = decide_group_tiles(product, H200, DEFAULT_DECISIONS)
    assert isinstance(tiles, WarpgroupGemmTiles)
    assert (tiles.rows, tiles.columns, tiles.stages) == (64, 128, 8)
