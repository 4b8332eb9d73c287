"""How kernels take the larger or the smaller one of a number and NaN."""

from tvm import tirx
from tvm_ffi import structural_map


def with_constants_first(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel with constants first in ``max`` and ``min``; itself where nothing changes.

    TVM's ``max(a, b)`` is ``b`` where one of them is NaN: with a constant first, NaN is handed on.
    """
    body = structural_map(func.body, ((tirx.Max, tirx.Min), _constant_first))
    return func if body.same_as(func.body) else func.with_body(body)


def _constant_first(node: tirx.Max | tirx.Min) -> tirx.Expr:
    if not _is_constant(node.b) or _is_constant(node.a):
        return node
    return type(node)(node.b, node.a)


def _is_constant(value: tirx.Expr) -> bool:
    value = value.value if isinstance(value, tirx.Broadcast) else value
    return isinstance(value, tirx.FloatImm)
