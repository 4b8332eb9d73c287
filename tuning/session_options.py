"""What a tuning session may do."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from tvm_ext.hardware.description import Description, GpuDescription
from tvm_ext.tuning.effort import Effort
from tvm_ext.tuning.limits import Limits
from tvm_ext.tuning.run_device import RunDeviceAddress


@dataclass(frozen=True)
class SessionOptions:
    """See the module's text.

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

    def flush_bytes(self, machine: Description) -> int:
        """Size of the cache that is emptied before each call that is timed; 0 for none."""
        if isinstance(machine, GpuDescription) and self.l2 == "cold":
            return machine.l2_bytes
        return 0
