"""Programs are timed in turn, each as often as its share of the time allows."""

import pytest

from tvm_ext.hardware.timing import interleaved_milliseconds, interleaved_seconds, timed


class PretendedTimers:
    """Timers that pretend to take some seconds, and write down who was called."""

    def __init__(self, **seconds: float) -> None:
        self.calls: list[str] = []
        self.timers = [self._timer(name, taken) for name, taken in seconds.items()]

    def _timer(self, name, taken):
        def call() -> float:
            self.calls.append(name)
            return taken

        return call


def test_samples_are_what_the_timers_return():
    clock = PretendedTimers(a=1 / 1024, b=1 / 512, c=1 / 128)
    samples = interleaved_seconds(clock.timers, seconds=3.0, rounds=4)
    assert [set(taken) for taken in samples] == [{1 / 1024}, {1 / 512}, {1 / 128}]
    assert [len(taken) for taken in samples] == [1024, 512, 128]


def test_programs_take_turns_and_every_other_round_goes_backwards():
    clock = PretendedTimers(a=1.0, b=1.0)
    interleaved_seconds(clock.timers, seconds=2.0, rounds=4)
    # One call of each to see how long it takes, then three turns of the four: the time is up.
    assert "".join(clock.calls) == "ab" + "ba" + "ab" + "ba"


def test_a_row_begins_with_a_warm_up_that_does_not_count():
    clock = PretendedTimers(a=0.125)
    (samples,) = interleaved_seconds(clock.timers, seconds=0.75, rounds=3)
    assert len(samples) == 3 * 2
    # Two to see how long it takes, and three rows of one and two.
    assert len(clock.calls) == 2 + 3 * 3


@pytest.mark.slow
def test_a_slow_program_has_three_samples_and_no_warm_up():
    clock = PretendedTimers(slow=10.0, quick=0.01)
    slow, quick = interleaved_seconds(clock.timers, seconds=1.0, rounds=20)
    assert len(slow) == 3
    assert clock.calls.count("slow") == 1 + 3
    assert len(quick) > 20


def test_milliseconds_are_medians_by_program():
    assert len(interleaved_milliseconds(int, str, float, seconds=0.001, rounds=2)) == 3
    assert all(ms > 0 for ms in interleaved_milliseconds(int, str, seconds=0.001, rounds=2))


def test_a_timer_runs_its_program():
    ran = []
    assert timed(lambda: ran.append(1))() >= 0
    assert ran == [1]


def test_errors_of_a_program_are_not_hidden():
    def fail() -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        interleaved_milliseconds(fail)


def test_a_timer_reads_the_clock_that_it_is_given():
    ticks = iter([2.0, 5.0])
    assert timed(list, lambda: next(ticks))() == 3.0
