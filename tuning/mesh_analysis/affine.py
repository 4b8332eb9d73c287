"""Integer expressions as sums of multiples of loop variables, and of a rest that is none."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import tirx

from tvm_ext.tir_schedules.llvm.flat_views import nodes


@dataclass(frozen=True)
class Affine:
    """A constant plus each loop's variable, by the loop's number, times its factor.

    Attributes
    ----------
    constant : int
        The constant.
    factors : dict[int, int]
        By the number of a loop.
    others : frozenset[int]
        Loops that a further term depends on in another way (a remainder, a selection).
    """

    constant: int
    factors: dict[int, int] = field(default_factory=dict)
    others: frozenset[int] = frozenset()

    @property
    def loops(self) -> set[int]:
        """All that it depends on."""
        return {*self.factors, *self.others}

    def plus(self, other: "Affine", times: int = 1) -> "Affine":
        """The sum with ``times`` as much of ``other``."""
        factors = dict(self.factors)
        for loop, factor in other.factors.items():
            found = factors.get(loop, 0) + times * factor
            if found:
                factors[loop] = found
            else:
                factors.pop(loop, None)
        others = self.others | other.others if times else self.others
        return Affine(self.constant + times * other.constant, factors, others)


def affine_of(expr: Any, known: Mapping[int, Affine | None]) -> Affine | None:
    """``expr`` in this form; None if it depends on anything but ``known``.

    ``known`` has the variables, by their hash: comparing two of them makes an expression.
    """
    kind = type(expr)
    if kind is tirx.IntImm:
        return Affine(int(expr.value))
    if kind is tvm.ir.Var:
        return known.get(hash(expr))
    if kind is tirx.Cast:
        return affine_of(expr.value, known)
    if kind in (tirx.Add, tirx.Sub, tirx.Mul):
        left, right = affine_of(expr.a, known), affine_of(expr.b, known)
        if left is None or right is None:
            return None
        if kind is not tirx.Mul:
            return left.plus(right, 1 if kind is tirx.Add else -1)
        for one, other in ((left, right), (right, left)):
            if not other.loops:
                return Affine(0).plus(one, other.constant)
    return _opaque(expr, known)


def _opaque(expr: Any, known: Mapping[int, Affine | None]) -> Affine | None:
    if nodes(expr, tvm.ir.TensorLoad):
        return None
    loops: set[int] = set()
    for var in nodes(expr, tvm.ir.Var):
        found = known.get(hash(var))
        if found is None:
            return None
        loops |= found.loops
    return Affine(0, {}, frozenset(loops))
