"""All families, and predictions for rows of any of them."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from pydantic import Field

from tvm_ext.configs.errors import ConfigError, NotApplicable, nearest_hint
from tvm_ext.configs.loader import ConfigModel, config_folder, load_toml
from tvm_ext.hardware.wafer.published.family import Family, Parameters, Prediction, clock_of
from tvm_ext.hardware.wafer.published.matmuls import GEMM_TILE, SPARSE
from tvm_ext.hardware.wafer.published.reduce import REDUCE
from tvm_ext.hardware.wafer.published.rows import PublishedRow, parse_unit
from tvm_ext.hardware.wafer.published.stencils import (
    STAR_STENCIL,
    STENCIL_5_POINT,
    STENCIL_25_POINT,
)

# The fitted parameters, as configs/wafer/calibration.toml has them.


FILE = "calibration.toml"


class FittedParameter(ConfigModel):
    """One parameter of a family."""

    value: float
    unit: str = Field(min_length=1)
    fitted_on: str = Field(min_length=1)
    """Which published rows it comes from."""


class Calibration(ConfigModel):
    """All fitted parameters, by family and name."""

    reduce: dict[str, FittedParameter]
    gemm_tile: dict[str, FittedParameter]
    stencil_25_point: dict[str, FittedParameter]
    stencil_5_point: dict[str, FittedParameter]
    star_stencil: dict[str, FittedParameter]
    sparse: dict[str, FittedParameter]

    def values(self, family: Family) -> dict[str, float]:
        """The family's parameters. Raises ConfigError where the file has others than those."""
        found: dict[str, FittedParameter] = getattr(self, family.name)
        place = f"[{family.name}] of {FILE}"
        unknown = [name for name in found if name not in family.parameters]
        if unknown:
            hint = nearest_hint(unknown[0], list(family.parameters))
            raise ConfigError(f"unknown key '{unknown[0]}' in {place}; {hint}")
        missing = [name for name in family.parameters if name not in found]
        if missing:
            raise ConfigError(f"missing key '{missing[0]}' in {place}; add it")
        return {name: found[name].value for name in family.parameters}


@cache
def calibration() -> Calibration:
    """The calibration of this package. Raises ConfigError if its file does not fit."""
    return load_toml(config_folder("wafer") / FILE, Calibration)


# Measurements that no model here covers, by the kernel's text, and why.


_REASONS: tuple[tuple[str, str, str], ...] = (
    (
        "whole language model",
        r"prefill|decode|\bllm\b|llama|qwen|token",
        "a figure of a whole model, with pipeline bubbles and operators other than matrix "
        "products: good for the order of grids, not for cycles of a kernel",
    ),
    (
        "multigrid",
        r"multigrid|v-cycle",
        "a composite of many levels that forwards in software on the coarse ones; times of its "
        "parts are not published",
    ),
    (
        "host copy",
        r"host-to-device|device-to-host|\bcop(y|ies)\b|h2d|d2h",
        "a copy from or to the host, of which one size over one channel was published",
    ),
    (
        "SUMMA",
        r"summa",
        "one size was published: a parameter fitted to it predicts nothing else, and those of the "
        "local GEMM tile give 14 % less",
    ),
    (
        "mesh GEMM",
        r"mesh[\s-]*gem[mv]|cannon",
        "latencies by grid were published as figures only, with no numbers to compare",
    ),
    (
        "single vector instruction",
        r"vector instruction",
        "the operation and the placement of its arrays in the memory banks are not recorded, and "
        "they decide between 0.5, 1 and 2 cycles an element",
    ),
    (
        "box stencil",
        r"\bbox",
        "no box stencil was among the published rows",
    ),
)


def left_out(row: PublishedRow) -> tuple[str, str] | None:
    """The name of what a row is, and why no model covers it; None for a row that one may cover."""
    kernel = row.kernel.lower()
    for name, text, reason in _REASONS:
        if re.search(text, kernel):
            return name, reason
    return None


FAMILIES: tuple[Family, ...] = (
    SPARSE,
    GEMM_TILE,
    STENCIL_25_POINT,
    STENCIL_5_POINT,
    STAR_STENCIL,
    REDUCE,
)


@dataclass(frozen=True)
class RowPrediction:
    """What the models say of one row.

    Attributes
    ----------
    row : PublishedRow
    family : str
        Name of the family, or of what the row is where no model covers it; "" where that is not
        known.
    predicted : float or None
        In the row's unit; None where no model covers it.
    of : str
        Whose time it is, such as "slowest PE".
    predicted_mean : float or None
        The mean over PEs in the row's unit, where the prediction is of the slowest and the model
        has both.
    published : float or None
        What the prediction is to be compared with, in the row's unit.
    reason : str
        Why no model covers it.
    """

    row: PublishedRow
    family: str
    predicted: float | None = None
    of: str = ""
    predicted_mean: float | None = None
    published: float | None = None
    reason: str = ""

    @property
    def covered(self) -> bool:
        """Whether a model covers the row."""
        return self.predicted is not None

    @property
    def error(self) -> float | None:
        """Prediction by published value, less 1."""
        if self.predicted is None or self.published is None:
            return None
        return self.predicted / self.published - 1


def family_of(row: PublishedRow) -> Family | None:
    """The family that a row belongs to, whether its model covers the row or not."""
    if left_out(row) is not None:
        return None
    return next((family for family in FAMILIES if family.recognises(row)), None)


def predict_rows(
    rows: Iterable[PublishedRow], parameters: Mapping[str, Parameters] | None = None
) -> list[RowPrediction]:
    """A prediction, or the reason for none, for each row.

    Parameters
    ----------
    rows : Iterable[PublishedRow]
    parameters : Mapping[str, Parameters], optional
        By family, in place of those of calibration.toml.

    Raises
    ------
    ConfigError
        calibration.toml does not fit.
    """
    return [_predict(row, parameters or {}) for row in rows]


def _predict(row: PublishedRow, parameters: Mapping[str, Parameters]) -> RowPrediction:
    known = left_out(row)
    if known is not None:
        return RowPrediction(row, known[0], reason=known[1])
    family = family_of(row)
    if family is None:
        return RowPrediction(row, "", reason="the kernel belongs to no family that has a model")
    values = parameters.get(family.name) or calibration().values(family)
    try:
        return _converted(row, family, family.predict(row, values))
    except NotApplicable as error:
        return RowPrediction(row, family.name, reason=str(error))


def _converted(row: PublishedRow, family: Family, prediction: Prediction) -> RowPrediction:
    unit, clock = parse_unit(row.unit), clock_of(row)
    mean = prediction.mean_cycles
    return RowPrediction(
        row,
        family.name,
        unit.from_cycles(prediction.cycles, prediction.steps, clock),
        prediction.of,
        None if mean is None else unit.from_cycles(mean, prediction.steps, clock),
        family.published_value(row),
    )


# How well the models predict what they were not fitted on: one size left out at a time.


def covered_rows(rows: Sequence[PublishedRow], family: Family) -> list[PublishedRow]:
    """The rows of a family that its model covers and that have a value."""
    own = [row for row in rows if family_of(row) is family]
    return [one.row for one in predict_rows(own) if one.error is not None]


def fitted(rows: Sequence[PublishedRow], family: Family) -> dict[str, float]:
    """The parameters that fit the family's rows. Raises NotApplicable where they are too few."""
    return family.fit(covered_rows(rows, family))


def leave_one_size_out(rows: Sequence[PublishedRow], family: Family) -> list[RowPrediction]:
    """Predictions for a family's rows, each from a fit without the rows of the same size.

    Rows without which a parameter is not determined are left out of the answer.
    """
    own = covered_rows(rows, family)
    found = []
    for size in dict.fromkeys(family.size(row) for row in own):
        others = [row for row in own if family.size(row) != size]
        try:
            parameters = family.fit(others)
        except NotApplicable:
            continue
        asked = [row for row in own if family.size(row) == size]
        found += predict_rows(asked, {family.name: parameters})
    return found
