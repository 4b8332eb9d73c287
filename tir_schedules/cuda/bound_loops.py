"""Whether threads run all of a kernel."""

from typing import Any

import tvm
from tvm import s_tir, tirx

from tvm_ext.tir_schedules.flat_views import nodes


def is_bound(func: tirx.PrimFunc) -> bool:
    """Whether nothing outside of loops over threads reads or writes memory.

    Such a kernel can be built for a GPU. The rest of it would run on the host, with addresses of
    the device.
    """
    return _is_bound(func.body)


def binds_threads(body: tirx.Stmt) -> bool:
    """Whether some loop of a kernel is bound to threads."""
    return any(_launches(stmt) for stmt in nodes(body, tirx.For, tirx.AttrStmt))


def _launches(stmt: Any) -> bool:
    """Whether ``stmt`` is a loop over threads or blocks."""
    if isinstance(stmt, tirx.For):
        return tirx.ForKind(stmt.kind) == tirx.ForKind.THREAD_BINDING
    return isinstance(stmt, tirx.AttrStmt) and str(stmt.attr_key) == "thread_extent"


def _is_bound(stmt: tirx.Stmt) -> bool:
    if _launches(stmt):
        return True
    if isinstance(stmt, tirx.SeqStmt):
        return all(_is_bound(part) for part in stmt.seq)
    if isinstance(stmt, s_tir.SBlockRealize):
        return _is_bound(stmt.block)
    if isinstance(stmt, s_tir.SBlock):
        return (stmt.init is None or _is_bound(stmt.init)) and _is_bound(stmt.body)
    if isinstance(stmt, tirx.For):
        return not _reads(stmt.min, stmt.extent) and _is_bound(stmt.body)
    if isinstance(stmt, tirx.IfThenElse):
        cases = [case for case in (stmt.then_case, stmt.else_case) if case is not None]
        return not _reads(stmt.condition) and all(_is_bound(case) for case in cases)
    if isinstance(stmt, tirx.AttrStmt):
        return not _reads(stmt.value) and _is_bound(stmt.body)
    if isinstance(stmt, tirx.Bind):
        return not _reads(stmt.value)
    if isinstance(stmt, tirx.Evaluate):
        return not isinstance(stmt.value, tvm.ir.Call)
    return isinstance(stmt, tirx.AllocBuffer | tirx.DeclBuffer)


def _reads(*values: Any) -> bool:
    return any(nodes(value, tvm.ir.TensorLoad) for value in values)
