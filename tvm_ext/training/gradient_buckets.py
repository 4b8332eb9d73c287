"""What all devices have in common of a step: means over them, exchanged in buckets.

Each device has the gradients of its part of the batch. Small ones lie one after the other in one
tensor, a bucket, so that the devices meet once for all of them; a large one is exchanged as it is.
The exchange stands where the last gradient of a bucket is bound, and what is made of it behind all
gradients: ``AsyncAllReduce`` lets the kernels between run meanwhile.
S. Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020.
"""

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
from tvm import relax

from tvm_ext.configs.sharding_record import ALL_REDUCE, CollectiveRecord, ShardingRecord
from tvm_ext.relay_passes.expressions import tensor_bytes
from tvm_ext.relay_passes.sharding.collective_cost import CollectiveCost
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

    def means(
        self,
        bb: relax.BlockBuilder,
        bindings: Sequence[relax.Binding],
        results: Sequence[relax.Expr],
        gradients: Sequence[relax.Expr],
        sums: Mapping[int, relax.Expr] | None = None,
    ) -> list[relax.Expr]:
        """Emits the bindings; the means of the results and of the gradients, each in its place.

        ``sums`` has, by place, what each device adds to its own value ahead of the exchange.

        A bucket is exchanged behind the binding of its last gradient, ahead of those that follow.
        What no kernel of the step waits for is in the last one.
        """
        bound, ready = _ready(bb, bindings, [*results, *gradients])
        ready[: len(results)] = [len(bindings)] * len(results)
        due: dict[int, list[list[int]]] = {}
        for bucket in _buckets(bound, ready):
            due.setdefault(max(ready[place] for place in bucket), []).append(bucket)
        totals: list[tuple[list[int], relax.Var]] = []
        for number, binding in enumerate([None, *bindings]):
            if binding is not None:
                bb.emit_normalized(binding)
            for bucket in due.get(number, ()):
                for place in bucket:
                    if sums and place in sums:
                        bound[place] = bb.emit(relax.op.add(bound[place], sums[place]))
                totals.append((bucket, self._total(bb, [bound[place] for place in bucket])))
        found: dict[int, relax.Expr] = {}
        for bucket, total in totals:
            own = [bound[place] for place in bucket]
            found |= zip(bucket, self._parts(bb, total, own), strict=True)
        return [found[place] for place in range(len(bound))]

    def mean(self, bb: relax.BlockBuilder, value: relax.Var) -> relax.Expr:
        """The mean of a value that is wanted ahead of the others."""
        return self._scaled(bb, self._sum(bb, value, [value]))

    def record(self, inputs: list[int | None], outputs: int) -> ShardingRecord:
        """How a step is split: its inputs along these axes; each device has all outputs."""
        whole: list[int | None] = [None] * outputs
        return ShardingRecord(self._cost.devices, DATA, inputs, whole, list(self.collectives))

    def _total(self, bb: relax.BlockBuilder, values: Sequence[relax.Var]) -> relax.Var:
        """The sum over all devices of a bucket, as one tensor."""
        if len(values) == 1:
            return self._sum(bb, values[0], values)
        flat = [bb.emit(relax.op.reshape(one, [prod(sizes(one))])) for one in values]
        return self._sum(bb, bb.emit(relax.op.concat(flat, 0)), values)

    def _parts(
        self, bb: relax.BlockBuilder, total: relax.Var, values: Sequence[relax.Var]
    ) -> list[relax.Expr]:
        """The means of the values of a bucket."""
        whole = self._scaled(bb, total)
        if len(values) == 1:
            return [whole]
        ends = np.cumsum([prod(sizes(one)) for one in values]).tolist()
        parts = bb.emit(relax.op.split(whole, ends[:-1], 0))
        items = [bb.emit(relax.TupleGetItem(parts, place)) for place in range(len(values))]
        pairs = zip(items, values, strict=True)
        return [bb.emit(relax.op.reshape(item, sizes(one))) for item, one in pairs]

    def _scaled(self, bb: relax.BlockBuilder, total: relax.Var) -> relax.Var:
        return bb.emit(
            relax.op.multiply(total, relax.const(1 / self._cost.devices, dtype_of(total)))
        )

    def _sum(
        self, bb: relax.BlockBuilder, value: relax.Var, sources: Sequence[relax.Var]
    ) -> relax.Var:
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
        return bb.emit(relax.op.ccl.allreduce(value, "sum"))


def _ready(
    bb: relax.BlockBuilder, bindings: Sequence[relax.Binding], values: Sequence[relax.Expr]
) -> tuple[list[relax.Var], list[int]]:
    """The variables of values, and behind how many of the bindings each has its value."""
    places = {binding.var: number for number, binding in enumerate(bindings, 1)}
    bound: list[relax.Var] = []
    for value in values:
        # At the end of a function of gradients each gets another name.
        while value in places and isinstance(bindings[places[value] - 1].value, relax.Var):
            value = bindings[places[value] - 1].value
        bound.append(value if isinstance(value, relax.Var) else bb.emit(value))
    return bound, [places.get(one, 0) for one in bound]


def _buckets(values: Sequence[relax.Var], ready: Sequence[int]) -> list[list[int]]:
    """Places of values of one type that are exchanged together, the ones first that are ready."""
    closed: list[list[int]] = []
    opened: dict[str, tuple[list[int], int]] = {}
    for place in sorted(range(len(values)), key=lambda one: (ready[one], -one)):
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
