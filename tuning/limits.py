"""What one candidate may take."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """What one candidate may take.

    Attributes
    ----------
    build_seconds, run_seconds : float
        Time to generate its code, and to check and time it.
    expected_seconds : float
        Time to build and run the unscheduled kernel, once a task.
    memory_bytes : int
        Address space beyond what a worker has after its start.
    """

    build_seconds: float = 30.0
    run_seconds: float = 30.0
    expected_seconds: float = 300.0
    memory_bytes: int = 8 << 30
