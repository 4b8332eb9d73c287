"""Assignments element by element: what no vector instruction computes."""

from collections.abc import Callable, Mapping
from typing import Any

from xdsl.dialects import arith

from tvm_ext.wafer.csl.body import ELEMENTS, Body
from tvm_ext.wafer.csl.kernel import Assignment, Loop
from tvm_ext.wafer.csl.memory import View
from tvm_ext.wafer.csl.values import Load, Number, Operation, Value

_OPERATORS = {
    "add": arith.AddfOp,
    "sub": arith.SubfOp,
    "mul": arith.MulfOp,
    "div": arith.DivfOp,
}
_SELECT = "select_"
_SUFFIX = {"float32": "f32", "float16": "f16"}


class ScalarForm:
    """Writes one assignment.

    Parameters
    ----------
    item : Assignment
        Any.
    view : View
        The arrays.
    known : mapping
        The variables of loops around it, by number.
    math : callable
        Gives the vendor's library of functions, which is imported when it is first needed.
    """

    def __init__(
        self, item: Assignment, view: View, known: Mapping[int, Any], math: Callable[[], Any]
    ) -> None:
        self._item = item
        self._view = view
        self._known = dict(known)
        self._math = math

    def write(self, body: Body) -> None:
        """Appends the loops and operations to ``body``."""
        self._loop(body, list(self._item.loops))

    def _loop(self, body: Body, loops: list[Loop]) -> None:
        if loops:
            loop, *inner = loops
            with body.loop(f"n{loop.number}", loop.extent) as (inside, variable):
                self._known[loop.number] = variable
                self._loop(inside, inner)
            return
        value = self._value(body, self._item.value)
        target = self._item.target
        offset = body.sum(self._view.offset(target), self._known)
        body.set_element(self._view.array(target.tensor), offset, value)

    def _value(self, body: Body, value: Value) -> Any:
        if isinstance(value, Number):
            return body.float(value.value, value.dtype)
        if isinstance(value, Load):
            offset = body.sum(self._view.offset(value), self._known)
            return body.element(self._view.array(value.tensor), offset)
        operands = [self._value(body, operand) for operand in value.operands]
        return self._operation(body, value, operands)

    def _operation(self, body: Body, value: Operation, operands: list[Any]) -> Any:
        name, dtype = value.name, value.dtype
        if name in _OPERATORS:
            return body.add(_OPERATORS[name](*operands))
        if name == "neg":
            return body.add(arith.MulfOp(operands[0], body.float(-1.0, dtype)))
        if name == "cast":
            return self._cast(body, value.operands[0].dtype, dtype, operands[0])
        if name.startswith(_SELECT):
            holds = body.add(arith.CmpfOp(*operands[:2], name.removeprefix(_SELECT)))
            return body.add(arith.SelectOp(holds, *operands[2:]))
        function = f"{name}_{_SUFFIX[dtype]}"
        return body.member_call(self._math(), function, *operands, result=ELEMENTS[dtype])

    def _cast(self, body: Body, source: str, target: str, operand: Any) -> Any:
        if source == target:
            return operand
        kind = arith.ExtFOp if target == "float32" else arith.TruncFOp
        return body.add(kind(operand, ELEMENTS[target]))
