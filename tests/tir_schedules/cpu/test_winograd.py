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

FORM = winograd_transforms.WinogradForm((4, 4), (3, 3))


def placeholder(shape: tuple[int, ...], name: str, dtype: str = "int64") -> te.Tensor:
    return te.placeholder([tirx.const(size, dtype) for size in shape], "float32", name)


def kernel(
    height: int,
    width: int,
    inputs: int,
    outputs: int,
    batch: int = 1,
    kept: int | None = None,
    epilogue: bool = True,
) -> tirx.PrimFunc:
    x = placeholder((batch, height, width, inputs), "x")
    u = placeholder((36, inputs, outputs), "u")
    y = FORM.convolution(x, u, (1, 1, 1, 1), kept or outputs)
    if not epilogue:
        return te.create_prim_func([x, u, y])
    bias = placeholder((kept or outputs,), "bias")
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


def test_numbers_of_blocks() -> None:
    """One register tile at a time, several, and more than there are tiles."""
    tile = {"columns": 8, "rows": 2}
    decisions = [{**tile, "block_tiles": tiles} for tiles in (2, 4, 16)]
    check_numbers(Winograd(), {"odd": CASES["odd"]}, {"odd": decisions})


@pytest.mark.extended
def test_numbers_of_random_decisions() -> None:
    check_random_numbers(Winograd(), CASES, machine=host_description().with_cores(2))


@pytest.mark.extended
@pytest.mark.parametrize("name", [*CASES])
def test_the_default_heuristic_is_the_default(name: str) -> None:
    knobs = assert_defaults_give_the_default_schedule(Winograd(), CASES[name], MACHINE)
    assert {*knobs} == {"columns", "rows", "block_tiles", "threads"}


@pytest.mark.parametrize("machine", [MACHINE, NARROW], ids=lambda m: m.name)
@pytest.mark.parametrize("seed", range(8))
def test_random_register_tiles_fit(machine: CpuDescription, seed: int) -> None:
    shape = WinogradShape(36, 64, 96, tiles=266)
    decision = decide_winograd(shape, machine, SampledDecisions(seed))
    vectors = decision.columns // machine.vector_lanes("float32")
    assert (decision.rows + 1) * vectors <= vector_registers(machine)
    assert decision.block_tiles % decision.rows == 0


@pytest.mark.parametrize("machine", [MACHINE, NARROW], ids=lambda m: m.name)
@pytest.mark.parametrize("tiles", [196, 49, 16, 437, 37, 4, None])
@pytest.mark.parametrize("channels", [16, 64, 96, 512])
def test_register_tile_fits(machine: CpuDescription, tiles: int | None, channels: int) -> None:
    shape = WinogradShape(36, channels, channels, tiles)
    decision = decide_winograd(shape, machine)
    vectors = max(1, decision.columns // machine.vector_lanes("float32"))
    assert (decision.rows + 1) * vectors + 1 <= vector_registers(machine)
    assert channels % decision.columns == 0
    assert decision.block_tiles < (tiles or 1000) + decision.rows


def test_weights_beyond_l2_are_read_for_many_tiles() -> None:
    large, small = WinogradShape(36, 512, 512, 196), WinogradShape(36, 64, 64, 196)
    decision = decide_winograd(large, MACHINE)
    assert decision.streamed
    assert decision.block_tiles * large.tile_bytes > MACHINE.l2_bytes
    decision = decide_winograd(small, MACHINE)
    assert decision.block_tiles * small.tile_bytes <= MACHINE.l2_bytes


def test_a_run_decides_nothing_that_is_tuned() -> None:
    decisions = SampledDecisions(0)
    assert decide_winograd(WinogradShape(36, 64, 64), MACHINE, decisions) == decide_winograd(
        WinogradShape(36, 64, 64), MACHINE
    )


def test_structure() -> None:
    loops = loops_of(applied(kernel(224, 224, 32, 32)))
    assert [loop.kind for loop in loops].count("parallel") == 1
    assert {loop.extent for loop in loops if loop.kind == "vectorized"} == {16, 32}


def test_few_tiles_have_no_threads() -> None:
    assert not any(loop.kind == "parallel" for loop in loops_of(applied(kernel(4, 4, 4, 8))))


def test_not_mine() -> None:
    func = kernel_of(relax.op.matmul, f32(8, 8), f32(8, 8))
    assert "stages" in refusal_of(Winograd(), func)


def test_loops_that_count_in_int32_are_refused() -> None:
    x, u = (
        placeholder(shape, name, "int32")
        for shape, name in (((1, 8, 8, 4), "x"), ((36, 4, 8), "u"))
    )
    func = te.create_prim_func([x, u, FORM.convolution(x, u, (1, 1, 1, 1), 8)])
    assert "int64" in refusal_of(Winograd(), func)


def test_an_epilogue_in_another_order_keeps_its_own_loops() -> None:
    x = placeholder((1, 8, 8, 16), "x")
    u = placeholder((36, 16, 16), "u")
    y = FORM.convolution(x, u, (1, 1, 1, 1), 16)
    func = te.create_prim_func([x, u, topi.transpose(y, (0, 3, 1, 2))])
    results = run({"plain": func, "scheduled": applied(func, host_description())})
    assert_same(results["plain"], results["scheduled"], "transposed")
    assert np.abs(results["plain"][-1]).max() > 0
