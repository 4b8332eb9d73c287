"""Loops that read at places which are no fixed step apart, with tables of what one loop decides.

Resize, reflecting padding and tiling compute anew for every element where a row and a column are
read, and with which weights, though the one depends on the row only and the other on the column.
Both are worked out once.
"""

import math
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.sym import Analyzer, ConstIntBound

from tvm_ext.tir_schedules.analysis.buffer_access import (
    LoopAxis,
    depends,
    elements,
    is_conditional,
    linear_form,
    nodes,
)
from tvm_ext.tir_schedules.analysis.loop_nest import Nest, index_of, with_own_variables
from tvm_ext.tir_schedules.cpu.nest_code import loop, loops_around
from tvm_ext.tir_schedules.statements import sequence

# What takes longer than to load its result.
_SLOW = (tvm.ir.Call, tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)

# More than any size.
_LARGE = 2**62


# Elements of a buffer below which each has a place that is an int32.
_NARROW = 2**31

# How often a value has to be used for a table of it to pay.
_USES = 4


def loops_with_tables(nest: Nest, cores: int) -> tirx.Stmt:
    """The loops of a nest, the innermost of which is left to LLVM.

    It brings a plain loop into vectors that it reads by gathers, where it would read a vector of
    TVM's lane by lane. Where ``nest`` is symbolic, ``allows_tables`` has to hold.
    """
    *outer, inner = nest.axes
    if not outer:
        return loops_around(nest.axes, nest.store, cores)
    tables: list[tuple[Any, Any]] = []
    fills: list[tirx.Stmt] = []
    for axis in [axis for axis in nest.axes if _is_used_often(axis, nest)]:
        for found in _decided_by(axis, nest):
            value = _looked_up(found, tables)
            if not _is_slow(value, axis):
                continue
            load, fill = _table(value, axis, _is_place(found, axis, nest))
            tables.append((value, load))
            fills += fill
    body = nest.with_expressions(lambda e: _looked_up(e, tables)).store
    return sequence([*fills, loops_around(outer, loop(inner, body), cores)])


def allows_tables(nest: Nest) -> list[tvm.ir.Expr]:
    """What has to hold in the run: every loop runs, and places in buffers are numbers of int32."""
    runs = [axis.extent > 0 for axis in nest.axes if axis.is_symbolic]
    return [*runs, *(count < _NARROW for count in _counts(nest) if not isinstance(count, int))]


def _counts(nest: Nest) -> list[Any]:
    """Elements of each buffer."""
    return [elements(b) for b in (nest.store.buffer, *(load.source for load in nest.loads()))]


def _is_used_often(axis: LoopAxis, nest: Nest) -> bool:
    """Whether other loops repeat one iteration often, or nobody knows."""
    lengths = [other.length for other in nest.axes if not other.var.same_as(axis.var)]
    return None in lengths or math.prod(length or 1 for length in lengths) >= _USES


def _table(
    value: tvm.ir.Expr, axis: LoopAxis, is_place: bool
) -> tuple[tvm.ir.Expr, list[tirx.Stmt]]:
    """A table of a value, read at the iteration of a loop, and the statements that fill it."""
    kind = str(value.ty)
    # Half as much to load, and as wide as what is gathered.
    dtype = "int32" if is_place else kind
    table = tirx.decl_buffer((index_of(axis.extent, axis.var),), dtype, f"of_{axis.var.name}")
    stored = tirx.BufferStore(table, value.astype(dtype), [axis.var])
    fill = with_own_variables(Nest((axis,), stored))
    load = tirx.BufferLoad(table, [axis.var])
    return load.astype(kind), [tirx.AllocBuffer(table), loop(fill.axes[0], fill.store)]


def _decided_by(axis: LoopAxis, nest: Nest) -> list[tvm.ir.Expr]:
    """What depends on no other loop and is slow to compute, the smallest expressions first."""
    others = [other.var for other in nest.axes if not other.var.same_as(axis.var)]
    found: dict[Any, Any] = {}

    def look(node: Any) -> Any:
        if not isinstance(node, tvm.ir.Expr):
            return None
        if not _is_slow(node, axis):
            return tvm_ffi.WalkResult.SKIP
        if depends(node, *others) or nodes(node, tvm.ir.TensorLoad) or str(node.ty) == "bool":
            # What is computed in some iterations only may divide by zero in the others.
            is_chosen = isinstance(node, tirx.Select) or is_conditional(node)
            return tvm_ffi.WalkResult.SKIP if is_chosen else None
        found.setdefault(tvm_ffi.StructuralKey(node), node)
        return tvm_ffi.WalkResult.SKIP

    tvm_ffi.structural_walk(nest.store.value, look, order="pre")
    return sorted(found.values(), key=lambda value: len(nodes(value, tvm.ir.Expr)))


def _is_slow(value: tvm.ir.Expr, axis: LoopAxis) -> bool:
    return any(depends(node, axis.var) for node in nodes(value, *_SLOW))


def _is_place(value: tvm.ir.Expr, axis: LoopAxis, nest: Nest) -> bool:
    """Whether it is never negative and added to a place in a buffer: it is no larger than that."""
    analyzer = Analyzer()
    analyzer.bind(axis.var, tvm.ir.Range(0, axis.extent))
    for size in nodes(index_of(axis.extent, axis.var), tvm.ir.Var):
        # TVM does not know it of sizes.
        analyzer.update(size, ConstIntBound(0, _LARGE))
    if any(isinstance(count, int) and count >= _NARROW for count in _counts(nest)):
        return False
    if str(value.ty) != "int64" or analyzer.const_int_bound(value).min_value < 0:
        return False
    part = tirx.Var("part", "int64")
    addresses = [_replaced(load.indices[0], value, part) for load in nest.loads()]
    return any(depends(a, part) and linear_form(a, [part]) is not None for a in addresses)


def _looked_up(expr: Any, tables: list[tuple[Any, Any]]) -> Any:
    """``expr`` with the entries of tables in the place of what they hold."""
    for value, load in tables:
        expr = _replaced(expr, value, load)
    return expr


def _replaced(expr: Any, old: tvm.ir.Expr, new: tvm.ir.Expr) -> Any:
    key = tvm_ffi.StructuralKey(old)

    def change(node: tvm.ir.Expr) -> tvm.ir.Expr:
        return new if tvm_ffi.StructuralKey(node) == key else node

    return tvm_ffi.structural_map(expr, (type(old), change))
