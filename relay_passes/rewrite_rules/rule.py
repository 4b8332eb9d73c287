"""A rewrite rule as data: a pattern, its result, and how equal the two are."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.relay_passes.rewrite_rules.expression import (
    Apply,
    Attribute,
    Constant,
    Expression,
    Number,
    Variable,
    WithNumpy,
    interpret,
    subexpressions,
    variables_of,
)

FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
SIGNED = frozenset({"int8", "int16", "int32", "int64"})
INTEGERS = SIGNED | {"uint8", "uint16", "uint32", "uint64"}
NUMBERS = FLOATS | INTEGERS
BOOLEANS = frozenset({"bool"})
ANY = NUMBERS | BOOLEANS


class Equality(Enum):
    """How equal the result of a rule is to its pattern.

    EXACT: the same bits for all values; any NaN is as good as another. ROUNDING: equal over the
    real numbers, and in floating point up to a stated number of units in the last place. FINITE:
    the same number where no value and no intermediate value is NaN, an infinity or a negative zero,
    or underflows, so the rule is applied only with ``fast_math``.
    """

    EXACT = "exact"
    ROUNDING = "rounding"
    FINITE = "finite"


EXACT, ROUNDING, FINITE = Equality.EXACT, Equality.ROUNDING, Equality.FINITE


@dataclass(frozen=True)
class TensorKind:
    """Type of a tensor: extents, which are numbers or expressions of sizes, and element type.

    ``extents`` is None where the shape is not known.
    """

    extents: tuple[Any, ...] | None
    dtype: str

    @property
    def shape(self) -> tuple[Any, ...]:
        """The extents; raises NotApplicable where they are not known."""
        if self.extents is None:
            raise NotApplicable("the shape of an operand is not known")
        return self.extents


@dataclass(frozen=True)
class Match:
    """What the names of a pattern stand for, and the type of its result.

    ``kinds`` has variables and constants, ``constants`` the values of the latter.
    """

    result: TensorKind
    kinds: Mapping[str, TensorKind] = field(default_factory=dict)
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, attribute: str) -> Any:
        """The value of an attribute."""
        return self.attributes[attribute]

    def shape(self, name: str) -> tuple[Any, ...]:
        """Extents of a variable; raises NotApplicable where they are not known."""
        return self.kinds[name].shape

    def extents(self, name: str) -> tuple[int, ...]:
        """Extents as numbers; raises NotApplicable where a run decides one."""
        found = self.shape(name)
        if not all(isinstance(extent, int) for extent in found):
            raise NotApplicable("an extent of an operand is decided by a run")
        return found

    def dtype(self, name: str) -> str:
        """Element type of a variable."""
        return self.kinds[name].dtype

    def value_of(self, attribute: Attribute) -> Any:
        """An attribute of the result: one of the pattern, or computed of the match."""
        return self[attribute] if isinstance(attribute, str) else attribute(self)


def output_shape(match: Match) -> tuple[Any, ...]:
    """The shape of the pattern's result, as an attribute of a result."""
    return match.result.shape


@dataclass(frozen=True)
class Rule:
    """``pattern`` may be replaced by ``result``.

    Attributes
    ----------
    name : str
        What it does, in a few words; the log of the pass shows it.
    pattern, result : Expression
        Over the same variables, constants and attributes.
    dtypes : set of str
        The element types of the first variable for which the rule holds.
    equality : Equality
        How equal the two are for these types.
    given : Expression, optional
        What has to hold for all elements of the constants; proofs assume it.
    condition : callable, optional
        What has to hold of types, attributes and constants besides. Raises NotApplicable, as
        ``Match`` does, where it cannot say.
    implied : Expression, optional
        What ``condition`` says of the variables; proofs assume that and nothing else of it.
    ulps : float
        For ROUNDING and FINITE: the largest difference, in units in the last place of the result.
    of_largest : bool
        Whether it is in units of the largest operand or intermediate value instead: of sums, in
        which what is left may be much smaller.
    """

    name: str
    pattern: Apply
    result: Expression
    dtypes: frozenset[str] = NUMBERS
    equality: Equality = EXACT
    given: Expression | None = None
    condition: Callable[[Match], bool] | None = None
    implied: Expression | None = None
    ulps: float = 0
    of_largest: bool = False

    @cached_property
    def variables(self) -> tuple[Variable, ...]:
        """The variables and constants of the pattern, in the order of their first use."""
        return tuple(variables_of(self.pattern))

    @cached_property
    def cost(self) -> int:
        """The work of the result."""
        return cost_of(self.result)

    def holds(self, match: Match) -> bool:
        """Whether the conditions hold; false also where one cannot say."""
        try:
            if self.given is not None:
                meaning = WithNumpy(match.result.dtype)
                given = interpret(self.given, match.constants, match.value_of, meaning)
                if not given.all():
                    return False
            return self.condition is None or self.condition(match)
        except NotApplicable:
            return False


def cost_of(expression: Expression) -> int:
    """The work of the operators on computed values; of constants it is done at compile time."""
    return sum(
        one.operator.cost
        for one in subexpressions(expression)
        if isinstance(one, Apply) and not is_known(one)
    )


def is_known(expression: Expression) -> bool:
    """Whether an operator has numbers and constants alone as operands, and no shape of a result."""
    if isinstance(expression, Apply):
        return expression.operator.name != "full" and all(map(is_known, expression.operands))
    return isinstance(expression, Number | Constant)
