"""Statements that templates which write their own loops put together."""

from collections.abc import Sequence
from typing import Any

from tvm import s_tir, tirx


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
