"""A tuning session: the kernels of a model, until nothing improves or time is up."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

from tvm_ext.configs.errors import TvmExtError
from tvm_ext.hardware.description import CpuDescription
from tvm_ext.hardware.host import host_cpu_name
from tvm_ext.tuning.allocation import next_kernel
from tvm_ext.tuning.budget import Budget
from tvm_ext.tuning.candidate import Candidate, Finish
from tvm_ext.tuning.cost_models.choose import choose_model
from tvm_ext.tuning.interrupt import Interrupt
from tvm_ext.tuning.kernel_state import KernelState
from tvm_ext.tuning.lines import last_line
from tvm_ext.tuning.measurer import Measurement, Measurer
from tvm_ext.tuning.progress import ProgressListener, SessionProgress, Silent
from tvm_ext.tuning.pruning import Pruner
from tvm_ext.tuning.record_folder import RecordFolder
from tvm_ext.tuning.run_job import TimingPlan
from tvm_ext.tuning.search.kernel_search import KernelSearch
from tvm_ext.tuning.session_options import SessionOptions
from tvm_ext.tuning.task import KernelTask, refusal
from tvm_ext.tuning.trial_writer import TrialWriter

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
                turn_seconds=options.effort.turn_seconds,
                most_turns=options.effort.most_turns,
                limit_seconds=options.limits.run_seconds / 4,
            )
            self._measurer = stack.enter_context(
                Measurer(
                    self._machine,
                    options.limits,
                    plan,
                    options.seed,
                    options.devices,
                    folder.scratch,
                )
            )
            self.progress.notes += [str(problem) for problem in folder.problems]
            self._model = choose_model(
                self._model_name, self._machine, self._path, self.progress.notes.append
            )
            self._pruner = Pruner(self._machine, self._path, self.progress.notes.append)
            self._interrupt = stack.enter_context(Interrupt(self._measurer.interrupt))
            try:
                self._begin()
                self._search()
                self._confirm_rest()
            except KeyboardInterrupt:
                self._interrupt.came = True
            if self._interrupt.came:
                self.progress.outcome = "interrupted; the same command goes on from here"
            folder.settle()
            self._model.remember()
            self._pruner.save()
            self.progress.predictor = self._pruner.quality()
        self._end()
        return self.progress

    def _begin(self) -> None:
        """Orders the kernels and measures the default schedules of those that may be searched."""
        for task in self._tasks:
            trials = self._folder.trials.setdefault(task.hash, [])
            self._states.append(KernelState(task, self._modelled.get(task.hash, 0.0), trials))
        self._order()
        options = self._options
        self._budget = Budget(options, self.progress, self._states)
        for state in self._states:
            reason = state.has_ended(self._budget.trials_each, options.effort.patience)
            if reason and not state.to_confirm(1):
                state.end("done", reason)
        self._budget.plan()
        self._show()
        waiting = [state for state in self._states if state.is_open]
        while waiting and not self._budget.is_late() and not self._interrupt.came:
            some, waiting = waiting[:_OPENED_TOGETHER], waiting[_OPENED_TOGETHER:]
            if not self._budget.trials_left():
                # What earlier sessions found is still to be confirmed.
                some = [state for state in some if state.to_confirm(1)]
            self._open(some)
            self._budget.plan()
            self._show()
        self._order()

    def _open(self, states: Sequence[KernelState]) -> None:
        """Prepares kernels and measures their defaults; skips those that cannot be tuned."""
        begun: list[tuple[KernelState, KernelSearch, Candidate]] = []
        for state in states:
            with self._guarded(state):
                reason = refusal(state.task.func)
                search = None if reason else self._new_search(state)
                if search is None or search.default is None:
                    state.end("skipped", reason or "its loops are written by hand")
                else:
                    begun.append((state, search, search.default))
        failed = self._measurer.prepare([default for _, _, default in begun])
        for state, search, default in begun:
            if self._interrupt.came:
                return
            with self._guarded(state):
                self._start(state, search, default, failed.get(state.task.hash, ""))

    def _start(
        self, state: KernelState, search: KernelSearch, default: Candidate, reason: str
    ) -> None:
        """Has a search learn from earlier trials, and measures the default if it is new."""
        state.begin(search)
        if not reason and not state.knows(default):
            for outcome in self._measurer.measure([default]):
                self._took(state, outcome, "search")
            search.tell([(default, state.known_seconds(default))])
            self._pruner.learn([(default, state.known_seconds(default))])
        if self._interrupt.came:
            return
        if not reason and state.known_seconds(default) is None:
            bad = next(t for t in state.trials if t.candidate == default.hash)
            reason = f"its default schedule is of no use ({bad.status}: {bad.message})"
        if reason:
            state.end("skipped", reason)
            state.search = None
            self.progress.notes.append(f"{state.task.name}: {reason}")
            return
        self._judge(state)

    @contextmanager
    def _guarded(self, state: KernelState) -> Iterator[None]:
        """What goes wrong with one kernel does not end the session."""
        try:
            yield
        except TvmExtError:
            raise
        except Exception as error:  # noqa: BLE001
            # Interrupts in TVM's callbacks come back as errors.
            if not self._interrupt.came:
                reason = f"{type(error).__name__}: {last_line(error)}"
                state.end("skipped", reason)
                state.search = None
                self.progress.notes.append(f"{state.task.name} failed ({reason}); please report it")

    def _took(
        self, state: KernelState, outcome: Measurement, purpose: Literal["search", "confirm"]
    ) -> None:
        """A trial has ended."""
        self._writer.write(state, outcome, purpose)
        if purpose == "search":
            self.progress.trials_done += 1
        self._show()

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

    def _search(self) -> None:
        while not self._is_over():
            state = next_kernel(self._states)
            if state is None or state.search is None:
                self.progress.outcome = "every kernel's search has ended"
                return
            state.progress.state = "tuning"
            self.progress.current = state.task.hash
            self._show()
            with self._guarded(state):
                self._step(state, state.search)
                self._judge(state)
            self._budget.plan()

    def _step(self, state: KernelState, search: KernelSearch) -> None:
        """One batch of candidates."""
        proposed = search.propose()
        if not proposed:
            state.end("done", "all schedules were tried")
            self._confirm(state)
            return
        known = [one for one in proposed if state.knows(one)]
        unknown = [one for one in proposed if not state.knows(one)]
        new = self._pruner.kept(unknown, state.progress.best_seconds)
        state.progress.pruned += len(unknown) - len(new)
        new = new[: self._budget.trials_left()]
        results = [(one, state.known_seconds(one)) for one in known]
        for outcome in self._measurer.measure(new):
            self._took(state, outcome, "search")
            results.append((outcome.candidate, state.known_seconds(outcome.candidate)))
            if self._budget.is_late():
                self._measurer.skip_waiting()
        search.tell(results)
        self._pruner.learn(results)

    def _judge(self, state: KernelState) -> None:
        """Ends a search that has had its trials or does not improve any more."""
        reason = state.has_ended(self._budget.trials_each, self._options.effort.patience)
        if state.is_open and reason:
            state.end("done", reason)
            self._confirm(state)

    def _confirm(self, state: KernelState) -> None:
        """Measures the best again, beside the default, until the best of all is among them."""
        self.progress.current = state.task.hash
        left = 2 * self._options.effort.confirmed
        plan = self._measurer.plan
        self._measurer.plan = replace(
            plan, most_turns=plan.most_turns * _CONFIRM_TURNS, slow_factor=float("inf"), spread=0.01
        )
        try:
            while left > 0 and not self._interrupt.came:
                # Late or not, the best is not taken at the search's word.
                count = 1 if self._budget.is_past() else self._options.effort.confirmed
                trials = state.to_confirm(count)
                again = [found for t in trials if (found := state.again(t)) is not None]
                if not again:
                    break
                left = 0 if self._budget.is_past() else left - len(again)
                for outcome in self._measurer.measure(again):
                    self._took(state, outcome, "confirm")
        finally:
            self._measurer.plan = plan
        self._folder.settle([state.task.hash])
        self._measurer.forget(state.task)

    def _confirm_rest(self) -> None:
        for state in self._states:
            if state.is_open and state.search is not None and not self._interrupt.came:
                state.end("done", self.progress.outcome)
                with self._guarded(state):
                    self._confirm(state)

    def _is_over(self) -> bool:
        """Whether the search has to end, and notes why."""
        progress = self.progress
        if self._interrupt.came:
            return True
        if all(s.progress.state == "skipped" for s in self._states):
            progress.outcome = "no kernel could be tuned"
            return True
        if not self._budget.trials_left() and any(state.is_open for state in self._states):
            progress.outcome = "all trials are used"
            return True
        if self._budget.is_late():
            progress.outcome = "the time budget is used"
            return True
        return False

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
