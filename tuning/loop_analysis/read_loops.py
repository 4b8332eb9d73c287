"""Reads a lowered kernel into a tree of loops."""

from typing import Any

import numpy as np
import tvm
from tvm import tirx

from tvm_ext.hardware.description import CpuDescription
from tvm_ext.tir_schedules.block_access import buffer_bytes, static_extent
from tvm_ext.tuning.loop_analysis.address import Scope, address_of
from tvm_ext.tuning.loop_analysis.instructions import instructions_of, parse
from tvm_ext.tuning.loop_analysis.loop_tree import Access, Array, Kernel, LoopNode, Statement
from tvm_ext.tuning.loop_analysis.sampling import POINTS, spread_points, values_of

_KINDS = {tirx.ForKind.PARALLEL: "parallel", tirx.ForKind.UNROLLED: "unrolled"}
# Statements up to which LLVM unrolls a short loop.
_LONGEST_UNROLLED = 64

_MASKED_STORE = tvm.ir.Op.get("tirx.masked_store")


def kernel_loops(func: tirx.PrimFunc, machine: CpuDescription) -> Kernel:
    """The loops of a kernel that ``lowered`` returned."""
    reader = _Reader(machine)
    for param in func.params:
        if hasattr(param, "shape"):
            reader.arrays[param] = _array(param, is_local=False)
    root = LoopNode(-1, "root", 1.0)
    reader.read(func.body, root)
    return Kernel(root, tuple(dict.fromkeys(reader.arrays.values())))


def _array(buffer: Any, is_local: bool) -> Array:
    bits = parse(str(buffer.dtype))[1]
    return Array(str(buffer.name), buffer_bytes(buffer), bits // 8, is_local)


def _is_short(loop: LoopNode) -> bool:
    """Whether LLVM unrolls a serial loop, so that small arrays in it can live in registers."""
    return loop.extent <= 8 and _statements(loop) <= _LONGEST_UNROLLED


def _statements(loop: LoopNode) -> float:
    """Of a loop, unrolled; endless if that cannot be done to one in it."""
    if any(child.kind != "unrolled" for child in loop.children):
        return float("inf")
    return loop.extent * (len(loop.statements) + sum(map(_statements, loop.children)))


class _Reader:
    def __init__(self, machine: CpuDescription) -> None:
        self.arrays: dict[Any, Array] = {}
        self._machine = machine
        self._scope = Scope()
        self._count = 0
        self._depth = 0
        # The sampled points that get here, and how many of them got into the loop around.
        self._active = np.ones(POINTS, dtype=bool)
        self._entered = POINTS
        self._readers = {
            tirx.SeqStmt: self._sequence,
            tirx.For: self._loop,
            tirx.BufferStore: self._store,
            tirx.IfThenElse: self._branch,
            tirx.AllocBuffer: self._allocate,
            tirx.DeclBuffer: self._declare,
            tirx.Bind: self._bind,
            tirx.Evaluate: self._evaluate,
        }

    def read(self, stmt: Any, node: LoopNode) -> None:
        """Adds a statement to the loop that it is in."""
        reader = self._readers.get(type(stmt))
        if reader is not None:
            reader(stmt, node)
        elif hasattr(stmt, "body"):
            self.read(stmt.body, node)

    def _sequence(self, stmt: tirx.SeqStmt, node: LoopNode) -> None:
        for part in stmt.seq:
            self.read(part, node)

    def _loop(self, loop: tirx.For, node: LoopNode) -> None:
        extents = self._at_points(loop.extent, static_extent(loop.extent) or 1)
        reached = int(self._active.sum())
        extent = float(extents[self._active].mean()) if reached else 0.0
        kind = _KINDS.get(loop.kind, "serial")
        inner = LoopNode(self._count, kind, extent, self._share())
        node.children.append(inner)
        self._scope.loops[loop.loop_var] = (self._count, extent)
        steps = np.floor(spread_points(self._depth) * np.maximum(extents, 1))
        self._scope.points[loop.loop_var] = self._at_points(loop.min, 0) + steps.astype(np.int64)
        self._count += 1
        self._depth += 1
        entered, self._entered = self._entered, reached
        self.read(loop.body, inner)
        self._entered = entered
        self._depth -= 1
        if kind == "serial" and static_extent(loop.extent) is not None and _is_short(inner):
            inner.kind = "unrolled"

    def _at_points(self, expr: Any, otherwise: int) -> np.ndarray:
        values = values_of(expr, self._scope.points)
        return np.broadcast_to(np.asarray(otherwise if values is None else values), POINTS)

    def _share(self) -> float:
        return float(self._active.sum()) / self._entered if self._entered else 0.0

    def _branch(self, stmt: tirx.IfThenElse, node: LoopNode) -> None:
        around = self._active
        holds = values_of(stmt.condition, self._scope.points)
        # Conditions on data: half of the time.
        known = np.arange(POINTS) % 2 == 0 if holds is None else np.broadcast_to(holds, POINTS)
        for taken, case in ((known, stmt.then_case), (~known.astype(bool), stmt.else_case)):
            if case is not None:
                self._active = around & taken.astype(bool)
                self.read(case, node)
        self._active = around

    def _allocate(self, stmt: tirx.AllocBuffer, node: LoopNode) -> None:
        self.arrays[stmt.buffer] = _array(stmt.buffer, is_local=True)

    def _declare(self, stmt: tirx.DeclBuffer, node: LoopNode) -> None:
        data = stmt.data
        viewed = data.args[0] if isinstance(data, tvm.ir.Call) and len(data.args) else None
        if viewed in self.arrays:
            self.arrays[stmt.buffer] = self.arrays[viewed]
        else:
            self.arrays[stmt.buffer] = _array(stmt.buffer, is_local=True)

    def _bind(self, stmt: tirx.Bind, node: LoopNode) -> None:
        self._scope.bound[stmt.var] = stmt.value
        values = values_of(stmt.value, self._scope.points)
        if values is not None:
            self._scope.points[stmt.var] = np.broadcast_to(values, POINTS)
        self._assignment(stmt.value, None, node)

    def _evaluate(self, stmt: tirx.Evaluate, node: LoopNode) -> None:
        call = stmt.value
        if isinstance(call, tvm.ir.Call) and call.op.same_as(_MASKED_STORE):
            buffer, value, *indices, _ = call.args
            self._assignment(value, self._access(buffer, indices, is_store=True), node)

    def _store(self, stmt: tirx.BufferStore, node: LoopNode) -> None:
        self._assignment(stmt.value, self._access(stmt.buffer, stmt.indices, True), node)

    def _assignment(self, value: Any, store: Access | None, node: LoopNode) -> None:
        instructions, loads = instructions_of(value, self._machine)
        accesses = [self._loaded(load) for load in loads]
        if store is not None:
            accesses.append(store)
        lanes, bits = parse(str(value.ty.dtype)) if hasattr(value.ty, "dtype") else (1, 32)
        unique = tuple(dict.fromkeys(accesses))
        node.statements.append(Statement(self._share(), unique, instructions, lanes, bits))

    def _loaded(self, load: Any) -> Access:
        if isinstance(load, tvm.ir.Call):
            buffer, *indices, _ = load.args
            return self._access(buffer, indices, is_store=False)
        return self._access(load.source, load.indices, is_store=False)

    def _access(self, buffer: Any, indices: Any, is_store: bool) -> Access:
        if buffer not in self.arrays:
            self.arrays[buffer] = _array(buffer, is_local=False)
        address = address_of(indices[-1], self._scope)
        return Access(self.arrays[buffer], address, is_store)
