"""All families, and predictions for rows of any of them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tvm_ext.hardware.wafer.published.calibration import calibration
from tvm_ext.hardware.wafer.published.errors import NotCovered
from tvm_ext.hardware.wafer.published.family import Family, Prediction, clock_of
from tvm_ext.hardware.wafer.published.gemm_tile import GEMM_TILE
from tvm_ext.hardware.wafer.published.left_out import left_out
from tvm_ext.hardware.wafer.published.linear import Parameters
from tvm_ext.hardware.wafer.published.reduce import REDUCE
from tvm_ext.hardware.wafer.published.rows import PublishedRow
from tvm_ext.hardware.wafer.published.sparse import SPARSE
from tvm_ext.hardware.wafer.published.star_stencil import STAR_STENCIL
from tvm_ext.hardware.wafer.published.stencil_5_point import STENCIL_5_POINT
from tvm_ext.hardware.wafer.published.stencil_25_point import STENCIL_25_POINT
from tvm_ext.hardware.wafer.published.units import parse_unit

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
    except NotCovered as error:
        return RowPrediction(row, family.name, reason=str(error))


def _converted(row: PublishedRow, family: Family, found: Prediction) -> RowPrediction:
    unit, clock = parse_unit(row.unit), clock_of(row)
    mean = found.mean_cycles
    return RowPrediction(
        row,
        family.name,
        unit.from_cycles(found.cycles, found.steps, clock),
        found.of,
        None if mean is None else unit.from_cycles(mean, found.steps, clock),
        family.published_value(row),
    )
