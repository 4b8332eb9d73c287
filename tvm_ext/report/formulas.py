"""Formulas of a model's sizes as text: worked out for sizes, summed, and written for readers.

A formula is one expression of Python, ``2097152*N + 320*N*L**2``: names of sizes, whole numbers,
``+ - * // % **``, ``min``, ``max``, ``a if b else c`` and, in conditions, comparisons with ``and``,
``or`` and ``not``. It comes from files, too, so it is read here and never run.
"""

import ast
import keyword
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Any, TypeAlias

from tvm_ext.configs.errors import TvmExtError

# What is raised to a power no larger than this: sides of tensors.
_LARGEST_POWER = 16
# Terms that a reader gets at most, and the share below which one is left out.
_TERMS_SHOWN, _LEAST_SHARE = 4, 0.02
_PREFIXES = ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k"), (1.0, ""))

_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARISONS: dict[type, Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_OPPOSITES: dict[type, type[ast.cmpop]] = {
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
}
_CALLS: dict[str, Callable[..., Any]] = {"min": min, "max": max}


class FormulaError(TvmExtError):
    """A text is no formula, or cannot be worked out for some sizes."""


def identifier(name: str) -> str:
    """What a size with this name is called in a formula."""
    found = re.sub(r"\W", "_", name, flags=re.ASCII)
    is_taken = keyword.iskeyword(found) or found in _CALLS
    return f"_{found}" if is_taken or not found or found[0].isdigit() else found


def evaluate(formula: str, sizes: Mapping[str, int]) -> Any:
    """The number that a formula gives for these sizes, by name, or whether a condition holds.

    Raises
    ------
    FormulaError
        The text is no formula, a size is missing, or zero divides.
    """
    known = {identifier(name): size for name, size in sizes.items()}
    try:
        return _value(_read(formula), known)
    except (KeyError, ZeroDivisionError) as error:
        raise FormulaError(
            f"found the formula '{formula[:60]}' with sizes for {sorted(known)}; expected all of "
            "its sizes, and no division by zero: give these"
        ) from error
    except (RecursionError, TypeError) as error:
        raise _no_formula(formula) from error


def is_so(condition: str, sizes: Mapping[str, int]) -> bool:
    """Whether a condition is known to hold for these sizes."""
    try:
        return bool(evaluate(condition, sizes))
    except FormulaError:
        return False


def negated(condition: str) -> str:
    """The condition that holds where another does not."""
    match _read(condition):
        case ast.Compare(left, [kind], [right]) if type(kind) in _OPPOSITES:
            return ast.unparse(ast.Compare(left, [_OPPOSITES[type(kind)]()], [right]))
        case node:
            return ast.unparse(ast.UnaryOp(ast.Not(), node))


def _read(formula: str) -> ast.expr:
    try:
        return ast.parse(formula.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _no_formula(formula) from error


def _no_formula(found: str) -> FormulaError:
    return FormulaError(
        f"found '{found[:60]}'; expected a formula of sizes, like 2*N + 1: compile the model again"
    )


def _value(node: ast.expr, sizes: Mapping[str, int]) -> Any:
    match node:
        case ast.Constant(value=int() as number):
            return number
        case ast.Name(id=name):
            return sizes[name]
        case ast.BinOp(left, ast.Pow(), power):
            return _value(left, sizes) ** _exponent(power)
        case ast.BinOp(left, kind, right) if type(kind) in _BINARY:
            return _BINARY[type(kind)](_value(left, sizes), _value(right, sizes))
        case ast.UnaryOp(ast.USub(), operand):
            return -_value(operand, sizes)
        case ast.Call(ast.Name(id=name), arguments, []) if name in _CALLS:
            return _CALLS[name](*(_value(one, sizes) for one in arguments))
        case ast.IfExp(test, body, orelse):
            return _value(body if _value(test, sizes) else orelse, sizes)
        case _:
            return _holds(node, sizes)


def _exponent(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int() as power) if 0 <= power <= _LARGEST_POWER:
            return power
        case _:
            raise _no_formula(ast.unparse(node))


def _holds(node: ast.expr, sizes: Mapping[str, int]) -> bool:
    match node:
        case ast.Compare(left, [kind], [right]) if type(kind) in _COMPARISONS:
            return _COMPARISONS[type(kind)](_value(left, sizes), _value(right, sizes))
        case ast.BoolOp(kind, values):
            found = (bool(_value(one, sizes)) for one in values)
            return all(found) if isinstance(kind, ast.And) else any(found)
        case ast.UnaryOp(ast.Not(), operand):
            return not _value(operand, sizes)
        case _:
            raise _no_formula(ast.unparse(node))


# Formulas as sums of products.


Product: TypeAlias = tuple[tuple[str, int], ...]
"""Names of sizes, and parts of a formula that are neither sum nor product, with their powers."""


class Polynomial:
    """A formula as a sum of products, of which each is there once.

    Parameters
    ----------
    terms : mapping of Product to Fraction
        The factor of each product; that of nothing is the constant.
    """

    def __init__(self, terms: Mapping[Product, Fraction | int]) -> None:
        self.terms = {product: Fraction(n) for product, n in terms.items() if n}

    def __add__(self, other: "Polynomial") -> "Polynomial":
        keys = {**self.terms, **other.terms}
        return Polynomial({p: self.terms.get(p, 0) + other.terms.get(p, Fraction()) for p in keys})

    def __mul__(self, other: "Polynomial") -> "Polynomial":
        found: dict[Product, Fraction] = {}
        for one, factor in self.terms.items():
            for another, by in other.terms.items():
                powers = dict(one)
                for name, power in another:
                    powers[name] = powers.get(name, 0) + power
                product = tuple(sorted(powers.items()))
                found[product] = found.get(product, Fraction()) + factor * by
        return Polynomial(found)

    def scaled(self, factor: Fraction | int) -> "Polynomial":
        """So many times this."""
        return Polynomial({product: n * factor for product, n in self.terms.items()})

    @property
    def constant(self) -> Fraction | None:
        """The number that this is; None where it depends on sizes."""
        return self.terms.get((), Fraction()) if set(self.terms) <= {()} else None

    def __str__(self) -> str:
        """The formula, terms of high degree first."""
        ordered = sorted(self.terms.items(), key=lambda term: (-sum(n for _, n in term[0]), term))
        return _joined([(n, _product(p, "*", "**")) for p, n in ordered], str, "*")


def polynomial(formula: str, exact: bool = True) -> Polynomial:
    """The formula as a sum of products.

    Of one that is not ``exact``, divisions by a number are taken to leave no rest: what sizes of
    thousands come to, in few terms.

    Raises
    ------
    FormulaError
        The text is no formula.
    """
    try:
        return _polynomial(_read(formula), exact)
    except RecursionError as error:
        raise _no_formula(formula) from error


def total(formulas: Iterable[str]) -> str:
    """The sum of some formulas."""
    found = Polynomial({})
    for formula in formulas:
        found = found + polynomial(formula)
    return str(found)


def _polynomial(node: ast.expr, exact: bool) -> Polynomial:
    match node:
        case ast.Constant(value=int() as number):
            return Polynomial({(): number})
        case ast.Name(id=name):
            return Polynomial({((name, 1),): 1})
        case ast.UnaryOp(ast.USub(), operand):
            return _polynomial(operand, exact).scaled(-1)
        case ast.BinOp(left, ast.Add(), right):
            return _polynomial(left, exact) + _polynomial(right, exact)
        case ast.BinOp(left, ast.Sub(), right):
            return _polynomial(left, exact) + _polynomial(right, exact).scaled(-1)
        case ast.BinOp(left, ast.Mult(), right):
            return _polynomial(left, exact) * _polynomial(right, exact)
        case ast.BinOp(left, ast.Pow(), power):
            factors = [_polynomial(left, exact)] * _exponent(power)
            return math.prod(factors, start=Polynomial({(): 1}))
        case ast.BinOp(left, ast.FloorDiv(), ast.Constant(value=int() as divisor)) if divisor > 0:
            return _divided(_polynomial(left, exact), divisor, exact)
        case ast.Call(ast.Name(id=name), arguments, []) if name in _CALLS:
            inner = [_written(_polynomial(one, exact), exact) for one in arguments]
            return Polynomial({((f"{name}({', '.join(inner)})", 1),): 1})
        case _:
            return Polynomial({((f"({ast.unparse(node)})", 1),): 1})


def _divided(value: Polynomial, divisor: int, exact: bool) -> Polynomial:
    quotient = value.scaled(Fraction(1, divisor))
    if not exact or all(n.denominator == 1 for n in quotient.terms.values()):
        return quotient
    return Polynomial({((f"(({value})//{divisor})", 1),): 1})


def _written(value: Polynomial, exact: bool) -> str:
    return str(value) if exact else words(value, {})


# Formulas for readers.


def in_words(formula: str, sizes: Mapping[str, int]) -> str:
    """A formula in few signs: ``16.6 k * N * L + 520 * N * L^2``.

    Divisions are taken to leave no rest, numbers have three digits, the largest terms at ``sizes``
    come first, and what is under a fiftieth there and grows no faster than another is left out.
    Empty for no formula.
    """
    return words(polynomial(formula, exact=False), sizes) if formula else ""


def words(value: Polynomial, sizes: Mapping[str, int]) -> str:
    """As ``in_words``."""
    known = {identifier(name): size for name, size in sizes.items()}
    at = {p: abs(float(n)) * _product_at(p, known) for p, n in value.terms.items()}
    least = _LEAST_SHARE * sum(at.values())
    shown = [
        product
        for product in sorted(at, key=lambda product: (-at[product], product))
        if at[product] >= least or not any(_outgrows(other, product) for other in at)
    ]
    order = {name: place for place, name in enumerate(known)}
    terms = [
        (value.terms[p], _product(_in_order(p, order), " * ", "^")) for p in shown[:_TERMS_SHOWN]
    ]
    rest = " + ..." if len(shown) > _TERMS_SHOWN else ""
    return _joined(terms, _short, " * ") + rest


def _in_order(product: Product, order: Mapping[str, int]) -> Product:
    return tuple(sorted(product, key=lambda factor: order.get(factor[0], len(order))))


def _outgrows(other: Product, product: Product) -> bool:
    powers = dict(other)
    return other != product and all(powers.get(name, 0) >= power for name, power in product)


def _product_at(product: Product, sizes: Mapping[str, int]) -> float:
    # Of parts that are no names nothing is known here: they stay where they stand.
    return math.prod(float(sizes.get(name, 1)) ** power for name, power in product)


def _short(number: Fraction) -> str:
    """A number above 0 in three digits, with a prefix: "2.1 M"."""
    value = float(f"{float(number):.3g}")
    factor, prefix = next((one for one in _PREFIXES if value >= one[0]), _PREFIXES[-1])
    return f"{value / factor:.3g}{prefix}"


def _product(product: Product, times: str, power: str) -> str:
    return times.join(name if n == 1 else f"{name}{power}{n}" for name, n in product)


def _joined(
    terms: Iterable[tuple[Fraction, str]], number: Callable[[Fraction], str], times: str
) -> str:
    text = ""
    for factor, product in terms:
        sign = "-" if factor < 0 else "+"
        size = number(abs(factor))
        term = f"{size}{times}{product}" if product and size != "1" else product or size
        text += f" {sign} {term}" if text else f"-{term}" if factor < 0 else term
    return text or "0"


# Formulas of what TVM writes.


def formula_of_tvm(text: str) -> str:
    """The formula in an expression as TVM writes it: ``T.min(N * T.int64(4), L)``.

    Raises
    ------
    FormulaError
        There is something in it that no formula has.
    """
    return ast.unparse(_Plain().visit(_read(text)))


class _Plain(ast.NodeTransformer):
    """Takes TVM's names away; sizes are never negative, so all divisions are one."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        arguments = [self.visit(one) for one in node.args]
        match (node.func.attr if isinstance(node.func, ast.Attribute) else "", arguments):
            case ("int32" | "int64", [value]) | ("Cast", [_, value]):
                return value
            case ("Div", [left, right]):
                return ast.BinOp(left, ast.FloorDiv(), right)
            case ("Mod" | "truncmod", [left, right]):
                return ast.BinOp(left, ast.Mod(), right)
            case ("Select" | "if_then_else", [test, body, orelse]):
                return ast.IfExp(test, body, orelse)
            case ("min" | "max" as name, [left, right]):
                return ast.Call(ast.Name(name), [left, right], [])
            case _:
                raise _no_formula(ast.unparse(node))
