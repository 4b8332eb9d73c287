"""The best candidates of a kernel measured again, longer, beside its default schedule."""

from tvm_ext.tuning.budget import Budget
from tvm_ext.tuning.candidate_measurer import CandidateMeasurer
from tvm_ext.tuning.deadline import NO_DEADLINE
from tvm_ext.tuning.interrupt import Interrupt
from tvm_ext.tuning.kernel_state import KernelState
from tvm_ext.tuning.session_trials import SessionTrials


class Confirmation:
    """See the module's text.

    Parameters
    ----------
    count : int
        Candidates that are measured at a time; twice as many at most for one kernel.
    trials : SessionTrials
        Measures them and writes that down.
    measurer : CandidateMeasurer
        What ``trials`` measures with.
    budget : Budget
        Once its time is over, only the best one is measured.
    interrupt : Interrupt
        Ends it.
    """

    def __init__(
        self,
        count: int,
        trials: SessionTrials,
        measurer: CandidateMeasurer,
        budget: Budget,
        interrupt: Interrupt,
    ) -> None:
        self._count = count
        self._trials = trials
        self._measurer = measurer
        self._budget = budget
        self._interrupt = interrupt

    def run(self, state: KernelState) -> None:
        """Measures until the best of all is among those that were measured again."""
        left = 2 * self._count
        with self._measurer.confirming():
            while left > 0 and not self._interrupt.came:
                is_past = self._budget.is_past()
                trials = state.to_confirm(1 if is_past else self._count)
                again = [found for t in trials if (found := state.again(t)) is not None]
                if not again:
                    break
                # Late or not, the best is not taken at the search's word.
                deadline = NO_DEADLINE if is_past else self._budget.deadline()
                done = list(self._trials.run(state, again, "confirm", deadline))
                left = 0 if is_past else left - len(done)
