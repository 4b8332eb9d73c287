"""Loops that are bound to blocks and threads, the arrays of a thread, and nominal sizes of
launches.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.sym import Analyzer
from tvm_ffi import structural_map

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.tir_schedules.analysis.buffer_access import nodes, static_extent
from tvm_ext.tir_schedules.statements import changed_loop

Body = Callable[[Any], tirx.Stmt]

ALL_REGISTERS = "tvm_ext.all_registers"
"""Annotation of a loop over blocks of which one alone may have all registers of a multiprocessor.

Without it the assembler weighs occupancy as well, and may spill a few registers for it.
"""


def alone(loop: tirx.For) -> tirx.For:
    """A loop over blocks with the annotation ``ALL_REGISTERS``.

    Kernels whose warps change their numbers of registers need it: without it the assembler may not
    know how many there are at first, and leaves the changes out.
    """
    return changed_loop(loop, annotations={**loop.annotations, ALL_REGISTERS: 1})


def bound(tag: str, extent: Any, dtype: str, body: Body) -> tirx.Stmt:
    """``body`` for every index of ``tag``, such as "blockIdx.x"."""
    var = tirx.Var(tag.replace("Idx.", "_"), dtype)
    thread = tirx.IterVar(None, tirx.Var(tag, dtype), tirx.IterVar.ThreadIndex, tag)
    first = tirx.const(0, dtype)
    count = tirx.const(extent, dtype) if isinstance(extent, int) else extent
    return tirx.For(var, first, count, tirx.ForKind.THREAD_BINDING, body(var), thread)


def repeated(
    extent: int, dtype: str, body: Body, kind: tirx.ForKind = tirx.ForKind.UNROLLED
) -> tirx.Stmt:
    """A loop of one thread, written out unless ``kind`` says otherwise."""
    if extent == 1:
        return body(tirx.const(0, dtype))
    var = tirx.Var("i", dtype)
    return tirx.For(var, tirx.const(0, dtype), tirx.const(extent, dtype), kind, body(var))


def guarded(condition: tirx.Expr | None, body: tirx.Stmt) -> tirx.Stmt:
    """``body`` where ``condition`` holds; None is true everywhere."""
    if condition is None:
        return body
    if isinstance(condition, tirx.IntImm):
        return body if int(condition.value) else tirx.Evaluate(tirx.const(0, "int32"))
    return tirx.IfThenElse(condition, body, None)


@dataclass(frozen=True)
class ThreadArray:
    """An array in the registers of every thread.

    Until TVM lowers the kernel it has one row for each thread: so the code means the same when
    the loops over threads are ordinary loops, one after the other.
    """

    buffer: tvm.ir.Var
    thread: tuple[tirx.Expr, ...]

    def at(self, index: Any) -> tvm.ir.Expr:
        """The element at ``index``."""
        return tirx.BufferLoad(self.buffer, [*self.thread, index])

    def put(self, index: Any, value: tvm.ir.Expr) -> tirx.Stmt:
        """Stores an element."""
        return tirx.BufferStore(self.buffer, value, [*self.thread, index])


class Arrays:
    """What a kernel allocates: registers of each thread, and memory that a block shares."""

    def __init__(self, dtype: str) -> None:
        self.index_dtype = dtype
        self.buffers: list[tvm.ir.Var] = []

    def registers(
        self, name: str, size: int, dtype: str, threads: Sequence[tuple[Any, int]]
    ) -> ThreadArray:
        """``size`` elements for each thread; ``threads`` are its indices with their extents."""
        shape = [tirx.const(n, self.index_dtype) for n in [*(n for _, n in threads), size]]
        buffer = tirx.decl_buffer(shape, dtype, name, scope="local")
        self.buffers.append(buffer)
        return ThreadArray(buffer, tuple(index for index, _ in threads))

    def allocated(self, name: str, shape: Sequence[int], dtype: str, scope: str) -> tvm.ir.Var:
        """A buffer of ``scope`` "shared" or "local", the latter once in every thread."""
        sizes = [tirx.const(n, self.index_dtype) for n in shape]
        buffer = tirx.decl_buffer(sizes, dtype, name, scope=scope)
        self.buffers.append(buffer)
        return buffer


def warp_barrier() -> tirx.Stmt:
    """Waits for the other threads of the warp.

    TVM's own barrier of this scope is an empty statement in CUDA code.
    """
    return tirx.Evaluate(tirx.call_extern("void", "__syncwarp"))


# Threads of a block along one axis or two, of which each holds a part of what is written for all.


class ThreadLine:
    """The threads, and the arrays that they allocate.

    Parameters
    ----------
    width : int
        Threads along x.
    arrays : Arrays
        Gets what the kernel allocates.
    """

    def __init__(self, width: int, arrays: Arrays) -> None:
        self.width, self.arrays, self.dtype = width, arrays, arrays.index_dtype
        self.x = self.number(0)

    def number(self, value: int) -> tvm.ir.Expr:
        """A constant of the type of the loops."""
        return tirx.const(value, self.dtype)

    def threads(self, body: Callable[[], tirx.Stmt]) -> tirx.Stmt:
        """``body`` for all threads: what stands between two barriers."""

        def thread(x: tvm.ir.Expr) -> tirx.Stmt:
            self.x = x
            return body()

        return bound("threadIdx.x", self.width, self.dtype, thread)

    def dealt(
        self,
        count: int,
        body: Callable[[Any, Any], tirx.Stmt],
        kind: tirx.ForKind = tirx.ForKind.UNROLLED,
    ) -> tirx.Stmt:
        """``body`` of a turn and an item, for the thread's share of ``count`` items."""

        def iteration(turn: tvm.ir.Expr) -> tirx.Stmt:
            item = turn * self.number(self.width) + self.x
            inside = None if count % self.width == 0 else item < self.number(count)
            return guarded(inside, body(turn, item))

        return repeated(-(-count // self.width), self.dtype, iteration, kind)


class ThreadPlane(ThreadLine):
    """Threads along y and x, as many as ``extents``, with indices of ``dtype``."""

    def __init__(self, extents: tuple[int, int], dtype: str) -> None:
        super().__init__(extents[1], Arrays(dtype))
        self.extents = extents
        self.y = self.number(0)

    def threads(self, body: Callable[[], tirx.Stmt]) -> tirx.Stmt:
        """``body`` for all threads: what stands between two barriers."""

        def line(y: tvm.ir.Expr) -> tirx.Stmt:
            self.y = y
            return super(ThreadPlane, self).threads(body)

        return bound("threadIdx.y", self.extents[0], self.dtype, line)

    def mine(self) -> list[tuple[Any, int]]:
        """The thread that is written just now, with how many there are along each axis."""
        return [(self.y, self.extents[0]), (self.x, self.extents[1])]


def is_bound(func: tirx.PrimFunc) -> bool:
    """Whether nothing outside of loops over threads reads or writes memory.

    Such a kernel can be built for a GPU. The rest of it would run on the host, with addresses of
    the device.
    """
    return _is_bound(func.body)


def binds_threads(body: tirx.Stmt) -> bool:
    """Whether some loop of a kernel is bound to threads."""
    return any(_launches(stmt) for stmt in nodes(body, tirx.For, tirx.AttrStmt))


def _launches(stmt: tirx.Stmt) -> bool:
    """Whether ``stmt`` is a loop over threads or blocks."""
    if isinstance(stmt, tirx.For):
        return tirx.ForKind(stmt.kind) == tirx.ForKind.THREAD_BINDING
    return isinstance(stmt, tirx.AttrStmt) and str(stmt.attr_key) == "thread_extent"


def _is_bound(stmt: tirx.Stmt) -> bool:
    if _launches(stmt):
        return True
    if isinstance(stmt, tirx.SeqStmt):
        return all(_is_bound(part) for part in stmt.seq)
    if isinstance(stmt, s_tir.SBlockRealize):
        return _is_bound(stmt.block)
    if isinstance(stmt, s_tir.SBlock):
        return (stmt.init is None or _is_bound(stmt.init)) and _is_bound(stmt.body)
    if isinstance(stmt, tirx.For):
        return not _reads(stmt.min, stmt.extent) and _is_bound(stmt.body)
    if isinstance(stmt, tirx.IfThenElse):
        cases = [case for case in (stmt.then_case, stmt.else_case) if case is not None]
        return not _reads(stmt.condition) and all(_is_bound(case) for case in cases)
    if isinstance(stmt, tirx.AttrStmt):
        return not _reads(stmt.value) and _is_bound(stmt.body)
    if isinstance(stmt, tirx.Bind):
        return not _reads(stmt.value)
    if isinstance(stmt, tirx.Evaluate):
        return not isinstance(stmt.value, tvm.ir.Call)
    return isinstance(stmt, tirx.AllocBuffer | tirx.DeclBuffer)


def _reads(*values: tirx.Expr) -> bool:
    return any(nodes(value, tvm.ir.TensorLoad) for value in values)


# Symbolic sizes: decisions are taken for a nominal size, and hold for every size of a run.


NOMINAL = 16
"""What a symbolic size, such as a batch, is taken for where tiles are chosen."""


def nominal_extent(extent: tirx.Expr | int) -> int:
    """An extent with every symbolic size in it at its nominal value."""
    known = static_extent(extent)
    if known is not None:
        return known

    def size(variable: tvm.ir.Var) -> tirx.IntImm:
        return tirx.IntImm(str(variable.ty), NOMINAL)

    return static_extent(Analyzer().simplify(structural_map(extent, (tvm.ir.Var, size)))) or 1


def with_nominal_sizes(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel for nominal sizes: ``func`` itself when all of its sizes are known.

    TVM 0.27 specialises sizes that are one variable, none that is computed of others.
    """
    known = {}
    for parameter in func.params:
        if not isinstance(parameter.ty, tirx.BufferType):
            continue
        if any(static_extent(size) is None for size in parameter.shape):
            if any(not isinstance(size, tirx.IntImm | tvm.ir.Var) for size in parameter.shape):
                raise NotApplicable("a size is computed of others in the run")
            shape = [tirx.IntImm("int64", nominal_extent(size)) for size in parameter.shape]
            known[parameter] = tirx.decl_buffer(shape, str(parameter.dtype), parameter.name)
    return func.specialize(known) if known else func
