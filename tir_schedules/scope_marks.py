"""Takes out of kernels the marks that TVM's IR builder leaves, of which code generation warns."""

from tvm import s_tir, tirx

from tvm_ext.tir_schedules.statements import changed_block

# Groups statements while a kernel is built (ScatterND, ScatterElements, NonMaxSuppression); means
# nothing afterwards.
_MARK = "pragma_scope"


def without_scope_marks(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` without the marks; ``func`` itself when it has none."""
    body = _stripped(func.body)
    return func if body.same_as(func.body) else func.with_body(body)


def _stripped(stmt: tirx.Stmt) -> tirx.Stmt:
    """Looks where a block that was written by hand can stand: not inside of loops."""
    if isinstance(stmt, tirx.AttrStmt) and stmt.attr_key == _MARK:
        return _stripped(stmt.body)
    if isinstance(stmt, tirx.SeqStmt):
        parts = [_stripped(part) for part in stmt.seq]
        same = all(new.same_as(old) for new, old in zip(parts, stmt.seq, strict=True))
        return stmt if same else tirx.SeqStmt(parts)
    if not isinstance(stmt, s_tir.SBlockRealize):
        return stmt
    block = stmt.block
    body = _stripped(block.body)
    if body.same_as(block.body):
        return stmt
    stripped = changed_block(block, body=body)
    return s_tir.SBlockRealize(stmt.iter_values, stmt.predicate, stripped)
