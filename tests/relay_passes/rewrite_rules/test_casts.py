"""Casts for all triples of types: on all values of narrow types, on the ends of wide ones."""

import itertools

import ml_dtypes
import numpy as np
import pytest
import z3
from rule_values import values_of

from tvm_ext.relay_passes.expressions import numpy_dtype
from tvm_ext.relay_passes.rewrite_rules import casts
from tvm_ext.relay_passes.rewrite_rules.casts import bits_of, keeps_all_values
from tvm_ext.relay_passes.rewrite_rules.rule import ANY, FLOATS, INTEGERS, Match, TensorKind

RULES = {rule.name: rule for rule in casts.RULES}
TYPES = sorted(ANY)


def all_values(dtype: str) -> np.ndarray:
    """All bit patterns of types of up to 16 bits, special values and ends of the others."""
    if dtype == "bool" or numpy_dtype(dtype).itemsize > 2:
        return values_of(dtype, count=200)
    width = numpy_dtype(dtype).itemsize
    return np.arange(256**width, dtype=f"uint{8 * width}").view(numpy_dtype(dtype))


def same(one: np.ndarray, other: np.ndarray) -> bool:
    if str(one.dtype) not in FLOATS:
        return np.array_equal(one, other)
    with np.errstate(all="ignore"):
        both = (one == other) & (np.signbit(one) == np.signbit(other))
        return bool(np.all(both | (np.isnan(one) & np.isnan(other))))


def cast(array: np.ndarray, *dtypes: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        for dtype in dtypes:
            array = array.astype(numpy_dtype(dtype))
    return array


@pytest.mark.parametrize("narrow", TYPES)
def test_types_that_keep_all_values_do_and_others_do_not(narrow: str) -> None:
    for wide in TYPES:
        values = all_values(narrow)
        if narrow in FLOATS and wide not in FLOATS:
            assert not keeps_all_values(narrow, wide)
            continue
        there = cast(values, wide)
        is_equal = np.array_equal(_exactly(values), _exactly(there), equal_nan=True)
        kept = is_equal and same(cast(there, narrow), values)
        assert kept or not keeps_all_values(narrow, wide)
        assert keeps_all_values(narrow, wide) or not (kept and _is_whole(narrow))


def _exactly(array: np.ndarray) -> np.ndarray:
    """The numbers in a type that has all of them."""
    with np.errstate(all="ignore"):
        return array.astype(np.longdouble)


def _is_whole(dtype: str) -> bool:
    """Whether ``all_values`` has all of a type, so that nothing else can be lost."""
    return dtype == "bool" or numpy_dtype(dtype).itemsize <= 2


@pytest.mark.parametrize("own", TYPES)
@pytest.mark.parametrize("name", ["cast and back", "cast of a cast"])
def test_chains_of_casts_give_what_the_rules_say(name: str, own: str) -> None:
    rule, values, fitting = RULES[name], all_values(own), 0
    for by, to in itertools.product(TYPES, repeat=2):
        match = Match(TensorKind((), to), {"x": TensorKind((), own)}, {}, {"by": by, "to": to})
        if rule.holds(match):
            fitting += 1
            result = values if name == "cast and back" else cast(values, to)
            assert same(cast(values, by, to), result), (by, to)
    assert fitting


@pytest.mark.parametrize("own", sorted(INTEGERS))
def test_chains_of_integer_casts_are_proved_over_bit_vectors(own: str) -> None:
    x = z3.BitVec("x", bits_of(own))
    for by, to in itertools.product(sorted(INTEGERS), repeat=2):
        match = Match(TensorKind((), to), {"x": TensorKind((), own)}, {}, {"by": by, "to": to})
        chain = _as_bits(_as_bits(x, own, by), by, to)
        if RULES["cast of a cast"].holds(match):
            assert _is_always(chain == _as_bits(x, own, to))
        if RULES["cast and back"].holds(match):
            assert _is_always(chain == x)


def test_a_chain_through_too_few_bits_is_not_provable() -> None:
    x = z3.BitVec("x", 32)
    assert not _is_always(_as_bits(_as_bits(x, "int32", "int8"), "int8", "int32") == x)


def _as_bits(term: z3.BitVecRef, own: str, to: str) -> z3.BitVecRef:
    more = bits_of(to) - bits_of(own)
    if more <= 0:
        return z3.Extract(bits_of(to) - 1, 0, term)
    return z3.ZeroExt(more, term) if own.startswith("u") else z3.SignExt(more, term)


def _is_always(claim: z3.BoolRef) -> bool:
    solver = z3.Solver()
    solver.add(z3.Not(claim))
    return solver.check() == z3.unsat


@pytest.mark.parametrize("rule", [rule for rule in casts.RULES if rule.name.startswith("mask")])
def test_masks_compared_as_numbers_are_the_masks(rule) -> None:
    mask = np.array([False, True])
    for dtype in TYPES:
        compared = {
            "mask is not 0": cast(mask, dtype) != 0,
            "mask is above 0": cast(mask, dtype) > 0,
            "mask is 1": cast(mask, dtype) == 1,
            "mask is 0": cast(mask, dtype) == 0,
        }[rule.name]
        assert np.array_equal(compared, ~mask if rule.name == "mask is 0" else mask)


def test_the_smallest_numbers_of_the_types_are_known() -> None:
    for dtype in FLOATS:
        info = ml_dtypes.finfo(numpy_dtype(dtype))
        least = float(np.log2(np.longdouble(info.smallest_subnormal)))
        assert casts._LEAST_EXPONENT[dtype] == least
        assert casts._SIGNIFICAND[dtype] == info.nmant + 1
        assert casts._EXPONENT[dtype] == info.maxexp - 1
