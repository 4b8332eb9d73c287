"""One assignment inside of loops: what a data-parallel block computes, free to be cut and refitted.

Schedule primitives keep a block in one piece. Here the piece of code is a value: its range can be
cut in two, a loop split or joined, and its indices are simplified for what remains.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.sym import Analyzer

from tvm_ext.tir_schedules.analysis.buffer_access import (
    LoopAxis,
    is_looked_up,
    nodes,
    runs_in_any_order,
    slope,
    static_extent,
    stride,
)
from tvm_ext.tir_schedules.statements import FlatViews, flattened

# Rounds of splitting loops by the divisors found in indices; each takes a division away.
_MAX_DIGIT_SPLITS = 12


@dataclass(frozen=True)
class Nest:
    """``store`` for every combination of ``axes``, the first of which is the outermost loop."""

    axes: tuple[LoopAxis, ...]
    store: tirx.BufferStore

    @property
    def is_symbolic(self) -> bool:
        """Whether it is known in the run only how often the store runs."""
        return any(axis.is_symbolic for axis in self.axes)

    def volume(self) -> Any:
        """How often the store runs; an expression where it is known in the run only."""
        count: Any = 1
        for axis in self.axes:
            count *= axis.extent
        return count

    def with_expressions(self, change: Callable[[Any], Any]) -> "Nest":
        """The nest with ``change`` applied to its value and its indices."""
        store = self.store
        indices = [change(index) for index in store.indices]
        return replace(self, store=tirx.BufferStore(store.buffer, change(store.value), indices))

    def loads(self) -> list[tvm.ir.Expr]:
        """What the value reads, each element once, those that are read for an index included."""
        unique: dict[Any, Any] = {}
        for load in nodes(self.store.value, tvm.ir.TensorLoad):
            unique.setdefault(tvm_ffi.StructuralKey(load), load)
        return list(unique.values())

    def free_axes(self) -> set[int]:
        """Positions of the axes that the value uses other than for addresses."""
        found: list[Any] = []

        def look(node: Any) -> Any:
            if isinstance(node, tvm.ir.TensorLoad):
                return tvm_ffi.WalkResult.SKIP
            if isinstance(node, tvm.ir.Var):
                found.append(node)
            return None

        tvm_ffi.structural_walk(self.store.value, look, order="pre")
        return {i for i, a in enumerate(self.axes) if any(a.var.same_as(v) for v in found)}


def nest_of(stmt: s_tir.SBlock, views: FlatViews) -> Nest | None:
    """The nest of a data-parallel block; None when it is more than one store, or empty.

    None as well where it is symbolic and ``views`` are of known sizes.
    """
    known = [static_extent(v.dom.extent) for v in stmt.iter_vars]
    extents = [
        v.dom.extent if extent is None and views.symbolic_sizes else extent
        for v, extent in zip(stmt.iter_vars, known, strict=True)
    ]
    if any(isinstance(extent, int) and not extent for extent in extents):
        return None
    if any(static_extent(v.dom.min) != 0 for v in stmt.iter_vars):
        return None
    if any(extent is None for extent in extents) or not isinstance(stmt.body, tirx.BufferStore):
        return None
    if not runs_in_any_order(stmt):
        return None
    flat = flattened(stmt.body, views)
    if flat is None:
        return None
    pairs = zip(stmt.iter_vars, extents, strict=True)
    # Fresh variables: those of the block belong to it.
    axes = tuple(LoopAxis(fresh(v.var), extent) for v, extent in pairs)
    names = {v.var: axis.var for v, axis in zip(stmt.iter_vars, axes, strict=True)}
    nest = Nest(axes, flat).with_expressions(lambda e: substitute(e, names))
    return simplified(_with_floor_divisions(simplified(nest)))


def _with_floor_divisions(nest: Nest) -> Nest:
    """Division that rounds to zero, of what is never negative, as division that rounds down."""
    analyzer = _analyzer(nest)

    def never_negative(expr: tvm.ir.Expr) -> bool:
        if "int" not in str(expr.ty):
            return False
        return all(analyzer.const_int_bound(side).min_value >= 0 for side in (expr.a, expr.b))

    def division(expr: tirx.Div) -> tvm.ir.Expr:
        return tirx.floordiv(expr.a, expr.b) if never_negative(expr) else expr

    def remainder(expr: tirx.Mod) -> Any:
        return tirx.floormod(expr.a, expr.b) if never_negative(expr) else expr

    callbacks = [(tirx.Div, division), (tirx.Mod, remainder)]
    return nest.with_expressions(lambda e: tvm_ffi.structural_map(e, callbacks))


def substitute(expr: Any, values: Mapping[Any, Any]) -> Any:
    """``expr`` with variables replaced."""
    # By what tells variables apart: comparing two of them makes an expression.
    by_hash = {hash(old): value for old, value in values.items()}
    return tvm_ffi.structural_map(expr, (tvm.ir.Var, lambda var: by_hash.get(hash(var), var)))


def simplified(nest: Nest) -> Nest:
    """Indices and conditions as the ranges of the loops allow, without loops of one iteration."""
    analyzer = _analyzer(nest)
    once = {a.var: tirx.const(0, str(a.var.ty)) for a in nest.axes if a.runs_once}
    axes = tuple(axis for axis in nest.axes if not axis.runs_once)
    changed = nest.with_expressions(lambda e: analyzer.simplify(substitute(e, once)))
    return replace(changed, axes=axes)


def _analyzer(nest: Nest) -> Analyzer:
    analyzer = Analyzer()
    for axis in nest.axes:
        if not axis.runs_once:
            analyzer.bind(axis.var, tvm.ir.Range(0, axis.extent))
    return analyzer


def restricted(nest: Nest, position: int, start: int, length: int) -> Nest:
    """The part of ``nest`` in which one axis runs over ``length`` iterations from ``start``."""
    axis = nest.axes[position]
    part = LoopAxis(fresh(axis.var), length)
    moved = nest.with_expressions(lambda e: substitute(e, {axis.var: part.var + start}))
    axes = (*nest.axes[:position], part, *nest.axes[position + 1 :])
    return simplified(replace(moved, axes=axes))


def split_axis(nest: Nest, position: int, size: int) -> Nest:
    """One axis as two: pieces of ``size`` iterations, which divides its extent."""
    axis = nest.axes[position]
    outer = LoopAxis(fresh(axis.var), axis.extent // size)
    inner = LoopAxis(fresh(axis.var), size)
    value = outer.var * size + inner.var
    moved = nest.with_expressions(lambda e: substitute(e, {axis.var: value}))
    axes = (*nest.axes[:position], outer, inner, *nest.axes[position + 1 :])
    return simplified(replace(moved, axes=axes))


def without_divisions(nest: Nest) -> Nest:
    """Splits loops until their indices need no division, where divisors allow it.

    ``v // 12`` and ``v % 12`` of a reshaped tensor become plain loop variables once the loop over
    ``v`` is two loops, the inner one of 12 iterations.
    """
    for _ in range(_MAX_DIGIT_SPLITS):
        found = _digit(nest)
        if found is None:
            return nest
        nest = split_axis(nest, *found)
    return nest


def _digit(nest: Nest) -> tuple[int, int] | None:
    """An axis and the size by which to split it, so that a division goes away."""
    roots = [nest.store.value, *nest.store.indices]
    for node in (n for root in roots for n in nodes(root, tirx.FloorDiv, tirx.FloorMod)):
        divisor = static_extent(node.b)
        for position, axis in enumerate(nest.axes):
            size = _piece(node.a, axis, divisor)
            if size is not None:
                return position, size
    return None


def _piece(dividend: tvm.ir.Expr, axis: LoopAxis, divisor: int | None) -> int | None:
    step = slope(dividend, axis.var)
    if divisor is None or axis.is_symbolic or not step or divisor % step:
        return None
    size = divisor // abs(step)
    return size if 1 < size < axis.extent and axis.extent % size == 0 else None


def _strides(nest: Nest, indices: Sequence[tvm.ir.Expr]) -> tuple[int | None, ...]:
    return tuple(slope(indices[0], axis.var) for axis in nest.axes)


def store_strides(nest: Nest) -> tuple[int | None, ...]:
    """Elements by which the written address moves with each axis; None where it is not linear."""
    return _strides(nest, nest.store.indices)


def load_strides(nest: Nest) -> list[tuple[int | None, ...]]:
    """The same for each load; 0 for those of a table that stays in registers."""
    still = (0,) * len(nest.axes)
    return [
        still if is_looked_up(load.source, load.indices[0]) else _strides(nest, load.indices)
        for load in nest.loads()
    ]


def in_order_of_writing(nest: Nest) -> Nest:
    """The loops with the longest steps of the result outermost."""
    steps = store_strides(nest)
    if None in steps:
        return nest
    order = sorted(range(len(steps)), key=lambda position: -abs(steps[position] or 0))
    return replace(nest, axes=tuple(nest.axes[position] for position in order))


def joined(nest: Nest) -> Nest:
    """Neighbouring loops that every buffer walks as if they were one are made one."""
    return joined_together((nest,))[0]


def joined_together(nests: Sequence[Nest]) -> list[Nest]:
    """The same for nests over the same axes: loops that the buffers of all walk as if one."""
    table = [
        tuple(stride(index, axis.var) for axis in nest.axes)
        for nest in nests
        for index in _moving_addresses(nest)
    ]
    kept = set().union(*(nest.free_axes() for nest in nests))
    axes = nests[0].axes
    changed = list(nests)
    position = len(axes) - 1
    while position > 0:
        inner = axes[position].extent
        # The positions before this one are still those of the nests as they came.
        free = {position - 1, position} & kept
        if not free and all(_is_dense(row[position - 1], row[position], inner) for row in table):
            both = _as_one(axes, position)
            changed = [_join(nest, position, both) for nest in changed]
            axes = changed[0].axes
            table = [(*row[: position - 1], *row[position:]) for row in table]
        position -= 1
    return [simplified(nest) for nest in changed]


def _moving_addresses(nest: Nest) -> list[tvm.ir.Expr]:
    """Of the store and the loads, without those of tables that stay in registers."""
    moving = (one for one in nest.loads() if not is_looked_up(one.source, one.indices[0]))
    return [nest.store.indices[0], *(load.indices[0] for load in moving)]


def _is_dense(outer: Any, inner: Any, extent: Any) -> bool:
    if outer is None or inner is None:
        return False
    if all(isinstance(value, int) for value in (outer, inner, extent)):
        return bool(outer == inner * extent)
    return bool(Analyzer().can_prove_equal(outer, inner * extent))


def _as_one(axes: Sequence[LoopAxis], position: int) -> LoopAxis:
    outer, inner = axes[position - 1 : position + 1]
    return LoopAxis(fresh(inner.var), outer.extent * inner.extent)


def _join(nest: Nest, position: int, both: LoopAxis) -> Nest:
    outer, inner = nest.axes[position - 1 : position + 1]
    # Every address is linear in both, and steps along the outer one are those of all of the inner.
    values = {outer.var: tirx.const(0, str(outer.var.ty)), inner.var: both.var}
    moved = nest.with_expressions(lambda e: substitute(e, values))
    return replace(moved, axes=(*nest.axes[: position - 1], both, *nest.axes[position + 1 :]))


def with_own_variables(nest: Nest) -> Nest:
    """The same nest with variables that no other has: each may be defined once in a kernel."""
    axes, names = renamed(nest.axes)
    return replace(nest.with_expressions(lambda e: substitute(e, names)), axes=axes)


def renamed(axes: Sequence[LoopAxis]) -> tuple[tuple[LoopAxis, ...], dict[tirx.Var, tirx.Var]]:
    """The same loops with variables of their own, and those by the old ones."""
    new_axes = tuple(LoopAxis(fresh(axis.var), axis.extent) for axis in axes)
    return new_axes, {old.var: new.var for old, new in zip(axes, new_axes, strict=True)}


def fresh(var: tirx.Var) -> tirx.Var:
    """Another variable of the same name and type."""
    return tirx.Var(var.name, str(var.ty))


def index_of(value: Any, like: tirx.Var) -> tvm.ir.Expr:
    """``value`` as an index of the type of ``like``; expressions as they are."""
    return tirx.const(value, str(like.ty)) if isinstance(value, int) else value
