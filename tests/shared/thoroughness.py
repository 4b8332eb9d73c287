"""How much a run of the tests tries: ``make test`` takes the defaults, ``make test-all`` more."""

import os
from collections.abc import Iterable
from typing import Any, TypeVar

import pytest

# Random cases are drawn this many times as often.
DRAWS = int(os.environ.get("TEST_DRAWS", "1"))
# Every model at every level that its test is for, and the slow cases of tests in one model.
ALL_CASES = bool(os.environ.get("TEST_ALL_CASES"))
# How much LLVM does to code for a CPU: 0 to 3, as of LLVM's own tools.
LLVM_LEVEL = int(os.environ.get("TEST_LLVM_LEVEL", "0"))

Case = TypeVar("Case")


def some_of(cases: Iterable[Case]) -> list[Case]:
    """Every third of cases that differ in numbers alone; all of them in ``make test-all``."""
    return list(cases)[:: 1 if ALL_CASES else 3]


def one_in(
    count: int, cases: Iterable[Any], others: pytest.MarkDecorator = pytest.mark.slow
) -> list[Any]:
    """Cases for ``pytest.mark.parametrize``: all but every so manieth have a mark."""
    return [_marked(case, others) if at % count else case for at, case in enumerate(cases)]


def _marked(case: Any, mark: pytest.MarkDecorator) -> Any:
    """``case``, whether it is one value, a tuple of several, or those with an id or marks."""
    parts = getattr(case, "values", case if isinstance(case, tuple) else (case,))
    marks = [*getattr(case, "marks", ()), mark]
    return pytest.param(*parts, id=getattr(case, "id", None), marks=marks)
