"""Rounds a sequence's state to 8-bit steps before it is multiplied, for DynamicQuantizeLSTM.

The steps cover the smallest and the largest element, and zero, as DynamicQuantizeLinear's do.
"""

from typing import Any

from tvm import tirx

from tvm_ext.tir_schedules.llvm.stack_arrays import stack_array
from tvm_ext.tir_schedules.recurrence.loops import loop, number, vectors
from tvm_ext.tir_schedules.statements import sequence

_LAST_STEP = 255


class QuantizedState:
    """``size`` elements of one array from ``start`` on, rounded into the same ones of another.

    Elements are taken ``width`` at a time, a divisor of ``size``.
    """

    def __init__(self, state: Any, rounded: Any, start: Any, size: int, width: int) -> None:
        self.state = state
        self.rounded = rounded
        self.start = start
        self.parts = size // width
        self.width = width
        self.dtype = str(state.dtype)

    def statement(self) -> tirx.Stmt:
        """All of it."""
        low, declared_low = stack_array(number(self.width), self.dtype, "lowest")
        high, declared_high = stack_array(number(self.width), self.dtype, "highest")
        declared = [declared_low, declared_high]
        started = [*self._stored(low, self._zero), *self._stored(high, self._zero)]
        bounds = loop(self.parts, lambda part: self._bounded(part, low, high))
        joined = [self._joined(low, tirx.Min), self._joined(high, tirx.Max)]
        named, scale, offset = self._steps(_at(low, number(0)), _at(high, number(0)))
        stored = loop(self.parts, lambda part: self._rounded(part, scale, offset))
        return sequence([*declared, *started, bounds, *joined, *named, stored])

    def _zero(self, _: Any) -> Any:
        return self._const(0)

    def _const(self, value: float) -> Any:
        return tirx.const(value, self.dtype)

    def _stored(self, array: Any, value: Any) -> list[tirx.Stmt]:
        return vectors(self.width, lambda lane: tirx.BufferStore(array, value(lane), [lane]))

    def _place(self, part: Any, lane: Any) -> Any:
        return self.start + part * number(self.width) + lane

    def _bounded(self, part: Any, low: Any, high: Any) -> tirx.Stmt:
        def element(lane: Any) -> Any:
            return _at(self.state, self._place(part, lane))

        lower = self._stored(low, lambda lane: tirx.Min(_at(low, lane), element(lane)))
        higher = self._stored(high, lambda lane: tirx.Max(_at(high, lane), element(lane)))
        return sequence([*lower, *higher])

    def _joined(self, array: Any, bound: Any) -> tirx.Stmt:
        """The bound of all lanes in the first one."""
        first = number(0)
        return loop(
            self.width,
            lambda n: tirx.BufferStore(array, bound(_at(array, first), _at(array, n)), [first]),
        )

    def _steps(self, low: Any, high: Any) -> tuple[list[tirx.Stmt], Any, Any]:
        """The size of a step and the number of the one that is zero, with what names them."""
        span, scale, offset = (tirx.Var(name, self.dtype) for name in ("span", "scale", "offset"))
        flat = tirx.EQ(span, self._const(0))
        step = tirx.Select(flat, self._const(1), span / self._const(_LAST_STEP))
        zero = tirx.nearbyint(self._in_range(-low / scale))
        binds = [tirx.Bind(span, high - low), tirx.Bind(scale, step), tirx.Bind(offset, zero)]
        return binds, scale, offset

    def _in_range(self, value: Any) -> Any:
        return tirx.Max(tirx.Min(value, self._const(_LAST_STEP)), self._const(0))

    def _rounded(self, part: Any, scale: Any, offset: Any) -> tirx.Stmt:
        def store(lane: Any) -> tirx.Stmt:
            place = self._place(part, lane)
            step = tirx.nearbyint(_at(self.state, place) / scale) + offset
            value = (self._in_range(step) - offset) * scale
            return tirx.BufferStore(self.rounded, value, [place])

        return sequence(vectors(self.width, store))


def _at(array: Any, place: Any) -> Any:
    return tirx.BufferLoad(array, [place])
