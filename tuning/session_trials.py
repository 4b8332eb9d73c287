"""The trials of a session: candidates are measured, and how each of them ended is written down."""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from tvm_ext.tuning.candidate import Candidate
from tvm_ext.tuning.candidate_measurer import CandidateMeasurer
from tvm_ext.tuning.deadline import Deadline
from tvm_ext.tuning.kernel_state import KernelState
from tvm_ext.tuning.progress import SessionProgress
from tvm_ext.tuning.trial_writer import TrialWriter


class SessionTrials:
    """See the module's text.

    Parameters
    ----------
    measurer : CandidateMeasurer
        Builds and runs candidates.
    writer : TrialWriter
        Writes to the log.
    progress : SessionProgress
        Counts the search's trials.
    show : callable
        Called after every trial.
    """

    def __init__(
        self,
        measurer: CandidateMeasurer,
        writer: TrialWriter,
        progress: SessionProgress,
        show: Callable[[], object],
    ) -> None:
        self._measurer = measurer
        self._writer = writer
        self._progress = progress
        self._show = show

    def run(
        self,
        state: KernelState,
        candidates: Sequence[Candidate],
        purpose: Literal["search", "confirm"],
        deadline: Deadline,
    ) -> Iterator[Candidate]:
        """Yields the candidates whose trials have ended, when each is on the disk.

        One that was not built by ``deadline`` was not tried, and is not among them.
        """
        for outcome in self._measurer.measure(candidates, deadline):
            self._writer.write(state, outcome, purpose)
            if purpose == "search":
                self._progress.trials_done += 1
            self._show()
            yield outcome.candidate
