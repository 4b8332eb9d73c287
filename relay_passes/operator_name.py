"""The name of the operator that an expression calls."""

import tvm
from tvm import relax


def operator_name(value: relax.Expr) -> str:
    """Name of the operator that ``value`` calls; empty when it calls none."""
    if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op):
        return str(value.op.name)
    return ""
