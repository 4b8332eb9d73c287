"""How a candidate takes turns with its reference, and the files of arrays."""

import itertools
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tvm_ext.configs.atomic_file import OutputPathError
from tvm_ext.tuning import jobs as run_job
from tvm_ext.tuning.jobs import (
    ExpectedJob,
    RunJob,
    TimingPlan,
    check_and_time,
    compute_expected,
    save_arrays,
    spread_of,
)

EVEN = TimingPlan(turn_seconds=1.0, fewest_turns=4, most_turns=10, spread=0.03)


class FakeDevice:
    """Kernels whose results and times are made up; notes who ran, in turn."""

    def __init__(self, candidate, reference=lambda turn: 0.1, result=2.0):
        self.seconds = {"candidate": candidate, "reference": reference}
        self.results = itertools.repeat(result)
        self.ran: list[tuple[str, int]] = []
        self.turns = dict.fromkeys(self.seconds, 0)
        self.threads = 0
        self.flushed: set[int] = set()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def use_threads(self, count):
        self.threads = count

    def tensors(self, arrays):
        return [FakeTensor(array) for array in arrays]

    def kernel(self, library):
        def run(source, result):
            result.array[:] = next(self.results) * source.array

        return run

    def timer(self, library, tensors, flush_bytes=0):
        self.flushed.add(flush_bytes)

        def seconds(calls):
            turn = max(0, self.turns[library] - 1)
            self.ran.append((library, calls))
            self.turns[library] += 1
            return self.seconds[library](turn)

        return seconds


class FakeTensor:
    def __init__(self, array):
        self.array = array

    def numpy(self):
        return self.array


@pytest.fixture
def timed(tmp_path, monkeypatch):
    """Checks and times on a fake device."""

    def run(device, plan=EVEN):
        data = str(tmp_path / "data.npz")
        source = np.arange(1, 6, dtype=np.float32)
        save_arrays(data, [source, 2 * source], [1])
        monkeypatch.setattr(run_job, "open_device", lambda address: device)
        return check_and_time(
            RunJob("candidate", None, "reference", None, (data,), 3, plan, "nowhere")
        )

    return run


def steady(seconds):
    return lambda turn: seconds


def test_stops_when_the_spread_is_small(timed):
    timing = timed(FakeDevice(steady(0.05)))
    assert timing.seconds == [0.05] * 4
    assert timing.reference_seconds == [0.1] * 4
    assert timing.wrong == ""


def test_goes_on_while_the_ratio_is_uneven(timed):
    timing = timed(FakeDevice(lambda turn: 0.05 * (1 + turn % 2)))
    assert len(timing.seconds) == len(timing.reference_seconds) == EVEN.most_turns


def test_what_slows_both_down_does_not_count(timed):
    """The ratio is even though both times are not."""
    timing = timed(FakeDevice(lambda turn: 0.05 * 2**turn, lambda turn: 0.1 * 2**turn))
    assert len(timing.seconds) == EVEN.fewest_turns


def test_slow_candidates_get_the_fewest_turns(timed):
    slow = FakeDevice(lambda turn: 0.2 * (1 + turn % 2))
    assert len(timed(slow).seconds) == EVEN.fewest_turns
    patient = TimingPlan(1.0, 4, 10, 0.03, slow_factor=float("inf"))
    slow = FakeDevice(lambda turn: 0.2 * (1 + turn % 2))
    assert len(timed(slow, patient).seconds) == EVEN.most_turns


def test_every_other_turn_begins_with_the_other(timed):
    device = FakeDevice(steady(0.05))
    timed(device)
    names = [name for name, calls in device.ran if calls > 1]
    one, other = ["reference", "candidate"], ["candidate", "reference"]
    assert names == [*one, *other, *one, *other]


def test_calls_of_a_turn(timed):
    """As many as fit, from a second call that is warm; a call longer than a turn runs once."""
    device = FakeDevice(steady(0.24), steady(2.0))
    timed(device, TimingPlan(1.0, 4, 4))
    assert [calls for name, calls in device.ran if name == "candidate"] == [1, 1, 4, 4, 4, 4]
    assert [calls for name, calls in device.ran if name == "reference"] == [1, 1, 1, 1, 1]


def test_wrong_numbers_are_not_timed(timed):
    device = FakeDevice(steady(0.05), result=2.5)
    timing = timed(device)
    assert timing.wrong.startswith("result 0: 5 of 5 elements differ, by up to 2.5e-01")
    assert (timing.seconds, timing.reference_seconds, device.ran) == ([], [], [])


def test_a_kernel_that_writes_nothing_is_wrong(timed):
    """The expected results are not where the candidate's belong."""
    device = FakeDevice(steady(0.05))
    device.kernel = lambda library: lambda *tensors: None
    assert timed(device).wrong.startswith("result 0: 5 of 5 elements differ")


def test_numbers_that_are_wrong_at_times(timed):
    """As of threads that race: they are compared again after the timing."""
    device = FakeDevice(steady(0.05))
    device.results = iter([2.0, 2.5])
    timing = timed(device)
    assert "by up to 2.5e-01" in timing.wrong
    assert timing.seconds == []
    assert device.ran


def test_a_slow_kernel_gets_fewer_turns(timed):
    plan = TimingPlan(1.0, 4, 10, limit_seconds=0.0)
    assert len(timed(FakeDevice(steady(5.0)), plan).seconds) == 1


def test_the_threads_of_the_job(timed):
    device = FakeDevice(steady(0.05))
    timed(device)
    assert device.threads == 3


def test_spread():
    assert spread_of([]) == spread_of([3.0]) == spread_of([2.0, 2.0, 2.0]) == 0.0
    assert spread_of([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2 / 3)
    assert spread_of([0.0, 0.0]) == 0.0
    # One outlier among many does not count.
    assert spread_of([1.0] * 9 + [100.0]) == 0.0


@given(st.lists(st.floats(1e-9, 1e3), min_size=2, max_size=20), st.floats(1e-3, 1e3))
@settings(max_examples=15, deadline=None)
def test_spread_is_relative(values, factor):
    scaled = [value * factor for value in values]
    assert spread_of(scaled) == pytest.approx(spread_of(values), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, bool, np.float16, np.int8, np.int64])
def test_arrays_of_a_file(tmp_path, dtype):
    path = str(tmp_path / "arrays.npz")
    arrays = [
        np.array([[0, 1, 2], [3, 4, 5]]).astype(dtype),
        np.array(1).astype(dtype),
        np.zeros((0, 4), dtype),
    ]
    save_arrays(path, arrays, [2, 0])
    loaded = run_job._load(path)
    for mine, right in zip(loaded, arrays, strict=True):
        assert (mine.dtype, mine.shape) == (right.dtype, right.shape)
        np.testing.assert_array_equal(mine, right)
        mine[...] = 0
    assert run_job._results(path) == [2, 0]


def test_bits_of_a_file(tmp_path):
    """NaN with its sign and payload, and the zero below zero."""
    path = str(tmp_path / "arrays.npz")
    bits = np.array([0x7FC1, 0xFFC0, 0x8000, 0x7F80], np.uint16)
    save_arrays(path, [bits.view(ml_dtypes.bfloat16)], [])
    np.testing.assert_array_equal(run_job._load(path)[0].view(np.uint16), bits)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is full")
def test_a_full_disk_is_named():
    with pytest.raises(OutputPathError, match=r"data of a trial.*No space left.*make room"):
        save_arrays("/dev/full", [np.zeros(100_000)], [])


def expected_of(tmp_path, monkeypatch, kernel, sources):
    """The arrays that are chosen when ``kernel`` computes a result from one of the sources."""
    inputs = []
    for number, source in enumerate(sources):
        inputs.append(str(tmp_path / f"inputs{number}.npz"))
        source = np.array(source, np.float32)
        save_arrays(inputs[-1], [source, np.zeros_like(source)], [1])
    device = FakeDevice(steady(1.0))

    def run(source, result):
        with np.errstate(invalid="ignore"):
            result.array[:] = kernel(source.array)

    device.kernel = lambda library: run
    monkeypatch.setattr(run_job, "open_device", lambda address: device)
    data = str(tmp_path / "data.npz")
    compute_expected(ExpectedJob("plain", tuple(inputs), data, "nowhere"))
    assert run_job._results(data) == [1]
    return [array.tolist() for array in run_job._load(data)]


def test_expected_results(tmp_path, monkeypatch):
    found = expected_of(tmp_path, monkeypatch, np.negative, [[1.0, 2.0], [3.0, 4.0]])
    assert found == [[1.0, 2.0], [-1.0, -2.0]]


def test_inputs_with_finite_results_are_preferred(tmp_path, monkeypatch):
    found = expected_of(tmp_path, monkeypatch, np.sqrt, [[-1.0, 4.0], [9.0, 16.0]])
    assert found == [[9.0, 16.0], [3.0, 4.0]]


def test_some_finite_results_are_better_than_none(tmp_path, monkeypatch):
    found = expected_of(tmp_path, monkeypatch, np.sqrt, [[-1.0, 4.0], [-9.0, -16.0]])
    assert found[0] == [-1.0, 4.0]


def test_results_that_say_nothing(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="no finite numbers"):
        expected_of(tmp_path, monkeypatch, np.sqrt, [[-1.0], [-4.0]])
