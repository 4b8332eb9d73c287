"""Which schedule the trials speak for: luck of the search does not count."""

import pytest
from record_folders import failed_trial, trial

from tvm_ext.tuning.logs.best_records import (
    LEAST_GAIN,
    CandidateResult,
    beats,
    best,
    candidate_results,
    default_of,
    kept,
    timed,
)

DEFAULT, FIRST, SECOND, THIRD = (f"{number:016x}" for number in range(4))


def tried(candidate, seconds, **changes):
    return trial(candidate=candidate, seconds=seconds, spread=0.0, **changes)


def default(seconds=10.0, **changes):
    return tried(DEFAULT, seconds, is_default=True, **changes)


def confirmed(candidate, seconds, **changes):
    return tried(candidate, seconds, purpose="confirm", **changes)


def order(trials) -> list[str]:
    return [one.trial.candidate for one in kept(candidate_results(trials))]


def test_only_measured_trials_have_a_standing():
    trials = [
        default(),
        tried(FIRST, 1.0, status="modelled"),
        failed_trial(8, "wrong", SECOND),
        failed_trial(8, "timeout", THIRD),
    ]
    assert list(candidate_results(trials)) == [DEFAULT]
    assert order(trials) == [DEFAULT]


def test_a_modelled_time_does_not_stand_in_for_the_measured_one():
    trials = [default(), tried(FIRST, 9.0), tried(FIRST, 1.0, status="modelled")]
    assert candidate_results(trials)[FIRST].seconds == 9.0
    confirming = [*trials, confirmed(FIRST, 1.0, status="modelled")]
    assert not candidate_results(confirming)[FIRST].is_confirmed


def test_times_of_a_model_stand_where_nothing_was_measured():
    modelled = [
        default(status="modelled"),
        tried(FIRST, 6.0, status="modelled"),
        tried(SECOND, 5.0, status="modelled"),
        failed_trial(8, "wrong", SECOND),
        failed_trial(8, "build", THIRD),
    ]
    assert timed(modelled) == modelled[:3]
    assert order(modelled) == [FIRST, DEFAULT]
    assert all(one.is_modelled for one in candidate_results(modelled).values())
    # One that was measured, however slow, is enough.
    measured = [*modelled, tried(THIRD, 99.0)]
    assert timed(measured) == measured[-1:]
    slow = [*modelled, tried("a" * 16, 99.0)]
    assert order(slow) == ["a" * 16]
    assert not best(candidate_results(slow)).is_modelled


def test_a_confirmation_overrides_the_time_of_the_search():
    search = tried(FIRST, 5.0, template="one")
    trials = [default(), search, tried(FIRST, 4.0), confirmed(FIRST, 7.0), confirmed(FIRST, 6.0)]
    assert candidate_results(trials)[FIRST] == CandidateResult(search, 6.0, 0.0, True)


def test_a_later_trial_of_the_search_does_not_override_a_confirmation():
    found = candidate_results(
        [default(), tried(FIRST, 5.0), confirmed(FIRST, 7.0), tried(FIRST, 3.0)]
    )
    assert (found[FIRST].seconds, found[FIRST].is_confirmed) == (7.0, True)


def test_the_best_first_and_the_default_last():
    trials = [tried(FIRST, 6.0), default(), tried(SECOND, 5.0), tried(THIRD, 10.0)]
    assert order(trials) == [SECOND, FIRST, DEFAULT]
    assert best(candidate_results(trials)).trial.candidate == SECOND


def test_a_lucky_one_that_was_not_confirmed_is_left_out():
    trials = [default(), tried(FIRST, 5.0), tried(SECOND, 4.0), tried(THIRD, 9.0)]
    trials.append(confirmed(FIRST, 6.0))
    # The second looks better than what was confirmed; the third does not.
    assert order(trials) == [FIRST, THIRD, DEFAULT]


def test_a_confirmation_that_failed_leaves_only_what_is_behind_the_default():
    trials = [default(), tried(FIRST, 5.0), confirmed(FIRST, 10.5), tried(SECOND, 8.0)]
    assert order(trials) == [DEFAULT]
    assert best(candidate_results(trials)).trial.is_default


def test_a_confirmed_default_closes_the_search_for_all_that_were_not():
    trials = [default(), default(9.5, purpose="confirm"), tried(FIRST, 5.0)]
    assert order(trials) == [DEFAULT]
    assert kept(candidate_results(trials))[0].seconds == 9.5


def test_before_it_is_confirmed_a_gain_has_to_exceed_the_spread():
    reference = candidate_results([default()])[DEFAULT]

    def one(seconds, spread, is_confirmed):
        return CandidateResult(reference.trial, seconds, spread, is_confirmed)

    assert not beats(one(9.0, 0.2, False), reference)
    assert beats(one(9.0, 0.2, True), reference)
    assert beats(one(7.9, 0.2, False), reference)
    assert beats(one(9.0, 0.0, False), reference)


@pytest.mark.parametrize("is_confirmed", [False, True])
def test_a_gain_below_the_least_is_none(is_confirmed):
    reference = candidate_results([default()])[DEFAULT]
    for factor, wins in ((0.9, False), (1.1, True)):
        seconds = 10.0 * (1 - factor * LEAST_GAIN)
        one = CandidateResult(reference.trial, seconds, 0.0, is_confirmed)
        assert beats(one, reference) is wins


def test_without_a_default_the_best_is_the_fastest():
    """As in a log of a session that was killed early, or of another version's default."""
    trials = [tried(FIRST, 6.0), tried(SECOND, 5.0)]
    assert order(trials) == [SECOND, FIRST]
    assert order([*trials, confirmed(FIRST, 5.5)]) == [FIRST]
    assert default_of(candidate_results(trials)) is None


def test_no_trials():
    assert candidate_results([]) == {}
    assert kept({}) == []
    assert best({}) is None


@pytest.mark.parametrize("status", ["wrong", "run", "timeout"])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_candidate_that_failed_once_is_out(status, is_first):
    """Threads that race give right numbers now and then."""
    good, bad = tried(FIRST, 5.0), failed_trial(8, status, FIRST, purpose="confirm")
    trials = [default(), bad, good] if is_first else [default(), good, bad]
    assert order(trials) == [DEFAULT]
    assert order([*trials, confirmed(FIRST, 5.0)]) == [DEFAULT]


def test_the_newest_default_counts():
    """Another version of the templates may have another one."""
    trials = [default(10.0), tried(FIRST, 9.5), tried(SECOND, 8.0, is_default=True)]
    assert default_of(candidate_results(trials)).trial.candidate == SECOND
    assert order(trials) == [SECOND]
