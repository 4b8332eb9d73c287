"""One short form for sizes that are clipped, cut and joined again.

``Concat(x[1:], x[:1])`` has ``max(n - 1, 0) + min(1, n)`` rows, which are n in every run. TVM's
rules do not see it, so that an operator that meets a tensor of n rows has a result of unknown
size. Sizes are written in their short form as soon as a converter has made them.
"""

from collections.abc import Iterator
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm_ffi import structural_map

from tvm_ext.onnx_frontend.sizes.quasi_affine import shortened
from tvm_ext.onnx_frontend.sizes.scalar_rules import analyzer_of, variables_of
from tvm_ext.tir_schedules.analysis.loop_nest import substitute

_PAIRS = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Min, tirx.Max, tirx.FloorDiv, tirx.FloorMod)
# Sums and products of several dimensions that are tried as one.
_MOST_PARTS = 16


def is_clipped(size: Any) -> bool:
    """Whether a size holds a minimum or a maximum, which TVM's rules know little of."""
    if not isinstance(size, tvm.ir.Expr):
        return False
    found: list[Any] = []
    tvm_ffi.structural_walk(size, ((tirx.Min, tirx.Max), found.append))
    return bool(found)


def short_form(size: Any) -> Any:
    """A size that equals ``size`` in every run, and is written as shortly as is known."""
    if not isinstance(size, _PAIRS):
        return size
    found = analyzer_of(size).simplify(_shorter(size))
    return found if len(str(found)) < len(str(size)) else size


def _shorter(size: Any) -> Any:
    variables = variables_of(size)
    if not isinstance(size, _PAIRS) or not variables:
        return size
    if len(variables) == 1:
        return shortened(size)
    if isinstance(size, tirx.Add | tirx.Sub):
        return _shorter_sum(size)
    whole = _in_one_part(size, variables)
    if whole is not None:
        return whole
    a, b = _shorter(size.a), _shorter(size.b)
    return size if a.same_as(size.a) and b.same_as(size.b) else type(size)(a, b)


def _shorter_sum(size: Any) -> Any:
    """A sum, of which the terms of the same dimensions are taken together."""
    groups: dict[frozenset[int], Any] = {}
    for term, sign in _terms(size, 1):
        key = frozenset(hash(variable) for variable in variables_of(term))
        so_far = groups.get(key, tirx.const(0, "int64"))
        groups[key] = so_far + term if sign > 0 else so_far - term
    total: Any = tirx.const(0, "int64")
    for group in groups.values():
        variables = variables_of(group)
        if len(variables) < 2:
            total = total + _shorter(group)
            continue
        whole = _in_one_part(group, variables)
        total = total + (group if whole is None else whole)
    return total


def _terms(size: Any, sign: int) -> Iterator[tuple[Any, int]]:
    if isinstance(size, tirx.Add | tirx.Sub):
        yield from _terms(size.a, sign)
        yield from _terms(size.b, sign if isinstance(size, tirx.Add) else -sign)
    else:
        yield size, sign


def _in_one_part(size: Any, variables: list[tirx.Var]) -> Any:
    """A shorter form where the dimensions occur in one sum or product alone: ``n * m``, ``p + n``.

    None where there is no such part, or nothing becomes shorter.
    """
    parts: list[Any] = []
    tvm_ffi.structural_walk(size, (_PAIRS, parts.append))
    several = [part for part in parts if len(variables_of(part)) == len(variables)]
    for part in several[:_MOST_PARTS]:
        # What is shortened holds for sizes, of which none is negative.
        if part.same_as(size) or not analyzer_of(part).can_prove(part >= 0):
            continue
        name = tirx.Var("part", "int64")
        whole = _replaced(size, part, name)
        if not all(one.same_as(name) for one in variables_of(whole)):
            continue
        short = shortened(whole)
        if len(str(short)) < len(str(whole)):
            return substitute(short, {name: part})
    return None


def _replaced(size: Any, part: Any, name: tirx.Var) -> Any:
    """``size`` with ``name`` wherever ``part`` is in it."""
    key = tvm_ffi.StructuralKey(part)

    def named(one: Any) -> Any:
        return name if tvm_ffi.StructuralKey(one) == key else one

    return structural_map(size, (_PAIRS, named), order="pre")
