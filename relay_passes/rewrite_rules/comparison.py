"""Rules of masks: booleans, comparisons and ``where``."""

from tvm_ext.relay_passes.rewrite_rules.expression import OPERATORS, Variable
from tvm_ext.relay_passes.rewrite_rules.rule import (
    ANY,
    BOOLEANS,
    FINITE,
    FLOATS,
    INTEGERS,
    Rule,
    output_shape,
)

x, y, z = Variable("x"), Variable("y"), Variable("z")
mask = Variable("mask")
full, where = OPERATORS["full"], OPERATORS["where"]
logical_not, logical_and = OPERATORS["logical_not"], OPERATORS["logical_and"]
logical_or, logical_xor = OPERATORS["logical_or"], OPERATORS["logical_xor"]

LOGIC = (
    Rule("not not x -> x", logical_not(logical_not(x)), x, BOOLEANS),
    Rule("x and x -> x", logical_and(x, x), x, BOOLEANS),
    Rule("x or x -> x", logical_or(x, x), x, BOOLEANS),
    Rule("x and true -> x", logical_and(x, True), x, BOOLEANS),
    Rule("x or false -> x", logical_or(x, False), x, BOOLEANS),
    Rule("x xor false -> x", logical_xor(x, False), x, BOOLEANS),
    Rule("x xor true -> not x", logical_xor(x, True), logical_not(x), BOOLEANS),
    Rule("x and false", logical_and(x, False), full(False, shape=output_shape), BOOLEANS),
    Rule("x or true", logical_or(x, True), full(True, shape=output_shape), BOOLEANS),
    Rule("x xor x", logical_xor(x, x), full(False, shape=output_shape), BOOLEANS),
    Rule("x and (x and y)", logical_and(x, logical_and(x, y)), logical_and(x, y), BOOLEANS),
    Rule("x or (x or y)", logical_or(x, logical_or(x, y)), logical_or(x, y), BOOLEANS),
    Rule("x and (x or y)", logical_and(x, logical_or(x, y)), x, BOOLEANS),
    Rule("x or (x and y)", logical_or(x, logical_and(x, y)), x, BOOLEANS),
    Rule(
        "not x and not y",
        logical_and(logical_not(x), logical_not(y)),
        logical_not(logical_or(x, y)),
        BOOLEANS,
    ),
    Rule(
        "not x or not y",
        logical_or(logical_not(x), logical_not(y)),
        logical_not(logical_and(x, y)),
        BOOLEANS,
    ),
)

# A comparison with NaN is false, and so is the opposite one.
_OPPOSITE = {
    "less": "greater_equal",
    "less_equal": "greater",
    "greater": "less_equal",
    "greater_equal": "less",
    "equal": "not_equal",
    "not_equal": "equal",
}
# What each comparison of a tensor with itself gives; of floating-point numbers NaN gives another.
_OF_ITSELF = {
    "equal": True,
    "less_equal": True,
    "greater_equal": True,
    "not_equal": False,
    "less": False,
    "greater": False,
}

COMPARISONS = (
    *(
        Rule(f"not {n}", logical_not(OPERATORS[n](x, y)), OPERATORS[m](x, y), INTEGERS)
        for n, m in _OPPOSITE.items()
    ),
    *(
        Rule(f"not {n}", logical_not(OPERATORS[n](x, y)), OPERATORS[_OPPOSITE[n]](x, y), FLOATS)
        for n in ("equal", "not_equal")
    ),
    *(
        Rule(f"{n}(x, x)", OPERATORS[n](x, x), full(value, shape=output_shape), INTEGERS | BOOLEANS)
        for n, value in _OF_ITSELF.items()
    ),
    *(
        Rule(f"{n}(x, x)", OPERATORS[n](x, x), full(value, shape=output_shape), FLOATS)
        for n, value in _OF_ITSELF.items()
        if n in ("less", "greater")
    ),
    *(
        Rule(f"{n}(x, x)", OPERATORS[n](x, x), full(value, shape=output_shape), FLOATS, FINITE)
        for n, value in _OF_ITSELF.items()
        if n not in ("less", "greater")
    ),
)

MASKS = (
    Rule("where(mask, x, x)", where(mask, x, x), x, BOOLEANS),
    Rule("where(true, x, y)", where(True, x, y), x, ANY),
    Rule("where(false, x, y)", where(False, x, y), y, ANY),
    Rule("where(mask, true, false)", where(mask, True, False), mask, BOOLEANS),
    Rule("where(mask, false, true)", where(mask, False, True), logical_not(mask), BOOLEANS),
    Rule("where(not mask, x, y)", where(logical_not(mask), x, y), where(mask, y, x), BOOLEANS),
    Rule("where of where", where(mask, where(mask, x, y), z), where(mask, x, z), BOOLEANS),
    Rule("where or where", where(mask, x, where(mask, y, z)), where(mask, x, z), BOOLEANS),
)

RULES = (*LOGIC, *COMPARISONS, *MASKS)
