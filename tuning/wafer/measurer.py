"""Answers for candidates of a machine that nobody has on the desk: a model's, never a clock's."""

import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

from tvm_ext.configs.errors import NotApplicable, TuningError
from tvm_ext.hardware.wafer.description import WaferDescription, WaferLimitError
from tvm_ext.hardware.wafer.program_cost import WaferCost
from tvm_ext.tuning.candidate import Candidate, KernelTask
from tvm_ext.tuning.jobs import Timing, TimingPlan
from tvm_ext.tuning.measurer import Measurement, Measurer
from tvm_ext.tuning.runner import RunDeviceAddress
from tvm_ext.tuning.session_options import Limits
from tvm_ext.tuning.wafer.cost_model import wafer_cost
from tvm_ext.tuning.worker import NO_DEADLINE, Deadline

# Operations of a kernel whose numbers are compared: without a schedule, this CPU does about 1e9 a
# second.
_MOST_FLOPS = 3e8

# Once, and no longer: only the numbers are looked at.
_ONCE = TimingPlan(turn_seconds=1e-6, fewest_turns=1, most_turns=1, limit_seconds=1e-6)


class WaferMeasurer(Measurer):
    """Takes the place of ``Measurer`` for a mesh: times come from the cost function.

    The scheduled loops are those of an ordinary kernel, so that what a mapping computes is compared
    on this CPU with the kernel without a schedule: of defaults, and of candidates that are about to
    be chosen, where the kernel is small enough to be run here.

    Parameters
    ----------
    mesh : WaferDescription
        What the kernels are scheduled for.
    limits : Limits
        What comparing one candidate may take.
    seed : int
        Seed of the arrays.
    scratch : Path, optional
        Where libraries and arrays are kept meanwhile.
    """

    def __init__(
        self,
        mesh: WaferDescription,
        limits: Limits | None = None,
        seed: int = 0,
        scratch: Path | None = None,
    ) -> None:
        super().__init__(mesh, limits, _ONCE, seed, (), scratch)
        self._mesh = mesh
        self._compares = False

    def prepare(
        self, candidates: Sequence[Candidate], deadline: Deadline = NO_DEADLINE
    ) -> dict[str, str]:
        """Compares the default schedules of kernels; see ``Measurer.prepare``."""
        failed = super().prepare([c for c in candidates if self._is_small(c)], deadline)
        for one in candidates:
            if one.task.hash not in failed and super().is_prepared(one.task):
                outcome = self._compared(one, deadline)
                if outcome is not None and outcome.status == "wrong":
                    failed[one.task.hash] = f"its default mapping is wrong: {outcome.message}"
        return failed

    def is_prepared(self, task: KernelTask) -> bool:
        """Whether candidates of a task get an answer: always."""
        return True

    def measure(
        self, candidates: Sequence[Candidate], deadline: Deadline = NO_DEADLINE
    ) -> Iterator[Measurement]:
        """What the model says of each, with the status "modelled"; "build" for what does not fit.

        What a limit of the mesh forbids is no slow candidate, but none at all.
        """
        for one in candidates:
            if self._closing or deadline.is_over():
                return
            yield self._answer(one, deadline)

    @contextmanager
    def confirming(self) -> Iterator[None]:
        """Numbers of candidates in the block are compared."""
        self._compares = True
        try:
            yield
        finally:
            self._compares = False

    def _answer(self, candidate: Candidate, deadline: Deadline) -> Measurement:
        begun = time.perf_counter()
        cost = self._cost(candidate)
        if isinstance(cost, str):
            return Measurement(candidate, "build", cost)
        if self._compares and super().is_prepared(candidate.task):
            outcome = self._compared(candidate, deadline)
            if outcome is not None and outcome.status != "ok":
                return outcome
        seconds = time.perf_counter() - begun
        return Measurement(candidate, "modelled", "", Timing([cost.seconds]), run_seconds=seconds)

    def _cost(self, candidate: Candidate) -> WaferCost | str:
        """The cost, or why there is none."""
        try:
            return wafer_cost(candidate.modelled, self._mesh)
        except (NotApplicable, WaferLimitError) as error:
            return str(error)

    def _compared(self, candidate: Candidate, deadline: Deadline) -> Measurement | None:
        """How the candidate's numbers compare; None when there was no time for it."""
        return next(super().measure([candidate], deadline), None)

    def _is_small(self, candidate: Candidate) -> bool:
        cost = self._cost(candidate)
        return isinstance(cost, WaferCost) and cost.flops <= _MOST_FLOPS


# A builder and a runner for MetaSchedule that answer from the model of a mesh.
#
# With these, plain ``meta_schedule.tune_tir`` tunes for a machine that nobody has here: nothing
# is compiled and nothing is run. ``TuningSession`` uses the same cost function by way of
# ``WaferMeasurer``.


@derived_object
class ModelledBuilder(ms.builder.PyBuilder):
    """Writes down what each candidate costs instead of code.

    Parameters
    ----------
    mesh : WaferDescription
        What the kernels are scheduled for.
    """

    def __init__(self, mesh: WaferDescription) -> None:
        super().__init__()
        self.mesh = mesh

    def build(self, build_inputs: list[ms.builder.BuilderInput]) -> list[ms.builder.BuilderResult]:
        """A file with the seconds of each candidate, or the reason why it has none."""
        return [self._built(one.mod) for one in build_inputs]

    def _built(self, mod: tvm.IRModule) -> ms.builder.BuilderResult:
        try:
            cost = wafer_cost(mod, self.mesh)
        except (NotApplicable, WaferLimitError) as error:
            return ms.builder.BuilderResult(None, str(error))
        path = Path(tempfile.mkdtemp(prefix="modelled-")) / "cost.json"
        path.write_text(json.dumps({"seconds": cost.seconds}))
        return ms.builder.BuilderResult(str(path), None)


@derived_object
class ModelledRunner(ms.runner.PyRunner):
    """Reads what ``ModelledBuilder`` wrote."""

    def run(self, runner_inputs: list[ms.runner.RunnerInput]) -> list[ms.runner.RunnerFuture]:
        """One answer for each candidate, there at once."""
        return [_answer(str(one.artifact_path)) for one in runner_inputs]


def _answer(path: str) -> ms.runner.RunnerFuture:
    # MetaSchedule itself removes the folder that the builder made.
    seconds = float(json.loads(Path(path).read_text())["seconds"])
    result = ms.runner.RunnerResult([seconds], None)
    return ms.runner.RunnerFuture(lambda: True, lambda: result)


def refuse_servers(mesh: WaferDescription, servers: Sequence[RunDeviceAddress]) -> dict[str, str]:
    """Nothing is measured anywhere: raises TuningError where servers are given."""
    if servers:
        raise TuningError(
            f"target '{mesh.name}' is a mesh, whose times are modelled here; expected no "
            "servers: leave --rpc-tracker out"
        )
    return {}
