"""Presets of how hard a session tries, from ``configs/efforts``."""

from typing import Annotated

from pydantic import Field

from tvm_ext.configs.loader import ConfigModel, config_folder, load_toml
from tvm_ext.configs.nearest import nearest_hint
from tvm_ext.tuning.errors import TuningError

Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, le=10)]


class Effort(ConfigModel):
    """How hard a session tries; the files say what each number means."""

    summary: str
    trials_per_kernel: Count
    patience: Count
    batch: Count
    confirmed: Count
    turn_seconds: Seconds
    most_turns: Annotated[int, Field(ge=4, le=1000)]
    cost_model: str


def effort_names() -> list[str]:
    """The presets, least effort first."""
    names = [f.name.removesuffix(".toml") for f in config_folder("efforts").iterdir()]
    found = {name: load_effort(name) for name in names if not name.startswith("_")}
    return sorted(found, key=lambda name: found[name].trials_per_kernel)


def load_effort(name: str) -> Effort:
    """The preset called ``name``. Raises TuningError if there is none."""
    source = config_folder("efforts") / f"{name}.toml"
    if not name.isidentifier() or not source.is_file():
        raise TuningError(f"unknown effort '{name}'; {nearest_hint(name, effort_names())}")
    return load_toml(source, Effort)
