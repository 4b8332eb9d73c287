"""Decides how every value of a program is split, in one walk from the inputs to the outputs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import relax
from tvm.ir import GenericConst

from tvm_ext.relay_passes.expressions import operator_name, read_only, tensor_bytes
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
    are_equal,
    shape_of,
    slices_of,
)

# The axis along which the weights of an operator are to be split, given whether all that it reads
# is whole; None for none.
WeightAxis = Callable[[relax.Var, Operation, bool], "int | None"]


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
    # By hash of a variable and how it is split, whether all slices are equal.
    _equal: dict[tuple[int, Sharding], bool] = field(default_factory=dict)

    @property
    def split_operators(self) -> int:
        """How many operators are computed in slices."""
        return sum(map(is_divided, self.placements.values()))

    def results_of(self, func: relax.Function) -> tuple[Sharding, ...]:
        """How the results of a function are split."""
        result = func.body.body
        if isinstance(result, relax.Tuple):
            return tuple(map(self.of, result.fields[:]))
        return self.values.get(hash(result), (REPLICATED,) * _fields(func.ret_ty))

    def of(self, expr: relax.Expr) -> Sharding:
        """How a tensor is split; a constant can be anything, and is whole here."""
        return self.values.get(hash(expr), (REPLICATED,))[0]

    def has_equal_slices(self, expr: relax.Expr, sharding: Sharding) -> bool:
        """Whether each device would hold the same of a whole value, such as zeros for each row."""
        if isinstance(expr, GenericConst):
            return are_equal(slices_of(read_only(expr.value), sharding, self.devices))
        operation = self.operations.get(hash(expr))
        if operation is None:
            return False
        key = hash(expr), sharding
        if key not in self._equal:
            self._equal[key] = any(
                self._are_equal(operation, placement)
                for placement in placements(operation)
                if placement.results == (sharding,)
            )
        return self._equal[key]

    def _are_equal(self, operation: Operation, placement: Placement) -> bool:
        pairs = zip(operation.operands, placement.operands, strict=True)
        return all(
            needed == REPLICATED
            or (needed.axis is not None and self.has_equal_slices(operand, needed))
            for operand, needed in pairs
        )


def _fields(ty: tvm.ir.Type) -> int:
    return len(ty.fields) if isinstance(ty, relax.TupleType) else 1


def is_divided(placement: Placement) -> bool:
    """Whether devices compute different things."""
    return any(one != REPLICATED for one in (*placement.operands, *placement.results))


class ShardingPropagation:
    """Follows the splits of the inputs, and of the weights of products, through a function.

    An operator whose weights ``weight_axis`` splits is computed so. Of others, those all of whose
    operands are whole are computed on every device, and for the rest the placement is taken that
    exchanges the fewest bytes.

    Parameters
    ----------
    devices : int
        How many there are.
    cost : CollectiveCost
        What exchanging values takes.
    inputs : mapping of int to Sharding
        By position of a parameter of the function: how it is split.
    weight_axis : callable
        For an operator with weights: the axis of these to split.
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
        if isinstance(binding, relax.MatchCast):
            self._gather_all(value)
        elif isinstance(value, relax.Var):
            self._leave(var, plan.values.get(hash(value), (REPLICATED,)))
        elif isinstance(value, relax.Tuple):
            shardings = [_whole_or_slice(plan.of(one)) for one in value.fields[:]]
            for one, sharding in zip(value.fields[:], shardings, strict=True):
                plan.seconds += self._exchange(one, sharding)
            plan.values[hash(var)] = tuple(shardings)
        elif isinstance(value, relax.TupleGetItem):
            fields = plan.values.get(hash(value.tuple_value), ())
            place = int(value.index)
            self._leave(var, (fields[place] if place < len(fields) else REPLICATED,))
        elif operator_name(value):
            self._visit_call(var, Operation.of(value, self._devices))
        else:
            self._gather_all(value)

    def _visit_call(self, var: relax.Var, operation: Operation) -> None:
        have = [self._plan.of(operand) for operand in operation.operands]
        self._plan.operations[hash(var)] = operation
        placement = self._seeded(var, operation, have) or self._following(operation, have)
        if placement is None:
            self._gather_all(operation.call)
            return
        for operand, needed in zip(operation.operands, placement.operands, strict=True):
            self._plan.seconds += self._exchange(operand, needed)
        self._leave(var, placement.results)
        self._plan.placements[hash(var)] = placement

    def _leave(self, var: relax.Var, results: tuple[Sharding, ...]) -> None:
        """Notes how a value is split; outside of its block it is no part of a reduction."""
        is_inner = isinstance(var, relax.DataflowVar)
        self._plan.values[hash(var)] = results if is_inner else tuple(map(_whole_or_slice, results))

    def _seeded(
        self, var: relax.Var, operation: Operation, have: Sequence[Sharding]
    ) -> Placement | None:
        """The placement that splits the weights as was asked; None where nothing was."""
        weight = operation.weight
        if weight is None:
            return None
        axis = self._weight_axis(var, operation, all(one == REPLICATED for one in have))
        if axis is None:
            return None
        wanted = Sharding(axis)
        fitting = [one for one in placements(operation) if one.operands[weight] == wanted]
        return self._cheapest(operation, [one for one in fitting if _is_possible(one, have)])

    def _following(self, operation: Operation, have: Sequence[Sharding]) -> Placement | None:
        """What exchanges least of what an operand is split like already."""
        if all(one == REPLICATED for one in have):
            return None
        blocks = {one.blocks for one in have} - {1}
        offered = placements(operation, blocks)
        return self._cheapest(operation, [one for one in offered if _follows(one, have)])

    def _cheapest(self, operation: Operation, offered: Sequence[Placement]) -> Placement | None:
        return min(offered, key=lambda one: self._seconds(operation, one), default=None)

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
        for var in filter(is_tensor, _used(value)):
            self._plan.seconds += self._exchange(var, REPLICATED)


def _whole_or_slice(sharding: Sharding) -> Sharding:
    """What a part of a reduction, and slices of blocks, become where they leave a block."""
    return REPLICATED if sharding.reduction or sharding.blocks > 1 else sharding


def _used(value: Any) -> list[relax.Var]:
    if value is None or not isinstance(value, relax.Expr):
        return []
    return list(relax.analysis.free_vars(value))


def _follows(placement: Placement, have: Sequence[Sharding]) -> bool:
    """Whether an operand is split in the way that it is there, and others can be made so."""
    pairs = zip(placement.operands, have, strict=True)
    return _is_possible(placement, have) and any(
        needed == one != REPLICATED for needed, one in pairs
    )


def _is_possible(placement: Placement, have: Sequence[Sharding]) -> bool:
    """What is no part of a reduction does not become one, and that is not scattered in blocks."""
    pairs = list(zip(placement.operands, have, strict=True))
    return all(needed == one for needed, one in pairs if needed.reduction) and not any(
        needed.blocks > 1 and one.reduction for needed, one in pairs
    )
