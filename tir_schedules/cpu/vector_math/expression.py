"""What the functions are written with: named values, bits of floats, choices, polynomials.

Every operation here is one instruction on a whole vector, with fused multiply-add or without:
comparisons feed choices, never branches, and rounding is done by adding a large number.
"""

from collections.abc import Sequence

from tvm import tirx

ONE_BITS = 0x3F800000
SIGN_BIT = 0x80000000
SMALLEST_NORMAL = 2.0**-126
INFINITY = float("inf")
NAN = float("nan")

# Added to a float32 below 2**22, this leaves the integer next to it in the low bits.
ROUNDER = 1.5 * 2.0**23
ROUNDER_BITS = 0x4B400000
# The same for float64 below 2**51.
ROUNDER64 = 1.5 * 2.0**52


class Let:
    """Names the intermediate values of one expression, so that each is computed once.

    TVM's expressions are trees: without names a value that is used twice is computed twice, and one
    that is built up in ten steps a thousand times.

    Parameters
    ----------
    has_ldexp : bool
        Whether ``ldexp`` is an instruction of the CPU.
    """

    def __init__(self, has_ldexp: bool = False) -> None:
        self.has_ldexp = has_ldexp
        self._bindings: list[tuple[tirx.Var, tirx.Expr]] = []

    def __call__(self, value: tirx.Expr) -> tirx.Var:
        """A name for ``value``."""
        var = tirx.Var(f"v{len(self._bindings)}", str(value.ty))
        self._bindings.append((var, value))
        return var

    def around(self, value: tirx.Expr) -> tirx.Expr:
        """``value`` with all that was named."""
        for var, bound in reversed(self._bindings):
            value = tirx.Let(var, bound, value)
        return value


def number(value: float) -> tirx.FloatImm:
    """A float32."""
    return tirx.const(value, "float32")


def number64(value: float) -> tirx.FloatImm:
    """A float64."""
    return tirx.const(value, "float64")


def unsigned(value: int) -> tirx.Expr:
    """A uint32; TVM reasons about signed integers as if they never overflowed."""
    return tirx.const(value, "uint32")


def bits_of(value: tirx.Expr) -> tirx.Expr:
    """The bits of a float32 as uint32."""
    return tirx.reinterpret("uint32", value)


def from_bits(bits: tirx.Expr) -> tirx.Expr:
    """The float32 with these bits."""
    return tirx.reinterpret("float32", bits)


def ldexp(value: tirx.Expr, exponent: tirx.Expr) -> tirx.Expr:
    """A float32 times 2**exponent, rounded once; the exponent is a uint32 that may have wrapped.

    LLVM has an instruction for it in AVX-512 (``vscalefps``), elsewhere a dozen.
    """
    signed = tirx.reinterpret("int32", exponent)
    return tirx.call_llvm_pure_intrin("float32", "llvm.ldexp", value, signed)


def select(condition: tirx.Expr, true: tirx.Expr, false: tirx.Expr) -> tirx.Expr:
    """One of two values that are both computed."""
    return tirx.Select(condition, true, false)


def at_most(value: tirx.Var, limit: float) -> tirx.Expr:
    """The smaller one of a float32 and ``limit``; NaN stays NaN."""
    return select(value > number(limit), number(limit), value)


def at_least(value: tirx.Var, limit: float) -> tirx.Expr:
    """The larger one of a float32 and ``limit``; NaN stays NaN."""
    return select(value < number(limit), number(limit), value)


def magnitude(value: tirx.Expr) -> tirx.Expr:
    """The absolute value of a float32."""
    return from_bits(bits_of(value) & unsigned(SIGN_BIT - 1))


def with_sign_of(value: tirx.Expr, signed: tirx.Expr) -> tirx.Expr:
    """The magnitude of a float32 with the sign of another one."""
    kept = bits_of(value) & unsigned(SIGN_BIT - 1)
    return from_bits(kept | (bits_of(signed) & unsigned(SIGN_BIT)))


def polynomial(x: tirx.Var, coefficients: Sequence[float]) -> tirx.Expr:
    """``c[0] + c[1] * x + c[2] * x**2 + ...`` in the type of ``x``, by Horner's rule."""
    *others, last = (tirx.const(value, str(x.ty)) for value in coefficients)
    result: tirx.Expr = last
    for coefficient in reversed(others):
        result = result * x + coefficient
    return result
