"""The last resort for GPUs: any kernel runs, whatever its loops are.

Statements run one after the other, each as a launch of its own: loops whose iterations are
independent are dealt to threads, everything inside of them runs in series. What no loop can be
dealt of runs on one thread.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import s_tir, tirx

from tvm_ext.hardware.description import GpuDescription
from tvm_ext.tir_schedules.block_access import static_extent
from tvm_ext.tir_schedules.cuda.as_loops import as_loops, in_few_launches, without_offsets
from tvm_ext.tir_schedules.cuda.bound_loops import binds_threads
from tvm_ext.tir_schedules.cuda.device_code import DeviceCode, host_call
from tvm_ext.tir_schedules.cuda.independence import accesses_of, independent
from tvm_ext.tir_schedules.cuda.launch import bound, guarded
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions
from tvm_ext.tir_schedules.flat_views import nodes
from tvm_ext.tir_schedules.nest import substitute
from tvm_ext.tir_schedules.statements import sequence
from tvm_ext.tir_schedules.template import Machine, NotMine

_THREADS = 128


class _Refusal(Exception):
    """The kernel cannot run on a GPU; carries the reason."""


class Generic:
    """Any kernel that no other template takes."""

    name = "generic"

    def apply(
        self, func: tirx.PrimFunc, machine: Machine, decisions: Decisions = CLOSED_FORM
    ) -> s_tir.Schedule | NotMine:
        """See ``Template.apply``."""
        if not isinstance(machine, GpuDescription):
            return NotMine("the target is not an NVIDIA GPU")
        call = host_call(func.body)
        if call is not None:
            return NotMine(f"the kernel calls {call}, which runs on a CPU only")
        func = without_offsets(func)
        plain = as_loops(in_few_launches(func))
        if binds_threads(plain.body):
            return NotMine("the kernel binds some of its loops to threads itself")
        return launched(func, plain)


def launched(func: tirx.PrimFunc, plain: tirx.PrimFunc) -> s_tir.Schedule | NotMine:
    """``func`` with the loops of ``plain``, which has no blocks, as launches."""
    try:
        launches = _Launches(DeviceCode())
        body = launches.of(plain.body)
    except _Refusal as refusal:
        return NotMine(str(refusal))
    # As statements: what a block allocates, TVM moves to where it is used.
    allocated = [tirx.AllocBuffer(buffer) for buffer in launches.device.workspace]
    root = s_tir.SBlock([], [], [], "root", sequence([*allocated, body]))
    realized = s_tir.SBlockRealize([], tirx.const(True, "bool"), root)
    return s_tir.Schedule(func.with_body(realized))


@dataclass
class _Launches:
    """The launches of a kernel.

    Attributes
    ----------
    device : DeviceCode
        What makes loops fit for a thread, and collects memory that launches share.
    """

    device: DeviceCode
    _inside: list[Any] = field(default_factory=list)

    def of(self, stmt: tirx.Stmt) -> tirx.Stmt:
        """Statements of the host, with a launch for each part of ``stmt``."""
        return self._joined(self._parts(stmt))

    def _joined(self, parts: Sequence[tuple[bool, tirx.Stmt]]) -> tirx.Stmt:
        """Neighbouring parts that run in series are one launch of one thread."""
        statements: list[tirx.Stmt] = []
        waiting: list[tirx.Stmt] = []
        for launched, stmt in [*parts, (True, None)]:
            if not launched:
                waiting.append(stmt)
                continue
            if waiting:
                statements.append(self._grid([], sequence(waiting)))
                waiting = []
            if stmt is not None:
                statements.append(stmt)
        return sequence(statements or [tirx.Evaluate(tirx.const(0, "int32"))])

    def _parts(self, stmt: tirx.Stmt) -> list[tuple[bool, tirx.Stmt]]:
        """(whether it is the host's, statement) in order."""
        if isinstance(stmt, tirx.SeqStmt):
            return self._of_sequence(list(stmt.seq))
        if isinstance(stmt, tirx.AllocBuffer):
            return self._of_sequence([stmt])
        if isinstance(stmt, tirx.For):
            return self._of_loop(stmt)
        if isinstance(stmt, tirx.IfThenElse) and on_host(stmt.condition):
            otherwise = None if stmt.else_case is None else self.of(stmt.else_case)
            return [(True, tirx.IfThenElse(stmt.condition, self.of(stmt.then_case), otherwise))]
        if isinstance(stmt, tirx.Evaluate) and not isinstance(stmt.value, tvm.ir.Call):
            return []
        return [(False, stmt)]

    def _of_sequence(self, statements: list[tirx.Stmt]) -> list[tuple[bool, tirx.Stmt]]:
        parts: list[tuple[bool, tirx.Stmt]] = []
        for position, stmt in enumerate(statements):
            rest = statements[position + 1 :]
            if isinstance(stmt, tirx.AllocBuffer):
                if not all(on_host(size) for size in stmt.buffer.shape):
                    return [*parts, (False, sequence(statements[position:]))]
                return [*parts, *self._with_array(stmt, self._of_sequence(rest))]
            if isinstance(stmt, tirx.Bind):
                if not on_host(stmt.value):
                    return [*parts, (False, sequence(statements[position:]))]
                parts.append((True, stmt))
            elif isinstance(stmt, tirx.DeclBuffer):
                parts.append((True, stmt))
            else:
                parts += self._parts(stmt)
        return parts

    def _with_array(
        self, alloc: tirx.AllocBuffer, parts: list[tuple[bool, tirx.Stmt]]
    ) -> list[tuple[bool, tirx.Stmt]]:
        """``parts`` with the array that they use: in the only launch, or of the host's memory."""
        users = [i for i, (_, stmt) in enumerate(parts) if _mentions(stmt, alloc.buffer)]
        if not users:
            return parts
        between = parts[users[0] : users[-1] + 1]
        if not any(launched for launched, _ in between):
            return [*parts[: users[0]], (False, alloc), *parts[users[0] :]]
        move = self.device.shared_by_launches(alloc.buffer)
        return [(launched, move(stmt)) for launched, stmt in parts]

    def _of_loop(self, loop: tirx.For) -> list[tuple[bool, tirx.Stmt]]:
        if static_extent(loop.extent) == 0:
            return []
        if static_extent(loop.extent) == 1 and on_host(loop.min):
            return self._parts(substitute(loop.body, {loop.loop_var: loop.min}))
        dealt, body = dealt_loops(loop)
        if dealt:
            return [(True, self._grid(dealt, body))]
        parts = self._loop_parts(loop)
        if parts is None:
            return [(False, loop)]
        return [(True, parts)]

    def _loop_parts(self, loop: tirx.For) -> tirx.Stmt | None:
        """A loop of the host around launches, where they have something to deal; else None."""
        wide = [one for one in nodes(loop.body, tirx.For) if _is_wide(one)]
        if not wide or not (on_host(loop.min) and on_host(loop.extent)):
            return None
        if not any(dealt_loops(one)[0] for one in wide):
            return None
        serial = tirx.ForKind.SERIAL
        return tirx.For(loop.loop_var, loop.min, loop.extent, serial, self.of(loop.body))

    def _grid(self, dealt: Sequence[tirx.For], body: tirx.Stmt) -> tirx.Stmt:
        """``body`` for every iteration of the loops in ``dealt``, one a thread."""
        dtype = str(dealt[0].loop_var.ty) if dealt else "int64"
        extents = [loop.extent.astype(dtype) for loop in dealt]
        known = [n for n in map(static_extent, extents) if n is not None]
        total: Any = tirx.const(1, dtype)
        for extent in extents:
            total = total * extent
        count = math.prod(known) if len(known) == len(dealt) else None
        if count == 0:
            return _nothing()
        if count is not None:
            total = tirx.const(count, dtype)
        threads = _THREADS if count is None else min(_THREADS, max(1, count))
        blocks = tirx.FloorDiv(total + tirx.const(threads - 1, dtype), tirx.const(threads, dtype))

        def block(x: Any) -> tirx.Stmt:
            def thread(t: Any) -> tirx.Stmt:
                place = x * tirx.const(threads, dtype) + t
                values: dict[Any, Any] = {}
                left = place
                for position, loop in reversed(list(enumerate(dealt))):
                    own = left if position == 0 else tirx.floormod(left, extents[position])
                    values[loop.loop_var] = (loop.min.astype(dtype) + own).astype(
                        str(loop.loop_var.ty)
                    )
                    left = tirx.floordiv(left, extents[position])
                moved = self.device.of(body, [(loop.loop_var, loop.extent) for loop in dealt])
                if isinstance(moved, str):
                    raise _Refusal(moved)
                inside = None if count is not None and count % threads == 0 else place < total
                return guarded(inside, substitute(moved, values))

            return bound("threadIdx.x", threads, dtype, thread)

        return bound("blockIdx.x", blocks if count is None else -(-count // threads), dtype, block)


def dealt_loops(loop: tirx.For) -> tuple[list[tirx.For], tirx.Stmt]:
    """The independent loops of a perfect nest, and what each of their iterations does.

    Other loops of the nest go inside: iterations of an independent one do not meet in any order.
    """
    nest = [loop]
    while isinstance(nest[-1].body, tirx.For):
        nest.append(nest[-1].body)
    body = nest[-1].body
    accesses = accesses_of(body)
    dealt: list[tirx.For] = []
    kept: list[tirx.For] = []
    for one in nest:
        depends = any(_uses(end, other) for end in (one.min, one.extent) for other in nest)
        apart = not depends and on_host(one.min) and on_host(one.extent)
        (dealt if apart and independent(one.loop_var, accesses) else kept).append(one)
    if all(static_extent(one.extent) == 1 for one in dealt):
        return [], loop
    for one in reversed(kept):
        body = tirx.For(one.loop_var, one.min, one.extent, tirx.ForKind.SERIAL, body)
    return dealt, body


def on_host(value: Any) -> bool:
    """Whether the host can compute ``value``: it reads no memory, which is the device's."""
    return not nodes(value, tvm.ir.TensorLoad)


def _mentions(stmt: tirx.Stmt, buffer: Any) -> bool:
    return any(buffer.same_as(v) for v in nodes(stmt, tvm.ir.Var))


def _uses(value: Any, loop: tirx.For) -> bool:
    return any(loop.loop_var.same_as(v) for v in nodes(value, tvm.ir.Var))


def _is_wide(loop: tirx.For) -> bool:
    extent = static_extent(loop.extent)
    return extent is None or extent >= 32


def _nothing() -> tirx.Stmt:
    return tirx.Evaluate(tirx.const(0, "int32"))
