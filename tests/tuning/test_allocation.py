"""The next trials go to the kernel that promises most."""

from record_folders import trial

from tvm_ext.tuning.allocation import next_kernel
from tvm_ext.tuning.kernel_state import KernelState


class FakeTask:
    hash, origins = "a" * 16, ()

    def __init__(self, name, calls=1):
        self.name, self.calls = name, calls


def state(name, seconds, calls=1, idle=0) -> KernelState:
    """A kernel whose last gain was so many trials ago."""
    first = trial(candidate=f"{0:016x}", seconds=seconds, is_default=True)
    rest = [trial(candidate=f"{i:016x}", seconds=2 * seconds) for i in range(1, idle + 1)]
    found = KernelState(FakeTask(name, calls), seconds, [first, *rest])
    found.search = object()
    return found


def chosen(*states) -> str:
    return next_kernel(states).task.name


def test_the_most_expensive_first():
    assert chosen(state("cheap", 1.0), state("dear", 2.0)) == "dear"
    assert chosen(state("once", 2.0), state("often", 1.0, calls=3)) == "often"


def test_one_that_does_not_improve_gives_way():
    assert chosen(state("cheap", 1.0), state("dear", 4.0, idle=2)) == "dear"
    assert chosen(state("cheap", 1.0), state("dear", 4.0, idle=4)) == "cheap"


def test_what_is_left_is_the_cost_after_what_was_gained():
    improved = state("improved", 4.0)
    improved.trials.append(trial(candidate="f" * 16, seconds=0.5, spread=0.0))
    improved.refresh()
    assert improved.since_improvement() == 0
    assert chosen(improved, state("other", 1.0)) == "other"


def test_kernels_without_a_measurement_count_as_modelled():
    unmeasured = KernelState(FakeTask("unmeasured"), 9.0, [])
    unmeasured.search = object()
    assert chosen(state("measured", 8.0), unmeasured) == "unmeasured"


def test_kernels_that_ended_or_have_no_search_are_left_out():
    done, skipped, waiting = state("done", 9.0), state("skipped", 8.0), state("waiting", 7.0)
    done.end("done", "")
    skipped.end("skipped", "")
    waiting.search = None
    assert chosen(done, skipped, waiting, state("open", 1.0)) == "open"
    assert next_kernel([done, skipped, waiting]) is None
    assert next_kernel([]) is None
