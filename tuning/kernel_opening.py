"""Kernels made ready for their search: what it goes on from, and the default schedule's time."""

from collections.abc import Callable, Iterator, Sequence

from tvm_ext.tuning.budget import Budget
from tvm_ext.tuning.candidate import Candidate
from tvm_ext.tuning.candidate_measurer import CandidateMeasurer
from tvm_ext.tuning.interrupt import Interrupt
from tvm_ext.tuning.kernel_guard import KernelGuard
from tvm_ext.tuning.kernel_state import KernelState
from tvm_ext.tuning.progress import SessionProgress
from tvm_ext.tuning.pruning import NoPruner, Pruner
from tvm_ext.tuning.search.kernel_search import KernelSearch
from tvm_ext.tuning.session_trials import SessionTrials
from tvm_ext.tuning.task import refusal


class KernelOpening:
    """See the module's text.

    Parameters
    ----------
    new_search : callable
        The search for a kernel.
    trials : SessionTrials
        Measures the defaults and writes that down.
    measurer : CandidateMeasurer
        What ``trials`` measures with.
    pruner : Pruner
        Learns from earlier trials and from the defaults.
    budget : Budget
        Says when it is too late.
    guard : KernelGuard
        Skips kernels over which something fails.
    progress : SessionProgress
        Gets a note on each kernel whose default is of no use.
    interrupt : Interrupt
        Ends it.
    """

    def __init__(
        self,
        new_search: Callable[[KernelState], KernelSearch],
        trials: SessionTrials,
        measurer: CandidateMeasurer,
        pruner: Pruner | NoPruner,
        budget: Budget,
        guard: KernelGuard,
        progress: SessionProgress,
        interrupt: Interrupt,
    ) -> None:
        self._new_search = new_search
        self._trials = trials
        self._measurer = measurer
        self._pruner = pruner
        self._budget = budget
        self._guard = guard
        self._progress = progress
        self._interrupt = interrupt

    def open(self, states: Sequence[KernelState]) -> Iterator[KernelState]:
        """Yields each kernel whose search has begun; skips those that cannot be tuned.

        Kernels that the budget leaves no time for stay as they were.
        """
        begun = [one for state in states if (one := self._proposed(state)) is not None]
        defaults = [default for _, _, default in begun]
        failed = self._measurer.prepare(defaults, self._budget.search_deadline())
        for state, search, default in begun:
            if self._interrupt.came:
                return
            reason = failed.get(state.task.hash, "")
            if not reason and not self._measurer.is_prepared(state.task):
                continue
            with self._guard.guarded(state):
                self._start(state, search, default, reason)
            if state.search is not None and not self._interrupt.came:
                yield state

    def _proposed(self, state: KernelState) -> tuple[KernelState, KernelSearch, Candidate] | None:
        """The kernel with its search and its default schedule, if it can be tuned."""
        with self._guard.guarded(state):
            reason = refusal(state.task.func)
            search = None if reason else self._new_search(state)
            if search is not None and search.default is not None:
                return state, search, search.default
            state.end("skipped", reason or "its loops are written by hand")
        return None

    def _start(
        self, state: KernelState, search: KernelSearch, default: Candidate, reason: str
    ) -> None:
        """Has a search learn from earlier trials, and measures the default if it is new."""
        self._pruner.learn(state.begin(search))
        if not reason and not state.knows(default):
            deadline = self._budget.search_deadline()
            for _ in self._trials.run(state, [default], "search", deadline):
                known = [(default, state.known_seconds(default))]
                search.tell(known)
                self._pruner.learn(known)
        if self._interrupt.came:
            return
        if not reason and not state.knows(default):
            # The time was over.
            state.search = None
            return
        if not reason and state.known_seconds(default) is None:
            bad = next(t for t in state.trials if t.candidate == default.hash)
            reason = f"its default schedule is of no use ({bad.status}: {bad.message})"
        if reason:
            state.end("skipped", reason)
            state.search = None
            self._progress.notes.append(f"{state.task.name}: {reason}")
