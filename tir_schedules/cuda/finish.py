"""What every kernel for a GPU needs in the end, whoever has scheduled it."""

import math

import tvm_ffi
from tvm import tirx

from tvm_ext.tir_schedules.cuda.launch import with_launch_bounds
from tvm_ext.tir_schedules.cuda.whole_vectors import with_whole_vectors

# IEEE 754's infinity, with the exponent of bfloat16.
_INFINITY, _SIGN, _NAN = 0x7F80, 0x8000, 0x7FC0


def finished_for_gpu(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` with constants and bounds that CUDA code can spell."""
    body = with_launch_bounds(tvm_ffi.structural_map(func.body, (tirx.FloatImm, _spelled)))
    body = with_whole_vectors(body)
    return func if body.same_as(func.body) else func.with_body(body)


def _spelled(value: tirx.FloatImm) -> tirx.Expr:
    """Infinity and NaN of bfloat16, for which TVM writes "inff" and "nanf", by their bits."""
    number = float(value.value)
    if math.isfinite(number) or str(value.ty) != "bfloat16":
        return value
    bits = _NAN if math.isnan(number) else _INFINITY + (_SIGN if number < 0 else 0)
    return tirx.reinterpret("bfloat16", tirx.const(bits, "uint16"))
