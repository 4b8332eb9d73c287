"""What one PE computes, as operations of xDSL's csl dialect."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xdsl.dialects import arith

from tvm_ext.tir_schedules.analysis.affine import Affine
from tvm_ext.wafer.csl.body import ELEMENTS, Body, View
from tvm_ext.wafer.csl.declarations import Declarations
from tvm_ext.wafer.csl.kernel import (
    Assignment,
    CslLoop,
    CslSteps,
    Item,
    Load,
    Multicast,
    Number,
    Operation,
    Value,
    part,
    without,
)

# Assignments element by element: what no vector instruction computes.


_OPERATORS = {
    "add": arith.AddfOp,
    "sub": arith.SubfOp,
    "mul": arith.MulfOp,
    "div": arith.DivfOp,
}
_SELECT = "select_"
_SCALAR_SUFFIX = {"float32": "f32", "float16": "f16"}


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

    def _loop(self, body: Body, loops: list[CslLoop]) -> None:
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
        function = f"{name}_{_SCALAR_SUFFIX[dtype]}"
        return body.member_call(self._math(), function, *operands, result=ELEMENTS[dtype])

    def _cast(self, body: Body, source: str, target: str, operand: Any) -> Any:
        if source == target:
            return operand
        kind = arith.ExtFOp if target == "float32" else arith.TruncFOp
        return body.add(kind(operand, ELEMENTS[target]))


# Assignments as vector instructions on descriptors of memory.
#
# The innermost loop of an assignment is the length of its instructions; loops around it move the
# descriptors on.


# A descriptor's stride is a signed integer of 8 bits.
_LONGEST_STRIDE = 127

_VECTOR_SUFFIX = {"float32": "s", "float16": "h"}
_INSTRUCTIONS = {
    "add": "fadd",
    "sub": "fsub",
    "mul": "fmul",
    "max": "fmax",
    "neg": "fneg",
    "abs": "fabs",
}
_CASTS = {("float16", "float32"): "fh2s", ("float32", "float16"): "fs2h"}


def has_vector_form(item: Assignment, view: View) -> bool:
    """Whether there are vector instructions for all that ``item`` computes."""
    if not item.loops or any(
        load.tensor == item.target.tensor and load != item.target for load in item.loads
    ):
        # An element that depends on another one of the result has to wait for it.
        return False
    vector = item.loops[-1].number
    strides = [abs(view.offset(load).factors.get(vector, 0)) for load in (item.target, *item.loads)]
    return strides[0] > 0 and max(strides) <= _LONGEST_STRIDE and _is_simple(item.value)


def _is_simple(value: Value) -> bool:
    if not isinstance(value, Operation):
        return True
    known = value.name in ("min", "cast") or value.name in _INSTRUCTIONS
    if value.name == "div":
        known = _exact_reciprocal(value.operands[1]) is not None
    return known and all(_is_simple(operand) for operand in value.operands)


def _exact_reciprocal(value: Value) -> Number | None:
    """One over a power of two: multiplying by it is the division."""
    if not isinstance(value, Number) or abs(math.frexp(value.value)[0]) != 0.5:
        return None
    return Number(1 / value.value, value.dtype)


class VectorForm:
    """Writes one assignment.

    Parameters
    ----------
    item : Assignment
        One that ``has_vector_form``.
    view : View
        The arrays.
    known : mapping
        The variables of loops around it, by number.
    joined : bool
        Whether loops that walk through all arrays as one would are one: longer instructions than
        the schedule has.
    """

    def __init__(
        self, item: Assignment, view: View, known: Mapping[int, Any], joined: bool = False
    ) -> None:
        self._item = item
        self._view = view
        self._known = dict(known)
        self._loops = list(item.loops)
        if joined:
            self._join()
        self._vector = self._loops[-1]
        self._loads: list[Load] = []
        for load in (item.target, *item.loads):
            if self._stride(load) and load not in self._loads:
                self._loads.append(load)
        self._spares: dict[tuple[int, str], Any] = {}
        self._top = Body()

    def _join(self) -> None:
        offsets = [self._view.offset(load) for load in (self._item.target, *self._item.loads)]
        while len(self._loops) > 1:
            outer, inner = self._loops[-2:]
            if any(
                offset.factors.get(outer.number, 0)
                != offset.factors.get(inner.number, 0) * inner.extent
                for offset in offsets
            ):
                return
            self._loops[-2:] = [CslLoop(inner.number, outer.extent * inner.extent)]

    def write(self, body: Body) -> None:
        """Appends the loops and instructions to ``body``."""
        self._top = body
        vectors = [self._start(body, load) for load in self._loads]
        self._loop(body, self._loops[:-1], vectors)

    def _stride(self, load: Load) -> int:
        return self._view.offset(load).factors.get(self._vector.number, 0)

    def _start(self, body: Body, load: Load) -> Any:
        """The descriptor of a load where the loops of the assignment begin."""
        offset = self._view.offset(load)
        own = {loop.number for loop in self._item.loops}
        array = self._view.array(load.tensor)
        vector = body.vector(
            f"{array.name_hint}_dsd",
            array,
            offset.constant,
            self._stride(load),
            self._vector.extent,
        )
        outer = without(offset, own).plus(Affine(-offset.constant))
        if outer.factors:
            vector = body.moved(vector, body.sum(outer, self._known), load.dtype)
        return vector

    def _loop(self, body: Body, loops: list[CslLoop], vectors: list[Any]) -> None:
        if not loops:
            self._instructions(body, vectors)
            return
        loop, *inner = loops
        with body.loop(f"n{loop.number}", loop.extent) as (inside, variable):
            self._known[loop.number] = variable
            moved = []
            for load, vector in zip(self._loads, vectors, strict=True):
                step = part(self._view.offset(load), {loop.number})
                if step.factors:
                    vector = inside.moved(vector, inside.sum(step, self._known), load.dtype)
                moved.append(vector)
            self._loop(inside, inner, moved)

    def _instructions(self, body: Body, vectors: list[Any]) -> None:
        _Instructions(self, body, vectors).store(self._item.value)

    def scalar(self, body: Body, load: Load) -> Any:
        """The element of a load that all elements of an instruction share."""
        offset = body.sum(self._view.offset(load), self._known)
        return body.element(self._view.array(load.tensor), offset)

    def position(self, load: Load) -> int | None:
        """Which descriptor is that of a load; None for a load of one element."""
        return next((i for i, one in enumerate(self._loads) if one == load), None)

    def spare(self, number: int, dtype: str) -> Any:
        """The descriptor of an array for values in between, made before the loops."""
        if (number, dtype) not in self._spares:
            array = self._view.memory.spare(number, dtype)
            name, length = f"{array.name_hint}_dsd", self._vector.extent
            self._spares[number, dtype] = self._top.vector(name, array, 0, 1, length)
        return self._spares[number, dtype]


class _Instructions:
    """Those of one iteration of the loops."""

    def __init__(self, form: VectorForm, body: Body, vectors: list[Any]) -> None:
        self._form = form
        self._body = body
        self._vectors = vectors
        self._used = 0

    def store(self, value: Value) -> None:
        """Writes ``value`` to the assignment's target."""
        self._write(value, self._vectors[0])

    def _write(self, value: Value, target: Any) -> None:
        if not isinstance(value, Operation):
            move = f"fmov{_VECTOR_SUFFIX[value.dtype]}"
            self._body.instruction(move, target, self._operand(value))
            return
        before = self._used
        if not self._multiply_add(value, target):
            self._operation(value, target)
        self._used = before

    def _multiply_add(self, value: Operation, target: Any) -> bool:
        """A sum with a product of a vector and one element, in one instruction."""
        if value.name != "add":
            return False
        for addend, product in (value.operands, value.operands[::-1]):
            if not isinstance(product, Operation) or product.name != "mul":
                continue
            for vector, factor in (product.operands, product.operands[::-1]):
                if self._is_one(factor) and not self._is_one(vector) and not self._is_one(addend):
                    operands = [self._operand(part) for part in (addend, vector, factor)]
                    name = f"fmac{_VECTOR_SUFFIX[value.dtype]}"
                    self._body.instruction(name, target, *operands)
                    return True
        return False

    def _operation(self, value: Operation, target: Any) -> None:
        if value.name == "cast":
            (source,) = value.operands
            self._cast(source, value.dtype, target)
            return
        if value.name == "min":
            # There is no instruction for the least: it is the greatest of the negated, negated.
            negated = tuple(Operation("neg", (one,), value.dtype) for one in value.operands)
            self._write(Operation("max", negated, value.dtype), target)
            self._body.instruction(f"fneg{_VECTOR_SUFFIX[value.dtype]}", target, target)
            return
        operands = value.operands
        name = value.name
        if name == "div":
            reciprocal = _exact_reciprocal(operands[1])
            operands, name = (operands[0], reciprocal or operands[1]), "mul"
        found = [self._operand(operand) for operand in operands]
        if all(self._is_one(operand) for operand in operands):
            # An instruction takes at most one operand that is no vector.
            found[0] = self._filled(found[0], value.dtype)
        self._body.instruction(
            f"{_INSTRUCTIONS[name]}{_VECTOR_SUFFIX[value.dtype]}", target, *found
        )

    def _cast(self, source: Value, dtype: str, target: Any) -> None:
        operand = self._operand(source)
        if source.dtype == dtype:
            self._body.instruction(f"fmov{_VECTOR_SUFFIX[dtype]}", target, operand)
        else:
            self._body.instruction(_CASTS[source.dtype, dtype], target, operand)

    def _operand(self, value: Value) -> Any:
        """A descriptor, or one element that is the same for the whole instruction."""
        if isinstance(value, Number):
            return self._body.float(value.value, value.dtype)
        if isinstance(value, Load):
            position = self._form.position(value)
            if position is None:
                return self._form.scalar(self._body, value)
            return self._vectors[position]
        if value.name == "neg" and isinstance(value.operands[0], Number):
            return self._body.float(-value.operands[0].value, value.dtype)
        target = self._spare(value.dtype)
        before = self._used
        self._write(value, target)
        self._used = before
        return target

    def _filled(self, element: Any, dtype: str) -> Any:
        target = self._spare(dtype)
        self._body.instruction(f"fmov{_VECTOR_SUFFIX[dtype]}", target, element)
        return target

    def _spare(self, dtype: str) -> Any:
        self._used += 1
        return self._form.spare(self._used - 1, dtype)

    def _is_one(self, value: Value) -> bool:
        """Whether a value is one element, not a vector."""
        if isinstance(value, Operation):
            return value.name == "neg" and isinstance(value.operands[0], Number)
        return isinstance(value, Number) or self._form.position(value) is None


class WorkWriter:
    """Writes assignments and the loops around them.

    Parameters
    ----------
    declared : Declarations
        The arrays and libraries.
    """

    def __init__(self, declared: Declarations) -> None:
        self._declared = declared

    def write(
        self, body: Body, items: Sequence[Item], known: Mapping[int, Any], parity: int = 0
    ) -> None:
        """Appends ``items``, which wait for nobody.

        Parameters
        ----------
        body : Body
            Where to.
        items : sequence of Item
            Assignments and loops; steps only where each line of PEs is a single PE.
        known : mapping
            The variables of loops around them, by number.
        parity : int
            0 in even steps and 1 in odd ones.
        """
        for item in items:
            if isinstance(item, Assignment):
                self._assign(body, item, known, parity)
                continue
            with body.loop(f"n{item.loop.number}", item.loop.extent) as (inside, variable):
                if isinstance(item, CslSteps):
                    for message in item.messages:
                        self.prepare(inside, message, item.loop.number, variable)
                self.write(inside, item.items, {**known, item.loop.number: variable}, parity)

    def prepare(
        self, body: Body, message: Multicast, loop: int, step: Any, parity: int = 0
    ) -> None:
        """Appends what the sender of a message does before: its tile into the array that is sent.

        ``step`` is the value of the loop with the number ``loop``.
        """
        if message.copy is None:
            return
        known = {loop: step}
        if message.per_sender > 1:
            count = body.number(message.per_sender)
            known[message.within] = body.add(arith.RemUIOp(step, count))
        self._assign(body, message.copy, known, parity, joined=True)

    def _assign(
        self,
        body: Body,
        item: Assignment,
        known: Mapping[int, Any],
        parity: int,
        joined: bool = False,
    ) -> None:
        view = View(self._declared.memory, parity)
        if has_vector_form(item, view):
            VectorForm(item, view, known, joined).write(body)
        else:
            ScalarForm(item, view, known, self._declared.math).write(body)
