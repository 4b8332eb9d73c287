"""Cumulative sums and products: several independent scans at a time."""

from dataclasses import dataclass

import tvm
from tvm import s_tir, tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.analysis.buffer_access import LoopAxis, static_extent
from tvm_ext.tir_schedules.analysis.row_kernel import accumulated, buffer_key, substituted
from tvm_ext.tir_schedules.analysis.row_reader import result_strides, simplifier
from tvm_ext.tir_schedules.cpu.parallel_vectorize import distinct, pick_threads, worth_threads
from tvm_ext.tir_schedules.cpu.row_code import with_body
from tvm_ext.tir_schedules.cpu.row_decision import stretches
from tvm_ext.tir_schedules.statements import sequence
from tvm_ext.tir_schedules.template import DEFAULT_DECISIONS, Decisions

# Scans that run at a time hide the latency of the add that each of them waits for.
CHAINS = 4

# Registers, or scans of a row each, that are worth trying.
_CHAINS = (1, 2, 4, 8)


@dataclass(frozen=True)
class ScanDecision:
    """How many scans run at a time.

    Attributes
    ----------
    together : int
        Scans whose running results are in registers: neighbours in lanes where they lie side by
        side, else in unrolled statements.
    threads : bool
        Whether groups of scans are handed to threads.
    """

    together: int
    threads: bool


@dataclass(frozen=True)
class _Scans:
    """The loops of a scan as TVM writes them: ``before * after`` scans of ``length`` elements.

    ``first`` stores the first element of a scan, ``step`` the one behind that of ``position``.
    """

    before: int
    after: int
    length: int
    scan: tirx.Var
    position: tirx.Var
    first: tirx.BufferStore
    step: tirx.BufferStore

    @property
    def beside(self) -> int:
        """Scans of which some run at a time."""
        return self.after if self.after > 1 else self.before

    @property
    def others(self) -> int:
        """How often there are so many."""
        return self.before if self.after > 1 else 1


class CpuScan:
    """Cumulative sums and products along one axis."""

    name = "scan"
    machine_type = CpuDescription

    def apply(
        self, func: tirx.PrimFunc, machine: CpuDescription, decisions: Decisions = DEFAULT_DECISIONS
    ) -> s_tir.Schedule:
        """See ``Template.apply``."""
        scans = _scans_of(func)
        if scans is None:
            raise NotApplicable("the kernel is no scan as TVM writes it, of a known shape")
        decision = decide_scan(scans, machine, decisions)
        return s_tir.Schedule(with_body(func, _written(scans, decision)))


def decide_scan(
    scans: _Scans, machine: CpuDescription, decisions: Decisions = DEFAULT_DECISIONS
) -> ScanDecision:
    """The default heuristic: vectors along the inner axes, unless the scan runs along the last.

    Asks for ``together`` and ``threads``.
    """
    lanes = machine.vector_lanes(str(scans.step.buffer.dtype))
    unit = lanes if scans.after > 1 else 1
    fitting = [n * unit for n in _CHAINS if n * unit <= scans.beside]
    options = distinct(fitting, CHAINS * unit, lambda n: tuple(_parts(scans, n)))
    together = decisions.pick("together", options, CHAINS * unit)
    steps = scans.before * scans.after * scans.length
    worth = worth_threads(machine, steps, lanes if scans.after > 1 else CHAINS)
    _, count, _ = _parts(scans, together)[0]
    threads = pick_threads(decisions, machine, lambda: scans.others * count, worth)
    return ScanDecision(together, threads)


def _scans_of(func: tirx.PrimFunc) -> _Scans | None:
    if not isinstance(func.body, s_tir.SBlockRealize):
        return None
    outer = func.body.block.body
    if not isinstance(outer, tirx.For) or not isinstance(outer.body, tirx.SeqStmt):
        return None
    if len(outer.body.seq) != 2:
        return None
    first, inner = outer.body.seq
    if not isinstance(first, tirx.BufferStore) or not isinstance(inner, tirx.For):
        return None
    step = inner.body
    if not isinstance(step, tirx.BufferStore) or not step.buffer.same_as(first.buffer):
        return None
    count, more = static_extent(outer.extent), static_extent(inner.extent)
    if not count or not more:
        return None
    # One more position than there are: that of a loop that runs once would be taken for 0.
    axes = [LoopAxis(outer.loop_var, count), LoopAxis(inner.loop_var, more + 1)]
    _, after = result_strides(step, axes)
    if after is None or after < 1 or count % after:
        return None
    return _Scans(count // after, after, more + 1, outer.loop_var, inner.loop_var, first, step)


def _written(scans: _Scans, decision: ScanDecision) -> tirx.Stmt:
    """The scans in groups, as many together as ``decision`` says, and one by one in the end."""
    nests = []
    for part in _parts(scans, decision.together):
        # Whole groups are worth handing to threads; the rest is small.
        nests.append(_groups(scans, part, decision.threads and part[0] == 0))
    return sequence(nests)


def _parts(scans: _Scans, together: int) -> list[tuple[int, int, int]]:
    """(first scan, groups, scans of a group): whole groups, then smaller ones."""
    rest = max(together // CHAINS, 1) if scans.after > 1 else 1
    return stretches(scans.beside, [together, rest])


def _groups(scans: _Scans, part: tuple[int, int, int], threads: bool) -> tirx.Stmt:
    start, count, width = part
    dtype = str(scans.scan.ty)

    def number(value: int) -> tvm.ir.Expr:
        return tirx.const(value, dtype)

    group = LoopAxis(tirx.Var("group", dtype), scans.others * count)
    place = number(start) + tirx.FloorMod(group.var, number(count)) * number(width)
    scan = tirx.FloorDiv(group.var, number(count)) * number(scans.after) + place
    kind = tirx.ForKind.PARALLEL if threads and group.extent > 1 else tirx.ForKind.SERIAL
    body = _group(scans, group, scan, width)
    return tirx.For(group.var, number(0), number(group.extent), kind, body)


def _group(scans: _Scans, group: LoopAxis, scan: tirx.Expr, width: int) -> tirx.Stmt:
    """``width`` scans from the one numbered ``scan`` on, with their running results in a buffer."""
    dtype = str(scans.scan.ty)
    buffer = scans.step.buffer
    running = tirx.decl_buffer([tirx.const(width, dtype)], str(buffer.dtype), "running")
    position = LoopAxis(tirx.Var("position", dtype), scans.length - 1)
    kind = tirx.ForKind.UNROLLED
    if scans.after > 1 and width > 1:
        kind = tirx.ForKind.VECTORIZED

    def lanes(store: tirx.BufferStore) -> tirx.Stmt:
        lane = LoopAxis(tirx.Var("lane", dtype), width)
        values = {
            buffer_key(scans.scan): scan + lane.var,
            buffer_key(scans.position): position.var,
        }
        simplify = simplifier([group, lane, position])
        result = tirx.BufferLoad(running, [lane.var])
        value = simplify(substituted(accumulated(store.value, [buffer], [result]), values))
        indices = [simplify(substituted(index, values)) for index in store.indices]
        body = sequence(
            [
                tirx.BufferStore(running, value, [lane.var]),
                tirx.BufferStore(buffer, result, indices),
            ]
        )
        return tirx.For(lane.var, tirx.const(0, dtype), tirx.const(width, dtype), kind, body)

    steps = tirx.For(
        position.var,
        tirx.const(0, dtype),
        tirx.const(position.extent, dtype),
        tirx.ForKind.SERIAL,
        lanes(scans.step),
    )
    return sequence([tirx.AllocBuffer(running), lanes(scans.first), steps])
