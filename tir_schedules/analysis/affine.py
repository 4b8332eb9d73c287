"""Integer expressions as sums of multiples of loop variables, and of a rest that is none.

``linear_form`` says the same of a few variables by TVM's solver. Here an expression is read once
for all loops around it, several times as fast, and says which loops a rest depends on.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import tvm
from tvm import tirx

from tvm_ext.tir_schedules.analysis.buffer_access import nodes


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

    @cached_property
    def loops(self) -> frozenset[int]:
        """All that it depends on."""
        return self.others.union(self.factors)

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


def affine_of(expr: tvm.ir.Expr, known: Mapping[int, Affine | None]) -> Affine | None:
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
    if kind in TWO_SIDED:
        left, right = affine_of(expr.a, known), affine_of(expr.b, known)
        if left is None or right is None:
            return None
        return _together(kind, left, right)
    return _opaque_sum(expr, known)


def _together(kind: type, left: Affine, right: Affine) -> Affine:
    if kind is tirx.Add:
        return left.plus(right)
    if kind is tirx.Sub:
        return left.plus(right, -1)
    if kind is tirx.Mul:
        for one, other in ((left, right), (right, left)):
            if not other.loops:
                return Affine(0).plus(one, other.constant)
    return Affine(0, {}, left.loops | right.loops)


# Taken apart here, which is several times faster than a walk of TVM's.
TWO_SIDED = frozenset(
    (
        *(tirx.Add, tirx.Sub, tirx.Mul, tirx.FloorDiv, tirx.FloorMod, tirx.Div, tirx.Mod),
        *(tirx.Min, tirx.Max, tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE),
        *(tirx.And, tirx.Or),
    )
)


def _opaque_sum(expr: tvm.ir.Expr, known: Mapping[int, Affine | None]) -> Affine | None:
    loops: frozenset[int] = frozenset()
    for var in nodes(expr, tvm.ir.Var, tvm.ir.TensorLoad):
        found = known.get(hash(var)) if isinstance(var, tvm.ir.Var) else None
        if found is None:
            return None
        loops |= found.loops
    return Affine(0, {}, loops)
