"""What templates offer: options that differ, threads where there is something to share."""

import pytest
from machines import MACHINE

from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Chosen, DecisionError, Numbered
from tvm_ext.tir_schedules.llvm.knobs import distinct, pick_threads


def test_options_with_the_same_outcome_are_one() -> None:
    assert list(distinct((1, 2, 4, 8), 4, lambda n: min(n, 3))) == [1, 2]
    assert list(distinct((5,), 5, lambda n: n)) == []


def test_the_closed_form_looks_at_no_option() -> None:
    def outcome(option: int) -> int:
        raise AssertionError(f"option {option} was looked at")

    assert CLOSED_FORM.pick("vectors", distinct((1, 2), 4, outcome), 4) == 4
    assert pick_threads(CLOSED_FORM, MACHINE, lambda: outcome(0), True)


@pytest.mark.parametrize(
    ("cores", "iterations", "options"), [(4, 9, (0, 1)), (4, 1, (1,)), (1, 9, None)]
)
def test_threads(cores: int, iterations: int, options: tuple[int, ...] | None) -> None:
    decisions = Chosen()
    found = pick_threads(decisions, MACHINE.with_cores(cores), lambda: iterations, True)
    assert found is (options is not None)
    asked = decisions.knobs.get("threads")
    assert (asked.options if asked is not None else None) == options


def test_numbered_blocks() -> None:
    decisions = Chosen({"vectors_2": 8})
    assert Numbered(decisions, 1).pick("vectors", (2, 4, 8), 4) == 4
    assert Numbered(decisions, 2).pick("vectors", (2, 4, 8), 4) == 8
    with pytest.raises(DecisionError, match="vectors_2=8 is none of the options 4"):
        Numbered(decisions, 2).pick("vectors", (), 4)
