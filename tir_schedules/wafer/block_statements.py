"""Changes blocks of a kernel that no schedule has touched: puts others before them to read from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx

from tvm_ext.tir_schedules.analysis.buffer_access import nodes
from tvm_ext.tir_schedules.analysis.loop_nest import fresh, substitute
from tvm_ext.tir_schedules.analysis.row_kernel import buffer_key
from tvm_ext.tir_schedules.statements import changed_block, changed_loop, in_root_block, sequence


@dataclass(frozen=True)
class Stage:
    """A tensor that is computed for one block, by a block of its own before it.

    Attributes
    ----------
    buffer : Buffer
        The tensor.
    over : tuple[IterVar, ...]
        Iteration variables of the reading block, one for each axis of the tensor.
    value : Expr
        Of one element, in these variables.
    """

    buffer: tirx.Buffer
    over: tuple[Any, ...]
    value: Any

    def load(self) -> tvm.ir.Expr:
        """How the reading block has its element."""
        return tirx.BufferLoad(self.buffer, [one.var for one in self.over])


@dataclass(frozen=True)
class Change:
    """What becomes of a block: the tensors it reads from, and its new value."""

    stages: tuple[Stage, ...]
    value: tirx.Expr


def reduces_or_scans(func: tirx.PrimFunc) -> bool:
    """Whether any iteration of a block depends on another one."""
    return any(
        one.iter_type != tirx.IterVar.DataPar
        for block in nodes(func.body, s_tir.SBlock)
        for one in block.iter_vars
    )


def share_loops(func: tirx.PrimFunc) -> bool:
    """Whether some of a kernel's blocks do not stand in loops of their own, which nothing else has.

    As TVM makes kernels they do; those that are written by hand may not.
    """
    for stmt in statements(func):
        while isinstance(stmt, tirx.For):
            stmt = stmt.body
        if not isinstance(stmt, s_tir.SBlockRealize):
            return True
    return False


def with_changes(func: tirx.PrimFunc, changes: Mapping[int, Change]) -> tirx.PrimFunc:
    """``func`` with some of its blocks, by position, changed.

    Each block is one assignment and stands in loops of its own; see ``share_loops``.
    """
    if not changes:
        return func
    changed: list[Any] = []
    arrays: list[Any] = []
    for number, stmt in enumerate(statements(func)):
        change = changes.get(number)
        if change is None:
            changed.append(stmt)
            continue
        changed += [_loops(stage) for stage in change.stages]
        changed.append(_with_value(stmt, change))
        arrays += [stage.buffer for stage in change.stages]
    return with_statements(func, changed, arrays)


def statements(func: tirx.PrimFunc) -> list[tirx.Stmt]:
    """What stands in the root block of a kernel; nothing if it has none."""
    if not isinstance(func.body, s_tir.SBlockRealize):
        return []
    body = func.body.block.body
    return list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]


def with_statements(
    func: tirx.PrimFunc, stmts: Sequence[tirx.For], arrays: Sequence[tirx.Buffer] = ()
) -> tirx.PrimFunc:
    """``func`` with other statements in its root block, and ``arrays`` besides its own."""
    root = func.body.block
    allocated = [*root.alloc_buffers, *arrays]
    return func.with_body(in_root_block(sequence(stmts), allocated, root.annotations))


def _loops(stage: Stage) -> tirx.For:
    """The loops that fill a tensor."""
    loops = [tirx.Var(f"i{n}", str(one.var.ty)) for n, one in enumerate(stage.over)]
    own = [tirx.Var(f"v{n}", str(one.var.ty)) for n, one in enumerate(stage.over)]
    replaced = {one.var: var for one, var in zip(stage.over, own, strict=True)}
    value = substitute(stage.value, replaced)
    iter_vars = [
        tirx.IterVar(one.dom, var, tirx.IterVar.DataPar)
        for one, var in zip(stage.over, own, strict=True)
    ]
    block = s_tir.SBlock(
        iter_vars,
        _regions(nodes(value, tvm.ir.TensorLoad)),
        _regions([tirx.BufferLoad(stage.buffer, own)]),
        str(stage.buffer.name),
        tirx.BufferStore(stage.buffer, value, own),
    )
    stmt = s_tir.SBlockRealize(loops, tirx.const(True, "bool"), block)
    for loop, one in zip(reversed(loops), reversed(stage.over), strict=True):
        stmt = tirx.For(loop, one.dom.min, one.dom.extent, tirx.ForKind.SERIAL, stmt)
    return stmt


def _with_value(stmt: tirx.Stmt, change: Change) -> tirx.Stmt:
    """The loops around a block with another value in it."""
    if isinstance(stmt, tirx.For):
        return changed_loop(stmt, body=_with_value(stmt.body, change))
    block = stmt.block
    store = tirx.BufferStore(block.body.buffer, change.value, block.body.indices)
    loads = nodes(change.value, tvm.ir.TensorLoad)
    left = {buffer_key(load.source) for load in loads}
    staged = {buffer_key(stage.buffer) for stage in change.stages}
    new = _regions([load for load in loads if buffer_key(load.source) in staged])
    old = [region for region in block.reads if buffer_key(region.source) in left]
    changed = changed_block(block, reads=[*new, *old], body=store)
    return s_tir.SBlockRealize(stmt.iter_values, stmt.predicate, changed)


def _regions(loads: Sequence[tvm.ir.TensorLoad]) -> list[tvm.ir.TensorRegion]:
    """The elements that ``loads`` read, each once for every tensor."""
    found: dict[int, Any] = {}
    for load in loads:
        ranges = [tvm.ir.Range.from_min_extent(i, tirx.const(1, str(i.ty))) for i in load.indices]
        found.setdefault(buffer_key(load.source), tirx.BufferRegion(load.source, ranges))
    return list(found.values())


# Gives each of several sums that one block makes a block of its own.
#
# TVM's normalisations sum elements and their squares together, and whoever reads or cuts a block
# expects one assignment in it.


def with_separate_sums(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` with one result in each block, where results do not depend on each other.

    Leaves alone: the position of a maximum, which is found together with the maximum.
    """
    stmts = statements(func)
    parts = [_parts(stmt) for stmt in stmts]
    if len(parts) == sum(map(len, parts)):
        return func
    return with_statements(func, [one for some in parts for one in some])


def _parts(stmt: tirx.Stmt) -> list[tirx.Stmt]:
    loops: list[Any] = []
    inner = stmt
    while isinstance(inner, tirx.For):
        loops.append(inner)
        inner = inner.body
    if not isinstance(inner, s_tir.SBlockRealize):
        return [stmt]
    stores, starts = _stores(inner.block.body), _stores(inner.block.init)
    if len(stores) < 2 or len(stores) != len(starts):
        return [stmt]
    written = {buffer_key(store.buffer) for store in stores}
    for store in stores:
        read = {buffer_key(load.source) for load in nodes(store.value, tvm.ir.TensorLoad)}
        if read & written - {buffer_key(store.buffer)}:
            return [stmt]
    return [_alone(loops, inner, number, stores, starts) for number in range(len(stores))]


def _stores(body: Any) -> list[tirx.BufferStore]:
    """The assignments of a block, without the names that it gives to values; none for others."""
    if not isinstance(body, tirx.SeqStmt):
        return []
    named: dict[Any, Any] = {}
    stores: list[Any] = []
    for stmt in body.seq:
        if isinstance(stmt, tirx.Bind):
            named[stmt.var] = substitute(stmt.value, named)
        elif isinstance(stmt, tirx.BufferStore):
            value = substitute(stmt.value, named)
            stores.append(tirx.BufferStore(stmt.buffer, value, stmt.indices))
        else:
            return []
    return stores


def _alone(
    loops: Sequence[tirx.For],
    realize: s_tir.SBlockRealize,
    number: int,
    stores: Sequence[tirx.BufferStore],
    starts: Sequence[tirx.BufferStore],
) -> tirx.For:
    """The loops around one of the assignments, with variables of their own."""
    block = realize.block
    renewed = {one.loop_var: fresh(one.loop_var) for one in loops}
    own = {one.var: fresh(one.var) for one in block.iter_vars}
    store = stores[number]
    read = {buffer_key(load.source) for load in nodes(store.value, tvm.ir.TensorLoad)}
    changed = s_tir.SBlock(
        [tirx.IterVar(one.dom, own[one.var], one.iter_type) for one in block.iter_vars],
        [_moved(one, own) for one in block.reads if buffer_key(one.source) in read],
        [_moved(one, own) for one in block.writes if one.source.same_as(store.buffer)],
        f"{block.name_hint}{number}",
        _assigned(store, own),
        _assigned(starts[number], own),
        annotations=block.annotations,
    )
    values = [substitute(value, renewed) for value in realize.iter_values]
    found = s_tir.SBlockRealize(values, substitute(realize.predicate, renewed), changed)
    for one in reversed(loops):
        found = tirx.For(renewed[one.loop_var], one.min, one.extent, one.kind, found)
    return found


def _moved(region: tvm.ir.TensorRegion, own: dict[Any, Any]) -> tvm.ir.TensorRegion:
    ranges = [
        tvm.ir.Range.from_min_extent(substitute(dim.min, own), substitute(dim.extent, own))
        for dim in region.region
    ]
    return tirx.BufferRegion(region.source, ranges)


def _assigned(store: tirx.BufferStore, own: dict[Any, Any]) -> tirx.BufferStore:
    indices = [substitute(index, own) for index in store.indices]
    return tirx.BufferStore(store.buffer, substitute(store.value, own), indices)
