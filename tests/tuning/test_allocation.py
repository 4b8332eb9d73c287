"""The next trials go to the kernel that promises most."""

import pytest
from record_folders import trial

from tvm_ext.tuning.kernel_state import KernelState
from tvm_ext.tuning.session import next_kernel


class NamedTask:
    hash, origins, sizes = "a" * 16, (), []

    def __init__(self, name, calls=1):
        self.name, self.calls = name, calls


def state(name, seconds, calls=1, idle=0, modelled=0.0) -> KernelState:
    """A kernel with so many trials behind its default, which brought nothing."""
    first = trial(candidate=f"{0:016x}", seconds=seconds, is_default=True)
    rest = [trial(candidate=f"{i:016x}", seconds=2 * seconds) for i in range(1, idle + 1)]
    found = KernelState(NamedTask(name, calls), modelled, [first, *rest])
    found.search = object()
    return found


def add(found: KernelState, *seconds: float) -> KernelState:
    """The same with further trials."""
    for one in seconds:
        number = len(found.trials)
        found.trials.append(trial(candidate=f"{number:016x}", seconds=one, spread=0.0))
    found.refresh()
    return found


def chosen(*states) -> str:
    return next_kernel(states).task.name


def shares(states, rounds, batch=8) -> dict[str, int]:
    """Trials of each kernel when all that are chosen bring nothing."""
    before = {one.task.name: len(one.trials) for one in states}
    for _ in range(rounds):
        best = next_kernel(states)
        add(best, *[9.0 * best.progress.default_seconds] * batch)
    return {one.task.name: len(one.trials) - before[one.task.name] for one in states}


def test_the_most_expensive_first():
    assert chosen(state("cheap", 1.0), state("dear", 2.0)) == "dear"
    assert chosen(state("once", 2.0), state("often", 1.0, calls=3)) == "often"


def test_one_that_does_not_improve_gives_way():
    """The time that is left to save falls as 1 / ((n + 1) (n + 2))."""
    cheap = state("cheap", 1.0)
    assert chosen(cheap, state("dear", 5.9, idle=2)) == "cheap"
    assert chosen(cheap, state("dear", 6.1, idle=2)) == "dear"
    assert chosen(cheap, state("dear", 44.9, idle=8)) == "cheap"
    assert chosen(cheap, state("dear", 45.1, idle=8)) == "dear"


@pytest.mark.extended
def test_an_expensive_kernel_whose_default_is_the_best_does_not_eat_the_budget():
    """Five sixths of the model's time; it gets trials by the root of that, and not by the time."""
    states = [state("dear", 20.0), *(state(f"cheap{i}", 1.0) for i in range(4))]
    found = shares(states, 60)
    assert found["dear"] == pytest.approx(20**0.5 / (20**0.5 + 4) * 480, rel=0.1)
    near = [state("dear", 20.0, modelled=18.0), *(state(f"cheap{i}", 1.0) for i in range(4))]
    assert shares(near, 60)["dear"] <= found["dear"] / 2


def test_little_is_to_be_won_near_the_roofline():
    near, far = state("near", 4.0, modelled=3.8), state("far", 1.0, modelled=0.5)
    assert chosen(near, far) == "far"
    assert chosen(state("near", 4.0, modelled=2.0), far) == "near"
    # The model may be wrong: what is faster than it says gets its turn too.
    beyond = state("beyond", 4.0, modelled=8.0)
    assert shares([beyond, far], 4) == {"beyond": 16, "far": 16}


def test_a_search_that_finds_something_goes_on():
    fruitless = state("fruitless", 4.0, idle=16)
    finding = add(state("finding", 2.0, idle=14), 1.0, 0.9)
    assert chosen(fruitless, finding) == "finding"
    # Until the gain is long ago.
    assert chosen(fruitless, add(finding, *[2.0] * 20)) == "fruitless"
    # A gain of little counts little.
    lucky = add(state("lucky", 2.0, idle=14), 1.98, 1.97)
    assert chosen(fruitless, lucky) == "fruitless"


def test_what_is_left_is_the_cost_after_what_was_gained():
    improved = add(state("improved", 4.0), *[4.0] * 30, 0.01, *[4.0] * 20)
    assert chosen(improved, state("other", 4.0, idle=51)) == "other"


def test_kernels_without_a_measurement_count_as_modelled():
    unmeasured = KernelState(NamedTask("unmeasured"), 9.0, [])
    unmeasured.search = object()
    assert chosen(state("measured", 8.0), unmeasured) == "unmeasured"
    assert chosen(state("measured", 10.0), unmeasured) == "measured"


def test_kernels_that_ended_or_have_no_search_are_left_out():
    done, skipped, waiting = state("done", 9.0), state("skipped", 8.0), state("waiting", 7.0)
    done.end("done", "")
    skipped.end("skipped", "")
    waiting.search = None
    assert chosen(done, skipped, waiting, state("open", 1.0)) == "open"
    assert next_kernel([done, skipped, waiting]) is None
    assert next_kernel([]) is None
