"""Which kernel gets the next trials."""

from collections.abc import Sequence

from tvm_ext.tuning.kernel_state import KernelState


def next_kernel(states: Sequence[KernelState]) -> KernelState | None:
    """The kernel whose trials promise the most; None when all searches have ended.

    What is to be gained is taken to be a part of the kernel's time in the model, which shrinks
    with every trial that brought nothing: time / (1 + trials since the last improvement). So the
    expensive ones come first, and one that does not improve gives way to cheaper ones.
    """
    waiting = [state for state in states if state.is_open and state.search is not None]
    return max(waiting, key=_promise, default=None)


def _promise(state: KernelState) -> float:
    return state.cost / (1 + state.since_improvement())
