"""A tuning session: the kernels of a model, until nothing improves or time is up."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from tvm_ext.hardware.description import CpuDescription
from tvm_ext.hardware.host import host_cpu_name
from tvm_ext.tuning.allocation import next_kernel
from tvm_ext.tuning.candidate import Candidate, Finish
from tvm_ext.tuning.cost_models.choose import choose_model
from tvm_ext.tuning.kernel_state import KernelState
from tvm_ext.tuning.measurer import Measurer
from tvm_ext.tuning.progress import ProgressListener, SessionProgress, Silent
from tvm_ext.tuning.pruning import Pruner
from tvm_ext.tuning.record_folder import RecordFolder
from tvm_ext.tuning.run_job import TimingPlan
from tvm_ext.tuning.search.kernel_search import KernelSearch
from tvm_ext.tuning.session_options import SessionOptions
from tvm_ext.tuning.task import KernelTask, refusal
from tvm_ext.tuning.trial_writer import TrialWriter

# Of the time budget, kept for measuring the best of a kernel again.
_CONFIRM_SECONDS = 0.7

# Kernels that are prepared at a time, before the defaults of all of them are measured.
_OPENED_TOGETHER = 4

# Turns of a confirmation, as a multiple of those of a trial.
_CONFIRM_TURNS = 3


class TuningSession:
    """Tunes the kernels of one model for one machine.

    Parameters
    ----------
    model : str
        Its name.
    tasks : Sequence[KernelTask]
        Its kernels, each once.
    machine : CpuDescription
        What they are scheduled for.
    folder : Path
        Where the records are.
    finish : Finish
        What happens to a kernel between its schedule and code generation.
    cost_model : str
        Name of what ranks candidates.
    options : SessionOptions
        What the session may do.
    seconds_of : mapping of kernel hash to float
        What a call of each kernel is expected to take: the order before they are measured.
    listener : ProgressListener
        Shows the progress.
    """

    def __init__(
        self,
        model: str,
        tasks: Sequence[KernelTask],
        machine: CpuDescription,
        folder: Path,
        finish: Finish,
        cost_model: str,
        options: SessionOptions,
        seconds_of: dict[str, float],
        listener: ProgressListener | None = None,
    ) -> None:
        self._tasks = list(tasks)
        self._machine = machine
        self._finish = finish
        self._model_name = cost_model
        self._options = options
        self._modelled = seconds_of
        self._listener = listener or Silent()
        self._target = machine.tvm_target()
        self._states: list[KernelState] = []
        self.progress = SessionProgress(model, machine.name, str(folder))
        self._path = folder

    def run(self) -> SessionProgress:
        """Tunes until everything is done, the budget is used up, or Ctrl-C.

        Raises
        ------
        RecordsError, OutputPathError
            The folder cannot be used or written to.
        TuningError
            All RPC servers are gone.
        """
        options = self._options
        with ExitStack() as stack:
            folder = stack.enter_context(RecordFolder(self._path, self._target, self._tasks))
            self._folder = folder
            self._writer = TrialWriter(
                folder,
                self.progress.model,
                self._target,
                host_cpu_name(),
                options.devices,
                options.versions,
                options.seed,
            )
            plan = TimingPlan(
                turn_seconds=options.effort.turn_seconds, most_turns=options.effort.most_turns
            )
            self._measurer = stack.enter_context(
                Measurer(self._machine, options.limits, plan, options.seed, options.devices)
            )
            self.progress.notes += [str(problem) for problem in folder.problems]
            self._model = choose_model(
                self._model_name, self._machine, self._path, self.progress.notes.append
            )
            self._pruner = Pruner(self._machine, self._path, self.progress.notes.append)
            try:
                self._begin()
                self._search()
                self._confirm_rest()
            except KeyboardInterrupt:
                self.progress.outcome = "interrupted; the same command goes on from here"
            folder.settle()
            self._model.remember()
            self._pruner.save()
            self.progress.predictor = self._pruner.quality()
        self._end()
        return self.progress

    def _begin(self) -> None:
        """Orders the kernels and measures their default schedules."""
        for task in self._tasks:
            trials = self._folder.trials.setdefault(task.hash, [])
            self._states.append(KernelState(task, self._modelled.get(task.hash, 0.0), trials))
        self._order()
        options = self._options
        per_kernel = options.effort.trials_per_kernel
        done = sum(len(state.searched()) for state in self._states)
        asked = options.trials if options.trials is not None else per_kernel * len(self._states)
        self.progress.trials_planned = max(0, asked - done)
        self.progress.budget_seconds = options.time_budget
        self._show()
        waiting = list(self._states)
        while waiting and not self._is_over():
            self._open(waiting[:_OPENED_TOGETHER])
            waiting = waiting[_OPENED_TOGETHER:]
            self._show()
        self._order()

    def _open(self, states: Sequence[KernelState]) -> None:
        """Prepares kernels and measures their defaults; skips those that cannot be tuned."""
        begun: list[tuple[KernelState, KernelSearch, Candidate]] = []
        for state in states:
            reason = refusal(state.task.func)
            search = None if reason else self._new_search(state)
            if search is None or search.default is None:
                self._skip(state, reason or "its loops are written by hand")
            else:
                begun.append((state, search, search.default))
        failed = self._measurer.prepare([default for _, _, default in begun])
        for state, search, default in begun:
            if state.task.hash in failed:
                self._skip(state, failed[state.task.hash])
                continue
            state.begin(search)
            if state.reference_seconds() is None:
                self._measure_default(state, search, default)
            self._judge(state)

    def _new_search(self, state: KernelState) -> KernelSearch:
        options = self._options
        return KernelSearch(
            state.task,
            self._machine,
            self._model,
            self._finish,
            options.effort.batch,
            options.seed,
        )

    def _measure_default(
        self, state: KernelState, search: KernelSearch, default: Candidate
    ) -> None:
        self.progress.current = state.task.hash
        for outcome in self._measurer.measure([default]):
            self._writer.write(state, outcome, "search")
            self.progress.trials_done += 1
            if outcome.status != "ok":
                self._skip(state, f"its default schedule ends in '{outcome.status}'")
                self.progress.notes.append(
                    f"{state.task.name}: its default schedule is of no use ({outcome.status}: "
                    f"{outcome.message}); please report it"
                )
        search.tell([(default, state.known_seconds(default))])

    def _skip(self, state: KernelState, reason: str) -> None:
        state.end("skipped", reason)
        state.search = None
        if self._options.trials is None:
            self.progress.trials_planned -= self._options.effort.trials_per_kernel

    def _search(self) -> None:
        while not self._is_over():
            state = next_kernel(self._states)
            if state is None or state.search is None:
                self.progress.outcome = "every kernel's search has ended"
                return
            state.progress.state = "tuning"
            self.progress.current = state.task.hash
            self._show()
            self._step(state, state.search)
            self._judge(state)
            if not state.is_open:
                self._confirm(state)

    def _step(self, state: KernelState, search: KernelSearch) -> None:
        """One batch of candidates."""
        proposed = search.propose()
        if not proposed:
            state.end("done", "all schedules were tried")
            return
        known = [one for one in proposed if state.knows(one)]
        unknown = [one for one in proposed if not state.knows(one)]
        new = self._pruner.kept(unknown, state.progress.best_seconds)
        state.progress.pruned += len(unknown) - len(new)
        new = new[: max(0, self.progress.trials_planned - self.progress.trials_done)]
        results = [(one, state.known_seconds(one)) for one in known]
        for outcome in self._measurer.measure(new):
            self._writer.write(state, outcome, "search")
            self.progress.trials_done += 1
            results.append((outcome.candidate, state.known_seconds(outcome.candidate)))
            self._show()
            if self._is_late():
                break
        search.tell(results)
        self._pruner.learn(results)

    def _judge(self, state: KernelState) -> None:
        """Ends a search that has had its trials or does not improve any more."""
        effort = self._options.effort
        if not state.is_open:
            return
        if self._options.trials is None and len(state.searched()) >= effort.trials_per_kernel:
            state.end("done", f"{effort.trials_per_kernel} trials, as the effort says")
        elif state.since_improvement() >= effort.patience:
            state.end("done", f"no gain in {effort.patience} trials")

    def _confirm(self, state: KernelState) -> None:
        """Measures the best again, beside the default, until the best of all is among them."""
        self.progress.current = state.task.hash
        left = 2 * self._options.effort.confirmed
        plan = self._measurer.plan
        self._measurer.plan = replace(
            plan, most_turns=plan.most_turns * _CONFIRM_TURNS, slow_factor=float("inf"), spread=0.01
        )
        try:
            while left > 0:
                trials = state.to_confirm(self._options.effort.confirmed)
                again = [found for t in trials if (found := state.again(t)) is not None]
                if not again:
                    break
                left -= len(again)
                for outcome in self._measurer.measure(again):
                    self._writer.write(state, outcome, "confirm")
                    self._show()
        finally:
            self._measurer.plan = plan
        self._folder.settle([state.task.hash])
        self._measurer.forget(state.task)

    def _confirm_rest(self) -> None:
        for state in self._states:
            if state.is_open and state.search is not None:
                state.end("done", self.progress.outcome)
                self._confirm(state)

    def _is_over(self) -> bool:
        """Whether the search has to end, and notes why."""
        progress = self.progress
        if progress.trials_planned <= progress.trials_done:
            progress.outcome = "all trials are used"
            return True
        if self._is_late():
            progress.outcome = "the time budget is used"
            return True
        return False

    def _is_late(self) -> bool:
        """Whether the time that is left is needed to confirm what was found."""
        budget = self._options.time_budget
        if budget is None:
            return False
        waiting = sum(bool(s.is_open and s.search and s.to_confirm(1)) for s in self._states)
        return self.progress.seconds > budget - min(_CONFIRM_SECONDS * waiting, budget / 4)

    def _order(self) -> None:
        self._states.sort(key=lambda state: -state.cost)
        self.progress.kernels = [state.progress for state in self._states]

    def _show(self) -> None:
        self._listener.update(self.progress)

    def _end(self) -> None:
        self._order()
        for state in self._states:
            state.refresh()
        self.progress.current = ""
        self.progress.ended = time.monotonic()
        self._show()
