"""What a family of measurements is: how it is recognised, predicted and fitted."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from tvm_ext.hardware.wafer.published.linear import Parameters
from tvm_ext.hardware.wafer.published.machines import machine_of
from tvm_ext.hardware.wafer.published.rows import PublishedRow
from tvm_ext.hardware.wafer.published.units import parse_unit


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
        Raises NotCovered with the reason.
    fit : Callable[[Sequence[PublishedRow]], dict[str, float]]
        The parameters that fit the values of rows it predicts; raises NotDetermined.
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


def clock_of(row: PublishedRow) -> float:
    """MHz with which the row's times are converted; the machine's where the row states none."""
    return row.clock_mhz or machine_of(row).clock_mhz


def in_cycles(row: PublishedRow, value: float, steps: int = 1) -> float:
    """A value in the row's unit as cycles of a run of ``steps`` steps."""
    return parse_unit(row.unit).to_cycles(value, steps, clock_of(row))
