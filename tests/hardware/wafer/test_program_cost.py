"""Costs of programs that are small enough to be added up by hand."""

import numpy as np
import pytest

from tvm_ext.hardware.targets import resolve_target
from tvm_ext.hardware.wafer.program import BlockWork, Steps, Transfer, WaferProgram
from tvm_ext.hardware.wafer.program_cost import busy_map, program_cost, work_cycles

MESH = resolve_target("wse2")
START = MESH.issue_cycles + MESH.loop_cycles


def work(rows=1, columns=1, **changes) -> BlockWork:
    """Ten multiply-adds of 32 elements: one array, one scalar and the sum."""
    values = {
        "name": "work",
        "instructions": 10.0,
        "elements": 320.0,
        "length": 32.0,
        "scalar_operations": 0.0,
        "dtype": "float32",
        "flops": 640.0,
        "load_bytes": 2560.0,
        "store_bytes": 1280.0,
        "operands": ("A", "C"),
        "row_share": np.ones(rows),
        "column_share": np.ones(columns),
        **changes,
    }
    return BlockWork(**values)


def test_an_instruction_costs_its_start_and_its_elements_twice_with_two_arrays():
    assert work_cycles(work(), MESH) == (10 * START + 2 * 320, 0)
    assert work_cycles(work(operands=("A",)), MESH) == (10 * START + 320, 0)
    half = work(dtype="float16", operands=("A",))
    assert work_cycles(half, MESH) == (10 * START + 320 / 4, 0)


def test_memory_is_what_loads_take_longer_than_instructions():
    compute, memory = work_cycles(work(load_bytes=16 * 5000.0), MESH)
    assert compute + memory == 5000


def test_a_program_takes_as_long_as_its_busiest_pe():
    shares = np.array([1.0, 1.0, 0.5, 0.0])
    program = WaferProgram("p", 4, 2, (work(4, 2, row_share=shares),))
    cost = program_cost(program, MESH)
    busy = 10 * START + 640
    assert cost.cycles == busy + MESH.launch_cycles
    assert cost.mean_busy_cycles == pytest.approx(busy * 2.5 / 4)
    assert cost.imbalance == pytest.approx(4 / 2.5)
    assert cost.flops == pytest.approx(640 * 2.5 * 2)
    np.testing.assert_allclose(busy_map(program, MESH), busy * np.outer(shares, [1, 1]))
    assert sum(cost.shares.values()) == pytest.approx(1)


@pytest.mark.parametrize("overlapped", [False, True])
def test_steps_hide_messages_behind_work_or_do_not(overlapped):
    shift = Transfer("A", "shift_row", words=100.0, extent=4, distance=2)
    program = WaferProgram("p", 1, 4, (Steps(5, overlapped, (shift, work(1, 4))),))
    cost = program_cost(program, MESH)
    message = 100 + 2 + 2 * MESH.ramp_cycles + 1 + MESH.transfer_cycles
    busy = 10 * START + 640
    steps = message + 4 * max(message, busy) + busy if overlapped else 5 * (message + busy)
    assert cost.cycles == pytest.approx(steps + MESH.launch_cycles)
    assert cost.exposed_cycles == pytest.approx(steps - 5 * busy)
    assert cost.communication_cycles == pytest.approx(5 * message)


def test_senders_beyond_the_colours_are_relayed():
    def cycles(times: int) -> float:
        send = Transfer("A", "multicast_row", words=10.0, extent=64, distance=63)
        return program_cost(WaferProgram("p", 1, 64, (Steps(times, False, (send,)),)), MESH).cycles

    routes = MESH.usable_colours // 2
    few = (cycles(routes) - MESH.launch_cycles) / routes
    many = (cycles(64) - MESH.launch_cycles) / 64
    assert many - few == pytest.approx((-(-64 // routes) - 1) * MESH.relay_cycles)


@pytest.mark.parametrize(
    ("program", "limit"),
    [
        (WaferProgram("p", 1, 1, (work(),), shards={"A": MESH.usable_bytes + 1}), "SRAM: "),
        (WaferProgram("p", MESH.rows + 1, 1, (work(MESH.rows + 1),)), "rectangle: "),
    ],
)
def test_a_hard_limit_is_named(program, limit):
    assert program_cost(program, MESH).refusal.startswith(limit)
