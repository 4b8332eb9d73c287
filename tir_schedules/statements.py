"""Statements that templates which write their own loops put together."""

from collections.abc import Sequence

from tvm import tirx


def sequence(statements: Sequence[tirx.Stmt]) -> tirx.Stmt:
    """One statement after the other, as flat as TVM wants it."""
    flat: list[tirx.Stmt] = []
    for statement in statements:
        flat += statement.seq if isinstance(statement, tirx.SeqStmt) else [statement]
    return flat[0] if len(flat) == 1 else tirx.SeqStmt(flat)
