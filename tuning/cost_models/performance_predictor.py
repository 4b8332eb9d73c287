"""Boosted trees over loop features: seconds of a candidate, for kernels never seen before too.

What is learned is the time over that of the roofline, as a logarithm, and of it the part that the
analytic model gets wrong: without samples the prediction is that model's. On six kernels left out
in turn this ranked better than learning the whole (rank correlation 0.78 instead of 0.69).
"""

import json
import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tvm
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

from tvm_ext.configs.atomic_file import write_text
from tvm_ext.configs.errors import NotApplicable, RecordsError
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.recorded_schedule import kernel_hash
from tvm_ext.tuning.cost_models.base import seconds_of
from tvm_ext.tuning.cpu.loop_features import FEATURE_NAMES, loop_features

# How well a predictor ranks the candidates of kernels that it has not seen.


# Kernels with fewer measured candidates say nothing about a ranking.
FEWEST_CANDIDATES = 8

TOP = (1, 4, 8)


@dataclass(frozen=True)
class PredictorQuality:
    """Of predictions for kernels left out of the training, one at a time.

    Attributes
    ----------
    samples : int
        All that there are to train on.
    kernels : int
        Kernels that were left out in turn.
    rank_correlation : float
        Spearman's, of predicted and measured seconds, mean over the kernels; NaN without any.
    recall : dict[int, float]
        By a number of candidates, the share of the kernels of which the fastest is among so many
        predicted to be fastest.
    """

    samples: int
    kernels: int
    rank_correlation: float = math.nan
    recall: dict[int, float] = field(default_factory=dict)

    def __str__(self) -> str:
        if not self.kernels:
            return f"{self.samples} samples; too few kernels to judge by"
        found = ", ".join(f"{share:.0%} of {top}" for top, share in self.recall.items())
        return (
            f"{self.samples} samples; on {self.kernels} kernels left out in turn: rank correlation "
            f"{self.rank_correlation:.2f}, fastest among the first {found}"
        )


def judged(samples: int, rankings: Sequence[tuple[np.ndarray, np.ndarray]]) -> PredictorQuality:
    """The quality from one pair of predicted and measured seconds for each kernel."""
    if not rankings:
        return PredictorQuality(samples, 0)
    correlations = [rank_correlation(predicted, measured) for predicted, measured in rankings]
    recall = {}
    for top in TOP:
        found = [has_best(predicted, measured, top) for predicted, measured in rankings]
        recall[top] = float(np.mean(found))
    return PredictorQuality(samples, len(rankings), float(np.mean(correlations)), recall)


def rank_correlation(predicted: np.ndarray, measured: np.ndarray) -> float:
    """Spearman's; 0 where one of the two is the same for all."""
    # Its import takes as long as that of all else that tuning needs.
    from scipy.stats import spearmanr

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = float(spearmanr(predicted, measured).statistic)
    return found if math.isfinite(found) else 0.0


def has_best(predicted: np.ndarray, measured: np.ndarray, top: int) -> bool:
    """Whether the fastest is among the ``top`` that are predicted to be fastest."""
    return int(np.argmin(measured)) in np.argsort(predicted, kind="stable")[:top]


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
    """Boosted trees over loop features; the same samples give the same predictions."""

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
                f"{path} is not a file of the performance predictor ({_first_line(error)}); "
                "expected one that it saved: remove it"
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


# Ranks candidates by the performance predictor, which learns from all kernels alike.


@derived_object
class PredictorModel(ms.cost_model.PyCostModel):
    """The predictor as a model that MetaSchedule can ask.

    Parameters
    ----------
    machine : CpuDescription
        What the kernels are scheduled for.

    Attributes
    ----------
    predictor : PerformancePredictor
        What it asks.
    """

    def __init__(self, machine: CpuDescription) -> None:
        super().__init__()
        self.machine = machine
        self.predictor = PerformancePredictor()
        self._features: dict[str, np.ndarray] = {}

    def load(self, path: str) -> None:
        """Takes in a file of the predictor. Raises RecordsError."""
        self.predictor.load(path)
        self._features.update({one.candidate: one.features for one in self.predictor.samples})

    def save(self, path: str) -> None:
        """Writes the predictor's file. Raises OutputPathError."""
        self.predictor.save(path)

    def update(
        self,
        context: ms.TuneContext,
        candidates: list[ms.MeasureCandidate],
        results: list[ms.runner.RunnerResult],
    ) -> None:
        """Adds the candidates that have a time."""
        kernel = kernel_hash(context.mod)
        samples = []
        for one, result in zip(candidates, results, strict=True):
            seconds = seconds_of(result)
            if seconds is not None:
                name = kernel_hash(one.sch.mod)
                features = self.features_of(name, one.sch.mod)
                samples.append(Sample(features, seconds, kernel, name))
        self.predictor.add(samples)

    def predict(self, context: ms.TuneContext, candidates: list[ms.MeasureCandidate]) -> np.ndarray:
        """Calls a microsecond, predicted; 0 for what will not be built."""
        return self.score_modules([one.sch.mod for one in candidates])

    def score_modules(self, mods: Sequence[tvm.IRModule]) -> np.ndarray:
        """The same for scheduled kernels that are named "main"."""
        if not mods:
            return np.zeros(0)
        rows = [self.known_features(kernel_hash(mod), mod) for mod in mods]
        known = [position for position, row in enumerate(rows) if row is not None]
        scores = np.zeros(len(mods))
        if known:
            features = np.array([rows[position] for position in known])
            scores[known] = 1e-6 / self.predictor.predict_seconds(features)
        return scores

    def known_features(self, name: str, mod: tvm.IRModule) -> np.ndarray | None:
        """``features_of`` a candidate; None for one that the builder will have to refuse."""
        try:
            return self.features_of(name, mod)
        except NotApplicable:
            return None

    def features_of(self, name: str, mod: tvm.IRModule) -> np.ndarray:
        """Loop features of the candidate whose hash is ``name``.

        Kept: it is ranked before it is measured, often more than once, and what was loaded needs no
        second look.
        """
        if name not in self._features:
            self._features[name] = loop_features(mod, self.machine)
        return self._features[name]
