"""Integer expressions of TIR as polynomials, in which products of symbolic sizes cancel.

A kernel of symbolic sizes has products that no quasi-affine function has: ``batch * length`` as the
extent of a loop, ``row * length + column`` as an address, and ``row // length`` to take an address
apart. As polynomials these are added, and divided by sizes, and what is left is often affine.

What is neither a sum nor a product is an atom: a loop, a symbolic size, a minimum, a division. A
selection between two values is the second one plus the difference times an indicator, which is 1
where the condition holds. ``select(a == b, ...)`` then loses what is a multiple of ``a - b``.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import tvm
from tvm import tirx
from tvm_ffi import structural_equal, structural_hash

from tvm_ext.tir_schedules.analysis.buffer_access import is_conditional

Monomial: TypeAlias = tuple[int, ...]
"""The numbers of the atoms that are multiplied, in order; empty for 1."""

Polynomial: TypeAlias = Mapping[Monomial, int]
"""The coefficient, which is not 0, of each monomial."""


class Atoms:
    """The atoms of a kernel: equal expressions are one atom."""

    def __init__(self) -> None:
        self.exprs: list[Any] = []
        self._buckets: dict[int, list[int]] = {}

    def number(self, expr: Any) -> int:
        """The number of the atom that ``expr`` is."""
        bucket = self._buckets.setdefault(structural_hash(expr), [])
        for known in bucket:
            if structural_equal(self.exprs[known], expr):
                return known
        bucket.append(len(self.exprs))
        self.exprs.append(expr)
        return bucket[-1]


class PolynomialReader:
    """Reads expressions as polynomials.

    Parameters
    ----------
    atoms : Atoms
        Gets the atoms that are met.
    meaning : callable
        From a variable or a load to the expression, or the number, that it stands for; to None
        where it stands for itself.
    divided : callable
        From a division or a remainder, and the polynomials of what is divided and of the divisor,
        to its value where that is known without it; else to None.
    """

    def __init__(
        self,
        atoms: Atoms,
        meaning: Callable[[Any], Any],
        divided: Callable[[Any, Polynomial, Polynomial], Polynomial | None],
    ) -> None:
        self._atoms = atoms
        self._meaning = meaning
        self._divided = divided
        self._known: dict[int, tuple[Any, Polynomial]] = {}

    def read(self, expr: Any) -> Polynomial:
        """``expr`` as a polynomial of atoms."""
        if isinstance(expr, int):
            return constant(expr)
        known = self._known.get(hash(expr))
        if known is not None and known[0] is expr:
            return known[1]
        found = self._read(expr)
        self._known[hash(expr)] = (expr, found)
        return found

    def forget(self) -> None:
        """Reads all expressions anew, since more is known of the loops."""
        self._known.clear()

    def _read(self, expr: Any) -> Polynomial:
        if isinstance(expr, tirx.IntImm):
            return constant(int(expr.value))
        if isinstance(expr, tvm.ir.Var | tvm.ir.TensorLoad):
            meaning = self._meaning(expr)
            return self._atom(expr) if meaning is None else self.read(meaning)
        if isinstance(expr, tirx.Cast):
            if str(expr.value.ty) == "bool":
                return self._selected(expr.value, constant(1), constant(0))
            return self.read(expr.value)
        if isinstance(expr, tirx.Add | tirx.Sub | tirx.Mul):
            first, second = self.read(expr.a), self.read(expr.b)
            if isinstance(expr, tirx.Mul):
                return self._reduced(product(first, second))
            return total(first, second, 1 if isinstance(expr, tirx.Add) else -1)
        if isinstance(expr, tirx.FloorDiv | tirx.FloorMod | tirx.Div | tirx.Mod):
            found = self._divided(expr, self.read(expr.a), self.read(expr.b))
            return self._atom(expr) if found is None else found
        return self._chosen(expr)

    def _chosen(self, expr: Any) -> Polynomial:
        if isinstance(expr, tirx.Select):
            parts = (expr.condition, expr.true_value, expr.false_value)
        elif is_conditional(expr):
            parts = tuple(expr.args)
        else:
            return self._atom(expr)
        return self._selected(parts[0], self.read(parts[1]), self.read(parts[2]))

    def _selected(self, condition: Any, first: Polynomial, second: Polynomial) -> Polynomial:
        indicator = self._atom(condition)
        difference = product(indicator, total(first, second, -1))
        return total(second, self._reduced(difference))

    def _atom(self, expr: Any) -> Polynomial:
        return {(self._atoms.number(expr),): 1}

    def _reduced(self, value: Polynomial) -> Polynomial:
        """``value`` without powers of indicators and without multiples of what they say is 0."""
        found: Polynomial = {}
        for monomial, factor in value.items():
            found = total(found, self._without_zero(monomial), factor)
        return found

    def _without_zero(self, monomial: Monomial) -> Polynomial:
        unique = tuple(
            atom
            for place, atom in enumerate(monomial)
            if place == 0 or atom != monomial[place - 1] or not self._is_condition(atom)
        )
        for place, atom in enumerate(unique):
            condition = self._atoms.exprs[atom]
            if not isinstance(condition, tirx.EQ):
                continue
            zero = total(self.read(condition.a), self.read(condition.b), -1)
            lead = _lead(zero)
            rest = unique[:place] + unique[place + 1 :]
            if lead is None or lead not in rest:
                continue
            # What the atom equals where the condition holds.
            equal = total({(lead,): 1}, zero, -zero[(lead,)])
            others = list(rest)
            others.remove(lead)
            return self._reduced(product({tuple(sorted([atom, *others])): 1}, equal))
        return {unique: 1}

    def _is_condition(self, atom: int) -> bool:
        return str(self._atoms.exprs[atom].ty) == "bool"


def _lead(value: Polynomial) -> int | None:
    """An atom that is in one monomial only, alone and with a coefficient of 1 or -1."""
    counts: dict[int, int] = {}
    for monomial in value:
        for atom in monomial:
            counts[atom] = counts.get(atom, 0) + 1
    alone = [
        monomial[0]
        for monomial, factor in value.items()
        if len(monomial) == 1 and abs(factor) == 1 and counts[monomial[0]] == 1
    ]
    return max(alone, default=None)


def constant(value: int) -> Polynomial:
    """The polynomial that is ``value``."""
    return {(): value} if value else {}


def total(first: Polynomial, second: Polynomial, factor: int = 1) -> Polynomial:
    """``first + factor * second``."""
    found = dict(first)
    for monomial, coefficient in second.items():
        found[monomial] = found.get(monomial, 0) + factor * coefficient
        if not found[monomial]:
            del found[monomial]
    return found


def product(first: Polynomial, second: Polynomial) -> Polynomial:
    """``first * second``."""
    found: dict[Monomial, int] = {}
    for one, factor in first.items():
        for other, coefficient in second.items():
            monomial = tuple(sorted(one + other))
            found[monomial] = found.get(monomial, 0) + factor * coefficient
    return {monomial: value for monomial, value in found.items() if value}


def divided(value: Polynomial, divisor: Polynomial) -> tuple[Polynomial, Polynomial]:
    """A quotient and a remainder: ``value`` is ``quotient * divisor + remainder``.

    The remainder has no multiple of one monomial of the divisor, the one of most atoms.
    """
    lead = max(divisor, key=lambda monomial: (len(monomial), monomial))
    quotient: Polynomial = {}
    remainder = dict(value)
    # Each turn takes away monomials that the lead divides, and may add smaller ones.
    for _ in range(_MOST_TURNS):
        part: dict[Monomial, int] = {}
        for monomial, factor in remainder.items():
            rest = _without(monomial, lead)
            times = _whole(factor, divisor[lead])
            if rest is not None and times:
                part[rest] = times
        if not part:
            break
        quotient = total(quotient, part)
        remainder = dict(total(remainder, product(part, divisor), -1))
    return quotient, remainder


_MOST_TURNS = 8


def _whole(factor: int, divisor: int) -> int:
    """How many times the divisor goes into a coefficient, where nothing is left; else 0."""
    return factor // divisor if factor % divisor == 0 else 0


def _without(monomial: Monomial, part: Iterable[int]) -> Monomial | None:
    left = list(monomial)
    for atom in part:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)
