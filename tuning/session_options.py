"""What a tuning session may do."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from tvm_ext.configs.errors import TuningError, nearest_hint
from tvm_ext.configs.loader import ConfigModel, config_folder, load_toml
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.tuning.backend import tuning_of
from tvm_ext.tuning.runner import RunDeviceAddress

# Presets of how hard a session tries, from ``configs/efforts``.


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


@dataclass(frozen=True)
class Limits:
    """What one candidate may take.

    Attributes
    ----------
    build_seconds, run_seconds : float
        Time to generate its code, and to check and time it.
    expected_seconds : float
        Time to build and run the unscheduled kernel, once a task.
    memory_bytes : int
        Address space beyond what a worker has after its start.
    """

    build_seconds: float = 30.0
    run_seconds: float = 30.0
    expected_seconds: float = 300.0
    memory_bytes: int = 8 << 30


@dataclass(frozen=True)
class SessionOptions:
    """What a session is asked to do, and on which machines.

    Attributes
    ----------
    effort : Effort
        How hard it tries.
    trials : int or None
        Trials of all kernels together, those of earlier sessions on the folder included; None for
        the effort's number for each kernel.
    time_budget : float or None
        Seconds that it may take; None for no limit.
    seed : int
        Of all random draws.
    limits : Limits
        What one candidate may take.
    devices : Sequence[RunDeviceAddress]
        RPC servers to run on; empty for this machine.
    versions : mapping
        Of the packages that matter, for the log.
    l2 : str
        Of a GPU: "cold" empties its cache before each call that is timed, "warm" leaves in it what
        the call before has left.
    """

    effort: Effort
    trials: int | None = None
    time_budget: float | None = None
    seed: int = 0
    limits: Limits = field(default_factory=Limits)
    devices: Sequence[RunDeviceAddress] = ()
    versions: dict[str, str] = field(default_factory=dict)
    l2: Literal["cold", "warm"] = "cold"

    def flush_bytes(self, machine: MachineDescription) -> int:
        """Size of the cache that is emptied before each call that is timed; 0 for none."""
        return tuning_of(machine).cache_bytes(machine) if self.l2 == "cold" else 0
