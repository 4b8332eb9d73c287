"""The fallback for GPUs: any kernel runs, whatever its loops are.

Statements run one after the other, each as a launch of its own: loops whose iterations are
independent, or that are parallel, are dealt to threads, everything inside of them runs in
series. What no loop can be dealt of runs on one thread.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.sym import Analyzer

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.tir_schedules.analysis.buffer_access import (
    depends,
    linear_form,
    nodes,
    static_extent,
    static_product,
)
from tvm_ext.tir_schedules.analysis.loop_nest import substitute
from tvm_ext.tir_schedules.cuda.device_code import (
    ThreadStatements,
    as_loops,
    host_call,
    in_few_launches,
    without_offsets,
)
from tvm_ext.tir_schedules.cuda.launch import binds_threads, bound, guarded
from tvm_ext.tir_schedules.statements import in_root_block, sequence
from tvm_ext.tir_schedules.template import Decisions

# Loops whose iterations do not depend on one another, found in loops written by hand.
#
# Iterations are independent when every buffer that they write is cut into parts, one for each
# iteration: some index of all accesses is ``step * variable + rest``, and no rest reaches the
# next step. (R. Allen, K. Kennedy, "Optimizing Compilers for Modern Architectures", section 3.3:
# the strong SIV test, here with windows in place of single elements.)


# Accesses of one buffer that are compared with one another; the number of pairs is its square.
_MOST_ACCESSES = 48


@dataclass(frozen=True)
class Accesses:
    """What a statement does to memory that others see as well.

    Attributes
    ----------
    written : list of (buffer, list of indices)
        Each buffer that it stores to, with the indices of all its stores and loads.
    inner : dict of Var to For
        The loops inside of it by their variables.
    """

    written: list[tuple[Any, list[list[Any]]]]
    inner: dict[Any, tirx.For]


def accesses_of(body: tirx.Stmt) -> Accesses | None:
    """The accesses of ``body``; None where a call may touch memory in other ways."""
    if _has_unknown_effects(body):
        return None
    own = [stmt.buffer for stmt in nodes(body, tirx.AllocBuffer)]
    written: list[tuple[Any, list[list[Any]]]] = []
    for store in nodes(body, tirx.BufferStore):
        if any(store.buffer.same_as(buffer) for buffer in own):
            continue
        _indices_of(written, store.buffer).append(list(store.indices))
    for load in nodes(body, tvm.ir.TensorLoad):
        found = next((where for buffer, where in written if buffer.same_as(load.source)), None)
        if found is not None:
            found.append(list(load.indices))
    return Accesses(written, {loop.loop_var: loop for loop in nodes(body, tirx.For)})


def independent(var: tirx.Var, accesses: Accesses | None) -> bool:
    """Whether the iterations of the loop over ``var`` may run in any order, and at once."""
    if accesses is None:
        return False
    return all(_is_cut(indices, var, accesses) for _, indices in accesses.written)


def _has_unknown_effects(body: tirx.Stmt) -> bool:
    calls = [stmt for stmt in nodes(body, tirx.Evaluate) if isinstance(stmt.value, tvm.ir.Call)]
    aliases = nodes(body, tirx.DeclBuffer)
    return bool(calls or aliases or buffers_as_arguments(body))


def buffers_as_arguments(body: tirx.Stmt) -> list[Any]:
    """Calls that are handed a buffer, or a part of one, rather than its elements."""
    found = []
    for call in nodes(body, tvm.ir.Call):
        for argument in call.args:
            if isinstance(argument, tvm.ir.Var) and isinstance(argument.ty, tirx.BufferType):
                found.append(call)
    return found


def _indices_of(written: list[tuple[Any, list[list[Any]]]], buffer: tirx.Buffer) -> list[list[Any]]:
    for other, indices in written:
        if other.same_as(buffer):
            return indices
    written.append((buffer, []))
    return written[-1][1]


def _is_cut(indices: Sequence[list[Any]], var: tirx.Var, accesses: Accesses) -> bool:
    if len(indices) > _MOST_ACCESSES:
        return False
    return any(
        _is_cut_along([index[dimension] for index in indices], var, accesses)
        for dimension in range(len(indices[0]))
    )


def _is_cut_along(indices: Sequence[tvm.ir.Expr], var: tirx.Var, accesses: Accesses) -> bool:
    """Whether all of ``indices`` are windows of one step that do not meet."""
    steps, rests = [], []
    for index in indices:
        linear = linear_form(index, [var])
        step = static_extent(linear[0][0]) if linear else None
        if linear is None or not step or nodes(linear[1], tvm.ir.TensorLoad):
            return False
        steps.append(abs(step))
        rests.append(linear[1])
    if len(set(steps)) > 1:
        return False
    return all(_within(a, b, steps[0], accesses) for a in rests for b in rests)


def _within(left: tvm.ir.Expr, right: tvm.ir.Expr, step: int, accesses: Accesses) -> bool:
    """Whether two rests, each at any iteration of the inner loops, differ by less than a step."""
    analyzer = Analyzer()
    others: dict[Any, Any] = {}
    for var, loop in accesses.inner.items():
        copy = tirx.Var(var.name, str(var.ty))
        others[var] = copy
        for each in (var, copy):
            # The range of a loop that counts to another's variable is left open.
            if static_extent(loop.extent) is not None and static_extent(loop.min) is not None:
                analyzer.bind(each, tvm.ir.Range.from_min_extent(loop.min, loop.extent))
    bound = analyzer.const_int_bound(analyzer.simplify(left - substitute(right, others)))
    return -step < bound.min_value and bound.max_value < step


_THREADS = 128


class Generic:
    """Any kernel that no other template takes."""

    name = "generic"
    machine_type = CudaDescription

    def apply(
        self, func: tirx.PrimFunc, machine: CudaDescription, decisions: Decisions
    ) -> s_tir.Schedule:
        """See ``Template.apply``."""
        call = host_call(func.body)
        if call is not None:
            raise NotApplicable(f"the kernel calls {call}, which runs on a CPU only")
        func = without_offsets(func)
        plain = as_loops(in_few_launches(func))
        if binds_threads(plain.body):
            raise NotApplicable("the kernel binds some of its loops to threads itself")
        return launched(func, plain)


def launched(func: tirx.PrimFunc, plain: tirx.PrimFunc) -> s_tir.Schedule:
    """``func`` with the loops of ``plain``, which has no blocks, as launches."""
    launches = _Launches(ThreadStatements())
    body = launches.of(plain.body)
    # As statements: what a block allocates, TVM moves to where it is used.
    allocated = [tirx.AllocBuffer(buffer) for buffer in launches.device.workspace]
    return s_tir.Schedule(func.with_body(in_root_block(sequence([*allocated, body]))))


@dataclass
class _Launches:
    """The launches of a kernel.

    Attributes
    ----------
    device : ThreadStatements
        What makes loops fit for a thread, and collects memory that launches share.
    """

    device: ThreadStatements
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
        users = [i for i, (_, stmt) in enumerate(parts) if depends(stmt, alloc.buffer)]
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
        total: Any = tirx.const(1, dtype)
        for extent in extents:
            total = total * extent
        count = static_product(extents)
        if count == 0:
            return _nothing()
        if count is not None:
            total = tirx.const(count, dtype)
        threads = _THREADS if count is None else min(_THREADS, max(1, count))
        blocks = tirx.FloorDiv(total + tirx.const(threads - 1, dtype), tirx.const(threads, dtype))

        def block(x: tvm.ir.Expr) -> tirx.Stmt:
            def thread(t: tvm.ir.Expr) -> tirx.Stmt:
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
                    raise NotApplicable(moved)
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
        around = [other.loop_var for other in nest]
        apart = all(on_host(end) and not depends(end, *around) for end in (one.min, one.extent))
        # Of a parallel loop, whoever wrote it says so.
        promised = tirx.ForKind(one.kind) == tirx.ForKind.PARALLEL
        free = apart and (promised or independent(one.loop_var, accesses))
        (dealt if free else kept).append(one)
    if all(static_extent(one.extent) == 1 for one in dealt):
        return [], loop
    for one in reversed(kept):
        body = tirx.For(one.loop_var, one.min, one.extent, tirx.ForKind.SERIAL, body)
    return dealt, body


def on_host(value: tvm.ir.Expr) -> bool:
    """Whether the host can compute ``value``: it reads no memory, which is the device's."""
    return not nodes(value, tvm.ir.TensorLoad)


def _is_wide(loop: tirx.For) -> bool:
    extent = static_extent(loop.extent)
    return extent is None or extent >= 32


def _nothing() -> tirx.Stmt:
    return tirx.Evaluate(tirx.const(0, "int32"))
