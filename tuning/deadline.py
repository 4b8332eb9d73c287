"""When the time for building is over, and what a piece of work may take until then."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tvm_ext.tuning.worker import WorkerFailure

# What has begun in time may take this much longer.
_ALLOWANCE_SECONDS = 1.0


class OutOfTime(Exception):
    """The time was over before the work was done, which says nothing about the work."""


@dataclass(frozen=True)
class Deadline:
    """See the module's text.

    Attributes
    ----------
    at : float
        A time of ``time.monotonic()``, in seconds; infinite without a deadline.
    """

    at: float = float("inf")

    def is_over(self) -> bool:
        """Whether nothing is left."""
        return time.monotonic() >= self.at

    @contextmanager
    def limited(self, seconds: float) -> Iterator[float]:
        """The time limit for a worker's call in the block, which may take ``seconds`` at most.

        It is shorter where less than that is left.

        Raises
        ------
        OutOfTime
            Nothing is left, or the call failed with a shorter limit when nothing was left.
        WorkerFailure
            The call failed otherwise.
        """
        left = self.at - time.monotonic()
        if left <= 0:
            raise OutOfTime
        limit = min(seconds, left + _ALLOWANCE_SECONDS)
        try:
            yield limit
        except WorkerFailure as error:
            # Not by its type: a server that ends a kernel in time makes another error of it.
            if limit < seconds and time.monotonic() >= self.at:
                raise OutOfTime from error
            raise


NO_DEADLINE = Deadline()
