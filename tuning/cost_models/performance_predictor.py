"""Boosted trees over loop features: seconds of a candidate, for kernels never seen before too.

What is learned is the time over that of the roofline, as a logarithm, and of it the part that the
analytic model gets wrong: without samples the prediction is that model's. On six kernels left out
in turn this ranked better than learning the whole (rank correlation 0.78 instead of 0.69).
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tvm_ext.configs.atomic_file import write_text
from tvm_ext.tuning.cost_models.predictor_quality import (
    FEWEST_CANDIDATES,
    PredictorQuality,
    judged,
)
from tvm_ext.tuning.errors import RecordsError
from tvm_ext.tuning.loop_features import FEATURE_NAMES

FEWEST_SAMPLES = 64
"""Below this many nothing is dismissed."""

POOR_CORRELATION = 0.3
"""Below this rank correlation neither."""

SLOWER = 1.5
"""Candidates predicted to take this many times the best known time are dismissed."""

MOST_DISMISSED = 0.75
"""Of a batch."""

# Kernels that are left out in turn, those with the most samples: each costs a training.
_JUDGED_KERNELS = 12

# Samples more, as a share of those before, that make a training, and a judgement, worth repeating.
_GROWN = 0.05
_OUTGROWN = 0.25

# Cautious, as most samples are of few kernels.
_ROUNDS = 150
_SETTINGS: dict[str, Any] = {
    "max_depth": 4,
    "eta": 0.05,
    "min_child_weight": 5.0,
    "subsample": 0.8,
    "colsample_bytree": 0.6,
    "lambda": 10.0,
    "seed": 17,
    "nthread": 1,
    "verbosity": 0,
}

_MODELLED = FEATURE_NAMES.index("modelled")
_ROOFLINE = FEATURE_NAMES.index("roofline_seconds")


@dataclass(frozen=True, eq=False)
class Sample:
    """A candidate that was measured.

    Attributes
    ----------
    features : np.ndarray
        ``loop_features`` of its loops.
    seconds : float
        Of one call.
    kernel : str
        Hash of the kernel's workload.
    candidate : str
        Hash of the scheduled loops.
    """

    features: np.ndarray
    seconds: float
    kernel: str
    candidate: str


class PerformancePredictor:
    """See the module's text. The same samples give the same predictions."""

    def __init__(self) -> None:
        # Found missing here, not in the middle of a search.
        import xgboost  # noqa: F401

        self._samples: dict[tuple[str, str], Sample] = {}
        self._trees: Any = None
        self._trained_on = 0
        self._quality: PredictorQuality | None = None

    @property
    def samples(self) -> list[Sample]:
        """What it knows, each candidate once."""
        return list(self._samples.values())

    def add(self, samples: Iterable[Sample]) -> None:
        """Takes samples in; it is trained with them when that is worth it."""
        for sample in samples:
            if np.isfinite(sample.seconds) and sample.seconds > 0:
                self._samples[sample.kernel, sample.candidate] = sample

    def fit(self, samples: Iterable[Sample] = ()) -> None:
        """Trains with all samples, those given included."""
        self.add(samples)
        self._trees = _trained(self.samples)
        self._trained_on = len(self._samples)

    def predict_seconds(self, features: np.ndarray) -> np.ndarray:
        """Seconds of one call for each row of features."""
        if len(self._samples) > self._trained_on * (1 + _GROWN):
            self.fit()
        return _predicted(self._trees, np.atleast_2d(features))

    def quality(self) -> PredictorQuality:
        """How well it ranks kernels that it has not seen: each left out of the training in turn.

        Judged anew when the samples have grown by a quarter.
        """
        known = self._quality
        if known is None or len(self._samples) > known.samples * (1 + _OUTGROWN):
            self._quality = known = self._judge()
        return known

    def keep(self, features: np.ndarray, best_seconds: float) -> np.ndarray:
        """Which candidates are worth building, one truth value for each row of features.

        Dismisses those that it predicts to take more than 1.5 times ``best_seconds``, the best
        known time, three of four at most; none while it has few samples or ranks poorly.
        """
        count = len(features)
        if not count or not self._may_dismiss():
            return np.ones(count, dtype=bool)
        predicted = self.predict_seconds(features)
        kept = predicted <= SLOWER * best_seconds
        fewest = -(-count * (1 - MOST_DISMISSED) // 1)
        kept[np.argsort(predicted, kind="stable")[: int(fewest)]] = True
        return kept

    def save(self, path: str | Path) -> None:
        """Writes its samples as JSON. Raises OutputPathError."""
        stored = _File(
            features=list(FEATURE_NAMES),
            samples=[
                _StoredSample(
                    kernel=one.kernel,
                    candidate=one.candidate,
                    seconds=one.seconds,
                    features=[float(value) for value in one.features],
                )
                for one in self.samples
            ],
        )
        write_text(path, json.dumps(stored.model_dump(), separators=(",", ":")))

    def load(self, path: str | Path) -> None:
        """Takes in the samples of a file that ``save`` wrote, and trains.

        Raises
        ------
        RecordsError
            The file cannot be read, or was written with other features.
        """
        try:
            stored = _File.model_validate_json(Path(path).read_bytes())
        except (OSError, ValidationError) as error:
            raise RecordsError(
                f"{path} is no file of the performance predictor ({_first_line(error)}); expected "
                "one that it saved: remove it"
            ) from error
        if stored.features != list(FEATURE_NAMES):
            raise RecordsError(
                f"{path} holds features of another version of tvm-ext; expected those of this one: "
                "remove it"
            )
        self.fit(
            Sample(np.array(one.features), one.seconds, one.kernel, one.candidate)
            for one in stored.samples
            if len(one.features) == len(FEATURE_NAMES)
        )

    def _may_dismiss(self) -> bool:
        if len(self._samples) < FEWEST_SAMPLES:
            return False
        return self.quality().rank_correlation >= POOR_CORRELATION

    def _judge(self) -> PredictorQuality:
        by_kernel: dict[str, list[Sample]] = {}
        for sample in self.samples:
            by_kernel.setdefault(sample.kernel, []).append(sample)
        judges = [own for own in by_kernel.values() if len(own) >= FEWEST_CANDIDATES]
        judges.sort(key=lambda own: (-len(own), own[0].kernel))
        rankings = []
        for own in judges[:_JUDGED_KERNELS] if len(by_kernel) > 1 else []:
            others = [one for one in self.samples if one.kernel != own[0].kernel]
            predicted = _predicted(_trained(others), np.array([one.features for one in own]))
            rankings.append((predicted, np.array([one.seconds for one in own])))
        return judged(len(self._samples), rankings)


_Number = Annotated[float, Field(allow_inf_nan=False)]


class _StoredSample(BaseModel):
    model_config = ConfigDict(extra="ignore")

    kernel: str
    candidate: str
    seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    features: list[_Number]


class _File(BaseModel):
    model_config = ConfigDict(extra="ignore")

    features: list[str]
    samples: list[_StoredSample]


def _trained(samples: Sequence[Sample]) -> Any:
    """Trees for what the analytic model gets wrong; None without samples."""
    import xgboost as xgb

    if not samples:
        return None
    # The order in which they came must not matter.
    samples = sorted(samples, key=lambda sample: (sample.kernel, sample.candidate))
    features = np.array([sample.features for sample in samples])
    wrong = np.log2([sample.seconds for sample in samples]) - _modelled(features)
    counts: dict[str, int] = {}
    for sample in samples:
        counts[sample.kernel] = counts.get(sample.kernel, 0) + 1
    # A kernel with many candidates does not speak for all others.
    weights = np.array([counts[sample.kernel] ** -0.5 for sample in samples])
    data = xgb.DMatrix(features, label=wrong, weight=weights / weights.mean())
    base = float(np.average(wrong, weights=weights))
    return xgb.train({**_SETTINGS, "base_score": base}, data, num_boost_round=_ROUNDS)


def _predicted(trees: Any, features: np.ndarray) -> np.ndarray:
    import xgboost as xgb

    seconds = _modelled(features)
    if trees is not None and len(features):
        seconds = seconds + trees.predict(xgb.DMatrix(features)).astype(np.float64)
    return np.exp2(seconds)


def _modelled(features: np.ndarray) -> np.ndarray:
    """The analytic model's seconds, as a logarithm."""
    return features[:, _MODELLED] + features[:, _ROOFLINE]


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
