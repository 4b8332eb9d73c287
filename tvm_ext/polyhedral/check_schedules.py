"""Whether the parallel loops and the vectors of scheduled kernels are free of races.

What can be proved of a scheduled kernel alone: no two iterations of a parallel loop access the
same element, one of them writing it, and no lane of a vector needs what another lane computes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import s_tir, tirx

from tvm_ext.polyhedral.affine_expressions import NotAffine
from tvm_ext.polyhedral.dependences import Dependence, dependence_between
from tvm_ext.polyhedral.kernel_domain import Access, KernelDomain, Statement, kernel_domain
from tvm_ext.polyhedral.legality import Violation, broken_by_lanes, carried_by, violation
from tvm_ext.tir_schedules.analysis.buffer_access import nodes


@dataclass
class ScheduleCheck:
    """What was found of one kernel.

    Attributes
    ----------
    proved : list[str]
        Parallel loops and vectors that carry no dependence.
    races : list[Violation]
        Dependences that a parallel loop or a vector breaks.
    not_proved : list[str]
        What could not be decided, and why: accesses or conditions that are not affine.
    """

    proved: list[str] = field(default_factory=list)
    races: list[Violation] = field(default_factory=list)
    not_proved: list[str] = field(default_factory=list)


def check_module(mod: tvm.IRModule) -> dict[str, ScheduleCheck]:
    """The check of every kernel of a module, by the kernel's name."""
    return {
        str(var.name_hint): check_schedule(func)
        for var, func in mod.functions_items()
        if isinstance(func, tirx.PrimFunc)
    }


def check_schedule(func: tirx.PrimFunc) -> ScheduleCheck:
    """The check of one kernel for a CPU."""
    found = ScheduleCheck()
    loops = [loop for loop in nodes(func.body, tirx.For) if loop.kind in _AT_ONCE]
    if not loops:
        return found
    try:
        kernel = kernel_domain(_with_placed_arrays(func))
    except NotAffine as error:
        found.not_proved.append(error.reason)
        return found
    for loop in _loops_at_once(kernel):
        _check_loop(kernel, loop, found)
    return found


_AT_ONCE = (tirx.ForKind.PARALLEL, tirx.ForKind.VECTORIZED)


def _with_placed_arrays(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` with each array allocated where TVM's lowering will: each thread has its own."""
    lowered = s_tir.transform.LowerInitBlock()(tvm.IRModule({"main": func}))
    return s_tir.transform.PlanAndUpdateBufferAllocationLocation()(lowered)["main"]


def _loops_at_once(kernel: KernelDomain) -> list[tirx.For]:
    found: list[tirx.For] = []
    for statement in kernel.statements:
        for loop in statement.loops:
            if loop.kind in _AT_ONCE and not any(loop.same_as(other) for other in found):
                found.append(loop)
    return found


def _check_loop(kernel: KernelDomain, loop: tirx.For, found: ScheduleCheck) -> None:
    is_vector = loop.kind == tirx.ForKind.VECTORIZED
    what = f"{'a vectorised' if is_vector else 'a parallel'} loop {loop.loop_var.name}"
    inside = [one for one in kernel.statements if any(loop.same_as(around) for around in one.loops)]
    is_proved = True
    for one, is_exact in _pairs(kernel, inside):
        broken = (broken_by_lanes if is_vector else carried_by)(kernel, one, loop)
        if broken.is_empty():
            continue
        is_proved = False
        if is_exact:
            found.races.append(violation(what, one, broken))
            return
        found.not_proved.append(f"{what}: {_reason(kernel, one)}")
        return
    if is_proved:
        found.proved.append(what)


def _reason(kernel: KernelDomain, one: Dependence) -> str:
    reasons = "; ".join(kernel.not_affine) or "an access that may not happen"
    return f"what {one.source.name} and {one.sink.name} access of {one.buffer}: {reasons}"


def _pairs(
    kernel: KernelDomain, statements: Sequence[Statement]
) -> Iterator[tuple[Dependence, bool]]:
    """Any two accesses of an element, one a write, and whether both surely take place."""
    accesses = [(statement, a) for statement in statements for a in _distinct(statement.accesses)]
    for source, first in accesses:
        for sink, second in accesses:
            if first.buffer != second.buffer or not (first.is_write or second.is_write):
                continue
            one = dependence_between(kernel, (source, first), (sink, second))
            exact = first.is_exact and second.is_exact and source.is_exact and sink.is_exact
            if one is not None:
                yield one, exact


def _distinct(accesses: Sequence[Access]) -> list[Access]:
    found: list[Access] = []
    for one in accesses:
        if not any(_is_same(one, other) for other in found):
            found.append(one)
    return found


def _is_same(one: Access, other: Access) -> Any:
    return (
        one.buffer == other.buffer
        and one.is_write == other.is_write
        and one.relation.is_equal(other.relation)
    )
