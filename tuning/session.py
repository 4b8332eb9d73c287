"""A tuning session: the kernels of a model, until nothing improves or time is up."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tvm_ext.hardware.description import Description
from tvm_ext.hardware.host import host_cpu_name
from tvm_ext.hardware.mesh_description import MeshDescription
from tvm_ext.tuning.allocation import next_kernel
from tvm_ext.tuning.budget import Budget
from tvm_ext.tuning.candidate import Finish
from tvm_ext.tuning.candidate_measurer import CandidateMeasurer
from tvm_ext.tuning.confirmation import Confirmation
from tvm_ext.tuning.cost_models.choose import choose_model
from tvm_ext.tuning.interrupt import Interrupt
from tvm_ext.tuning.kernel_guard import KernelGuard
from tvm_ext.tuning.kernel_opening import KernelOpening
from tvm_ext.tuning.kernel_state import KernelState
from tvm_ext.tuning.measurer import Measurer
from tvm_ext.tuning.mesh_measurer import MeshMeasurer
from tvm_ext.tuning.progress import ProgressListener, SessionProgress, Silent
from tvm_ext.tuning.pruning import new_pruner
from tvm_ext.tuning.record_folder import RecordFolder
from tvm_ext.tuning.run_job import TimingPlan
from tvm_ext.tuning.search.kernel_search import KernelSearch
from tvm_ext.tuning.session_options import SessionOptions
from tvm_ext.tuning.session_trials import SessionTrials
from tvm_ext.tuning.task import KernelTask
from tvm_ext.tuning.trial_writer import TrialWriter

# Kernels that are prepared at a time, before the defaults of all of them are measured.
_OPENED_TOGETHER = 4


class TuningSession:
    """Tunes the kernels of one model for one machine.

    Parameters
    ----------
    model : str
        Its name.
    tasks : Sequence[KernelTask]
        Its kernels, each once.
    machine : Description
        What they are scheduled for. For a mesh, all times are modelled.
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
        machine: Description,
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
        self._measures = not isinstance(machine, MeshDescription)
        self._states: list[KernelState] = []
        self.progress = SessionProgress(
            model, machine.name, str(folder), is_modelled=not self._measures
        )
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
        with ExitStack() as stack:
            self._enter(stack)
            try:
                self._begin()
                self._search()
                self._confirm_rest()
            except KeyboardInterrupt:
                self._interrupt.came = True
            if self._interrupt.came:
                self.progress.outcome = "interrupted; the same command goes on from here"
            self._folder.settle()
            self._model.remember()
            self._pruner.save()
            self.progress.predictor = self._pruner.quality()
        self._end()
        return self.progress

    def _enter(self, stack: ExitStack) -> None:
        """Opens the folder, and makes all that the session works with."""
        options, progress = self._options, self.progress
        self._folder = stack.enter_context(RecordFolder(self._path, self._target, self._tasks))
        self._measurer = self._new_measurer()
        stack.callback(self._measurer.close)
        note = progress.notes.append
        progress.notes += [str(problem) for problem in self._folder.problems]
        self._model = choose_model(self._model_name, self._machine, self._path, note)
        self._pruner = new_pruner(self._machine, self._path, note)
        self._interrupt = stack.enter_context(Interrupt(self._measurer.interrupt))
        for task in self._tasks:
            trials = self._folder.trials.setdefault(task.hash, [])
            self._states.append(
                KernelState(task, self._modelled.get(task.hash, 0.0), trials, self._measures)
            )
        self._budget = Budget(options, progress, self._states)
        self._guard = KernelGuard(progress, self._interrupt)
        self._trials = SessionTrials(self._measurer, self._new_writer(), progress, self._show)
        self._confirmation = Confirmation(
            options.effort.confirmed, self._trials, self._measurer, self._budget, self._interrupt
        )
        self._opening = KernelOpening(
            self._new_search,
            self._trials,
            self._measurer,
            self._pruner,
            self._budget,
            self._guard,
            progress,
            self._interrupt,
        )

    def _new_measurer(self) -> CandidateMeasurer:
        options = self._options
        if isinstance(self._machine, MeshDescription):
            return MeshMeasurer(self._machine, options.limits, options.seed, self._folder.scratch)
        effort, limits = self._options.effort, self._options.limits
        plan = TimingPlan(
            turn_seconds=effort.turn_seconds,
            most_turns=effort.most_turns,
            limit_seconds=limits.run_seconds / 4,
            flush_bytes=options.flush_bytes(self._machine),
        )
        seed, devices = self._options.seed, self._options.devices
        return Measurer(self._machine, limits, plan, seed, devices, self._folder.scratch)

    def _new_writer(self) -> TrialWriter:
        options = self._options
        return TrialWriter(
            self._folder,
            self.progress.model,
            self._target,
            host_cpu_name(),
            options.devices,
            options.versions,
            options.seed,
        )

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

    def _begin(self) -> None:
        """Orders the kernels and measures the default schedules of those that may be searched."""
        self._order()
        for state in self._states:
            reason = state.has_ended(self._budget.trials_each, self._options.effort.patience)
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
            for state in self._opening.open(some):
                with self._guard.guarded(state):
                    self._judge(state)
            self._budget.plan()
            self._show()
        self._order()

    def _search(self) -> None:
        while not self._is_over():
            state = next_kernel(self._states)
            if state is None or state.search is None:
                # Those that are open have not begun: there was no time to make them ready.
                is_late = any(one.is_open for one in self._states)
                ended = "every kernel's search has ended"
                self.progress.outcome = "the time budget is used" if is_late else ended
                return
            state.progress.state = "tuning"
            self.progress.current = state.task.hash
            self._show()
            with self._guard.guarded(state):
                self._step(state, state.search)
                self._judge(state)
            self._budget.plan()

    def _step(self, state: KernelState, search: KernelSearch) -> None:
        """One batch of candidates."""
        proposed = search.propose()
        if not proposed:
            state.end("done", "all schedules were tried")
            self._conclude(state)
            return
        known = [one for one in proposed if state.knows(one)]
        unknown = [one for one in proposed if not state.knows(one)]
        new = self._pruner.kept(unknown, state.progress.best_seconds)
        state.progress.pruned += len(unknown) - len(new)
        new = new[: self._budget.trials_left()]
        results = [(one, state.known_seconds(one)) for one in known]
        for one in self._trials.run(state, new, "search", self._budget.search_deadline()):
            results.append((one, state.known_seconds(one)))
            if self._budget.is_late():
                self._measurer.skip_waiting()
        search.tell(results)
        self._pruner.learn(results)

    def _judge(self, state: KernelState) -> None:
        """Ends a search that has had its trials or does not improve any more."""
        reason = state.has_ended(self._budget.trials_each, self._options.effort.patience)
        if state.is_open and reason:
            state.end("done", reason)
            self._conclude(state)

    def _conclude(self, state: KernelState) -> None:
        """Confirms the best of a kernel whose search has ended, and keeps what was found."""
        self.progress.current = state.task.hash
        self._confirmation.run(state)
        self._folder.settle([state.task.hash])
        self._measurer.forget(state.task)
        # A session that is killed later will not remake the candidates of this kernel.
        self._pruner.save()

    def _confirm_rest(self) -> None:
        for state in self._states:
            if state.is_open and state.search is not None and not self._interrupt.came:
                state.end("done", self.progress.outcome)
                with self._guard.guarded(state):
                    self._conclude(state)

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
