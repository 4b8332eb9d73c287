"""What the candidates of a task are compared with: right results, and a kernel to take turns with.

The right results are those of the plainest form of the kernel (``plain_kernel``), on random arrays.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tvm_ext.hardware.description import Description
from tvm_ext.tuning.build_job import build, build_job
from tvm_ext.tuning.candidate import Candidate
from tvm_ext.tuning.deadline import Deadline
from tvm_ext.tuning.gpu_build import gpu_check
from tvm_ext.tuning.kernel_data import kernel_arguments, random_arrays
from tvm_ext.tuning.limits import Limits
from tvm_ext.tuning.lines import last_line
from tvm_ext.tuning.plain_kernel import plain_kernel
from tvm_ext.tuning.run_device import RunDeviceAddress
from tvm_ext.tuning.run_job import ExpectedJob, compute_expected, save_arrays
from tvm_ext.tuning.runner_pool import QUEUE_SECONDS, RunnerPool
from tvm_ext.tuning.task import KernelTask
from tvm_ext.tuning.worker import WorkerFailure, WorkRaised
from tvm_ext.tuning.worker_pool import WorkerPool


@dataclass(frozen=True)
class Reference:
    """Files of one task.

    Attributes
    ----------
    data : str
        Arrays, with the results that are expected.
    candidate : Candidate
        The kernel that others take turns with.
    library : str
        Its code.
    """

    data: str
    candidate: Candidate
    library: str


class References:
    """Makes the references of tasks, and keeps them until they are forgotten.

    Parameters
    ----------
    machine : Description
        What candidates are for.
    target : dict
        Attributes of its TVM target.
    limits : Limits
        What the work may take.
    seed : int
        Seed of the arrays.
    builders : WorkerPool
        Where code is generated.
    runners : RunnerPool
        Where kernels run.
    new_file : callable
        Path of a file that does not exist yet, with the ending that is given.
    """

    def __init__(
        self,
        machine: Description,
        target: dict[str, Any],
        limits: Limits,
        seed: int,
        builders: WorkerPool,
        runners: RunnerPool,
        new_file: Callable[[str], Path],
    ) -> None:
        self._machine = machine
        self._target = target
        self._limits = limits
        self._seed = seed
        self._builders = builders
        self._runners = runners
        self._new_file = new_file
        self._made: dict[str, Reference] = {}

    def __contains__(self, task: KernelTask) -> bool:
        return task.hash in self._made

    def __getitem__(self, task: KernelTask) -> Reference:
        return self._made[task.hash]

    def make(self, candidate: Candidate, deadline: Deadline) -> str:
        """Makes ``candidate`` the reference of its task, or says why the task cannot be tuned.

        Raises
        ------
        OutOfTime
            The deadline came first.
        """
        task, limits = candidate.task, self._limits
        arguments = kernel_arguments(task.workload["main"])
        if not arguments.results:
            return "it writes no tensor that could be compared"
        data, plain, library = (str(self._new_file(end)) for end in ("npz", "so", "so"))
        inputs = []
        for one in (arguments, arguments.positive()):
            inputs.append(str(self._new_file("npz")))
            save_arrays(inputs[-1], random_arrays(one, self._seed), arguments.results)
        what = "without a schedule"
        try:
            source = plain_kernel(task, self._machine)
            job = build_job(source.mod, source.target, plain)
            with deadline.limited(limits.expected_seconds) as seconds:
                self._builders.call(build, job, timeout=seconds)
            with deadline.limited(limits.expected_seconds) as seconds:
                expected = ExpectedJob(plain, tuple(inputs), data, RunDeviceAddress())
                self._compute(expected, seconds, source.is_here)
            what = "with its default schedule"
            # The default may spill: others are compared with it.
            check = gpu_check(self._machine, may_spill=True)
            job = build_job(candidate.mod, self._target, library, check)
            with deadline.limited(limits.build_seconds) as seconds:
                self._builders.call(build, job, timeout=seconds)
        except WorkerFailure as error:
            return f"the kernel {what} is of no use: {last_line(error)}"
        finally:
            for path in (plain, *inputs):
                Path(path).unlink(missing_ok=True)
        self._made[task.hash] = Reference(data, candidate, library)
        return ""

    def forget(self, task: KernelTask) -> None:
        """Removes the files of a task."""
        made = self._made.pop(task.hash, None)
        if made is not None:
            for path in (made.data, made.library):
                Path(path).unlink(missing_ok=True)

    def _compute(self, job: ExpectedJob, seconds: float, is_here: bool) -> None:
        """Runs a plain kernel: where candidates run, if it is code for that machine or device."""
        on_device = self._runners.is_remote or self._runners.kind != "cpu"
        if is_here or not on_device:
            self._builders.call(compute_expected, job, timeout=seconds)
            return
        with self._runners.lent() as runner:
            there = replace(job, device=replace(runner.address, session_seconds=seconds))
            try:
                runner.worker.call(compute_expected, there, timeout=seconds + QUEUE_SECONDS)
            except WorkRaised:
                # After an error of a GPU its process can do nothing more with it.
                runner.worker.stop()
                raise
