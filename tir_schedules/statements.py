"""Small tools for TensorIR statements: sequences, blocks, stack arrays, conditions, marks."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import tvm
from tvm import s_tir, tirx
from tvm_ffi import structural_map


def sequence(statements: Sequence[tirx.Stmt]) -> tirx.Stmt:
    """One statement after the other, as flat as TVM wants it."""
    flat: list[tirx.Stmt] = []
    for statement in statements:
        flat += statement.seq if isinstance(statement, tirx.SeqStmt) else [statement]
    return flat[0] if len(flat) == 1 else tirx.SeqStmt(flat)


def changed_block(block: s_tir.SBlock, **changes: Any) -> s_tir.SBlock:
    """``block`` with other fields: ``reads``, ``body``, ``alloc_buffers`` and the like."""
    names = ["iter_vars", "reads", "writes", "name_hint", "body", "init"]
    names += ["alloc_buffers", "match_buffers", "annotations"]
    return s_tir.SBlock(*(changes.get(name, getattr(block, name)) for name in names))


def changed_loop(loop: tirx.For, **changes: Any) -> tirx.For:
    """``loop`` with other fields: ``body``, ``annotations`` and the like."""
    names = ("loop_var", "min", "extent", "kind", "body", "thread_binding", "annotations")
    return tirx.For(*(changes.get(name, getattr(loop, name)) for name in names))


def in_root_block(
    body: tirx.Stmt,
    arrays: Sequence[tirx.Buffer] = (),
    annotations: Mapping[str, Any] | None = None,
) -> s_tir.SBlockRealize:
    """``body`` in a root block, as schedules expect it, that allocates ``arrays``."""
    root = s_tir.SBlock([], [], [], "root", body, None, list(arrays), [], annotations)
    return s_tir.SBlockRealize([], tirx.const(True, "bool"), root)


# Small arrays that LLVM keeps in registers.


# The name that TVM gives to "leave this small array on the stack".
_ON_STACK = {"disable_lower_tvm_builtin": True}


def stack_array(size: tirx.Expr | int, dtype: str, name: str) -> tuple[Any, tirx.Stmt]:
    """An array of ``size`` elements, and the statement that declares it for what follows."""
    array = tirx.decl_buffer((size,), dtype, name)
    return array, tirx.AllocBuffer(array, annotations=_ON_STACK)


_IF_THEN_ELSE = tvm.ir.Op.get("prim.if_then_else")


def is_conditional(node: tvm.ir.Expr) -> TypeGuard[tvm.ir.Call]:
    """Whether an expression is a branch, of which one side only is computed."""
    return isinstance(node, tvm.ir.Call) and bool(node.op.same_as(_IF_THEN_ELSE))


def conjuncts(condition: tvm.ir.Expr) -> list[tvm.ir.Expr]:
    """The conditions that all have to hold for ``condition`` to hold."""
    if isinstance(condition, tirx.And):
        return [*conjuncts(condition.a), *conjuncts(condition.b)]
    return [condition]


# Takes out of kernels the marks that TVM's IR builder leaves, of which code generation warns.


# Groups statements while a kernel is built (ScatterND, ScatterElements, NonMaxSuppression); means
# nothing afterwards.
_MARK = "pragma_scope"


def without_scope_marks(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` without the marks; ``func`` itself when it has none."""
    body = structural_map(func.body, (tirx.AttrStmt, _inside))
    return func if body.same_as(func.body) else func.with_body(body)


def _inside(stmt: tirx.AttrStmt) -> tirx.Stmt:
    return stmt.body if stmt.attr_key == _MARK else stmt
