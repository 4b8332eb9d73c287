"""The trials of a session: candidates are measured, and how each of them ended is written down."""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Literal

import tvm

from tvm_ext.tuning.candidate import Candidate, plain_json
from tvm_ext.tuning.kernel_state import KernelState, corrected
from tvm_ext.tuning.logs.record_folder import RecordFolder
from tvm_ext.tuning.logs.trial_log import Trial
from tvm_ext.tuning.measurer import Measurement, Measurer
from tvm_ext.tuning.progress import SessionProgress
from tvm_ext.tuning.runner import RunDeviceAddress
from tvm_ext.tuning.worker import Deadline


class TrialWriter:
    """Writes the trials of one session.

    Parameters
    ----------
    folder : RecordFolder
        Where to.
    model : str
        Name of the model.
    target : tvm.target.Target
        What is tuned for.
    host_cpu : str
        Name of the processor that the session runs on.
    devices : Sequence[RunDeviceAddress]
        Where candidates run, if not there.
    versions : mapping of str to str
        Of the packages that matter.
    seed : int
        Of the session.
    """

    def __init__(
        self,
        folder: RecordFolder,
        model: str,
        target: tvm.target.Target,
        host_cpu: str,
        devices: Sequence[RunDeviceAddress],
        versions: Mapping[str, str],
        seed: int,
    ) -> None:
        self._folder = folder
        self._model = model
        self._target = plain_json(dict(target.export()))
        self._host_cpu = host_cpu
        self._device = "local"
        if devices:
            self._device = f"{devices[0].host}:{devices[0].port} {devices[0].key}"
        self._versions = dict(versions)
        self._seed = seed
        self._run = secrets.token_hex(8)

    def write(
        self, state: KernelState, outcome: Measurement, purpose: Literal["search", "confirm"]
    ) -> None:
        """Writes what a candidate came to, and brings the kernel's state up to date."""
        seconds, spread = None, 0.0
        if outcome.status in ("ok", "modelled"):
            seconds, spread = corrected(outcome.timing, state.reference_seconds())
        candidate = outcome.candidate
        trial = Trial(
            run=self._run,
            kernel=state.task.hash,
            kernel_name=state.task.name,
            origins=list(state.task.origins),
            model=self._model,
            sizes=state.task.sizes,
            arguments=[call.as_lists() for call in state.task.nominal],
            candidate=candidate.hash,
            template=candidate.recorded.template,
            decisions=dict(candidate.recorded.decisions),
            trace=candidate.trace_json,
            is_default=state.is_default(candidate),
            target=self._target,
            versions=self._versions,
            host_cpu=self._host_cpu,
            device="model" if outcome.status == "modelled" else self._device,
            status=outcome.status,
            message=outcome.message,
            purpose=purpose,
            seconds=seconds,
            samples=outcome.timing.seconds,
            reference_samples=outcome.timing.reference_seconds,
            spread=spread,
            build_seconds=outcome.build_seconds,
            run_seconds=outcome.run_seconds,
            seed=self._seed,
            time=datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        )
        self._folder.add(trial, candidate.recorded.trace)
        state.refresh()


@dataclass(frozen=True)
class SessionTrials:
    """Measures candidates, and has the writer note how each of them ended.

    Attributes
    ----------
    measurer : Measurer
        Builds and runs candidates.
    writer : TrialWriter
        Writes to the log.
    progress : SessionProgress
        Counts the search's trials.
    show : callable
        Called after every trial.
    """

    measurer: Measurer
    writer: TrialWriter
    progress: SessionProgress
    show: Callable[[], object]

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
        for outcome in self.measurer.measure(candidates, deadline):
            self.writer.write(state, outcome, purpose)
            if purpose == "search":
                self.progress.trials_done += 1
            self.show()
            yield outcome.candidate
