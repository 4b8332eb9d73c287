"""Keeps kernels inside their buffers, whatever the tensors of a run hold and whatever their sizes.

What sizes decide is checked once, before a kernel's first loop; what other tensors decide, at the
access itself. Accesses that are known to be inside, nearly all of them, stay as they are.
"""

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm_ffi import structural_map

from tvm_ext.configs.errors import CONTRADICTING_SIZES
from tvm_ext.tir_schedules.analysis.access_bounds import (
    StrayAccess,
    access_bounds,
    access_key,
    shape_of,
)
from tvm_ext.tir_schedules.analysis.buffer_access import nodes
from tvm_ext.tir_schedules.analysis.possible_values import Tables
from tvm_ext.tir_schedules.statements import changed_block

# On a kernel, until it is lowered: the condition, and for each variable in it the position of a
# parameter and of that parameter's axis, -1 where the variable is the parameter.
_BOUNDS_ATTRIBUTE = "tvm_ext.bounds"

# An index may be read from a tensor at an index that is read from a tensor.
_DEEPEST = 8


def checked_bounds(func: tirx.PrimFunc, tables: Tables = lambda _: None) -> tirx.PrimFunc:
    """A kernel that stays inside its buffers; ``func`` itself if it is known to do so.

    It is not scheduled yet. Its check of sizes becomes code when the kernel is lowered. ``tables``
    says what is in those of its parameters that are constants.
    """
    kept: set[Any] = set()
    for _ in range(_DEEPEST):
        bounds = access_bounds(func, tables)
        stray = [s for s in bounds.stray if access_key(s.access) not in kept]
        if not stray:
            break
        func = func.with_body(_kept_inside(func.body, stray, kept))
    if not bounds.conditions:
        return func
    return _noted(func, bounds.conditions)


def condition_of_sizes(func: tirx.PrimFunc) -> tvm.ir.Expr | None:
    """What has to hold for the sizes of a call of a kernel of ``checked_bounds``; None: nothing."""
    noted = func.attrs is not None and _BOUNDS_ATTRIBUTE in func.attrs
    return func.attrs[_BOUNDS_ATTRIBUTE][0] if noted else None


def _kept_inside(body: tirx.Stmt, stray: Sequence[StrayAccess], kept: set[Any]) -> tirx.Stmt:
    """``body`` with every one of ``stray`` inside its buffer; puts what they became into ``kept``.

    Of one whose own index is among them, the inner one is changed first: the outer one is another
    one then, and is found again.
    """
    # By access: its axes, and whether one may have no elements.
    found: dict[Any, dict[int, bool]] = {}
    for access, axis, may_be_empty in stray:
        axes = found.setdefault(access_key(access), {})
        axes[axis] = axes.get(axis, False) or may_be_empty

    def load(node: tvm.ir.TensorLoad) -> tvm.ir.Expr:
        here = found.get(access_key(node), {})
        indices = list(node.indices)
        for axis in here:
            zero = tirx.const(0, str(indices[axis].ty))
            indices[axis] = tirx.max(tirx.min(indices[axis], node.source.shape[axis] - 1), zero)
        if not here:
            return node
        inner = tirx.BufferLoad(node.source, indices)
        kept.add(access_key(inner))
        any_there = [
            node.source.shape[axis] > 0 for axis, may_be_empty in here.items() if may_be_empty
        ]
        nothing = tirx.const(0, str(node.ty))
        return tirx.if_then_else(tirx.all(*any_there), inner, nothing) if any_there else inner

    def store(node: tirx.BufferStore) -> tirx.Stmt:
        here = found.get(access_key(node), {})
        checks = []
        for axis in here:
            index = node.indices[axis]
            checks += [tirx.const(0, str(index.ty)) <= index, index < node.buffer.shape[axis]]
        if not here:
            return node
        kept.add(access_key(node))
        return tirx.IfThenElse(tirx.all(*checks), node, None)

    return structural_map(body, [(tvm.ir.TensorLoad, load), (tirx.BufferStore, store)])


# The check of sizes ------------------------------------------------------------------------------


def _noted(func: tirx.PrimFunc, conditions: Sequence[tvm.ir.Expr]) -> tirx.PrimFunc:
    """``func`` with those of ``conditions`` whose sizes it is told one by one."""
    positions: dict[int, list[Any]] = {}
    told = []
    for condition in conditions:
        variables = nodes(condition, tvm.ir.Var)
        places = [(var, _position(func, var)) for var in variables]
        if all(place is not None for _, place in places):
            told.append(condition)
            positions |= {hash(var): [var, *place] for var, place in places if place is not None}
    if not told:
        return func
    return func.with_attr(_BOUNDS_ATTRIBUTE, [tirx.all(*told), list(positions.values())])


def _position(func: tirx.PrimFunc, var: tirx.Var) -> tuple[int, int] | None:
    """Where a kernel is told a size: as a parameter, or as an axis of one."""
    for number, param in enumerate(func.params):
        if param.same_as(var):
            return number, -1
        for axis, size in enumerate(shape_of(param)):
            if size.same_as(var):
                return number, axis
    return None


@tirx.transform.prim_func_pass(opt_level=0, name="InsertBoundsChecks")
class InsertBoundsChecks:
    """Writes the check of sizes that a kernel was noted to need in front of its loops.

    Before: ``gather(x: (n, 4), at: (m, 4))``, which reads ``x`` at the rows of ``at``
    After:  the same behind ``assert m <= n``

    Leaves alone: kernels that need none.

    Run after: the schedules. Run before: TVM's lowering.
    """

    def transform_function(
        self, func: tirx.PrimFunc, _mod: tvm.IRModule, _ctx: tvm.transform.PassContext
    ) -> tirx.PrimFunc:
        """Writes the check inside of the kernel's outermost block, where schedules leave one."""
        if func.attrs is None or _BOUNDS_ATTRIBUTE not in func.attrs:
            return func
        condition, positions = func.attrs[_BOUNDS_ATTRIBUTE]
        func = func.without_attr(_BOUNDS_ATTRIBUTE)
        sizes = {}
        for var, number, axis in positions:
            param = func.params[int(number)]
            sizes[hash(var)] = param if int(axis) < 0 else param.shape[int(axis)]
        renamed = structural_map(condition, (tvm.ir.Var, lambda v: sizes.get(hash(v), v)))
        kind, message = map(tvm.ir.StringImm, ("ValueError", CONTRADICTING_SIZES))
        check = tirx.AssertStmt(_without_zero_divisors(renamed), kind, [message])
        body = func.body
        if isinstance(body, s_tir.SBlockRealize):
            root = changed_block(body.block, body=tirx.SeqStmt([check, body.block.body]))
            return func.with_body(s_tir.SBlockRealize(body.iter_values, body.predicate, root))
        return func.with_body(tirx.SeqStmt([check, body]))


def _without_zero_divisors(expr: tvm.ir.Expr) -> tvm.ir.Expr:
    """All parts of a condition are computed, those of loops that do not run too."""

    def change(node: Any) -> tvm.ir.Expr:
        return type(node)(node.a, tirx.max(node.b, tirx.const(1, str(node.b.ty))))

    kinds = (tirx.FloorDiv, tirx.FloorMod, tirx.Div, tirx.Mod)
    return structural_map(expr, (kinds, change))
