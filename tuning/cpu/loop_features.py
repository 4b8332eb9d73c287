"""Numbers that say how a scheduled kernel's loops use a machine, whatever the kernel computes.

Times are relative to the kernel's roofline, shares are 0 to 1, and amounts are logarithms to base
2, so that kernels of any size can be told apart by one model. How loops, vectors, registers and
caches are counted, and what is approximated, stands in ``tvm_ext.tuning.cpu``.
"""

import math
from collections.abc import Callable, Iterable

import numpy as np
import tvm

from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.cpu.loop_tree import ArrayAccess, LoopNode, is_odd, pieces
from tvm_ext.tir_schedules.cpu.register_blocking import vector_registers
from tvm_ext.tuning.cpu.cost_model import (
    CpuCost,
    body_seconds,
    busiest_share,
    kernel_cost,
    parallel_loop,
)
from tvm_ext.tuning.cpu.cycles import LoopBody

FEATURE_NAMES = (
    # Seconds, over those of the roofline.
    *("roofline", "modelled", "compute", "from_l2", "from_l3", "from_memory"),
    # The kernel.
    *("operations", "parameter_bytes", "intensity", "allocated_bytes", "nests", "roofline_seconds"),
    # Vectors.
    *("vectorised_stores", "store_lanes", "lane_use", "odd_vectors"),
    *("gathered", "strided", "broadcast"),
    # Threads.
    *("parallel_loops", "parallel_work", "iterations_per_core", "imbalance", "launches"),
    # The bodies of the loops, by their part of the cycles.
    *("arithmetic", "slow", "loads", "stores", "waiting", "issued", "loop_overhead", "calls"),
    *("loads_per_operation", "accumulators", "registers", "spilled", "conflicts", "body_size"),
    # The body that takes most cycles, and the loops around it.
    *("hot_share", "hot_registers", "hot_size", "hot_runs", "hot_trip_1", "hot_trip_2"),
    *("hot_trip_3", "hot_depth"),
    # Bytes fetched into each cache, over those of the parameters.
    *("l1_traffic", "l2_traffic", "l3_traffic"),
)
"""What each number of ``loop_features`` is."""


def loop_features(mod: tvm.IRModule, machine: CpuDescription) -> np.ndarray:
    """The features of the scheduled kernel "main" of ``mod``, whose sizes are known."""
    return features_of(kernel_cost(mod, machine))


def features_of(cost: CpuCost) -> np.ndarray:
    """The features of a kernel that was analysed already."""
    found = {
        **_seconds(cost),
        **_kernel(cost),
        **_vectors(cost),
        **_threads(cost),
        **_bodies(cost),
        **_hottest(cost),
        **_traffic(cost),
    }
    return np.array([found[name] for name in FEATURE_NAMES], dtype=np.float64)


def _log(value: float) -> float:
    return math.log2(1.0 + max(0.0, value))


def _ratio(value: float, whole: float) -> float:
    return math.log2(max(value, 1e-12) / max(whole, 1e-12))


def _seconds(cost: CpuCost) -> dict[str, float]:
    roofline = cost.roofline_seconds
    own = roofline - cost.machine.kernel_overhead_us * 1e-6
    # Nothing is told of times a thousand times below the roofline.
    parts = [cost.compute_seconds, *cost.memory_seconds]
    compute, l2, l3, memory = (_ratio(max(part, 1e-3 * roofline), roofline) for part in parts)
    return {
        "roofline": own / roofline,
        "modelled": _ratio(cost.seconds, roofline),
        "compute": compute,
        "from_l2": l2,
        "from_l3": l3,
        "from_memory": memory,
    }


def _kernel(cost: CpuCost) -> dict[str, float]:
    nbytes = cost.kernel.parameter_bytes
    return {
        "operations": _log(cost.operations),
        "parameter_bytes": _log(nbytes),
        "intensity": _log(cost.operations / max(nbytes, 1)),
        "allocated_bytes": _log(cost.kernel.allocated_bytes),
        "nests": float(len(cost.kernel.root.children)),
        "roofline_seconds": math.log2(cost.roofline_seconds),
    }


def _vectors(cost: CpuCost) -> dict[str, float]:
    stored = _Mean()
    lanes = _Mean()
    use = _Mean()
    odd = _Mean()
    kinds = {"gathered": _Mean(), "strided": _Mean(), "broadcast": _Mean()}
    for node, runs in _runs(cost.kernel.root, 1.0):
        for statement in node.statements:
            times = runs * statement.share
            elements = times * statement.lanes
            if statement.store is not None:
                own = cost.machine.vector_bits / statement.bits
                needed = pieces(statement.lanes, statement.bits, cost.machine)
                stored.add(float(statement.lanes > 1), elements)
                lanes.add(min(1.0, statement.lanes / own), elements)
                is_long = is_odd(statement.lanes, statement.bits, cost.machine)
                odd.add(float(is_long), elements)
                use.add(statement.lanes / (own * max(needed, 1)), elements)
            for access in statement.accesses:
                for name, mean in kinds.items():
                    mean.add(float(_kind(access) == name), times)
    return {
        "vectorised_stores": stored.value,
        "store_lanes": lanes.value,
        "lane_use": use.value,
        "odd_vectors": odd.value,
        **{name: mean.value for name, mean in kinds.items()},
    }


def _kind(access: ArrayAccess) -> str:
    step = access.address.lane_step
    if step is None:
        return "gathered"
    if step == 0:
        return "broadcast"
    return "consecutive" if step == 1 else "strided"


def _threads(cost: CpuCost) -> dict[str, float]:
    loops = list(cost.parallel_loops())
    longest = max(loops, key=lambda loop: loop.extent, default=None)
    cores = cost.machine.cores
    work, on_threads = 0.0, 0.0
    for body in cost.bodies:
        work += body.cycles
        on_threads += body.cycles if parallel_loop(body) is not None else 0.0
    return {
        "parallel_loops": float(len(loops)),
        "parallel_work": on_threads / work if work else 0.0,
        "iterations_per_core": _log(longest.extent / cores) if longest else 0.0,
        "imbalance": busiest_share(longest, cost.machine) * cores if longest else 1.0,
        "launches": _log(cost.launches),
    }


def _bodies(cost: CpuCost) -> dict[str, float]:
    cycles = max(sum(body.cycles for body in cost.bodies), 1e-9)
    registers = float(vector_registers(cost.machine))
    limits = {
        "arithmetic": lambda body: body.arithmetic,
        "slow": lambda body: body.slow,
        "loads": lambda body: body.loads,
        "stores": lambda body: body.stores,
        "waiting": lambda body: body.waiting,
        "issued": lambda body: body.issued,
        "loop_overhead": lambda body: body.iterations,
    }
    found = {name: sum(map(part, cost.bodies)) / cycles for name, part in limits.items()}
    calls = sum(
        runs * statement.share * statement.instructions.calls
        for node, runs in _runs(cost.kernel.root, 1.0)
        for statement in node.statements
    )
    arithmetic = sum(body.arithmetic + body.slow for body in cost.bodies)
    means: dict[str, Callable[[LoopBody], float]] = {
        "accumulators": lambda body: body.accumulators / registers,
        "registers": lambda body: body.registers / registers,
        "spilled": lambda body: max(0.0, body.registers / registers - 1.0),
        "conflicts": lambda body: body.conflicts,
        "body_size": lambda body: _log(body.size),
    }
    for name, part in means.items():
        found[name] = sum(part(body) * body.cycles for body in cost.bodies) / cycles
    found["calls"] = _log(calls)
    found["loads_per_operation"] = _log(sum(b.loads for b in cost.bodies) / max(arithmetic, 1e-9))
    return found


def _hottest(cost: CpuCost) -> dict[str, float]:
    machine = cost.machine
    seconds = [body_seconds(body, machine) for body in cost.bodies]
    if not seconds:
        return {name: 0.0 for name in FEATURE_NAMES if name.startswith("hot_")}
    hot = cost.bodies[int(np.argmax(seconds))]
    trips = [*hot.extents, 1.0, 1.0, 1.0]
    return {
        "hot_share": max(seconds) / max(sum(seconds), 1e-15),
        "hot_registers": hot.registers / vector_registers(machine),
        "hot_size": _log(hot.size),
        "hot_runs": _log(hot.runs),
        "hot_trip_1": _log(trips[0]),
        "hot_trip_2": _log(trips[1]),
        "hot_trip_3": _log(trips[2]),
        "hot_depth": float(len(hot.around)),
    }


def _traffic(cost: CpuCost) -> dict[str, float]:
    nbytes = max(cost.kernel.parameter_bytes, 1)
    return {
        "l1_traffic": _log(cost.traffic.l1 / nbytes),
        "l2_traffic": _log(cost.traffic.l2 / nbytes),
        "l3_traffic": _log(cost.traffic.l3 / nbytes),
    }


def _runs(node: LoopNode, outside: float) -> Iterable[tuple[LoopNode, float]]:
    """The loops below ``node``, itself included, with how often the statements in each run."""
    inside = outside * node.share * node.extent
    yield node, inside
    for child in node.children:
        yield from _runs(child, inside)


class _Mean:
    """A weighted mean; 0 without weights."""

    def __init__(self) -> None:
        self._sum = self._weight = 0.0

    def add(self, value: float, weight: float) -> None:
        self._sum += value * weight
        self._weight += weight

    @property
    def value(self) -> float:
        return self._sum / self._weight if self._weight else 0.0
