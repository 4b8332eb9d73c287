"""Replaces calls of elementary functions in a kernel by expressions that run in vectors."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import tvm
from tvm import tirx
from tvm_ffi import structural_map

from tvm_ext.tir_schedules.llvm.vector_math import (
    error_function,
    exponential,
    inverse_trigonometric,
    logarithm,
    trigonometric,
)
from tvm_ext.tir_schedules.llvm.vector_math.expression import Let
from tvm_ext.tir_schedules.llvm.vector_math.power import CONSTANT_POWERS, power
from tvm_ext.tir_schedules.llvm.vector_math.staging import with_staged_calls

# By the name of TVM's intrinsic.
FUNCTIONS: dict[str, Callable[..., tirx.Expr]] = {
    "acos": inverse_trigonometric.acos,
    "acosh": logarithm.acosh,
    "asin": inverse_trigonometric.asin,
    "asinh": logarithm.asinh,
    "atan": inverse_trigonometric.atan,
    "atanh": logarithm.atanh,
    "cos": trigonometric.cos,
    "cosh": exponential.cosh,
    "erf": error_function.erf,
    "exp": exponential.exp,
    "exp10": exponential.exp10,
    "exp2": exponential.exp2,
    "log": logarithm.log,
    "log10": logarithm.log10,
    "log1p": logarithm.log1p,
    "log2": logarithm.log2,
    "pow": power,
    "sigmoid": exponential.sigmoid,
    "sin": trigonometric.sin,
    "sinh": exponential.sinh,
    "tan": trigonometric.tan,
    "tanh": exponential.tanh,
}

# Intrinsics that stay calls of the C library, one an element.
LIBRARY_CALLS = frozenset({"atan2", "fmod", "hypot", "ldexp", "nextafter"})

# Types that are computed as float32, and rounded once.
_NARROW = ("float16", "bfloat16")


@dataclass(frozen=True)
class Rewritten:
    """A kernel after ``with_vector_math``.

    Attributes
    ----------
    func : tirx.PrimFunc
        The kernel; the one given when nothing was replaced or taken apart.
    replaced : dict[str, int]
        Calls that were replaced, by function.
    left : dict[str, int]
        Calls of the C library that remain, by function and type, as in "exp of float64".
    """

    func: tirx.PrimFunc
    replaced: dict[str, int]
    left: dict[str, int]


def with_vector_math(func: tirx.PrimFunc) -> Rewritten:
    """The kernel ``func`` with the functions of ``FUNCTIONS`` written out.

    Made for kernels whose loops are final: an expression of thirty operations is no longer
    recognised as one call that is better not computed twice.
    """
    replaced: Counter[str] = Counter()
    left: Counter[str] = Counter()

    def replace(call: tvm.ir.Call) -> tvm.ir.Expr:
        name = _intrinsic(call)
        if name not in FUNCTIONS and name not in LIBRARY_CALLS:
            return call
        written = written_out(call) if name in FUNCTIONS else None
        if written is None:
            left[f"{name} of {call.ty}"] += 1
            return call
        replaced[name] += 1
        return written

    staged = with_staged_calls(func.body, lambda call: _intrinsic(call) in FUNCTIONS)
    body = structural_map(staged, (tvm.ir.Call, replace))
    changed = func if body.same_as(func.body) else func.with_body(body)
    return Rewritten(changed, dict(replaced), dict(left))


def _intrinsic(call: tvm.ir.Call) -> str:
    """Its name without the prefix, which is "tirx" or "prim"."""
    return str(call.op.name).rpartition(".")[2] if isinstance(call.op, tvm.ir.Op) else ""


def written_out(call: tvm.ir.Call) -> tirx.Expr | None:
    """The expression for a call of one of ``FUNCTIONS``; None for a type that has none."""
    dtype = str(call.ty)
    if dtype == "float32":
        return _float32(_intrinsic(call), list(call.args))
    if dtype in _NARROW:
        wide = [argument.astype("float32") for argument in call.args]
        return _float32(_intrinsic(call), wide).astype(dtype)
    return None


def _float32(name: str, arguments: list[tirx.Expr]) -> tirx.Expr:
    let = Let()
    if name == "pow" and isinstance(arguments[1], tirx.FloatImm):
        constant = CONSTANT_POWERS.get(float(arguments[1].value))
        if constant is not None:
            return let.around(constant(let, let(arguments[0])))
    return let.around(FUNCTIONS[name](let, *(let(argument) for argument in arguments)))
