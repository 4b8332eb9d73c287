"""Computes once for each row what a block would compute again for every element of the row."""

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import s_tir, tirx

from tvm_ext.tir_schedules.block_access import static_extent
from tvm_ext.tir_schedules.flat_views import nodes
from tvm_ext.tir_schedules.rows.row_hoist import hoisted
from tvm_ext.tir_schedules.rows.row_kernel import (
    Axis,
    RowBlock,
    RowKernel,
    Store,
    buffer_key,
    substituted,
)
from tvm_ext.tir_schedules.wafer.block_statements import Change, Stage, with_changes
from tvm_ext.tir_schedules.wafer.dimensions import Dimensions


def with_row_values(
    func: tirx.PrimFunc,
    stmts: Sequence[s_tir.SBlock],
    found: Dimensions,
    along: set[int],
) -> tirx.PrimFunc:
    """``func`` with roots and divisions that only depend on the row in blocks of their own.

    ``stmts`` are its blocks, and ``along`` the dimensions that a row goes over. On a mesh these
    operations are done element by element, so that once a row is worth a nest; see ``hoisted``
    for what becomes of divisions.
    """
    changes = {}
    for number, stmt in enumerate(stmts):
        if set(found.spatial(number)) & along and not any(found.reduces[number]):
            change = _change(stmt, found, number, along)
            if change is not None:
                changes[number] = change
    return with_changes(func, changes)


def _change(stmt: s_tir.SBlock, found: Dimensions, number: int, along: set[int]) -> Change | None:
    loops = list(zip(stmt.iter_vars, found.loops[number], strict=True))
    rows = tuple(one for one, dimension in loops if dimension not in along)
    columns = tuple(one for one, dimension in loops if dimension in along)
    block = RowBlock(
        _axes(columns), (Store(stmt.body.buffer, tuple(stmt.body.indices), stmt.body.value),), ()
    )
    kernel = RowKernel(_axes(rows), (block,), {}, str(stmt.iter_vars[0].var.ty))
    *once, rest = hoisted(kernel).blocks
    if not once:
        return None
    stages: list[Stage] = []
    loads: dict[int, Any] = {}
    for order, one in enumerate(once):
        (store,) = one.stores
        if not _is_slow(store.value):
            loads[buffer_key(store.buffer)] = store.value
            continue
        shape = [v.dom.extent for v in rows]
        name = f"{stmt.name_hint}_row{order}"
        stage = Stage(tirx.decl_buffer(shape, str(store.value.ty), name), rows, store.value)
        stages.append(stage)
        loads[buffer_key(store.buffer)] = stage.load()
    if not stages:
        return None
    value = substituted(
        rest.stores[0].value, {}, lambda load: loads.get(buffer_key(load.source), load)
    )
    return Change(tuple(stages), value)


def _is_slow(value: Any) -> bool:
    """Whether no vector instruction computes it: a quotient by a constant is a product."""
    quotients = nodes(value, tirx.Div)
    return bool(nodes(value, tvm.ir.Call)) or any(
        not isinstance(one.b, tirx.FloatImm) for one in quotients
    )


def _axes(variables: Sequence[Any]) -> tuple[Axis, ...]:
    return tuple(Axis(one.var, static_extent(one.dom.extent) or 1) for one in variables)
