"""A tuning session: the kernels of a model, until nothing improves or time is up."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tvm_ext.hardware.cpu.system import host_cpu_name
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.tuning.backend import tuning_of
from tvm_ext.tuning.candidate import Candidate, Finish, KernelTask, refusal
from tvm_ext.tuning.cost_models.choose import choose_model
from tvm_ext.tuning.jobs import TimingPlan
from tvm_ext.tuning.kernel_state import KernelState
from tvm_ext.tuning.logs.record_folder import RecordFolder
from tvm_ext.tuning.measurer import Measurer
from tvm_ext.tuning.progress import ProgressListener, SessionProgress, Silent
from tvm_ext.tuning.pruning import NoPruner, Pruner, new_pruner
from tvm_ext.tuning.search import KernelSearch
from tvm_ext.tuning.session_options import SessionOptions
from tvm_ext.tuning.session_trials import SessionTrials, TrialWriter
from tvm_ext.tuning.stopping import Budget, Interrupt, KernelGuard
from tvm_ext.tuning.worker import NO_DEADLINE


@dataclass(frozen=True)
class KernelOpening:
    """Makes kernels ready for their search: what it goes on from, and the default's time.

    Attributes
    ----------
    new_search : callable
        The search for a kernel.
    trials : SessionTrials
        Measures the defaults and writes that down.
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

    new_search: Callable[[KernelState], KernelSearch]
    trials: SessionTrials
    pruner: Pruner | NoPruner
    budget: Budget
    guard: KernelGuard
    progress: SessionProgress
    interrupt: Interrupt

    def open(self, states: Sequence[KernelState]) -> Iterator[KernelState]:
        """Yields each kernel whose search has begun; skips those that cannot be tuned.

        Kernels that the budget leaves no time for stay as they were.
        """
        begun = [one for state in states if (one := self._proposed(state)) is not None]
        defaults = [default for _, _, default in begun]
        failed = self.trials.measurer.prepare(defaults, self.budget.search_deadline())
        for state, search, default in begun:
            if self.interrupt.came:
                return
            reason = failed.get(state.task.hash, "")
            if not reason and not self.trials.measurer.is_prepared(state.task):
                continue
            with self.guard.guarded(state):
                self._start(state, search, default, reason)
            if state.search is not None and not self.interrupt.came:
                yield state

    def _proposed(self, state: KernelState) -> tuple[KernelState, KernelSearch, Candidate] | None:
        """The kernel with its search and its default schedule, if it can be tuned."""
        with self.guard.guarded(state):
            reason = refusal(state.task)
            search = None if reason else self.new_search(state)
            if search is not None and search.default is not None:
                return state, search, search.default
            state.end("skipped", reason or "its loops are written by hand")
        return None

    def _start(
        self, state: KernelState, search: KernelSearch, default: Candidate, reason: str
    ) -> None:
        """Has a search learn from earlier trials, and measures the default if it is new."""
        self.pruner.learn(state.begin(search))
        if not reason and not state.knows(default):
            deadline = self.budget.search_deadline()
            for _ in self.trials.run(state, [default], "search", deadline):
                known = [(default, state.known_seconds(default))]
                search.tell(known)
                self.pruner.learn(known)
        if self.interrupt.came:
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
            self.progress.notes.append(f"{state.task.name}: {reason}")


@dataclass(frozen=True)
class Confirmation:
    """Measures the best candidates of a kernel again, longer, beside its default schedule.

    Attributes
    ----------
    count : int
        Candidates that are measured at a time; twice as many at most for one kernel.
    trials : SessionTrials
        Measures them and writes that down.
    budget : Budget
        Once its time is over, only the best one is measured.
    interrupt : Interrupt
        Ends it.
    """

    count: int
    trials: SessionTrials
    budget: Budget
    interrupt: Interrupt

    def run(self, state: KernelState) -> None:
        """Measures until the best of all is among those that were measured again."""
        left = 2 * self.count
        with self.trials.measurer.confirming():
            while left > 0 and not self.interrupt.came:
                is_past = self.budget.is_past()
                trials = state.to_confirm(1 if is_past else self.count)
                again = [found for t in trials if (found := state.again(t)) is not None]
                if not again:
                    break
                # Late or not, the best is not taken at the search's word.
                deadline = NO_DEADLINE if is_past else self.budget.deadline()
                done = list(self.trials.run(state, again, "confirm", deadline))
                left = 0 if is_past else left - len(done)


# Which kernel gets the next trials.


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
    machine : MachineDescription
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
        machine: MachineDescription,
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
        self._measures = not tuning_of(machine).is_modelled
        self._states: list[KernelState] = []
        # Those whose default was not measured yet.
        self._waiting: list[KernelState] = []
        self.progress = SessionProgress(
            model, machine.name, str(folder), is_modelled=not self._measures
        )
        self.progress.sizes = next((task.sizes for task in tasks if task.nominal), [])
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
                self.progress.was_interrupted = True
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
            options.effort.confirmed, self._trials, self._budget, self._interrupt
        )
        self._opening = KernelOpening(
            self._new_search,
            self._trials,
            self._pruner,
            self._budget,
            self._guard,
            progress,
            self._interrupt,
        )

    def _new_measurer(self) -> Measurer:
        options = self._options
        if not self._measures:
            model: Measurer = tuning_of(self._machine).new_model_measurer(
                self._machine, options.limits, options.seed, self._folder.scratch
            )
            return model
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
        self._waiting = [state for state in self._states if state.is_open]
        self._open_waiting()

    def _open_waiting(self) -> None:
        """Measures defaults, of expensive kernels first; stops when searches need the time."""
        while self._waiting and not self._budget.is_late() and not self._interrupt.came:
            if self._budget.is_half_used() and next_kernel(self._states) is not None:
                break
            some = self._waiting[:_OPENED_TOGETHER]
            del self._waiting[:_OPENED_TOGETHER]
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
            if state is None and self._waiting and not self._budget.is_late():
                self._open_waiting()
                continue
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
        self._show()
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
