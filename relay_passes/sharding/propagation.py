"""Decides how every value of a program is split, in one walk from the inputs to the outputs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import relax
from tvm.ir import GenericConst

from tvm_ext.relay_passes.expressions import operator_name, tensor_bytes
from tvm_ext.relay_passes.sharding.collective_cost import CollectiveCost
from tvm_ext.relay_passes.sharding.operator_rules import (
    Operation,
    is_tensor,
    placements,
)
from tvm_ext.relay_passes.sharding.sharding import (
    REPLICATED,
    Placement,
    Sharding,
    shape_of,
)

# How a weight's operator is computed where its other operand is whole: by position of the weight's
# axis. None: on every device.
WeightAxis = Callable[[relax.Var, Operation], "int | None"]


@dataclass
class ShardingPlan:
    """How each value of a function is split.

    Attributes
    ----------
    devices : int
        How many there are.
    values : dict
        By hash of a variable: how it is split where it is made. Of a tuple, its fields.
    placements : dict
        By hash of a variable: how the operator that it is bound to is computed.
    seconds : float
        Modelled time of all collectives.
    """

    devices: int
    values: dict[int, tuple[Sharding, ...]] = field(default_factory=dict)
    placements: dict[int, Placement] = field(default_factory=dict)
    operations: dict[int, Operation] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def tuples(self) -> set[int]:
        """By hash, the tuples that split operators give."""
        return {key for key, shardings in self.values.items() if len(shardings) > 1}

    @property
    def split_operators(self) -> int:
        """How many operators are computed in slices."""
        return sum(map(is_divided, self.placements.values()))

    def results_of(self, func: relax.Function) -> tuple[Sharding, ...]:
        """How the results of a function are split."""
        return self.values.get(hash(func.body.body), (REPLICATED,) * _fields(func.ret_ty))

    def of(self, expr: relax.Expr) -> Sharding:
        """How a tensor is split; a constant can be anything, and is whole here."""
        return self.values.get(hash(expr), (REPLICATED,))[0]


def _fields(ty: tvm.ir.Type) -> int:
    return len(ty.fields) if isinstance(ty, relax.TupleType) else 1


def is_divided(placement: Placement) -> bool:
    """Whether devices compute different things."""
    return any(one != REPLICATED for one in (*placement.operands, *placement.results))


class ShardingPropagation:
    """Follows the splits of the inputs, and of the weights of products, through a function.

    An operator all of whose operands are whole is computed on every device, unless ``weight_axis``
    splits its weights. Otherwise the placement is taken that exchanges the fewest bytes.

    Parameters
    ----------
    devices : int
        How many there are.
    cost : CollectiveCost
        What exchanging values takes.
    inputs : mapping of int to Sharding
        By position of a parameter of the function: how it is split.
    weight_axis : callable
        For an operator with weights and a whole operand: the axis of the weights to split.
    """

    def __init__(
        self,
        devices: int,
        cost: CollectiveCost,
        inputs: Mapping[int, Sharding],
        weight_axis: WeightAxis,
    ) -> None:
        self._devices, self._cost = devices, cost
        self._inputs, self._weight_axis = inputs, weight_axis
        self._plan = ShardingPlan(devices)
        # What was exchanged already: by hash of the value, and what it became.
        self._exchanged: set[tuple[int, Sharding]] = set()

    def plan(self, func: relax.Function) -> ShardingPlan:
        """How the values of ``func`` are split, whose body is one list of bindings."""
        for place, param in enumerate(func.params):
            self._plan.values[hash(param)] = (self._inputs.get(place, REPLICATED),)
        for block in func.body.blocks[:]:
            for binding in block.bindings[:]:
                self._visit(binding)
        return self._plan

    def _visit(self, binding: relax.Binding) -> None:
        var, value = binding.var, getattr(binding, "value", None)
        plan = self._plan
        if isinstance(value, relax.Var):
            plan.values[hash(var)] = plan.values.get(hash(value), (REPLICATED,))
        elif isinstance(value, relax.Tuple):
            shardings = [_whole_or_slice(plan.of(one)) for one in value.fields[:]]
            for one, sharding in zip(value.fields[:], shardings, strict=True):
                plan.seconds += self._exchange(one, sharding)
            plan.values[hash(var)] = tuple(shardings)
        elif isinstance(value, relax.TupleGetItem):
            fields = plan.values.get(hash(value.tuple_value), ())
            place = int(value.index)
            plan.values[hash(var)] = (fields[place] if place < len(fields) else REPLICATED,)
        elif operator_name(value) and not isinstance(binding, relax.MatchCast):
            self._visit_call(var, Operation.of(value, self._devices))
        else:
            self._gather_all(value)

    def _visit_call(self, var: relax.Var, operation: Operation) -> None:
        have = [self._plan.of(operand) for operand in operation.operands]
        placement = self._seeded(var, operation, have) or self._cheapest(operation, have)
        if placement is None:
            self._plan.operations[hash(var)] = operation
            self._gather_all(operation.call)
            return
        for operand, needed in zip(operation.operands, placement.operands, strict=True):
            self._plan.seconds += self._exchange(operand, needed)
        is_inner = isinstance(var, relax.DataflowVar)
        results = placement.results if is_inner else tuple(map(_whole_or_slice, placement.results))
        self._plan.values[hash(var)] = results
        self._plan.placements[hash(var)] = placement
        self._plan.operations[hash(var)] = operation

    def _seeded(
        self, var: relax.Var, operation: Operation, have: Sequence[Sharding]
    ) -> Placement | None:
        """The placement that splits the weights; None where an operand is split already."""
        weight = operation.weight
        if weight is None or any(one != REPLICATED for one in have):
            return None
        axis = self._weight_axis(var, operation)
        if axis is None:
            return None
        wanted = Sharding(axis)
        fitting = [one for one in placements(operation) if one.operands[weight] == wanted]
        return fitting[0] if fitting else None

    def _cheapest(self, operation: Operation, have: Sequence[Sharding]) -> Placement | None:
        """What exchanges least of what an operand is split like already."""
        if all(one == REPLICATED for one in have):
            return None
        fitting = [one for one in placements(operation) if _follows(one, have)]
        seconds = [self._seconds(operation, one) for one in fitting]
        if not fitting:
            return None
        return fitting[seconds.index(min(seconds))]

    def _seconds(self, operation: Operation, placement: Placement) -> float:
        return sum(
            self._cost.seconds(self._plan.of(operand), needed, tensor_bytes(operand.ty))
            for operand, needed in zip(operation.operands, placement.operands, strict=True)
            if not isinstance(operand, GenericConst)
        )

    def _exchange(self, operand: relax.Expr, needed: Sharding) -> float:
        """Seconds until a value is there as it is needed; nothing where it is already."""
        have = self._plan.of(operand)
        if isinstance(operand, GenericConst) or have == needed:
            return 0.0
        if (hash(operand), needed) in self._exchanged or shape_of(operand) is None:
            return 0.0
        self._exchanged.add((hash(operand), needed))
        return self._cost.seconds(have, needed, tensor_bytes(operand.ty))

    def _gather_all(self, value: Any) -> None:
        """What is not known takes whole values, those that it takes from outside among them."""
        for var in _used(value):
            for one in [var] if is_tensor(var) else []:
                self._plan.seconds += self._exchange(one, REPLICATED)


def _whole_or_slice(sharding: Sharding) -> Sharding:
    """What a part of a reduction becomes where it leaves a block."""
    return REPLICATED if sharding.reduction else sharding


def _used(value: Any) -> list[relax.Var]:
    if value is None or not isinstance(value, relax.Expr):
        return []
    return list(relax.analysis.free_vars(value))


def _follows(placement: Placement, have: Sequence[Sharding]) -> bool:
    """Whether an operand is split in the way that it is there, and others can be made so.

    What is no part of a reduction does not become one.
    """
    pairs = list(zip(placement.operands, have, strict=True))
    is_possible = all(needed == one for needed, one in pairs if needed.reduction)
    return is_possible and any(needed == one != REPLICATED for needed, one in pairs)
