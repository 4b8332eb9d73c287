"""Which collective turns one sharding into another, and what it takes."""

from dataclasses import dataclass

from tvm_ext.configs.sharding_record import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.relay_passes.sharding.sharding import REPLICATED, Sharding

# To start a collective and to wait for the slowest device, in seconds: shared memory of one host,
# of which a device polls a flag. An estimate.
_START_SECONDS = 20e-6


def collective(have: Sharding, need: Sharding) -> str:
    """The collective that turns what is there into what is needed; empty where none is."""
    if have.reduction and need != have:
        return REDUCE_SCATTER if need.axis is not None else ALL_REDUCE
    return ALL_GATHER if have.axis is not None and need != have else ""


@dataclass(frozen=True)
class CollectiveCost:
    """Modelled time of collectives over the memory of one host.

    Attributes
    ----------
    devices : int
        How many exchange values.
    machine : MachineDescription
        Each of them.
    """

    devices: int
    machine: MachineDescription

    def moved(self, kind: str, nbytes: float) -> float:
        """Bytes that a device sends for a tensor of ``nbytes``, as a ring of devices does."""
        share = nbytes * (self.devices - 1) / self.devices
        return 2 * share if kind == ALL_REDUCE else share

    def collective_seconds(self, kind: str, nbytes: float) -> float:
        """Time of a collective for a tensor of ``nbytes`` bytes, the whole one."""
        if not kind:
            return 0.0
        return _START_SECONDS + 2 * self.moved(kind, nbytes) / self.machine.bandwidth(nbytes)

    def seconds(self, have: Sharding, need: Sharding, nbytes: float) -> float:
        """Time until a tensor is split as needed. A device takes its own slice without others."""
        if have == need:
            return 0.0
        kind = collective(have, need)
        copied = nbytes / self.devices if need != REPLICATED else 0.0
        return self.collective_seconds(kind, nbytes) + copied / self.machine.bandwidth(nbytes)
