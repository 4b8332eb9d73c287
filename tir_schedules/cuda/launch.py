"""Loops that are bound to blocks and threads, and arrays of which every thread has its own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm_ffi import structural_map

Body = Callable[[Any], tirx.Stmt]

ALL_REGISTERS = "tvm_ext.all_registers"
"""Annotation of a loop over blocks of which one alone may have all registers of a multiprocessor.

Without it the assembler weighs occupancy as well, and may spill a few registers for it.
"""

# What TVM writes into ``__launch_bounds__``: how many blocks have to fit on a multiprocessor.
_MIN_BLOCKS = "tirx.launch_bounds_min_blocks_per_sm"


def alone(loop: tirx.For) -> tirx.For:
    """A loop over blocks with the annotation ``ALL_REGISTERS``.

    Kernels whose warps change their numbers of registers need it: without it the assembler may not
    know how many there are at first, and leaves the changes out.
    """
    kept = {**loop.annotations, ALL_REGISTERS: 1}
    return tirx.For(
        loop.loop_var, loop.min, loop.extent, loop.kind, loop.body, loop.thread_binding, kept
    )


def with_launch_bounds(body: tirx.Stmt) -> tirx.Stmt:
    """``body`` with the annotation ``ALL_REGISTERS`` as TVM wants to have it said."""
    return structural_map(body, (tirx.For, _bounded))


def _bounded(loop: tirx.For) -> tirx.For:
    if ALL_REGISTERS not in loop.annotations:
        return loop
    one = tirx.const(1, "int32")
    rest = {key: value for key, value in loop.annotations.items() if key != ALL_REGISTERS}
    return tirx.For(
        loop.loop_var,
        loop.min,
        loop.extent,
        loop.kind,
        tirx.AttrStmt(one, _MIN_BLOCKS, one, loop.body),
        loop.thread_binding,
        rest,
    )


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


def guarded(condition: Any, body: tirx.Stmt) -> tirx.Stmt:
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
    thread: tuple[Any, ...]

    def at(self, index: Any) -> Any:
        """The element at ``index``."""
        return tirx.BufferLoad(self.buffer, [*self.thread, index])

    def put(self, index: Any, value: Any) -> tirx.Stmt:
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
