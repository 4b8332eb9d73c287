"""What a tuning session may do."""

from collections.abc import Sequence
from dataclasses import dataclass, field

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
    """

    effort: Effort
    trials: int | None = None
    time_budget: float | None = None
    seed: int = 0
    limits: Limits = field(default_factory=Limits)
    devices: Sequence[RunDeviceAddress] = ()
    versions: dict[str, str] = field(default_factory=dict)
