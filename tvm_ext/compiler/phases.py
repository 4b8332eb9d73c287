"""Wall time of the phases of a compilation, and the phase's name for what TVM raises in it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import tvm

from tvm_ext.errors import BuildError, TvmExtError, reason_of
from tvm_ext.report.records import PhaseRecord


class Phases:
    """Wall time of the phases, in order; an error of TVM's gets the name of its phase."""

    def __init__(self) -> None:
        self.records: list[PhaseRecord] = []

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Times the block, which may be one of several of its phase, one after the other.

        Raises BuildError for an error of TVM's in it.
        """
        begun = time.perf_counter()
        try:
            yield
        except TvmExtError:
            raise
        except (tvm.error.InternalError, RuntimeError, ValueError, TypeError) as error:
            raise BuildError(
                f"phase '{name}' failed in TVM ({reason_of(error)}); expected a model that TVM can "
                "lower: try --opt-level 0 and find the step with --dump-ir"
            ) from error
        seconds = time.perf_counter() - begun
        if self.records and self.records[-1].name == name:
            seconds += self.records.pop().seconds
        self.records.append(PhaseRecord(name, seconds))
