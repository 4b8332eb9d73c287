"""Runs are counted, shared by streams, and taken in turns; how long they take is not looked at."""

import threading

import pytest

from tvm_ext.bench import Latencies, measure_in_turns


class Program:
    """Counts its runs, and notes who ran in a list that several share."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def __call__(self) -> None:
        self.log.append(self.name)


def test_counts_are_shared_by_turns_and_streams() -> None:
    log: list[str] = []
    streams = [Program("a", log), Program("b", log)]
    (seen,) = measure_in_turns([streams], warmup_seconds=0, count=23)
    assert len(seen.seconds) == 23
    # The first run, one of each stream ahead of each of five turns, and those that count.
    assert len(log) == 1 + 2 * 5 + 23
    assert abs(log.count("a") - log.count("b")) <= 5 + 1


def test_programs_take_turns() -> None:
    log: list[str] = []
    measure_in_turns([[Program("a", log)], [Program("b", log)]], warmup_seconds=0, count=5)
    assert log == ["a", "b"] + ["a", "a", "b", "b"] * 5


def test_a_time_gives_every_turn_a_run_at_least() -> None:
    log: list[str] = []
    (seen,) = measure_in_turns([[Program("a", log)]], seconds=1e-9, warmup_seconds=0)
    assert len(seen.seconds) == 5


def test_an_error_in_a_stream_reaches_the_caller() -> None:
    def fail() -> None:
        if threading.current_thread() is not threading.main_thread():
            raise ValueError("in a stream")

    with pytest.raises(ValueError, match="in a stream"):
        measure_in_turns([[fail, fail]], count=10)


def test_figures_of_known_times() -> None:
    seen = Latencies(0.5, [0.001 * n for n in range(1, 102)], wall_seconds=2.0)
    assert seen.percentile(50) == pytest.approx(0.051)
    assert seen.percentile(99) == pytest.approx(0.100)
    assert seen.throughput == pytest.approx(50.5)
