"""Padding by blocks of rows: where it goes, what it leaves alone, numbers on odd sizes."""

import pytest
from cpu_kernels import tiled
from kernel_cases import nhwc
from lowering import assert_same, f32, kernel_of, loops_of, run
from machines import MACHINE
from tvm import s_tir, te, tirx, topi

from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.tir_schedules.analysis.buffer_access import access_of, is_data_parallel, kernel_blocks
from tvm_ext.tir_schedules.cpu.register_blocking import OperandStage, decide_tile
from tvm_ext.tir_schedules.cpu.register_tile import padding_stage
from tvm_ext.tir_schedules.inlining import inline_blocks

CORES = MACHINE.with_cores(2)


def depthwise(
    height: int, width: int, channels: int, taps: int, stride: int = 1, batch: int = 1
) -> tirx.PrimFunc:
    x = te.placeholder((batch, height, width, channels), "float32", "x")
    w = te.placeholder((taps, taps, channels, 1), "float32", "w")
    y = topi.nn.depthwise_conv2d_nhwc(x, w, stride, taps // 2, 1)
    return te.create_prim_func([x, w, topi.nn.relu(y)])


def stage_of(func: tirx.PrimFunc) -> OperandStage | None:
    sch = s_tir.Schedule(func)
    inline_blocks(sch)
    (anchor,) = (block for block in kernel_blocks(sch) if not is_data_parallel(sch, block))
    access = access_of(sch, anchor)
    assert access is not None
    return padding_stage(sch, access, decide_tile(access, CORES, "float32"), CORES)


def test_one_parallel_loop_with_the_padding_inside() -> None:
    scheduled = tiled(depthwise(56, 56, 64, 3), CORES)
    # The weights are no constants here: the first loop packs them.
    kinds = [loop.kind for loop in loops_of(scheduled) if not loop.path]
    assert kinds == ["serial", "parallel"]


def test_blocks_are_shared_evenly() -> None:
    stage = stage_of(depthwise(56, 56, 64, 3))
    assert stage is not None
    assert 56 % stage.tiles == 0
    assert (56 // stage.tiles) % 2 == 0


@pytest.mark.parametrize(
    "func",
    [
        depthwise(6, 6, 16, 5),
        depthwise(1, 56, 16, 3),
        kernel_of(nhwc, f32(1, 30, 30, 16), f32(3, 3, 16, 64), f32(64)),
    ],
    ids=["most rows twice", "a single row", "not padded"],
)
def test_left_alone(func: tirx.PrimFunc) -> None:
    assert stage_of(func) is None


def narrow() -> tirx.PrimFunc:
    """Images of one pixel in each of six rows, with channels first."""
    x, w = (
        te.placeholder((4, 1, 6, 1), "float32", "x"),
        te.placeholder((4, 1, 3, 1), "float32", "w"),
    )
    y = topi.nn.conv2d_nchw(x, w, 1, (1, 0, 1, 0), 1)
    return te.create_prim_func([x, w, topi.nn.relu(y)])


def test_rows_that_vectors_run_along_are_left_alone() -> None:
    func = narrow()
    scheduled = tiled(func, CORES)
    assert_same(run({"narrow": func})["narrow"], run({"narrow": scheduled})["narrow"], "narrow")


def test_numbers() -> None:
    plain = {
        "even": depthwise(56, 56, 64, 3),
        "odd": depthwise(45, 37, 24, 5),
        "stride": depthwise(40, 41, 16, 3, stride=2),
        "batch": depthwise(30, 17, 40, 3, batch=3),
        "prime": depthwise(31, 9, 13, 3),
    }
    machine = host_description().with_cores(2)
    scheduled = {name: tiled(func, machine) for name, func in plain.items()}
    wanted, found = run(plain), run(scheduled)
    for name in plain:
        assert_same(wanted[name], found[name], name)
