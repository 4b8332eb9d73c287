"""Rules of casts: those that change nothing, and chains of which one is enough."""

from tvm_ext.relay_passes.rewrite_rules.expression import OPERATORS, Variable
from tvm_ext.relay_passes.rewrite_rules.rule import ANY, BOOLEANS, FLOATS, INTEGERS, Match, Rule

x = Variable("x")
cast = OPERATORS["cast"]
equal, not_equal, greater = (OPERATORS[name] for name in ("equal", "not_equal", "greater"))

# Bits of the significand, with the one that is not stored, and the largest binary exponent.
_SIGNIFICAND = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
_EXPONENT = {"float16": 15, "bfloat16": 127, "float32": 127, "float64": 1023}
_LEAST_EXPONENT = {"float16": -24, "bfloat16": -133, "float32": -149, "float64": -1074}


def bits_of(dtype: str) -> int:
    """Bits of an integer type."""
    return int(dtype.removeprefix("u").removeprefix("int"))


def keeps_all_values(narrow: str, wide: str) -> bool:
    """Whether each value of the type ``narrow`` is one of the type ``wide`` as well."""
    if narrow == wide or narrow == "bool":
        return True
    if narrow in FLOATS:
        return (
            wide in FLOATS
            and _SIGNIFICAND[narrow] <= _SIGNIFICAND[wide]
            and _EXPONENT[narrow] <= _EXPONENT[wide]
            and _LEAST_EXPONENT[narrow] >= _LEAST_EXPONENT[wide]
        )
    is_signed = not narrow.startswith("u")
    digits = bits_of(narrow) - is_signed
    if wide in FLOATS:
        return digits <= _SIGNIFICAND[wide] and digits <= _EXPONENT[wide]
    if wide not in INTEGERS or (is_signed and wide.startswith("u")):
        return False
    return digits <= bits_of(wide) - (not wide.startswith("u"))


def _is_own_type(match: Match) -> bool:
    return match["to"] == match.dtype("x")


def _is_own_type_again(match: Match) -> bool:
    return match["to"] == match.dtype("x") and keeps_all_values(match.dtype("x"), match["by"])


def _first_cast_is_needless(match: Match) -> bool:
    """Whether the last cast gives the same of what the first one is given.

    Floating-point numbers out of range of an integer type are cast to whatever the processor gives,
    which differs from the bits that a cast of integers keeps. A chain that may do so stays.
    """
    own, by, to = match.dtype("x"), match["by"], match["to"]
    if {own, by, to} <= INTEGERS:
        # Bits are cut off or wrapped around, once or twice.
        return keeps_all_values(own, by) or bits_of(to) <= bits_of(by)
    may_be_out_of_range = by in FLOATS and to in INTEGERS and not keeps_all_values(own, to)
    return keeps_all_values(own, by) and not may_be_out_of_range


RULES = (
    Rule("cast to its own type", cast(x, dtype="to"), x, ANY, condition=_is_own_type),
    Rule(
        "cast and back",
        cast(cast(x, dtype="by"), dtype="to"),
        x,
        ANY,
        condition=_is_own_type_again,
    ),
    Rule(
        "cast of a cast",
        cast(cast(x, dtype="by"), dtype="to"),
        cast(x, dtype="to"),
        ANY,
        condition=_first_cast_is_needless,
    ),
    # Masks are compared as numbers by exporters whose operators take no booleans.
    Rule("mask is not 0", not_equal(cast(x, dtype="by"), 0), x, BOOLEANS),
    Rule("mask is above 0", greater(cast(x, dtype="by"), 0), x, BOOLEANS),
    Rule("mask is 1", equal(cast(x, dtype="by"), 1), x, BOOLEANS),
    Rule("mask is 0", equal(cast(x, dtype="by"), 0), OPERATORS["logical_not"](x), BOOLEANS),
)
