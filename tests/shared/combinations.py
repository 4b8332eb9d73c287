"""Combinations of a test's parameters."""

from collections.abc import Iterable
from itertools import combinations, product
from typing import Any

import pytest


def pairwise(**values: Iterable[Any]) -> pytest.MarkDecorator:
    """``pytest.mark.parametrize`` over all combinations, most of which are marked as slow.

    In the others, any two values of two of three or more parameters meet, and any value of one of
    two parameters occurs.
    """
    axes = [list(axis) for axis in values.values()]
    places = list(product(*(range(len(axis)) for axis in axes)))
    covering = _covering(places, strength=min(2, len(axes) - 1))
    cases = []
    for chosen in places:
        case = [axis[place] for axis, place in zip(axes, chosen, strict=True)]
        marks = [] if chosen in covering else [pytest.mark.slow]
        cases.append(pytest.param(*case, marks=marks))
    return pytest.mark.parametrize(list(values), cases)


def _covering(rows: list[tuple[int, ...]], strength: int) -> set[tuple[int, ...]]:
    """Few of the rows in which any values of so many columns meet that do so in one of all.

    Always the row that adds most, and of several the first.
    """
    covers = {row: set(combinations(enumerate(row), strength)) for row in rows}
    left, chosen = set().union(*covers.values()), set()
    while left:
        best = max(rows, key=lambda row: len(covers[row] & left))
        chosen.add(best)
        left -= covers[best]
    return chosen
