"""NaN through Relu and its like."""

import tvm
from tvm import tirx
from tvm_ffi import structural_map


def with_nan_passed_on(mod: tvm.IRModule) -> tvm.IRModule:
    """The kernels with constants first in ``max`` and ``min`` of floating-point numbers.

    TVM's ``max(a, b)`` is ``b`` where one of them is NaN. It writes Relu as ``max(x, 0)``, which
    hides that a model has gone astray; ONNX Runtime's passes NaN on, and so does ``max(0, x)``.
    After the schedules, which know kernels by their text.
    """
    changed = {}
    for global_var, func in mod.functions.items():
        if not isinstance(func, tirx.PrimFunc):
            continue
        body = structural_map(func.body, ((tirx.Max, tirx.Min), _constant_first))
        if not body.same_as(func.body):
            changed[global_var] = func.with_body(body)
    if not changed:
        return mod
    return tvm.IRModule({**dict(mod.functions.items()), **changed}, attrs=mod.attrs)


def _constant_first(node: tirx.Max | tirx.Min) -> tirx.Expr:
    if not _is_constant(node.b) or _is_constant(node.a):
        return node
    return type(node)(node.b, node.a)


def _is_constant(value: tirx.Expr) -> bool:
    value = value.value if isinstance(value, tirx.Broadcast) else value
    return isinstance(value, tirx.FloatImm)
