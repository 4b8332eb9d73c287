"""The call of an operator as the rules for its range see it."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import tvm
from tvm import relax

from tvm_ext.relay_passes.dataflow.framework import State
from tvm_ext.relay_passes.dataflow.interval import (
    FUNCTION_ULPS,
    ElementType,
    ValueRange,
    element_type,
    join_all,
    widened,
)
from tvm_ext.relay_passes.dataflow.sizes import count_of

if TYPE_CHECKING:
    from tvm_ext.relay_passes.dataflow.value_ranges import ValueRanges


class Operands:
    """The call of an operator as its rule sees it."""

    def __init__(
        self, analysis: "ValueRanges", call: relax.Call, states: Sequence[State], ty: tvm.ir.Type
    ) -> None:
        self.call, self.ty = call, ty
        self.attrs: Any = call.attrs
        self.analysis, self._states = analysis, states

    def __getitem__(self, place: int) -> ValueRange:
        """The range of an operand; of a tuple, that of all its fields."""
        state: Any = self._states[place]
        if isinstance(state, ValueRange):
            return state
        return join_all(state) if state else self.anything()

    def __len__(self) -> int:
        return len(self._states)

    @property
    def type(self) -> ElementType:
        """The type of the result's elements."""
        return element_type(str(self.ty.dtype) if isinstance(self.ty, relax.TensorType) else "")

    def anything(self) -> ValueRange:
        """All that an operator without a rule gives."""
        return self.analysis.top(self.ty)

    def fit(self, found: ValueRange, exact: bool = False) -> ValueRange:
        """What was found for real numbers, in the type of the result."""
        return self.type.fit(found, exact)

    def function(self, found: ValueRange, ulps: int = FUNCTION_ULPS) -> ValueRange:
        """As ``fit``, of a function that kernels compute to a few units in the last place."""
        return self.fit(widened(found, ulps * self.type.epsilon))

    def weights(self, place: int, axes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray] | None:
        """Of finite constants, not too many, the sums along axes of those above and below zero."""
        return self.analysis.weight_sums(self.call.args[place], axes)

    def count(self, place: int, axes: Sequence[int] | None) -> tuple[int, int]:
        """The fewest and the most elements along axes of an operand; all axes for None."""
        return count_of(self.call.args[place].ty, axes, self.analysis.sizes)


# What a call gives, of a tuple all its fields alike.
Rule: TypeAlias = Callable[[Operands], ValueRange]


def anything(given: Operands) -> ValueRange:
    """The rule of what no rule knows more of."""
    return given.anything()
