"""Whether threads run all of a kernel, and launches that may turn out to be empty."""

from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from tvm_ext.tir_schedules.block_access import static_extent
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


def with_guarded_grids(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` without launches of no threads, which a driver refuses, where sizes are symbolic.

    Kernels whose threads wait for one another stay as they are: TVM puts no barrier below a
    condition, not even below one that holds for all of them.
    """
    return func if _waits(func.body) else func.with_body(_guarded(func.body))


def _waits(body: tirx.Stmt) -> bool:
    """Whether threads share memory, or reduce together."""
    blocks = nodes(body, s_tir.SBlock)
    arrays = [array for block in blocks for array in block.alloc_buffers]
    arrays += [stmt.buffer for stmt in nodes(body, tirx.AllocBuffer)]
    shared = any(str(array.scope()).startswith("shared") for array in arrays)
    return shared or any(block.init is not None for block in blocks)


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


def _guarded(stmt: Any) -> Any:
    """``stmt`` with a condition around each outermost launch of a symbolic size."""
    if _launches(stmt):
        extents = _symbolic_extents(stmt)
        if not extents:
            return stmt
        condition: Any = tirx.const(True, "bool")
        for extent in extents:
            positive = extent > tirx.const(0, str(extent.ty))
            condition = (
                positive if isinstance(condition, tirx.IntImm) else tirx.And(condition, positive)
            )
        return tirx.IfThenElse(condition, stmt, None)
    if isinstance(stmt, tirx.SeqStmt):
        return tirx.SeqStmt([_guarded(part) for part in stmt.seq])
    if isinstance(stmt, s_tir.SBlockRealize):
        block = stmt.block
        if block.iter_vars or block.init is not None:
            return stmt
        changed = s_tir.SBlock(
            block.iter_vars,
            block.reads,
            block.writes,
            block.name_hint,
            _guarded(block.body),
            block.init,
            block.alloc_buffers,
            block.match_buffers,
            block.annotations,
        )
        return s_tir.SBlockRealize(stmt.iter_values, stmt.predicate, changed)
    return stmt


def _symbolic_extents(launch: Any) -> list[Any]:
    """Extents of a launch that are known in the run only, each once."""
    found: list[Any] = []
    for stmt in nodes(launch, tirx.For, tirx.AttrStmt):
        if not _launches(stmt):
            continue
        extent = stmt.extent if isinstance(stmt, tirx.For) else stmt.value
        known = any(tvm_ffi.structural_equal(extent, other) for other in found)
        if static_extent(extent) is None and not known:
            found.append(extent)
    return found
