"""Loops that read at places which are no fixed step apart: one row after the other, from tables.

Resize, reflecting padding or tiling compute where a row is read, and with which weight, anew for
every row, though it depends on the column only. It is worked out once, for all rows.
"""

from dataclasses import replace
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.sym import Analyzer

from tvm_ext.tir_schedules.analysis.buffer_access import LoopAxis, depends, nodes, slope
from tvm_ext.tir_schedules.analysis.loop_nest import Nest, index_of, with_own_variables
from tvm_ext.tir_schedules.cpu.nest_code import loop, loops_around
from tvm_ext.tir_schedules.statements import sequence

# What takes longer than to load a result of it.
_SLOW = (tvm.ir.Call, tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)


def column_loops(nest: Nest, cores: int) -> tirx.Stmt:
    """The loops of a nest, the innermost of which is left to LLVM.

    It turns a plain loop into vectors and reads them by gathers; a vector of TVM's would be read
    lane by lane. Every buffer has fewer than 2 ** 31 elements, and the loops run at least once.
    """
    *outer, inner = nest.axes
    if not outer:
        return loops_around(nest.axes, nest.store, cores)
    tables, fills = [], []
    for value in _of_the_column(nest):
        value = _looked_up(value, tables)
        if not _is_slow(value, inner):
            continue
        narrow = _is_place(value, inner)
        dtype = "int32" if narrow else str(value.ty)
        table = tirx.decl_buffer((index_of(inner.extent, inner.var),), dtype, "column")
        load: Any = tirx.BufferLoad(table, [inner.var])
        tables.append((value, load.astype(str(value.ty)) if narrow else load))
        stored = tirx.BufferStore(table, value.astype(dtype) if narrow else value, [inner.var])
        fill = with_own_variables(Nest((inner,), stored))
        fills += [tirx.AllocBuffer(table), loop(fill.axes[0], fill.store)]
    row = nest.with_expressions(lambda e: _looked_up(e, tables))
    return sequence([*fills, loops_around(outer, loop(inner, row.store), cores)])


def _of_the_column(nest: Nest) -> list[tvm.ir.Expr]:
    """What is the same in every row and slow to compute, the smallest expressions first."""
    *outer, inner = nest.axes
    rows = [axis.var for axis in outer]
    found: dict[Any, Any] = {}

    def look(node: Any) -> Any:
        if not isinstance(node, tvm.ir.Expr) or not _is_slow(node, inner):
            return None
        if depends(node, *rows) or nodes(node, tvm.ir.TensorLoad) or str(node.ty) == "bool":
            return None
        found.setdefault(tvm_ffi.StructuralKey(node), node)
        return tvm_ffi.WalkResult.SKIP

    tvm_ffi.structural_walk(nest.store.value, look, order="pre")
    return sorted(found.values(), key=lambda value: len(nodes(value, tvm.ir.Expr)))


def _is_slow(value: tvm.ir.Expr, inner: LoopAxis) -> bool:
    return any(depends(node, inner.var) for node in nodes(value, *_SLOW))


def _is_place(value: tvm.ir.Expr, inner: LoopAxis) -> bool:
    """Whether it is a place in a buffer: an index that is never negative."""
    analyzer = Analyzer()
    analyzer.bind(inner.var, tvm.ir.Range(0, inner.extent))
    return str(value.ty) == "int64" and analyzer.const_int_bound(value).min_value >= 0


def _looked_up(expr: Any, tables: list[tuple[Any, Any]]) -> Any:
    for value, load in tables:
        key = tvm_ffi.StructuralKey(value)
        expr = tvm_ffi.structural_map(
            expr, (type(value), lambda e: load if tvm_ffi.StructuralKey(e) == key else e)
        )
    return expr
