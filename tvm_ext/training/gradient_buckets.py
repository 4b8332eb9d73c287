"""What all devices have in common of a step: means over them, exchanged in buckets.

Each device has the gradients of its part of the batch. Small ones lie one after the other in one
tensor, a bucket, so that the devices meet once for all of them; a large one is exchanged as it is.
S. Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020.
"""

from collections.abc import Sequence
from math import prod

import numpy as np
from tvm import relax

from tvm_ext.configs.sharding_record import CollectiveRecord, ShardingRecord
from tvm_ext.relay_passes.expressions import tensor_bytes
from tvm_ext.relay_passes.sharding.collective_cost import ALL_REDUCE, CollectiveCost
from tvm_ext.relay_passes.sharding.strategy import DATA
from tvm_ext.relay_passes.spans import describe_origin
from tvm_ext.training.gradients.registration import dtype_of, sizes

# What a bucket holds at most: above it, the time of a meeting is small beside that of the bytes.
BUCKET_BYTES = 1 << 20


class GradientBuckets:
    """Means over all devices of values that each device has its own of.

    Parameters
    ----------
    cost : CollectiveCost
        What collectives of these devices take.

    Attributes
    ----------
    collectives : list[CollectiveRecord]
        What was exchanged, in the order of a run.
    """

    def __init__(self, cost: CollectiveCost) -> None:
        self._cost = cost
        self.collectives: list[CollectiveRecord] = []

    def means(self, bb: relax.BlockBuilder, values: Sequence[relax.Var]) -> list[relax.Expr]:
        """The means of values, each in its place."""
        found: dict[int, relax.Expr] = {}
        for bucket in _buckets(values):
            own = [values[place] for place in bucket]
            found |= zip(bucket, self._means_of_bucket(bb, own), strict=True)
        return [found[place] for place in range(len(values))]

    def mean(self, bb: relax.BlockBuilder, value: relax.Var) -> relax.Expr:
        """The mean of a value that is wanted ahead of the others."""
        return bb.emit(self._mean(bb, value, [value]))

    def record(self, inputs: list[int | None], outputs: int) -> ShardingRecord:
        """How a step is split: its inputs along these axes; each device has all outputs."""
        whole: list[int | None] = [None] * outputs
        return ShardingRecord(self._cost.devices, DATA, inputs, whole, self.collectives)

    def _means_of_bucket(
        self, bb: relax.BlockBuilder, values: Sequence[relax.Var]
    ) -> list[relax.Expr]:
        if len(values) == 1:
            return [self._mean(bb, values[0], values)]
        flat = [bb.emit(relax.op.reshape(one, [prod(sizes(one))])) for one in values]
        whole = self._mean(bb, bb.emit(relax.op.concat(flat, 0)), values)
        ends = np.cumsum([prod(sizes(one)) for one in values]).tolist()
        parts = bb.emit(relax.op.split(whole, ends[:-1], 0))
        items = [bb.emit(relax.TupleGetItem(parts, place)) for place in range(len(values))]
        pairs = zip(items, values, strict=True)
        return [bb.emit(relax.op.reshape(item, sizes(one))) for item, one in pairs]

    def _mean(
        self, bb: relax.BlockBuilder, value: relax.Var, sources: Sequence[relax.Var]
    ) -> relax.Expr:
        first, *others = dict.fromkeys(describe_origin(one) for one in sources)
        where = f"{first} and {len(others)} more" if others else first
        nbytes = tensor_bytes(value.ty)
        self.collectives.append(
            CollectiveRecord(
                ALL_REDUCE,
                where,
                nbytes,
                self._cost.moved(ALL_REDUCE, nbytes),
                self._cost.collective_seconds(ALL_REDUCE, nbytes),
            )
        )
        total = bb.emit(relax.op.ccl.allreduce(value, "sum"))
        return bb.emit(
            relax.op.multiply(total, relax.const(1 / self._cost.devices, dtype_of(value)))
        )


def _buckets(values: Sequence[relax.Var]) -> list[list[int]]:
    """Places of values of one type that are exchanged together, the last ones first.

    A step has the gradients of the last layers first.
    """
    closed: list[list[int]] = []
    opened: dict[str, tuple[list[int], int]] = {}
    for place in reversed(range(len(values))):
        dtype, nbytes = dtype_of(values[place]), int(tensor_bytes(values[place].ty))
        if nbytes >= BUCKET_BYTES:
            closed.append([place])
            continue
        places, filled = opened.get(dtype, ([], 0))
        if filled + nbytes > BUCKET_BYTES:
            closed.append(places)
            places, filled = [], 0
        opened[dtype] = [*places, place], filled + nbytes
    return closed + [places for places, _ in opened.values()]
