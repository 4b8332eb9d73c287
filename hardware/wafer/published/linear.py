"""Models that are linear in their parameters, and the least squares that fit them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

Parameters = Mapping[str, float]


class NotDetermined(Exception):
    """The observations do not determine the parameters."""


@dataclass(frozen=True)
class Terms:
    """Cycles as a known part and a sum over parameters.

    Attributes
    ----------
    counts : Mapping[str, float]
        How often each parameter counts.
    known : float
        Cycles without a fitted parameter.
    """

    counts: Mapping[str, float] = field(default_factory=dict)
    known: float = 0.0

    def cycles(self, parameters: Parameters) -> float:
        """The sum."""
        return self.known + sum(
            count * parameters[name] for name, count in self.counts.items() if count
        )


def fit_terms(
    observations: Sequence[tuple[Terms, float]], names: Sequence[str]
) -> dict[str, float]:
    """The parameters of the least sum of squared relative errors.

    Parameters
    ----------
    observations : Sequence[tuple[Terms, float]]
        The terms and the cycles that were measured.
    names : Sequence[str]
        Of the parameters.

    Raises
    ------
    NotDetermined
        The observations are too few, or too alike, to tell the parameters apart.
    """
    matrix = np.array(
        [[terms.counts.get(name, 0.0) / cycles for name in names] for terms, cycles in observations]
    ).reshape(len(observations), len(names))
    wanted = np.array([1 - terms.known / cycles for terms, cycles in observations])
    # Counts differ by orders of magnitude: scaled, the rank is one of the model and not of units.
    scale = np.abs(matrix).max(axis=0, initial=0.0)
    if len(observations) < len(names) or not scale.all():
        raise NotDetermined(f"{len(observations)} rows do not tell {', '.join(names)}")
    found, _, rank, _ = np.linalg.lstsq(matrix / scale, wanted, rcond=1e-6)
    if rank < len(names):
        raise NotDetermined(f"the rows are too alike to tell {', '.join(names)} apart")
    return dict(zip(names, (float(value) for value in found / scale), strict=True))
