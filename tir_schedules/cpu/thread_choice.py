"""Threads for loops of symbolic size only where the sizes of a run are worth it.

Handing work to threads takes microseconds, and waking them up tens of these: a classifier of one
row takes less in all. Where all sizes are known the schedules decide; here a run does.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.sym import Analyzer
from tvm_ffi import structural_map, structural_walk

from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.analysis.buffer_access import (
    buffer_bytes,
    nodes,
    static_extent,
    static_product,
)
from tvm_ext.tir_schedules.analysis.loop_nest import substitute
from tvm_ext.tir_schedules.cpu.parallel_vectorize import PARALLEL_GAIN
from tvm_ext.tir_schedules.statements import changed_block, changed_loop, sequence

# On loops that a run chooses from, and on loops over a batch whose items are shared by threads.
_MARK, _ITEMS = "tvm_ext_thread_choice", "tvm_ext_batch_items"

# Items for each thread, at least, so that a last round of few does not make the others wait.
_ENOUGH_ITEMS = 4

# Cycles at most that a statement waits for what it reads: it may read a part of an array only.
_LOADING_STATEMENT = 8

# Taken for a loop that only its condition ends.
_TURNS_OF_WHILE = 8


@dataclass(frozen=True)
class ThreadChoice:
    """A kernel after ``with_thread_choice``.

    Attributes
    ----------
    func : tirx.PrimFunc
        The kernel; the one given when nothing was changed.
    loops : int
        The loops that have a version without threads now.
    left : int
        Parallel loops of symbolic size whose work no expression of the kernel's sizes says.
    """

    func: tirx.PrimFunc
    loops: int
    left: int


def with_thread_choice(func: tirx.PrimFunc, machine: CpuDescription) -> ThreadChoice:
    """``func`` with a second version, in series, of its parallel loops whose work is symbolic.

    A run takes it where the statements in the loop are fewer than the threads' price in cycles.
    """
    least = round(PARALLEL_GAIN * machine.parallel_overhead_us * machine.clock_ghz * 1e3)
    loops = left = 0
    allocated = _allocated(func.body)
    uses = _buffer_uses(func.body, allocated)
    added: dict[tirx.Buffer, tirx.Buffer] = {}

    def chosen(node: tirx.For) -> tirx.Stmt:
        nonlocal loops, left
        if _ITEMS in node.annotations:
            loops += 1
            return _items_or_parts(node, machine.cores)
        if tirx.ForKind(node.kind) != tirx.ForKind.PARALLEL or _MARK in node.annotations:
            return node
        work = _with_loading(_work(node, frozenset()), node, machine)
        if work is None:
            left += not isinstance(node.extent, tirx.IntImm)
            return node
        work = Analyzer().simplify(work)
        if isinstance(work, tirx.IntImm) or _at_least(work) > least:
            return node
        loops += 1
        many = work > tirx.const(least, "int64")
        # TVM places a buffer where all of its readers find it. One that both versions share would
        # be outside of the threads, so that the version in series has its own.
        inside = _allocated(node)
        here = _buffer_uses(node, allocated)
        only = [buffer for buffer, count in here.items() if 0 < count == uses[buffer]]
        copies = {one: tirx.Var(one.name, one.ty) for one in {*inside, *only}}
        added.update((one, copy) for one, copy in copies.items() if one not in inside)
        series = structural_map(
            _version(node, tirx.ForKind.SERIAL),
            (tirx.Var, lambda variable: copies.get(variable, variable)),
        )
        return tirx.IfThenElse(many, _version(node, tirx.ForKind.PARALLEL), series)

    body = structural_map(func.body, (tirx.For, chosen))
    if not loops:
        return ThreadChoice(func, loops, left)
    body = structural_map(body, (s_tir.SBlock, lambda block: _allocating(block, added)))
    # The versions have variables and buffers of their own.
    mod = tirx.transform.ConvertSSA()(tvm.IRModule({"main": func.with_body(body)}))
    return ThreadChoice(mod["main"], loops, left)


def _buffer_uses(stmt: tirx.Stmt, buffers: Iterable[tirx.Buffer]) -> Counter[tirx.Buffer]:
    """How often ``stmt`` speaks of each of ``buffers``, other than to allocate it."""
    found = Counter(dict.fromkeys(buffers, 0))

    def named(variable: tirx.Var) -> None:
        if variable in found:
            found[variable] += 1

    structural_walk(stmt, (tirx.Var, named))
    for block in _blocks(stmt):
        found.subtract(block.alloc_buffers)
    return found


def _blocks(stmt: tirx.Stmt) -> list[s_tir.SBlock]:
    found: list[s_tir.SBlock] = []
    structural_walk(stmt, (s_tir.SBlock, lambda block: found.append(block)))
    return found


def _allocated(stmt: tirx.Stmt) -> set[tirx.Buffer]:
    return {buffer for block in _blocks(stmt) for buffer in block.alloc_buffers}


def _allocating(block: s_tir.SBlock, copies: Mapping[tirx.Buffer, tirx.Buffer]) -> s_tir.SBlock:
    own = list(block.alloc_buffers)
    more = [copies[buffer] for buffer in own if buffer in copies]
    return changed_block(block, alloc_buffers=own + more) if more else block


def _version(loop: tirx.For, kind: tirx.ForKind) -> tirx.For:
    marks = {key: value for key, value in loop.annotations.items() if key != _ITEMS}
    if kind == tirx.ForKind.PARALLEL:
        marks[_MARK] = tirx.const(1, "int32")
    return tirx.For(loop.loop_var, loop.min, loop.extent, kind, loop.body, None, marks)


def _work(stmt: tirx.Stmt, inner: frozenset[tirx.Var]) -> tvm.ir.Expr:
    """Statements that run, int64; None where the variables ``inner`` decide it."""
    match stmt:
        case tirx.For():
            extent = _known(stmt.extent, inner)
            body = _work(stmt.body, inner | {stmt.loop_var})
            if extent is None or body is None:
                return None
            return body if tirx.ForKind(stmt.kind) == tirx.ForKind.VECTORIZED else extent * body
        case tirx.SeqStmt():
            return _sequence_work(list(stmt.seq), inner)
        case tirx.IfThenElse():
            ways = [stmt.then_case] + ([stmt.else_case] if stmt.else_case is not None else [])
            return _sequence_work(ways, inner)
        case s_tir.SBlockRealize():
            block = stmt.block
            inside = inner | {one.var for one in block.iter_vars}
            # The start value of a reduction is set once in many turns.
            return _work(block.body, inside)
        case tirx.While():
            body = _work(stmt.body, inner)
            return None if body is None else body * tirx.const(_TURNS_OF_WHILE, "int64")
        case tirx.AttrStmt():
            return _work(stmt.body, inner)
        case _:
            return tirx.const(1, "int64")


def _at_least(work: tvm.ir.Expr) -> int:
    """``work`` for sizes of one, if it can be told: larger ones are more of it."""
    sizes = tirx.analysis.undefined_vars(work)
    smallest = substitute(work, {size: tirx.const(1, str(size.ty)) for size in sizes})
    return static_extent(Analyzer().simplify(smallest)) or 0


def _with_loading(work: Any, loop: tirx.For, machine: CpuDescription) -> Any:
    """``work``, and the cycles to read arrays of known size from outside of L2: weights, say."""
    arrays = {load.source for load in nodes(loop.body, tvm.ir.TensorLoad)}
    nbytes = sum(buffer_bytes(a) for a in arrays if static_product(a.shape) is not None)
    if work is None or nbytes <= machine.l2_bytes:
        return work
    cycles = nbytes / machine.bandwidth(nbytes) * machine.clock_ghz * 1e9
    loading = tirx.const(round(cycles), "int64")
    return work + tirx.min(loading, work * tirx.const(_LOADING_STATEMENT, "int64"))


def _sequence_work(parts: list[tirx.Stmt], inner: frozenset[tirx.Var]) -> tvm.ir.Expr:
    total: Any = tirx.const(0, "int64")
    for part in parts:
        work = _work(part, inner)
        if work is None:
            return None
        if isinstance(part, tirx.Bind):
            inner = inner | {part.var}
            continue
        total = total + work
    return total


def _known(extent: tvm.ir.Expr, inner: frozenset[tirx.Var]) -> Any:
    """The extent where the variables inside do not decide it, or what bounds it."""
    if not any(variable in inner for variable in tirx.analysis.undefined_vars(extent)):
        return extent.astype("int64")
    if not isinstance(extent, tirx.Min | tirx.Max):
        return None
    ways = [way for way in (_known(extent.a, inner), _known(extent.b, inner)) if way is not None]
    if isinstance(extent, tirx.Min):
        return ways[0] if ways else None
    return tirx.max(*ways) if len(ways) == 2 else None


def _items_or_parts(loop: tirx.For, threads: int) -> tirx.Stmt:
    """Threads that take whole items where these are enough, and parts of one item else."""
    copies = {one: tirx.Var(one.name, one.ty) for one in _allocated(loop)}

    def in_series(node: tirx.For) -> tirx.For:
        is_parallel = tirx.ForKind(node.kind) == tirx.ForKind.PARALLEL
        return changed_loop(node, kind=tirx.ForKind.SERIAL) if is_parallel else node

    items = structural_map(loop, (tirx.For, in_series))
    items = structural_map(items, (tirx.Var, lambda variable: copies.get(variable, variable)))
    items = structural_map(items, (s_tir.SBlock, _with_own_memory))
    count, most = loop.extent, tirx.const(_ENOUGH_ITEMS * threads, str(loop.extent.ty))
    even = tirx.floormod(count, tirx.const(threads, str(count.ty))) == tirx.const(0, str(count.ty))
    parts = _version(loop, tirx.ForKind.SERIAL)
    items = _version(items, tirx.ForKind.PARALLEL)
    return tirx.IfThenElse(tirx.any(even, count >= most), items, parts)


def _with_own_memory(block: s_tir.SBlock) -> s_tir.SBlock:
    """``block`` whose loops share no small arrays, where several follow each other.

    In one thread TVM would lay the sums of a loop into small arrays of those before it, and LLVM
    would not keep them in registers. It does not where these are still read at the end.
    """
    if not isinstance(block.body, tirx.SeqStmt):
        return block
    nothing = tirx.Evaluate(tirx.const(0, "int32"))
    arrays = nodes(list(block.body.seq)[:-1], tirx.AllocBuffer)
    body = structural_map(
        block.body,
        (tirx.AllocBuffer, lambda one: nothing if any(one.same_as(a) for a in arrays) else one),
    )
    reads = [
        tirx.Evaluate(tirx.BufferLoad(array.buffer, [tirx.const(0, "int64")])) for array in arrays
    ]
    return changed_block(block, body=sequence([*arrays, body, *reads]))


def without_choice(loop: tirx.For) -> tirx.For:
    """A parallel loop that is worth its threads at any size."""
    return _version(loop, tirx.ForKind.PARALLEL)


def over_items(loop: tirx.For) -> tirx.For:
    """A loop over a batch, inside of which threads share the parts of each item.

    ``with_thread_choice`` gives it a version in which threads take an item each.
    """
    return changed_loop(loop, annotations={_ITEMS: tirx.const(1, "int32")})
