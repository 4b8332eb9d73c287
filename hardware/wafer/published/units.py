"""Units of published times, and the way between them and cycles."""

import re
from dataclasses import dataclass

from tvm_ext.hardware.wafer.published.errors import NotCovered

_SECONDS = {"s": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_UNIT = re.compile(
    r"(?P<time>cycles?|s|seconds|ms|[uµ]s|ns)"
    r"(?:\s*(?:per|/)\s*(?P<count>[1-9][\d,]*)?\s*(?:time\s+)?(?:steps?|iterations?))?",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Unit:
    """A unit of time: cycles or seconds, of a whole run or of a number of its steps.

    Attributes
    ----------
    seconds : float or None
        How many seconds one is; None for cycles.
    steps : int or None
        How many steps of a run it is about; None for the whole run.
    """

    seconds: float | None
    steps: int | None

    def from_cycles(self, cycles: float, steps: int, clock_mhz: float) -> float:
        """A run of ``steps`` steps that takes ``cycles`` cycles, in this unit."""
        return cycles * self._per_cycle(steps, clock_mhz)

    def to_cycles(self, value: float, steps: int, clock_mhz: float) -> float:
        """The other way: cycles of a run of ``steps`` steps."""
        return value / self._per_cycle(steps, clock_mhz)

    def _per_cycle(self, steps: int, clock_mhz: float) -> float:
        share = 1.0 if self.steps is None else self.steps / steps
        return share if self.seconds is None else share / (clock_mhz * 1e6 * self.seconds)


def parse_unit(text: str) -> Unit:
    """The unit of "cycles", "s per 1000 steps" or "ms". Raises NotCovered for what is no time."""
    found = _UNIT.fullmatch(text.strip())
    if found is None:
        raise NotCovered(f"the unit '{text}' is no time of a run or of its steps")
    name = found["time"].lower()
    seconds = None if name.startswith("cycle") else _SECONDS[name]
    whole_run = found["time"] == found[0]
    return Unit(seconds, None if whole_run else int((found["count"] or "1").replace(",", "")))
