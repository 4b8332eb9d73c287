"""The fitted parameters, as configs/wafer/calibration.toml has them."""

from functools import cache

from pydantic import Field

from tvm_ext.configs.errors import ConfigError
from tvm_ext.configs.loader import ConfigModel, config_folder, load_toml
from tvm_ext.configs.nearest import nearest_hint
from tvm_ext.hardware.wafer.published.family import Family

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
