"""Which kernel gets the next trials."""

from collections.abc import Sequence

from tvm_ext.tuning.kernel_state import KernelState

# What the roofline leaves no room for may be found all the same, as a share of the kernel's time.
_LEAST_ROOM = 0.05

# Trials whose gain is taken to go on.
_RECENT_TRIALS = 16


def next_kernel(states: Sequence[KernelState]) -> KernelState | None:
    """The kernel whose next trial promises to save the most; None when all searches have ended.

    What a trial promises is the time of the kernel's calls in one run of the model, times the
    share of it that the trial can be expected to save:

        room / ((n + 1) (n + 2)) + gain / 16

    ``n`` is the number of trials behind the default. ``room`` is what the kernel's time is above
    the roofline's, as a share of its time: 1 - modelled / best, and 0.05 at least, since the model
    may be wrong. The first term is what the least of n + 1 numbers drawn alike from an interval of
    that length can be expected to be below the least of n of them: the least of n uniform numbers
    is at 1 / (n + 1) of the interval (H. A. David, H. N. Nagaraja, "Order Statistics", 3rd edition,
    2003, section 3.1). So a kernel begins with great hopes, which fade fast when its trials bring
    nothing, however expensive it is. ``gain`` is the share of its time that the last 16 trials
    saved: a search that finds something goes on.
    """
    waiting = [state for state in states if state.is_open and state.search is not None]
    return max(waiting, key=_promise, default=None)


def _promise(state: KernelState) -> float:
    tried = max(0, state.progress.trials - 1)
    return state.cost * (
        _room(state) / ((tried + 1) * (tried + 2)) + _recent_gain(state) / _RECENT_TRIALS
    )


def _room(state: KernelState) -> float:
    """The share of the kernel's time that the roofline does not explain."""
    best = state.progress.best_seconds
    return max(_LEAST_ROOM, 1 - state.modelled_seconds / best) if best else 1.0


def _recent_gain(state: KernelState) -> float:
    """The share of its time that the last trials saved."""
    curve = state.progress.curve
    if not curve:
        return 0.0
    first = state.progress.trials - _RECENT_TRIALS
    before = [seconds for number, seconds in curve if number <= first] or [curve[0][1]]
    return 1 - curve[-1][1] / before[-1]
