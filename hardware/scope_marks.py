"""Kernels without the marks that TVM's IR builder leaves, of which code generation warns."""

from tvm import tirx
from tvm_ffi import structural_map

# Groups statements while TVM builds a kernel (ScatterND, ScatterElements, NonMaxSuppression); means
# nothing afterwards.
_SCOPE_MARK = "pragma_scope"


def without_scope_marks(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` without the marks that TVM's IR builder leaves; itself when it has none."""
    body = structural_map(func.body, (tirx.AttrStmt, _inside))
    return func if body.same_as(func.body) else func.with_body(body)


def _inside(stmt: tirx.AttrStmt) -> tirx.Stmt:
    return stmt.body if stmt.attr_key == _SCOPE_MARK else stmt
