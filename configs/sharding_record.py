"""How a program is split over devices: what each takes and gives, and what they exchange."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER = "all-reduce", "all-gather", "reduce-scatter"

# What programs call to begin an all-reduce, and to wait for it.
START_FUNCTION = "tvm_ext.distributed.all_reduce_start"
DONE_FUNCTION = "tvm_ext.distributed.all_reduce_done"

# TVM's numbers of reductions (``runtime.disco.ReduceKind``), by name.
REDUCE_KINDS = {"sum": 0, "prod": 1, "min": 2, "max": 3}


@dataclass(frozen=True)
class CollectiveRecord:
    """One exchange of values between the devices.

    Attributes
    ----------
    kind : str
        "all-reduce", "all-gather" or "reduce-scatter".
    where : str
        The nodes whose result is exchanged.
    nbytes : float
        Bytes of the whole tensor, at usual sizes where a run decides them.
    moved_bytes : float
        Bytes that each device sends at least, as in a ring of devices.
    seconds : float
        Modelled time.
    is_exact : bool
        Whether the bytes are those of every run.
    kernels_beside : int
        How many kernels run until the result is needed, while it goes on.
    """

    kind: str
    where: str
    nbytes: float
    moved_bytes: float
    seconds: float
    is_exact: bool = True
    kernels_beside: int = 0


@dataclass(frozen=True)
class ShardingRecord:
    """How a program is split over devices.

    Attributes
    ----------
    devices : int
        How many programs there are.
    strategy : str
        "data", "tensor", "patterns", or "none" where every device computes all.
    inputs, outputs : list of int or None
        By position: the axis along which a device takes or gives a slice; None for all of it.
    collectives : list of CollectiveRecord
        In the order of a run.
    split_operators, operators : int
        How many operators are computed in slices, and how many there are.
    alike : bool
        Whether all devices have the same program, and differ by their inputs alone.
    open_batch : str
        The name of the size that each run splits, where it is not known before; empty elsewhere.
    problem : str
        Why the program cannot be split as asked; empty where it can.
    """

    devices: int
    strategy: str
    inputs: list[int | None]
    outputs: list[int | None]
    collectives: list[CollectiveRecord] = field(default_factory=list)
    split_operators: int = 0
    operators: int = 0
    alike: bool = True
    open_batch: str = ""
    problem: str = ""

    @property
    def moved_bytes(self) -> float:
        """Bytes that each device sends in a run."""
        return sum(one.moved_bytes for one in self.collectives)

    @property
    def seconds(self) -> float:
        """Modelled time of all collectives."""
        return sum(one.seconds for one in self.collectives)

    def beside_kernels(self, counts: Iterable[int]) -> "ShardingRecord":
        """The same with so many kernels that run beside each all-reduce, in their order."""
        left = iter(counts)
        own = [
            replace(one, kernels_beside=next(left, 0)) if one.kind == ALL_REDUCE else one
            for one in self.collectives
        ]
        return replace(self, collectives=own)
