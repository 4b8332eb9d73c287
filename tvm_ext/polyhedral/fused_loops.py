"""Loops that were fused, taken apart again where their bodies take them apart by symbolic sizes.

``for f in range(n * m)`` with ``f // m`` and ``f % m`` is not affine in ``f``; two loops over ``n``
and ``m`` with the same body are, and their iterations have the same order.
"""

from typing import Any

import tvm
from tvm import tirx
from tvm_ffi import structural_equal, structural_map

from tvm_ext.tir_schedules.analysis.buffer_access import nodes, static_extent

_DIVISIONS = (tirx.Div, tirx.FloorDiv)
_REMAINDERS = (tirx.Mod, tirx.FloorMod)


def split_fused_loops(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` with a loop for each factor of a fused loop, of the same kind as that loop.

    Before: ``for f in range(n * m): a[f // max(m, 1), f % max(m, 1)] = 0``
    After:  ``for f_0 in range(n): for f_1 in range(m): a[...] = 0``, with ``f_0 * m + f_1`` for f.

    Leaves alone: loops that are divided by numbers only, and those whose extent has other factors
    than they are divided by.
    """
    if not any(static_extent(loop.extent) is None for loop in nodes(func.body, tirx.For)):
        return func
    return func.with_body(structural_map(func.body, (tirx.For, _split)))


def _split(loop: tirx.For) -> tirx.Stmt:
    if static_extent(loop.extent) is not None or static_extent(loop.min) != 0:
        return loop
    extents = _extents(loop)
    if len(extents) < 2:
        return loop
    dtype = str(loop.loop_var.ty)
    names = [f"{loop.loop_var.name}_{number}" for number in range(len(extents))]
    variables = [tirx.Var(name, dtype) for name in names]
    whole: Any = variables[0]
    for variable, extent in zip(variables[1:], extents[1:], strict=True):
        whole = whole * extent + variable

    def replaced(var: Any) -> Any:
        return whole if var.same_as(loop.loop_var) else var

    body = structural_map(loop.body, (tvm.ir.Var, replaced))
    for variable, extent in zip(variables[::-1], extents[::-1], strict=True):
        body = tirx.For(variable, tirx.const(0, dtype), extent, loop.kind, body)
    return body


def _extents(loop: tirx.For) -> list[Any]:
    """The extents of the loops that a loop was fused from, outermost first; or its own."""
    divisors = _divisors(loop)
    if all(static_extent(one) is not None for one in divisors):
        return [loop.extent]
    factors = _factors(loop.extent)
    found: list[Any] = []
    for divisor in divisors:
        left = _without(factors, _factors(divisor))
        if left is None:
            break
        factors = left
        found.insert(0, divisor)
    return [_product(factors, str(loop.loop_var.ty)), *found]


def _divisors(loop: tirx.For) -> list[Any]:
    """By what the body divides the loop, then the quotient, and so on."""
    parts = nodes(loop.body, *_DIVISIONS, *_REMAINDERS)
    found: list[Any] = []
    current: Any = loop.loop_var
    while True:
        by = [one for one in parts if structural_equal(one.a, current)]
        steps = _steps([_size(one.b) for one in by], str(loop.loop_var.ty))
        found += steps
        quotients = [one for one in by if isinstance(one, _DIVISIONS)]
        if len(steps) != 1 or not quotients:
            return found
        current = quotients[0]


def _steps(divisors: list[Any], dtype: str) -> list[Any]:
    """Divisors of one value, each as a multiple of the one before; none if they are not that."""
    by_length = sorted(divisors, key=lambda one: len(_factors(one)))
    found: list[Any] = []
    before: list[Any] = []
    for divisor in by_length:
        left = _without(_factors(divisor), before)
        if left is None:
            return []
        before = _factors(divisor)
        if left:
            found.append(_product(left, dtype))
    return found


def _size(divisor: Any) -> Any:
    """A size that a division takes as at least 1; loops over less than 1 have no iterations."""
    is_bounded = isinstance(divisor, tirx.Max) and static_extent(divisor.b) == 1
    return divisor.a if is_bounded else divisor


def _factors(expr: Any) -> list[Any]:
    if isinstance(expr, tirx.Mul):
        return [*_factors(expr.a), *_factors(expr.b)]
    return [expr]


def _without(factors: list[Any], parts: list[Any]) -> list[Any] | None:
    """The factors that are left without ``parts``; None if these are not among them."""
    left = list(factors)
    for part in parts:
        place = _place_of(part, left)
        if place is None:
            return None
        rest = left.pop(place)
        times = static_extent(rest)
        if times is not None and times != static_extent(part):
            left.append(tirx.const(times // int(static_extent(part) or 1), str(rest.ty)))
    return left


def _place_of(part: Any, factors: list[Any]) -> int | None:
    number = static_extent(part)
    for place, factor in enumerate(factors):
        times = static_extent(factor)
        if number is not None and times is not None and times % number == 0:
            return place
        if number is None and structural_equal(factor, part):
            return place
    return None


def _product(factors: list[Any], dtype: str) -> Any:
    found: Any = tirx.const(1, dtype)
    for factor in factors:
        found = factor if static_extent(found) == 1 else found * factor
    return found
