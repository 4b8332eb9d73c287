"""A kernel's blocks written out as loops, and loops made fit for one thread of a GPU."""

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV
from tvm_ffi import structural_map

from tvm_ext.tir_schedules.analysis.buffer_access import (
    depends,
    element_bytes,
    is_data_parallel,
    kernel_blocks,
    nodes,
    reduction_blocks,
    static_extent,
    static_product,
)
from tvm_ext.tir_schedules.inlining import inlined_schedule
from tvm_ext.tir_schedules.statements import sequence

# Bytes of an array that a thread keeps for itself; larger ones are the host's to allocate.
_MOST_LOCAL_BYTES = 1024

# Iterations of a loop that stay written out.
_MOST_UNROLLED = 16

# Calls that only the host, or another kind of processor, can do.
_FOREIGN = ("call_packed", "call_cpacked", "call_llvm", "call_extern", "call_pure_extern")


def host_call(body: tirx.Stmt) -> str | None:
    """The name of a call that a GPU cannot do, None when there is none."""
    for call in nodes(body, tvm.ir.Call):
        name = str(getattr(call.op, "name", call.op))
        if any(kind in name for kind in _FOREIGN):
            what = call.args[0] if call.args else None
            return str(what.value) if isinstance(what, tvm.ir.StringImm) else name
    return None


class ThreadStatements:
    """Makes statements fit for a thread.

    Attributes
    ----------
    workspace : list of buffers
        Memory of the device that the host has to allocate for the kernel.
    """

    def __init__(self) -> None:
        self.workspace: list[Any] = []

    def shared_by_launches(self, buffer: tirx.Buffer) -> Callable[[tirx.Stmt], tirx.Stmt]:
        """What puts ``buffer`` into memory that the host allocates, in a statement."""
        new = tirx.decl_buffer(list(buffer.shape), str(buffer.dtype), buffer.name)
        self.workspace.append(new)
        return lambda stmt: _with_buffer(stmt, buffer, new, [])

    def of(self, body: tirx.Stmt, dealt: Sequence[tuple[Any, Any]]) -> tirx.Stmt | str:
        """``body`` as a thread runs it, or why none can.

        ``dealt`` are the variables that tell threads apart, with their extents.
        """
        for alloc in nodes(body, tirx.AllocBuffer):
            buffer = alloc.buffer
            sizes = [static_extent(size) for size in buffer.shape]
            if None not in sizes and _bytes(buffer, sizes) <= _MOST_LOCAL_BYTES:
                new = tirx.decl_buffer(
                    list(buffer.shape), str(buffer.dtype), buffer.name, scope="local"
                )
                body = _with_buffer(body, buffer, new, [], kept=True)
                continue
            inner = {v for loop in nodes(body, tirx.For) for v in [loop.loop_var]}
            if any(_reads(size, inner) for size in buffer.shape):
                return f"array {buffer.name} has a size that is known inside of the loops only"
            shape = [*(extent for _, extent in dealt), *buffer.shape]
            new = tirx.decl_buffer(shape, str(buffer.dtype), buffer.name)
            self.workspace.append(new)
            body = _with_buffer(body, buffer, new, [var for var, _ in dealt])
        return tvm_ffi.structural_map(with_sums_in_registers(body), (tirx.For, _in_series))


def with_sums_in_registers(body: tirx.Stmt) -> tirx.Stmt:
    """``body`` with an element that it stores first, and then adds to, in a register until the end.

    Only where all that it does to the buffer is at that one element.
    """
    if not isinstance(body, tirx.SeqStmt) or not isinstance(body.seq[0], tirx.BufferStore):
        return body
    first = body.seq[0]
    stores = [s for s in nodes(body, tirx.BufferStore) if s.buffer.same_as(first.buffer)]
    loads = [n for n in nodes(body, tvm.ir.TensorLoad) if n.source.same_as(first.buffer)]
    where = list(first.indices)
    apart = any(nodes(index, tvm.ir.TensorLoad) for index in where)
    same = all(
        tvm_ffi.structural_equal(where, list(access.indices), map_free_vars=False)
        for access in [*stores, *loads]
    )
    if apart or not same or not loads or str(first.buffer.scope()) != "global":
        return body
    zero = tirx.const(0, "int32")
    name = f"{first.buffer.name}_sum"
    held = tirx.decl_buffer([1], str(first.buffer.dtype), name, scope="local")

    def load(node: tvm.ir.TensorLoad) -> tvm.ir.Expr:
        return tirx.BufferLoad(held, [zero]) if node.source.same_as(first.buffer) else node

    def store(node: tirx.BufferStore) -> tirx.BufferStore:
        mine = node.buffer.same_as(first.buffer)
        return tirx.BufferStore(held, node.value, [zero]) if mine else node

    inside = tvm_ffi.structural_map(body, [(tvm.ir.TensorLoad, load), (tirx.BufferStore, store)])
    last = tirx.BufferStore(first.buffer, tirx.BufferLoad(held, [zero]), where)
    return sequence([tirx.AllocBuffer(held), inside, last])


def _bytes(buffer: tirx.Buffer, sizes: Sequence[int | None]) -> int:
    return math.prod(size or 0 for size in sizes) * element_bytes(buffer)


def _reads(size: Any, inner: set[Any]) -> bool:
    return bool(nodes(size, tvm.ir.TensorLoad)) or depends(size, *inner)


def _in_series(loop: tirx.For) -> tirx.For:
    """A loop of one thread: vectors of a CPU's width are none that a GPU has."""
    kind = tirx.ForKind(loop.kind)
    extent = static_extent(loop.extent)
    if kind == tirx.ForKind.UNROLLED and extent is not None and extent <= _MOST_UNROLLED:
        return loop
    return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)


def _with_buffer(
    body: tirx.Stmt, old: tirx.Buffer, new: tirx.Buffer, before: Sequence[Any], kept: bool = False
) -> tirx.Stmt:
    """``body`` with another buffer, in which ``before`` are the first indices.

    The statement that allocates it goes away unless it is ``kept`` for the new one.
    """

    def load(node: tvm.ir.TensorLoad) -> tvm.ir.Expr:
        if not node.source.same_as(old):
            return node
        return tirx.BufferLoad(new, [*before, *node.indices])

    def store(node: tirx.BufferStore) -> tirx.BufferStore:
        if not node.buffer.same_as(old):
            return node
        return tirx.BufferStore(new, node.value, [*before, *node.indices])

    def alloc(node: tirx.AllocBuffer) -> tirx.Stmt:
        if not node.buffer.same_as(old):
            return node
        return tirx.AllocBuffer(new) if kept else tirx.Evaluate(tirx.const(0, "int32"))

    callbacks = [(tvm.ir.TensorLoad, load), (tirx.BufferStore, store), (tirx.AllocBuffer, alloc)]
    return tvm_ffi.structural_map(body, callbacks)


# A kernel's blocks written out as the loops and stores that they stand for.


def as_loops(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` without blocks: what a reduction starts from is stored in its first step."""
    steps = s_tir.transform
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    lowering = tvm.transform.Sequential(
        [
            steps.CanonicalizeLoop(),
            steps.LowerInitBlock(),
            steps.PlanAndUpdateBufferAllocationLocation(),
            steps.ConvertBlocksToOpaque(),
            # What one iteration computes for itself alone becomes as small as that.
            steps.CompactBufferAllocation(),
            steps.LowerMatchBuffer(),
            steps.LowerOpaqueBlock(),
        ]
    )
    return lowering(mod)["main"]


def without_offsets(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` with parameters that begin where their tensors do.

    TVM lets the arrays of loops written by hand begin anywhere in a tensor, as no other kernel's do
    and no tensor of a model does: all addresses are then numbers of 64 bits.
    """
    pairs = []
    for param in func.params:
        if isinstance(param.ty, tirx.BufferType) and isinstance(param.elem_offset, tvm.ir.Var):
            new = tirx.decl_buffer(list(param.shape), str(param.dtype), param.name)
            pairs.append((param, new))
    if not pairs:
        return func

    def plain(var: Any) -> Any:
        return next((new for old, new in pairs if old.same_as(var)), var)

    body = structural_map(func.body, (tvm.ir.Var, plain))
    params = [plain(param) for param in func.params]
    return tirx.PrimFunc(params, body, func.ret_type, func.attrs)


def in_few_launches(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` with as few loop nests as its blocks need; those without a root stay as they are.

    What is computed for each element goes where it is used, and so does a reduction whose every
    result is used once.
    """
    if not isinstance(func.body, s_tir.SBlockRealize) or func.body.block.name_hint != "root":
        return func
    sch = inlined_schedule(func, repeat=True)
    for block in reduction_blocks(sch):
        _reduce_where_used(sch, block)
    _with_starts_apart(sch)
    return sch.mod["main"]


def _with_starts_apart(sch: s_tir.Schedule) -> None:
    """Puts the stores that reductions start from in front of their loops.

    In a reduction over nothing the first step, in which they are otherwise, never comes.
    """
    for block in kernel_blocks(sch):
        stmt, loops = sch.get(block), list(sch.get_loops(block))
        if stmt.init is None or len(loops) != len(stmt.iter_vars):
            continue
        reduces = [v.iter_type == tirx.IterVar.CommReduce for v in stmt.iter_vars]
        reductions = [loop for loop, one in zip(loops, reduces, strict=True) if one]
        others = [loop for loop, one in zip(loops, reduces, strict=True) if not one]
        with contextlib.suppress(s_tir.ScheduleError):
            if reductions and others:
                sch.reorder(*others, *reductions)
            sch.decompose_reduction(block, (reductions or loops)[0])


def _reduce_where_used(sch: s_tir.Schedule, block: SBlockRV) -> None:
    """Moves a reduction into the loops of the only block that uses it, each result once."""
    consumers = sch.get_consumers(block)
    if len(consumers) != 1 or not is_data_parallel(sch, consumers[0]):
        return
    results = [v for v in sch.get(block).iter_vars if v.iter_type == tirx.IterVar.DataPar]
    if _count(results) != _count(sch.get(consumers[0]).iter_vars):
        return
    loops = sch.get_loops(consumers[0])
    if loops:
        with contextlib.suppress(s_tir.ScheduleError):
            sch.compute_at(block, loops[-1])
            inner = sch.get_loops(block)[len(loops) :]
            if inner:
                sch.decompose_reduction(block, inner[0])


def _count(iter_vars: Any) -> int | None:
    return static_product(v.dom.extent for v in iter_vars)
