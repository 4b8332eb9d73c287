"""How well a predictor ranks the candidates of kernels that it has not seen."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.stats import spearmanr

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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = float(spearmanr(predicted, measured).statistic)
    return found if math.isfinite(found) else 0.0


def has_best(predicted: np.ndarray, measured: np.ndarray, top: int) -> bool:
    """Whether the fastest is among the ``top`` that are predicted to be fastest."""
    return int(np.argmin(measured)) in np.argsort(predicted, kind="stable")[:top]
