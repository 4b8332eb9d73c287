"""Compares what two folders of records say about the same kernels on the same targets."""

from dataclasses import dataclass
from typing import Any

from tvm_ext.tuning.logs.record_folder import Records
from tvm_ext.tuning.logs.summary import KernelSummary, summaries

# Smaller differences count as equal, however small the spread of the two times is.
LEAST_NOISE = 0.03

EQUAL = "equal"
VERDICTS = ("slower", "faster", EQUAL, "only before", "only after", "not measured")


@dataclass(frozen=True)
class Difference:
    """One kernel on one target, before and after.

    Attributes
    ----------
    before, after : KernelSummary or None
        None where the folder does not know the kernel on the target.
    verdict : str
        One of ``VERDICTS``; "not measured" when one of the two has no time, or one has a measured
        time and the other a model's.
    noise : float
        Relative difference up to which the two times count as equal.
    """

    before: KernelSummary | None
    after: KernelSummary | None
    verdict: str
    noise: float = 0.0

    @property
    def summary(self) -> KernelSummary:
        """The newer one that there is."""
        found = self.after or self.before
        if found is None:
            raise ValueError("a difference between nothing and nothing")
        return found

    @property
    def is_modelled(self) -> bool:
        """Whether its times are those of a model: nothing was measured before or after."""
        return all(one.is_modelled for one in (self.before, self.after) if one is not None)

    @property
    def before_seconds(self) -> float | None:
        """Best time before."""
        return self._seconds(self.before)

    @property
    def after_seconds(self) -> float | None:
        """Best time after."""
        return self._seconds(self.after)

    def _seconds(self, summary: KernelSummary | None) -> float | None:
        if summary is None:
            return None
        return (summary.modelled if self.is_modelled else summary.measured).best_seconds

    @property
    def change(self) -> float | None:
        """Relative change of the time; below zero for a gain."""
        if self.before_seconds is None or self.after_seconds is None:
            return None
        return self.after_seconds / self.before_seconds - 1


def diff_records(before: Records, after: Records) -> list[Difference]:
    """One difference for each kernel and target of either folder, in the order of the first."""
    old = {summary.key: summary for summary in summaries(before)}
    new = {summary.key: summary for summary in summaries(after)}
    return [_difference(old.get(key), new.get(key)) for key in dict.fromkeys([*old, *new])]


def difference_json(difference: Difference) -> dict[str, Any]:
    """A difference as values of JSON."""
    summary = difference.summary
    return {
        "kernel": summary.kernel,
        "name": summary.name,
        "target": summary.to_json()["target"],
        "verdict": difference.verdict,
        "before_seconds": difference.before_seconds,
        "after_seconds": difference.after_seconds,
        "is_modelled": difference.is_modelled,
        "change": difference.change,
        "noise": difference.noise,
    }


def _difference(before: KernelSummary | None, after: KernelSummary | None) -> Difference:
    if after is None:
        return Difference(before, None, "only before")
    if before is None:
        return Difference(None, after, "only after")
    noise = max(LEAST_NOISE, before.times.spread, after.times.spread)
    found = Difference(before, after, "not measured", noise)
    if found.change is None:
        return found
    if abs(found.change) <= noise:
        return Difference(before, after, EQUAL, noise)
    return Difference(before, after, "slower" if found.change > 0 else "faster", noise)
