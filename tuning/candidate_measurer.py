"""What a session asks how fast candidates are: a clock, or a model."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from tvm_ext.tuning.candidate import Candidate
from tvm_ext.tuning.deadline import NO_DEADLINE, Deadline
from tvm_ext.tuning.measurement import Measurement
from tvm_ext.tuning.task import KernelTask


class CandidateMeasurer(Protocol):
    """See ``Measurer``, which runs candidates, and ``MeshMeasurer``, which asks a cost function."""

    def close(self) -> None:
        """Ends all processes and removes all files."""
        ...

    def prepare(
        self, candidates: Sequence[Candidate], deadline: Deadline = NO_DEADLINE
    ) -> dict[str, str]:
        """Makes ready the tasks of default schedules; by kernel hash, why one cannot be tuned."""
        ...

    def is_prepared(self, task: KernelTask) -> bool:
        """Whether candidates of a task can be measured."""
        ...

    def forget(self, task: KernelTask) -> None:
        """A task is done."""
        ...

    def measure(
        self, candidates: Sequence[Candidate], deadline: Deadline = NO_DEADLINE
    ) -> Iterator[Measurement]:
        """How each candidate ended that was tried before the deadline."""
        ...

    def confirming(self) -> AbstractContextManager[None]:
        """Candidates in the block are about to be chosen: they are looked at more closely."""
        ...

    def skip_waiting(self) -> None:
        """Has ``measure`` end with the candidates that run now."""
        ...

    def interrupt(self) -> None:
        """Ends all processes; safe in signal handlers."""
        ...
