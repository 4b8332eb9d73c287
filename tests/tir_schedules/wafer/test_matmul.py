"""Products on a mesh: right numbers in whatever order, and the messages of each algorithm."""

import numpy as np
import pytest
from tvm import te
from wafer_matmuls import WSE2, product, random, run, scheduled

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.wafer.program import BlockWork, Transfer
from tvm_ext.tir_schedules.apply_template import apply_template
from tvm_ext.tir_schedules.wafer.matmul import CANNON, INTERLEAVED, ON_LEFT, SUMMA, WaferMatmul
from tvm_ext.tuning.wafer.cost_model import read_program

ALGORITHMS = pytest.mark.parametrize("algorithm", [SUMMA, CANNON, INTERLEAVED])


def transfers(func) -> list[Transfer]:
    return [one for one, _ in read_program(func).leaves() if isinstance(one, Transfer)]


@pytest.mark.extended
@ALGORITHMS
def test_every_algorithm_computes_the_product_of_ragged_extents(algorithm):
    a, b = random(23, 17), random(17, 29)
    kernel = scheduled(WaferMatmul(), product(23, 29, 17, relu=True), algorithm=algorithm)
    np.testing.assert_allclose(run(kernel.func, a, b), np.maximum(a @ b, 0), rtol=1e-4, atol=1e-4)


@ALGORITHMS
def test_batches_of_transposed_operands_lie_in_groups_of_rows(algorithm):
    a, b = random(3, 10, 12), random(3, 14, 12)
    func = product(10, 14, 12, batch=3, transposed=True)
    kernel = scheduled(WaferMatmul(), func, algorithm=algorithm, groups=3)
    expected = a @ b.transpose(0, 2, 1)
    np.testing.assert_allclose(run(kernel.func, a, b), expected, rtol=1e-4, atol=1e-4)
    program = read_program(kernel.func)
    assert program.rows % 3 == 0
    assert program.rows > 3


def test_messages_of_summa_go_to_all_of_a_row_and_of_a_column():
    func = product(40, 40, 40)
    left, right = transfers(
        scheduled(WaferMatmul(), func, algorithm=SUMMA, rows=10, columns=8, steps=10).func
    )
    assert (left.pattern, left.extent, left.distance) == ("multicast_row", 8, 7)
    assert (right.pattern, right.extent, right.distance) == ("multicast_column", 10, 9)
    # 40 / 10 rows by 40 / 10 steps of A, 40 / 10 steps by 40 / 8 columns of B.
    assert (left.words, right.words) == (16, 20)


def test_cannon_wraps_around_and_the_interleaved_ring_does_not():
    func = product(40, 40, 40)
    cannon = transfers(scheduled(WaferMatmul(), func, algorithm=CANNON, rows=10).func)
    interleaved = transfers(scheduled(WaferMatmul(), func, algorithm=INTERLEAVED, rows=10).func)
    assert [one.distance for one in cannon] == [9, 9]
    assert [one.distance for one in interleaved] == [2, 2]
    # Tiles are brought to their first place before the first step.
    assert all(0 < one.first_distance <= 9 for one in (*cannon, *interleaved))


def test_work_is_that_of_the_tile_and_short_where_the_mesh_is_not_filled():
    func = product(20, 20, 20)
    kernel = scheduled(WaferMatmul(), func, algorithm=CANNON, rows=7, vector=ON_LEFT)
    work = next(
        one
        for one, _ in read_program(kernel.func).leaves()
        if isinstance(one, BlockWork) and "update" in one.name
    )
    # Tiles of 3: 9 instructions of 3 elements a step, less what is beyond the 20 that are summed.
    assert work.length == 3
    assert work.elements == pytest.approx(27 * 20 / 21)
    assert work.row_share.tolist() == pytest.approx([1] * 6 + [2 / 3])


def test_a_tile_and_its_messages_twice_is_what_a_pe_holds():
    func = product(40, 40, 40)
    twice = read_program(scheduled(WaferMatmul(), func, algorithm=CANNON, rows=10).func)
    once = read_program(
        scheduled(WaferMatmul(), func, algorithm=CANNON, rows=10, overlapped=0).func
    )
    tile = 4 * 4 * 4
    assert once.buffers == {"C_local": tile, "A_local": tile, "B_local": tile}
    assert twice.buffers == {"C_local": tile, "A_local": 2 * tile, "B_local": 2 * tile}
    assert twice.shards == {"A": tile, "B": tile, "C": tile}


def test_the_default_uses_many_pes_and_fits():
    program = read_program(scheduled(WaferMatmul(), product(512, 512, 512)).func)
    assert program.rows == program.columns > 16
    assert program.bytes_per_pe < WSE2.usable_bytes


@pytest.mark.parametrize(
    ("func", "reason"),
    [
        (product(1, 16, 16), "an operand is a vector, or nothing is summed"),
        (
            te.create_prim_func(
                [a := te.placeholder((4, 4)), te.compute((4, 4), lambda i, j: a[i, j])]
            ),
            "the kernel has 0 reductions, not one",
        ),
    ],
)
def test_other_kernels_are_left_alone(func, reason):
    assert apply_template(WaferMatmul(), func, WSE2) == NotApplicable(reason)
