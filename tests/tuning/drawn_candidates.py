"""Candidates of small kernels with decisions drawn at random, and times made up for them."""

import random
from functools import cache

import tvm
from small_kernels import matmul_task
from tvm.s_tir import meta_schedule as ms

from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.hardware.targets import resolve_target
from tvm_ext.hardware.tvm_compat import tune_context
from tvm_ext.tuning.candidate import Candidate, KernelTask
from tvm_ext.tuning.search import TemplateSpace


def _machine() -> CpuDescription:
    found = resolve_target("avx512")
    assert isinstance(found, CpuDescription)
    return found.with_cores(4)


MACHINE = _machine()

SHAPES = ((48, 64, 32), (96, 32, 64), (40, 128, 16), (64, 48, 80))
"""Rows, columns and depth of matmuls."""


@cache
def task_of(shape: tuple[int, int, int]) -> KernelTask:
    return matmul_task(*shape)


@cache
def drawn(shape: tuple[int, int, int], count: int = 24, seed: int = 0) -> tuple[Candidate, ...]:
    """Different candidates of a matmul, its default first."""
    return tuple(drawn_of(task_of(shape), count, seed))


def drawn_of(task: KernelTask, count: int, seed: int = 0) -> list[Candidate]:
    """``count`` different candidates of a kernel, or as many as are found."""
    space = TemplateSpace(task, MACHINE, lambda mod: mod)
    generator = random.Random(seed)
    found: dict[str, Candidate] = {}
    default = space.default(space.templates[0])
    assert default is not None
    found[default.candidate.hash] = default.candidate
    for _ in range(3 * count):
        point = space.anywhere(generator)
        if point is not None:
            found.setdefault(point.candidate.hash, point.candidate)
        if len(found) == count:
            break
    return list(found.values())


def context_of(task: KernelTask) -> ms.TuneContext:
    """What MetaSchedule passes to a cost model."""
    return tune_context(task.workload, MACHINE.tvm_target(), None, None, task.name, 1)


def asked(candidates) -> list[ms.MeasureCandidate]:
    """The candidates as MetaSchedule passes them to a cost model."""
    return [candidate.measure_candidate() for candidate in candidates]


def results(seconds) -> list[ms.runner.RunnerResult]:
    """Times as MetaSchedule passes them; None for a candidate that failed."""
    return [
        ms.runner.RunnerResult(None, "it failed")
        if value is None
        else ms.runner.RunnerResult([float(value)], None)
        for value in seconds
    ]


def made_up_seconds(candidate: Candidate) -> float:
    """A formula of the decisions: large tiles and threads pay, and unrolling beyond two does not.

    The generic template is slow at everything.
    """
    work = 1e-10
    for size in candidate.task.workload["main"].params[2].shape:
        work *= int(size)
    if candidate.recorded.template != "register tile":
        return work * 400
    decisions = dict(candidate.recorded.decisions)
    columns = decisions.get("columns", 16)
    rows = max((value for name, value in decisions.items() if name.startswith("rows_")), default=1)
    tile = columns / 16 * rows
    slower = 1 + 12 / tile + (4 if columns == 48 else 0)
    slower *= 0.4 if decisions.get("threads") else 1.0
    return work * slower * (1.1 if decisions.get("reduction_unroll", 1) > 2 else 1.0)


def plain_module(func: tvm.tirx.PrimFunc) -> tvm.IRModule:
    """A kernel written by hand, as a candidate's module."""
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
