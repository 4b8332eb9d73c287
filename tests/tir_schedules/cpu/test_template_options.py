"""What templates offer: options that differ, threads where there is something to share."""

import pytest
from machines import MACHINE

from tvm_ext.tir_schedules.cpu.parallel_vectorize import distinct, pick_threads
from tvm_ext.tir_schedules.template import (
    DEFAULT_DECISIONS,
    DecisionError,
    FixedDecisions,
    NumberedDecisions,
)


def test_options_with_the_same_outcome_are_one() -> None:
    assert list(distinct((1, 2, 4, 8), 4, lambda n: min(n, 3))) == [1, 2]
    assert list(distinct((5,), 5, lambda n: n)) == []


def test_the_default_heuristic_looks_at_no_option() -> None:
    def outcome(option: int) -> int:
        raise AssertionError(f"option {option} was looked at")

    assert DEFAULT_DECISIONS.pick("vectors", distinct((1, 2), 4, outcome), 4) == 4
    assert pick_threads(DEFAULT_DECISIONS, MACHINE, lambda: outcome(0), True)


@pytest.mark.parametrize(
    ("cores", "iterations", "options"), [(4, 9, (0, 1)), (4, 1, (1,)), (1, 9, None)]
)
def test_threads(cores: int, iterations: int, options: tuple[int, ...] | None) -> None:
    decisions = FixedDecisions()
    found = pick_threads(decisions, MACHINE.with_cores(cores), lambda: iterations, True)
    assert found is (options is not None)
    asked = decisions.knobs.get("threads")
    assert (asked.options if asked is not None else None) == options


def test_numbered_blocks() -> None:
    decisions = FixedDecisions({"vectors_2": 8})
    assert NumberedDecisions(decisions, 1).pick("vectors", (2, 4, 8), 4) == 4
    assert NumberedDecisions(decisions, 2).pick("vectors", (2, 4, 8), 4) == 8
    with pytest.raises(DecisionError, match="vectors_2=8 is none of the options 4"):
        NumberedDecisions(decisions, 2).pick("vectors", (), 4)
