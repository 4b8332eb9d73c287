"""Combinations of a test's parameters."""

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest


def pairwise(**values: Iterable[Any]) -> pytest.MarkDecorator:
    """``pytest.mark.parametrize`` over all combinations, most of which are marked as slow.

    The others are so many that any two values of two of three or more parameters meet in one.
    """
    axes = [list(enumerate(axis)) for axis in values.values()]
    shortest = min(map(len, axes))
    cases = []
    for chosen in product(*axes):
        places, case = zip(*chosen, strict=True)
        marks = [pytest.mark.slow] if sum(places) % shortest else []
        cases.append(pytest.param(*case, marks=marks))
    return pytest.mark.parametrize(list(values), cases)
