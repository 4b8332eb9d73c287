"""What a user asks for as splits of inputs and of weights: by data, by tensors, or by names."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from tvm import relax, tirx
from tvm_ffi import structural_equal

from tvm_ext.hardware.cost_model import Work, cost_model
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.relay_passes.expressions import is_symbolic, nominal_shape, tensor_bytes
from tvm_ext.relay_passes.layout_roles import CONVOLUTIONS
from tvm_ext.relay_passes.sharding.operator_rules import Operation
from tvm_ext.relay_passes.sharding.propagation import ShardingPlan, is_divided
from tvm_ext.relay_passes.sharding.sharding import Sharding, is_divisible, shape_of, split
from tvm_ext.relay_passes.spans import origins_of

DATA, TENSOR, AUTOMATIC, PATTERNS, NONE = "data", "tensor", "auto", "patterns", "none"
STRATEGIES = (DATA, TENSOR, AUTOMATIC)


@dataclass
class Seeds:
    """Where splits begin.

    Attributes
    ----------
    devices : int
        How many slices there are.
    inputs : dict of int to Sharding
        By position of a parameter.
    is_all : bool
        Whether the weights of all products are split by the columns of the result.
    patterns : sequence of pairs
        Patterns for names of nodes, and the axis of their weights.
    problems : list of str
        What cannot be split as asked.
    """

    devices: int
    inputs: dict[int, Sharding] = field(default_factory=dict)
    is_all: bool = False
    patterns: Sequence[tuple[str, int]] = ()
    problems: list[str] = field(default_factory=list)
    used: set[str] = field(default_factory=set)

    def weight_axis(self, var: relax.Var, operation: Operation, is_whole: bool) -> int | None:
        """The axis along which the weights of an operator are split; None for none.

        Where no name asks for it, weights are split whose operator reads whole values.
        """
        shape = operation.shapes[operation.weight or 0]
        for pattern, axis in self.patterns:
            if any(fnmatchcase(origin, pattern) for origin in origins_of(var)):
                self.used.add(pattern)
                return self._divided(shape, axis, f"the weights of '{origins_of(var)[0]}'")
        if not (self.is_all and is_whole):
            return None
        axis = 0 if operation.name in CONVOLUTIONS else len(shape) - 1
        return axis if is_divisible(shape[axis], self.devices) else None

    def _divided(self, shape: Sequence[Any], axis: int, what: str) -> int | None:
        if not -len(shape) <= axis < len(shape):
            self.problems.append(f"{what} have no axis {axis}")
            return None
        if is_divisible(shape[axis], self.devices):
            return axis % len(shape)
        size = int(shape[axis]) if isinstance(shape[axis], tirx.IntImm) else f"'{shape[axis]}'"
        self.problems.append(
            f"axis {axis} of {what} has size {size}, no multiple of {self.devices}"
        )
        return None

    def split_named_inputs(self, params: Sequence[relax.Var]) -> None:
        """Splits the inputs whose names fit a pattern."""
        for place, param in enumerate(params):
            for pattern, axis in self.patterns:
                if fnmatchcase(str(param.name), pattern):
                    self.used.add(pattern)
                    own = self._divided(shape_of(param) or [], axis, f"input '{param.name}'")
                    if own is not None:
                        self.inputs[place] = split(own)
                    break


def batch_of(params: Sequence[relax.Var]) -> Any:
    """The first size of most inputs; None where there is none."""
    first = [shape[0] for param in params if (shape := shape_of(param))]
    alike = [sum(_equal(one, other) for other in first) for one in first]
    return first[alike.index(max(alike))] if first else None


def with_batch(params: Sequence[relax.Var], batch: Any) -> list[int]:
    """Positions of the inputs whose first size is that of the batch."""
    shapes = [shape_of(param) or [] for param in params]
    return [place for place, shape in enumerate(shapes) if shape and _equal(shape[0], batch)]


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, tirx.IntImm) and isinstance(other, tirx.IntImm):
        return int(one) == int(other)
    return bool(structural_equal(one, other))


def data_seeds(params: Sequence[relax.Var], devices: int) -> Seeds:
    """Each device takes a part of the batch."""
    seeds, batch = Seeds(devices), batch_of(params)
    if batch is None or is_symbolic(batch):
        return seeds
    if not is_divisible(batch, devices):
        seeds.problems.append(f"the batch is of {int(batch)}, no multiple of {devices} devices")
    else:
        seeds.inputs = dict.fromkeys(with_batch(params, batch), split(0))
    return seeds


def modelled_seconds(plan: ShardingPlan, machine: MachineDescription) -> float:
    """Time of the products of a device, and of all collectives."""
    costs, seconds = cost_model(machine), plan.seconds
    for key, operation in plan.operations.items():
        if operation.name != "relax.matmul" and operation.name not in CONVOLUTIONS:
            continue
        placement = plan.placements.get(key)
        share = plan.devices if placement is not None and is_divided(placement) else 1
        types = [operand.ty for operand in operation.operands] + [operation.call.ty]
        nbytes = sum(tensor_bytes(ty) for ty in types)
        seconds += costs.seconds(Work(_flops(operation) / share, nbytes / share))
    return seconds


def _flops(operation: Operation) -> float:
    result = nominal_shape(operation.call.ty) or []
    weight = nominal_shape(operation.operands[1].ty) or []
    depth = weight[-2] if operation.name == "relax.matmul" else math.prod(weight[1:])
    return 2.0 * math.prod(result) * depth
