"""Gives each of several sums that one block makes a block of its own.

TVM's normalisations sum elements and their squares together, and whoever reads or cuts a block
expects one assignment in it.
"""

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import s_tir, tirx

from tvm_ext.tir_schedules.flat_views import nodes
from tvm_ext.tir_schedules.nest import substitute
from tvm_ext.tir_schedules.rows.row_kernel import buffer_key
from tvm_ext.tir_schedules.wafer.block_statements import statements, with_statements


def with_separate_sums(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` with one result in each block, where results do not depend on each other.

    Leaves alone: the position of a maximum, which is found together with the maximum.
    """
    stmts = statements(func)
    parts = [_parts(stmt) for stmt in stmts]
    if len(parts) == sum(map(len, parts)):
        return func
    return with_statements(func, [one for some in parts for one in some])


def _parts(stmt: Any) -> list[Any]:
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


def _stores(body: Any) -> list[Any]:
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
    loops: Sequence[Any], realize: Any, number: int, stores: Sequence[Any], starts: Sequence[Any]
) -> Any:
    """The loops around one of the assignments, with variables of their own."""
    block = realize.block
    fresh = {one.loop_var: _renewed(one.loop_var) for one in loops}
    own = {one.var: _renewed(one.var) for one in block.iter_vars}
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
    values = [substitute(value, fresh) for value in realize.iter_values]
    found = s_tir.SBlockRealize(values, substitute(realize.predicate, fresh), changed)
    for one in reversed(loops):
        found = tirx.For(fresh[one.loop_var], one.min, one.extent, one.kind, found)
    return found


def _renewed(var: Any) -> Any:
    return tirx.Var(var.name, str(var.ty))


def _moved(region: Any, own: dict[Any, Any]) -> Any:
    ranges = [
        tvm.ir.Range.from_min_extent(substitute(dim.min, own), substitute(dim.extent, own))
        for dim in region.region
    ]
    return tirx.BufferRegion(region.source, ranges)


def _assigned(store: Any, own: dict[Any, Any]) -> Any:
    indices = [substitute(index, own) for index in store.indices]
    return tirx.BufferStore(store.buffer, substitute(store.value, own), indices)
