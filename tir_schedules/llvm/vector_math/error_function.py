"""erf, the error function.

``erf(a) = 1 - exp(q(a))`` with ``q`` a polynomial for the logarithm of ``1 - erf(a)``. It is a
minimax fit of the error relative to erf, made for this file; its coefficients were rounded to
float32 one after the other, and the rest fitted again after each.
"""

import math

from tvm import tirx

from tvm_ext.tir_schedules.llvm.vector_math.exponential import BIAS, LOG2_E, expm1_of, rounded
from tvm_ext.tir_schedules.llvm.vector_math.expression import (
    Let,
    at_most,
    magnitude,
    number,
    polynomial,
    with_sign_of,
)

# From here on erf rounds to 1.
MOST = 3.95

# log(1 - erf(a)) / a + 1; error 2**-24.6 of erf(a).
LOG_TAIL = (
    -0.1283792108297348,
    -0.6366162300109863,
    -0.10281726717948914,
    0.01933247596025467,
    -0.00022394821280613542,
    -0.0012366960290819407,
    0.00037512611015699804,
    -3.984534851042554e-05,
)


def erf(let: Let, x: tirx.Var) -> tirx.Expr:
    """``2 / sqrt(pi)`` times the integral of ``exp(-t**2)`` from 0 to ``x``."""
    a = let(at_most(let(magnitude(x)), MOST))
    q = let(a * polynomial(a, LOG_TAIL) - a)
    n, shifted = rounded(let, q * number(LOG2_E), BIAS)
    # In one step: where n is large, exp(q) is small beside 1.
    r = let(q - n * number(math.log(2.0)))
    return with_sign_of(expm1_of(let, r, shifted), x)
