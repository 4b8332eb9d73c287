"""Winograd kernels: decisions, structure, numbers on sizes that are not round."""

from functools import partial

import numpy as np
import pytest
from cpu_kernels import refusal_of, scheduled
from decision_cases import (
    SampledDecisions,
    assert_defaults_give_the_default_schedule,
    check_numbers,
    check_random_numbers,
    knobs_of,
)
from lowering import assert_same, f32, kernel_of, loops_of, run
from machines import MACHINE, NARROW
from tvm import relax, te, tirx, topi

from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.relay_passes import winograd_transforms
from tvm_ext.tir_schedules.cpu import winograd
from tvm_ext.tir_schedules.cpu.register_blocking import vector_registers
from tvm_ext.tir_schedules.cpu.winograd import Winograd, WinogradShape, decide_winograd
from tvm_ext.tir_schedules.template import FixedDecisions

FORM = winograd_transforms.WinogradForm((4, 4), (3, 3))


def kernel(
    height: int,
    width: int,
    inputs: int,
    outputs: int,
    batch: int = 1,
    kept: int | None = None,
    epilogue: bool = True,
) -> tirx.PrimFunc:
    x = te.placeholder((batch, height, width, inputs), "float32", "x")
    u = te.placeholder((36, inputs, outputs), "float32", "u")
    y = FORM.convolution(x, u, (1, 1, 1, 1), kept or outputs)
    if not epilogue:
        return te.create_prim_func([x, u, y])
    bias = te.placeholder((kept or outputs,), "float32", "bias")
    result = topi.nn.relu(topi.add(y, bias))
    return te.create_prim_func([x, u, bias, result])


applied = partial(scheduled, Winograd())


def test_the_pass_and_the_template_use_the_same_words() -> None:
    assert winograd_transforms.STAGE_ANNOTATION == winograd.STAGE_ANNOTATION
    assert winograd_transforms.TILE_ANNOTATION == winograd.TILE_ANNOTATION


CASES = {
    "even": kernel(8, 8, 16, 32),
    "odd": kernel(7, 13, 12, 24),
    "cropped": kernel(5, 6, 8, 16, kept=11),
    "batch": kernel(9, 4, 16, 16, batch=2),
    "long rows": kernel(6, 75, 16, 32),
    "plain": kernel(6, 6, 4, 32, epilogue=False),
}


@pytest.mark.extended
def test_numbers() -> None:
    machine = host_description()
    results = run({name: applied(func, machine) for name, func in CASES.items()})
    wanted = run(CASES)
    for name in CASES:
        assert_same(wanted[name], results[name], name)


TILE = {"columns": 8, "rows_across": 2, "rows_down": 1}


def test_numbers_of_blocks() -> None:
    """A register tile at a time, all tiles of the image as one block, and each stage for itself."""
    blocks = [
        {"block_across": 2, "block_down": 1},
        {"block_across": 4, "block_down": 2},
        {"block_across": 0},
    ]
    decisions = [{**TILE, **block} for block in blocks]
    check_numbers(Winograd(), {"odd": CASES["odd"]}, {"odd": decisions})


@pytest.mark.extended
def test_numbers_of_random_decisions() -> None:
    check_random_numbers(Winograd(), CASES, machine=host_description().with_cores(2))


@pytest.mark.extended
@pytest.mark.parametrize("name", [*CASES])
def test_the_default_heuristic_is_the_default(name: str) -> None:
    knobs = assert_defaults_give_the_default_schedule(Winograd(), CASES[name], MACHINE)
    assert {"columns", "rows_across", "rows_down", "block_across"} <= {*knobs}


def test_decisions_of_stages_apart() -> None:
    func = kernel(28, 28, 256, 256)
    apart = knobs_of(Winograd(), func, MACHINE, {"block_across": 0})
    assert {"threads", "input_threads", "output_threads"} <= {*apart}
    assert "block_down" not in apart
    blocked = knobs_of(Winograd(), func, MACHINE, {"block_across": 7})
    assert {"threads", "block_down"} <= {*blocked}
    assert "input_threads" not in blocked


@pytest.mark.parametrize("machine", [MACHINE, NARROW], ids=lambda m: m.name)
@pytest.mark.parametrize("seed", range(8))
def test_random_register_tiles_fit(machine: CpuDescription, seed: int) -> None:
    shape = WinogradShape(36, 1, 14, 19, 64, 96)
    decision = decide_winograd(shape, machine, SampledDecisions(seed))
    vectors = decision.columns // machine.vector_lanes("float32")
    assert (decision.rows[0] * decision.rows[1] + 1) * vectors <= vector_registers(machine)
    if decision.blocks is not None:
        down, across = decision.blocks
        assert (down, across) == decision.rows or (
            down * across * shape.tile_bytes <= machine.l2_bytes
        )


@pytest.mark.parametrize("machine", [MACHINE, NARROW], ids=lambda m: m.name)
@pytest.mark.parametrize("tiles", [(14, 14), (7, 7), (4, 4), (19, 23), (1, 37), (2, 2)])
@pytest.mark.parametrize("channels", [16, 64, 96, 512])
def test_register_tile_fits(machine, tiles, channels) -> None:
    shape = WinogradShape(36, 1, *tiles, channels, channels)
    decision = decide_winograd(shape, machine)
    vectors = max(1, decision.columns // machine.vector_lanes("float32"))
    rows = decision.rows[0] * decision.rows[1]
    assert rows * vectors + vectors + 1 <= vector_registers(machine)
    assert channels % decision.columns == 0
    if decision.blocks is not None:
        assert 2 * decision.blocks[0] * decision.blocks[1] >= rows


def test_large_weights_are_read_once() -> None:
    assert decide_winograd(WinogradShape(36, 1, 4, 4, 1024, 1024), MACHINE).blocks is None
    assert decide_winograd(WinogradShape(36, 1, 56, 56, 64, 64), MACHINE).blocks is not None


def test_structure() -> None:
    loops = loops_of(applied(kernel(224, 224, 32, 32)))
    assert [loop.kind for loop in loops].count("parallel") == 1
    assert {loop.extent for loop in loops if loop.kind == "vectorized"} == {16, 32}


def test_stages_apart_have_a_parallel_loop_each() -> None:
    func = applied(kernel(28, 28, 256, 256), decisions=FixedDecisions({"block_across": 0}))
    assert [loop.kind for loop in loops_of(func)].count("parallel") == 3


def test_not_mine() -> None:
    func = kernel_of(relax.op.matmul, f32(8, 8), f32(8, 8))
    assert "stages" in refusal_of(Winograd(), func)


def test_an_epilogue_in_another_order_keeps_its_own_loops() -> None:
    x = te.placeholder((1, 8, 8, 16), "float32", "x")
    u = te.placeholder((36, 16, 16), "float32", "u")
    y = FORM.convolution(x, u, (1, 1, 1, 1), 16)
    func = te.create_prim_func([x, u, topi.transpose(y, (0, 3, 1, 2))])
    results = run({"plain": func, "scheduled": applied(func, host_description())})
    assert_same(results["plain"], results["scheduled"], "transposed")
    assert np.abs(results["plain"][-1]).max() > 0
