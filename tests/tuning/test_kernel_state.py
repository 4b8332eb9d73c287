"""What a kernel's trials say about where its search stands."""

import pytest
from record_folders import failed_trial, trial

from tvm_ext.tuning.jobs import Timing
from tvm_ext.tuning.kernel_state import KernelState, corrected
from tvm_ext.tuning.logs.best_records import LEAST_GAIN

DEFAULT, FIRST, SECOND, THIRD = (f"{number:016x}" for number in range(4))


class MatmulTask:
    name, hash, calls, origins, sizes = "matmul", "a" * 16, 3, ("MatMul.0",), []


class FakeCandidate:
    def __init__(self, name):
        self.hash = name


def tried(candidate, seconds, **changes):
    return trial(candidate=candidate, seconds=seconds, spread=0.0, **changes)


def default(seconds=10.0, **changes):
    return tried(DEFAULT, seconds, is_default=True, **changes)


def confirmed(candidate, seconds, **changes):
    return tried(candidate, seconds, purpose="confirm", **changes)


def state(*trials) -> KernelState:
    return KernelState(MatmulTask(), 7.0, list(trials))


FAILED = failed_trial(8, "run", THIRD)


def test_trials_since_one_that_improved():
    assert state().since_improvement() == 0
    assert state(default()).since_improvement() == 0
    assert state(default(), tried(FIRST, 12.0), FAILED).since_improvement() == 2
    assert state(default(), tried(FIRST, 12.0), tried(SECOND, 9.0)).since_improvement() == 0
    assert state(default(), tried(FIRST, 9.0), tried(SECOND, 9.5)).since_improvement() == 1


def test_a_gain_within_the_noise_is_none():
    nearly = tried(FIRST, 10.0 * (1 - 0.9 * LEAST_GAIN))
    assert state(default(), nearly).since_improvement() == 1
    # Nor do several of them add up: each is compared with the best.
    more = tried(SECOND, 10.0 * (1 - 1.8 * LEAST_GAIN))
    assert state(default(), nearly, more).since_improvement() == 2


def test_confirmations_are_no_trials_of_the_search():
    found = state(default(), tried(FIRST, 9.0), confirmed(FIRST, 1.0), tried(SECOND, 8.0))
    assert found.since_improvement() == 0
    assert len(found.searched()) == found.progress.trials == 3
    assert found.progress.curve == [(1, 10.0), (2, 9.0), (3, 8.0)]


def test_failed_trials_are_counted_and_never_improve():
    found = state(FAILED, default(), failed_trial(8, "wrong", SECOND))
    assert found.since_improvement() == 1
    assert (found.progress.trials, found.progress.failed) == (3, 2)
    assert found.progress.curve == [(2, 10.0)]


def test_modelled_trials_are_none_of_a_session_that_measures():
    modelled = tried(FIRST, 1.0, status="modelled")
    found = state(default(), modelled)
    assert found.since_improvement() == 0
    assert found.progress.curve == [(1, 10.0)]
    assert (found.progress.best_seconds, found.progress.trials) == (10.0, 1)
    assert found.to_confirm(3) == []
    # It may still be measured, and the default too where a model alone has spoken.
    assert not found.knows(FakeCandidate(FIRST))
    assert found.known_seconds(FakeCandidate(FIRST)) is None
    alone = state(default(status="modelled"), modelled)
    assert not alone.knows(FakeCandidate(DEFAULT))
    assert alone.progress.best_seconds is None


def test_a_session_that_asks_a_model_compares_its_answers():
    trials = [default(status="modelled"), tried(FIRST, 8.0, status="modelled"), FAILED]
    found = KernelState(MatmulTask(), 7.0, [*trials, tried(SECOND, 1.0)], measures=False)
    assert (found.progress.default_seconds, found.progress.best_seconds) == (10.0, 8.0)
    assert (found.progress.trials, found.progress.failed) == (3, 1)
    assert found.progress.curve == [(1, 10.0), (2, 8.0)]
    assert found.since_improvement() == 1
    assert found.known_seconds(FakeCandidate(FIRST)) == 8.0
    assert not found.knows(FakeCandidate(SECOND))
    assert found.to_confirm(3) == [trials[1]]


def test_the_curve_falls():
    times = [10.0, 12.0, 9.0, 9.0, 11.0, 5.0]
    found = state(default(times[0]), *(tried(f"{i:016x}", t) for i, t in enumerate(times[1:], 1)))
    assert found.progress.curve == [(1, 10.0), (3, 9.0), (6, 5.0)]


def test_what_is_to_be_confirmed():
    """The best that look better than the default, at most so many."""
    one, two, three = tried(FIRST, 8.0), tried(SECOND, 6.0), tried(THIRD, 11.0)
    found = state(default(), one, two, three)
    assert found.to_confirm(3) == [two, one]
    assert found.to_confirm(1) == [two]
    assert state(default()).to_confirm(3) == []
    assert state(default(), three).to_confirm(3) == []


def test_it_ends_when_the_best_was_confirmed():
    one, two = tried(FIRST, 8.0), tried(SECOND, 6.0)
    # The better one turned out to be worse than what the other looks like.
    again = state(default(), one, two, confirmed(SECOND, 9.0))
    assert again.to_confirm(3) == [one]
    again.trials.append(confirmed(FIRST, 8.5))
    assert again.to_confirm(3) == []
    assert state(default(), one, two, confirmed(SECOND, 7.0)).to_confirm(3) == []


def test_one_that_is_confirmed_above_the_default_does_not_lower_the_bar():
    one, two = tried(FIRST, 9.0), tried(SECOND, 6.0)
    assert state(default(), one, two, confirmed(SECOND, 12.0)).to_confirm(3) == [one]


def test_known_seconds():
    found = state(default(), tried(FIRST, 8.0), FAILED, confirmed(FIRST, 9.0))
    known = {name: found.known_seconds(FakeCandidate(name)) for name in (FIRST, SECOND, THIRD)}
    assert known == {FIRST: 9.0, SECOND: None, THIRD: None}
    assert found.knows(FakeCandidate(THIRD))
    assert not found.knows(FakeCandidate(SECOND))


class FakeSearch:
    """Remakes all candidates but those of another version."""

    def __init__(self, default, stale=()):
        self.default = FakeCandidate(default)
        self.stale = stale
        self.told = []

    def again(self, trace, candidate):
        return None if candidate in self.stale else FakeCandidate(candidate)

    def tell(self, results):
        self.told = list(results)


def test_a_search_begins_with_what_earlier_sessions_tried():
    found = state(default(), tried(FIRST, 8.0), confirmed(FIRST, 9.0), tried(SECOND, 1.0), FAILED)
    search = FakeSearch(DEFAULT, stale=[SECOND])
    known = found.begin(search)
    assert known == search.told
    assert {one.hash: seconds for one, seconds in known} == {
        DEFAULT: 10.0,
        FIRST: 9.0,
        THIRD: None,
    }
    # What was measured is not what its trace says now.
    assert [one.candidate for one in found.trials] == [DEFAULT, FIRST, FIRST, THIRD]
    assert found.progress.best_seconds == 9.0


def reference_seconds(*trials, default=DEFAULT) -> float | None:
    found = state(*trials)
    found.search = FakeSearch(default)
    return found.reference_seconds()


def test_the_reference_is_the_default_as_it_was_measured_first():
    assert state(default()).reference_seconds() is None
    assert reference_seconds() is None
    assert reference_seconds(failed_trial(8, "run", DEFAULT, is_default=True)) is None
    trials = [tried(FIRST, 3.0), default(10.0), default(11.0, purpose="confirm")]
    assert reference_seconds(*trials) == 10.0


def test_the_reference_is_the_default_of_this_version():
    """An earlier one had another."""
    trials = [default(10.0), tried(FIRST, 3.0)]
    assert reference_seconds(*trials, default=FIRST) == 3.0
    assert reference_seconds(*trials, default=SECOND) is None


def test_costs():
    assert state().cost == 7.0 * 3
    assert state(default()).cost == 10.0 * 3
    assert state(default(), tried(FIRST, 5.0)).cost == 5.0 * 3


def test_progress():
    found = state(default(), tried(FIRST, 5.0), confirmed(FIRST, 6.0)).progress
    assert (found.default_seconds, found.best_seconds) == (10.0, 6.0)
    assert found.best_schedule == "register tile (rows=4, columns=2)"
    assert found.is_confirmed
    assert found.gain == pytest.approx(10 / 6)
    unconfirmed = state(default(), tried(FIRST, 5.0)).progress
    assert not unconfirmed.is_confirmed
    # The default needs no confirmation: all others are measured beside it.
    assert state(default()).progress.is_confirmed
    assert state().progress.best_seconds is None


def test_states():
    found = state()
    assert found.is_open
    found.end("done", "no gain")
    assert not found.is_open
    assert found.progress.reason == "no gain"


def test_corrected_times_are_free_of_the_machines_drift():
    """Both kernels take twice as long as when the default was measured, and rising."""
    drift = [2.0, 2.5, 3.0, 3.5]
    timing = Timing([4.0 * d for d in drift], [8.0 * d for d in drift])
    assert corrected(timing, 8.0) == (pytest.approx(4.0), pytest.approx(0.0))


def test_one_turn_that_was_disturbed_does_not_count():
    timing = Timing([4.0, 4.0, 400.0, 4.0, 4.0], [8.0] * 5)
    assert corrected(timing, 8.0)[0] == 4.0


def test_corrected_times_without_a_reference():
    """The default is measured before there is one."""
    timing = Timing([3.0, 5.0, 4.0], [8.0, 8.0, 8.0])
    seconds, spread = corrected(timing, None)
    assert seconds == 4.0
    assert spread == pytest.approx(0.25)
    assert corrected(Timing([3.0, 5.0, 4.0]), 100.0) == (seconds, spread)
