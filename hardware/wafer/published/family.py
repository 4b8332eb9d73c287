"""What a family of measurements is: how it is recognised, predicted and fitted."""

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.targets import resolve_target
from tvm_ext.hardware.wafer.description import WaferDescription
from tvm_ext.hardware.wafer.published.rows import PublishedRow, parse_unit

# Models that are linear in their parameters, and the least squares that fit them.


Parameters = Mapping[str, float]


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
    NotApplicable
        The observations are too few, or too alike, to tell the parameters apart.
    """
    matrix = np.array(
        [[terms.counts.get(name, 0.0) / cycles for name in names] for terms, cycles in observations]
    ).reshape(len(observations), len(names))
    wanted = np.array([1 - terms.known / cycles for terms, cycles in observations])
    # Counts differ by orders of magnitude: scaled, the rank is one of the model and not of units.
    scale = np.abs(matrix).max(axis=0, initial=0.0)
    if len(observations) < len(names) or not scale.all():
        raise NotApplicable(f"{len(observations)} rows do not tell {', '.join(names)}")
    found, _, rank, _ = np.linalg.lstsq(matrix / scale, wanted, rcond=1e-6)
    if rank < len(names):
        raise NotApplicable(f"the rows are too alike to tell {', '.join(names)} apart")
    return dict(zip(names, (float(value) for value in found / scale), strict=True))


# The machine that a row was measured on.


_GENERATIONS = {"2": "wse2", "3": "wse3"}


def machine_of(row: PublishedRow) -> WaferDescription:
    """The description of the row's architecture; of the first one where it names two.

    Raises NotApplicable for an architecture without a description.
    """
    found = re.search(r"wse[\s_-]*(\d)", row.arch, re.IGNORECASE)
    if found is None or found[1] not in _GENERATIONS:
        raise NotApplicable(
            f"the architecture '{row.arch}' has no description: WSE-2 and WSE-3 have"
        )
    return _description(_GENERATIONS[found[1]])


@cache
def _description(name: str) -> WaferDescription:
    machine = resolve_target(name)
    if not isinstance(machine, WaferDescription):
        raise TypeError(f"configs/targets/{name}.toml is no mesh")
    return machine


def grid_of(row: PublishedRow, machine: WaferDescription) -> tuple[int, int]:
    """Rows and columns of PEs. Raises NotApplicable without them or beyond the whole fabric.

    Sources differ in which side they call rows: the fabric counts either way around. A published
    run (SC22) used more columns than the vendor's tools give to a program, so its limit is not
    taken.
    """
    if row.grid_rows is None or row.grid_cols is None:
        raise NotApplicable("the row has no grid_rows and grid_cols")
    grid = row.grid_rows, row.grid_cols
    longer, shorter = max(grid), min(grid)
    fabric = machine.fabric_rows, machine.fabric_columns
    if longer > max(fabric) or shorter > min(fabric):
        raise NotApplicable(
            f"a grid of {grid[0]}x{grid[1]} PEs is larger than the fabric of {machine.name}, "
            f"{fabric[0]}x{fabric[1]}"
        )
    return grid


def check_bytes(needed: float, machine: WaferDescription) -> None:
    """Raises NotApplicable where the arrays of one PE are larger than its memory."""
    if needed > machine.sram_bytes:
        raise NotApplicable(
            f"the arrays of one PE take {needed:,.0f} bytes, and a PE of {machine.name} has "
            f"{machine.sram_bytes:,}"
        )


def element_bytes(row: PublishedRow) -> int:
    """Bytes of one element of the row's type; 4 where it names none."""
    if not row.dtype:
        return 4
    found = re.search(r"(8|16|32|64)$", row.dtype)
    if found is None:
        raise NotApplicable(f"the type '{row.dtype}' is not known: fp16 and fp32 are")
    return int(found[1]) // 8


@dataclass(frozen=True)
class Prediction:
    """What a model says of one row.

    Attributes
    ----------
    cycles : float
        Of the whole run.
    of : str
        Whose time it is: "slowest PE", "mean over PEs" or "root PE".
    steps : int
        Of the run, for units such as "s per 1000 steps".
    mean_cycles : float or None
        The mean over PEs, where ``cycles`` is of the slowest and the model gives both.
    """

    cycles: float
    of: str
    steps: int = 1
    mean_cycles: float | None = None


@dataclass(frozen=True)
class Family:
    """Measurements that one model covers.

    Attributes
    ----------
    name : str
        Of its table in calibration.toml.
    title : str
        For people.
    recognises : Callable[[PublishedRow], bool]
        Whether a row belongs to it, from the kernel's text; cheap, never raises.
    predict : Callable[[PublishedRow, Parameters], Prediction]
        Raises NotApplicable with the reason.
    fit : Callable[[Sequence[PublishedRow]], dict[str, float]]
        The parameters that fit the values of rows it predicts; raises NotApplicable.
    size : Callable[[PublishedRow], Hashable]
        What cross-validation leaves out together.
    parameters : Mapping[str, str]
        Name to unit.
    compares_slowest : bool
        Whether the prediction is to be compared with ``value_max``, where a row has it.
    variant : Callable[[PublishedRow], str]
        What to report apart within the family, such as a format.
    """

    name: str
    title: str
    recognises: Callable[[PublishedRow], bool]
    predict: Callable[[PublishedRow, Parameters], Prediction]
    fit: Callable[[Sequence[PublishedRow]], dict[str, float]]
    size: Callable[[PublishedRow], Hashable]
    parameters: Mapping[str, str]
    compares_slowest: bool = False
    variant: Callable[[PublishedRow], str] = lambda row: ""

    def published_value(self, row: PublishedRow) -> float | None:
        """What the prediction is compared with, in the row's unit; None where nothing is given."""
        if self.compares_slowest and row.value_max is not None:
            return row.value_max
        return row.value


def linear_family(
    *,
    terms: Callable[[PublishedRow], Terms],
    parameters: Mapping[str, str],
    of: str,
    steps: Callable[[PublishedRow], int] = lambda row: 1,
    observed: Callable[[PublishedRow], Iterable[tuple[Terms, float]]] | None = None,
    **rest: Any,
) -> Family:
    """A family whose cycles are ``terms`` of a row with parameters that fit all rows at once.

    ``of`` and ``steps`` are those of its predictions, and ``observed`` gives the terms and the
    cycles that one row tells, where these are not its terms and its value.
    """

    def predict(row: PublishedRow, known: Parameters) -> Prediction:
        return Prediction(terms(row).cycles(known), of, steps(row))

    def value(row: PublishedRow) -> Iterable[tuple[Terms, float]]:
        return [] if row.value is None else [(terms(row), in_cycles(row, row.value, steps(row)))]

    def fit(rows: Sequence[PublishedRow]) -> dict[str, float]:
        return fit_terms([one for row in rows for one in (observed or value)(row)], [*parameters])

    return Family(predict=predict, fit=fit, parameters=parameters, **rest)


def clock_of(row: PublishedRow) -> float:
    """MHz with which the row's times are converted; the machine's where the row states none."""
    return row.clock_mhz or machine_of(row).clock_mhz


def in_cycles(row: PublishedRow, value: float, steps: int = 1) -> float:
    """A value in the row's unit as cycles of a run of ``steps`` steps."""
    return parse_unit(row.unit).to_cycles(value, steps, clock_of(row))
