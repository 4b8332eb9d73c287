"""Rules that are wrong on purpose are found out, by a proof and by numbers, each alone."""

from dataclasses import replace

import pytest
from real_proof import counterexamples
from rule_shapes import outcomes
from rule_values import differences

from tvm_ext.relay_passes.rewrite_rules import RULES, arithmetic, data_movement
from tvm_ext.relay_passes.rewrite_rules.arithmetic import a, absolute, b, c, clip, d, relu, x, y
from tvm_ext.relay_passes.rewrite_rules.expression import OPERATORS as op
from tvm_ext.relay_passes.rewrite_rules.rule import (
    ANY,
    BOOLEANS,
    EXACT,
    FINITE,
    FLOATS,
    INTEGERS,
    NUMBERS,
    ROUNDING,
    Rule,
    output_shape,
)

maximum, minimum, transpose = op["maximum"], op["minimum"], op["transpose"]

# Wrong as mathematics.
WRONG = (
    Rule("x + 1 -> x", x + 1, x),
    Rule("x - y -> y - x", x - y, y - x),
    Rule("x * x -> abs(x)", x * x, absolute(x)),
    Rule("x / c -> x * c", x / c, x * c, FLOATS),
    Rule("clip of clip without a condition", clip(clip(x, a, b), c, d),
         clip(x, maximum(c, a), minimum(d, b)), given=(a <= b) & (c <= d)),
    Rule("relu of clip without a condition", relu(clip(x, a, b)), clip(x, maximum(0, a), b), FLOATS,
         given=a <= b),
    Rule("floor(round(x)) -> floor(x)", op["floor"](op["round"](x)), op["floor"](x), FLOATS),
    Rule("x and y -> x", op["logical_and"](x, y), x, BOOLEANS),
    Rule("where the other way round", op["where"](op["logical_not"](x), y, a),
         op["where"](x, y, a), BOOLEANS),
    Rule("(x - a) - c -> x - (a - c)", (x - a) - c, x - (a - c), INTEGERS),
)  # fmt: skip

# Right for real numbers, and wrong as what they claim to be: only numbers show that.
WRONG_CLASS = (
    Rule("x + 0.0 -> x", x + 0.0, x, FLOATS),
    Rule("x * 0.0 -> 0.0", x * 0.0, op["full"](0.0, shape=output_shape), FLOATS),
    Rule("x / x -> 1", x / x, op["full"](1, shape=output_shape), FLOATS),
    Rule("x - x -> 0.0", x - x, op["full"](0.0, shape=output_shape), FLOATS),
    Rule("x ** 0.5 -> sqrt(x)", x**0.5, op["sqrt"](x), FLOATS, ROUNDING, ulps=2),
    Rule("x / c -> x * (1 / c)", x / c, x * (1 / c), FLOATS,
         condition=arithmetic._is_no_power_of_two),
    Rule("(x + a) + c without a condition", (x + a) + c, x + (a + c), FLOATS, ROUNDING, ulps=2),
    Rule("(x * a) * c without a condition", (x * a) * c, x * (a * c), FLOATS, ROUNDING, ulps=2),
    Rule("-(x - y) -> y - x", -(x - y), y - x, FLOATS),
    Rule("equal(x, x)", op["equal"](x, x), op["full"](True, shape=output_shape), FLOATS),
    Rule("not less", op["logical_not"](op["less"](x, y)), op["greater_equal"](x, y), FLOATS),
    Rule("abs(relu(x)) -> relu(x)", absolute(relu(x)), relu(x), FLOATS),
)  # fmt: skip


@pytest.mark.parametrize("rule", WRONG, ids=lambda rule: rule.name)
def test_wrong_rule_is_not_proved(rule: Rule) -> None:
    assert counterexamples(rule)


@pytest.mark.extended
@pytest.mark.parametrize("rule", WRONG, ids=lambda rule: rule.name)
def test_wrong_rule_fails_on_numbers(rule: Rule) -> None:
    assert any(differences(rule, dtype, most=400)[1] for dtype in sorted(rule.dtypes))


@pytest.mark.extended
@pytest.mark.parametrize("rule", WRONG_CLASS, ids=lambda rule: rule.name)
def test_rule_of_the_wrong_class_fails_on_special_values(rule: Rule) -> None:
    assert counterexamples(rule) == [], "over the reals it is right"
    assert any(differences(rule, dtype, most=400)[1] for dtype in sorted(rule.dtypes))


def test_a_rule_that_is_said_to_round_less_fails() -> None:
    rule = next(r for r in RULES if r.name == "x / c -> x * (1 / c)")
    assert differences(rule, "float32")[1] == []
    assert differences(replace(rule, ulps=0.25), "float32")[1]


WRONG_MOVES = (
    Rule("transposes in the wrong order", transpose(transpose(x, axes="p"), axes="q"),
         transpose(x, axes=lambda m: tuple(m["q"][i] for i in m["p"])), ANY),
    Rule("inverse transposes by rank alone", transpose(transpose(x, axes="p"), axes="q"), x, ANY,
         condition=lambda m: sorted(m["p"]) == sorted(m["q"])),
    Rule("slice of its own shape", op["strided_slice"](x, **data_movement._attributes()), x, ANY),
    Rule("pad of its own shape", op["pad"](x, widths="w", mode="mode", value="value"), x, ANY),
    Rule("views of other shapes around add",
         op["reshape"](op["reshape"](x, shape="s") + op["reshape"](y, shape="r"), shape="t"), x + y,
         FLOATS),
    Rule("slices joined in any order",
         op["concat"](op["strided_slice"](x, **data_movement._attributes("of_0_")),
                      op["strided_slice"](x, **data_movement._attributes("of_1_")), axis="axis"),
         x, ANY),
    Rule("parts joined in any order",
         op["concat"](op["split"](x, parts="parts_0", axis="axis_0", index="index_0"),
                      op["split"](x, parts="parts_1", axis="axis_1", index="index_1"),
                      axis="axis"), x, ANY),
    Rule("sum is mean", op["sum"](x, axes="axes", keepdims="k"),
         op["mean"](x, axes="axes", keepdims=lambda m: m["k"]), FLOATS, FINITE),
)  # fmt: skip


@pytest.mark.extended
@pytest.mark.parametrize("rule", WRONG_MOVES, ids=lambda rule: rule.name)
def test_wrong_rule_of_data_movement_is_found_out(rule: Rule) -> None:
    _, _, wrong = outcomes(rule)
    assert wrong


def test_classes_are_used() -> None:
    """All three are in the table, and rules that are exact for integers alone say so."""
    assert {rule.equality for rule in RULES} == {EXACT, ROUNDING, FINITE}
    assert any(rule.dtypes == INTEGERS for rule in RULES)
    assert any(rule.dtypes == NUMBERS for rule in RULES)
