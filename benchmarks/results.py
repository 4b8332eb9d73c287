"""What was measured, and the ratios that follow from it. Plain data, ready for JSON."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

OURS_NAME = "tvm_ext"
# The better of these two is what a user could have instead.
BEST_OF = ("onnxruntime", "openvino")


@dataclass(frozen=True)
class Measured:
    """One program on one model.

    Attributes
    ----------
    milliseconds : float
        Median of one run.
    spread : float
        Distance between the quartiles as a share of the median.
    samples : int
        Runs that counted.
    difference : float or None
        Largest difference from the reference's outputs, as a share of their largest magnitude;
        None without a reference.
    wrong : bool
        Whether that is more than rounding can explain.
    p99_milliseconds : float
        One run in a hundred took longer.
    """

    milliseconds: float
    spread: float
    samples: int
    difference: float | None = None
    wrong: bool = False
    p99_milliseconds: float = 0.0

    @classmethod
    def of(cls, seconds: Sequence[float], difference: float | None, tolerance: float) -> "Measured":
        """The record of one program's samples."""
        median = statistics.median(seconds)
        low, high, p99 = np.percentile(seconds, (25, 75, 99))
        wrong = difference is not None and not difference <= tolerance
        spread = float(high - low) / median
        return cls(1e3 * median, spread, len(seconds), difference, wrong, 1e3 * float(p99))


@dataclass(frozen=True)
class KernelFigures:
    """Our kernel against the machine, both measured in turn.

    Attributes
    ----------
    limit : "flops" or "bytes"
        Which peak it is held against.
    flops, bytes : float
        Operations and bytes of one run.
    seconds : float
        Median of the kernel's own time: a layout conversion at the model's borders, which a
        network does not have between two kernels, is left out.
    peak : float
        1e9 multiply-add operations, or 1e9 bytes copied, a second, on the same threads.
    """

    limit: Literal["flops", "bytes"]
    flops: float
    bytes: float
    seconds: float
    peak: float

    @property
    def gflops(self) -> float:
        """1e9 operations a second."""
        return self.flops / self.seconds / 1e9

    @property
    def gbs(self) -> float:
        """1e9 bytes a second."""
        return self.bytes / self.seconds / 1e9

    @property
    def share(self) -> float:
        """Share of the peak; above 1 for bytes that come from a cache."""
        return (self.gflops if self.limit == "flops" else self.gbs) / self.peak


@dataclass(frozen=True)
class RooflineRow:
    """One kernel of a model against the machine; times are of all its calls in one run."""

    kernel: str
    schedule: str
    origins: tuple[str, ...]
    calls: int
    microseconds: float
    floor_microseconds: float
    share: float
    gflops: float
    gbs: float

    @property
    def above_floor(self) -> float:
        """Microseconds that a perfect kernel would save."""
        return self.microseconds - self.floor_microseconds


@dataclass
class CaseResult:
    """One model or kernel, and every program on it.

    ``programs`` has the programs that ran; ``reasons`` says of the others why they did not.
    """

    name: str
    group: str
    programs: dict[str, Measured] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    compile_seconds: float | None = None
    kernel: KernelFigures | None = None
    roofline: list[RooflineRow] = field(default_factory=list)

    @property
    def ours(self) -> Measured | None:
        """Our own time, None where our compiler failed."""
        return self.programs.get(OURS_NAME)

    @property
    def failed(self) -> bool:
        """Whether we have no right answer."""
        return self.ours is None or self.ours.wrong

    def ratio(self, peer: str) -> float | None:
        """The peer's time by ours: above 1 we are faster. None without one of the two."""
        theirs = self.programs.get(peer)
        if self.ours is None or theirs is None:
            return None
        return theirs.milliseconds / self.ours.milliseconds

    def right_ratio(self, peer: str) -> float | None:
        """``ratio``, but None when either answer is wrong: for means."""
        if self.failed or peer not in self.programs or self.programs[peer].wrong:
            return None
        return self.ratio(peer)

    def best_ratio(self) -> float | None:
        """The ratio to the faster of ``BEST_OF``, of those that have a right answer."""
        ratios = [ratio for peer in BEST_OF if (ratio := self.right_ratio(peer)) is not None]
        return min(ratios, default=None)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ratios and rates included."""
        data = asdict(self)
        data["ratios"] = {peer: self.ratio(peer) for peer in self.programs if peer != OURS_NAME}
        data["best_ratio"] = self.best_ratio()
        if self.kernel is not None:
            data["kernel"] |= {
                "gflops": self.kernel.gflops,
                "gbs": self.kernel.gbs,
                "share": self.kernel.share,
            }
        return data


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """The geometric mean of the values that are there; None without any."""
    logarithms = [math.log(value) for value in values if value is not None]
    return math.exp(sum(logarithms) / len(logarithms)) if logarithms else None


def geometric_means(results: Sequence[CaseResult], peers: Iterable[str]) -> dict[str, Any]:
    """Mean ratio by peer, and under "best" to the faster of ``BEST_OF``; wrong answers left out."""
    means = {peer: geometric_mean(r.right_ratio(peer) for r in results) for peer in peers}
    return means | {"best": geometric_mean(result.best_ratio() for result in results)}


def relative_difference(given: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> float:
    """Largest difference of any value, as a share of its tensor's largest magnitude.

    Equal infinities, and NaN in the same places, count as equal; infinity is returned where only
    one side has them, and for outputs that differ in number or shape.
    """
    if len(given) != len(wanted):
        return math.inf
    return max((_difference(f, w) for f, w in zip(given, wanted, strict=True)), default=0.0)


def _difference(given: np.ndarray, wanted: np.ndarray) -> float:
    if given.shape != wanted.shape:
        return math.inf
    if wanted.size == 0:
        return 0.0
    if wanted.dtype != np.float32:
        given, wanted = given.astype(np.float64), wanted.astype(np.float64)
    usual = np.isfinite(given) & np.isfinite(wanted)
    if not usual.all():
        if not np.array_equal(given[~usual], wanted[~usual], equal_nan=True):
            return math.inf
        given, wanted = given[usual], wanted[usual]
        if wanted.size == 0:
            return 0.0
    error = float(np.abs(given - wanted).max())
    magnitude = float(np.abs(wanted).max())
    return error / magnitude if magnitude > 0 else error
