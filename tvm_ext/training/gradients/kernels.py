"""Gradients of kernels, from the expression that each of their elements is.

    Before: ``y[i] = sum over r of f(x[a(i, r)], ...)``
    After:  ``g = 0``, then for all ``i`` and ``r``: ``g[a(i, r)] += given[i] * df/dx``

These are kernels whose result one statement computes: those of the ONNX import that no operator
describes, and those of operators without a gradient of their own. A loop whose numbers never add
to the same element runs on threads, the others add up in order.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, s_tir, tirx
from tvm.script.ir_builder import tirx as T

from tvm_ext.onnx_frontend.converters.loops import emit_loops, nested, on_threads
from tvm_ext.tir_schedules.analysis.buffer_access import is_load, nodes
from tvm_ext.tir_schedules.analysis.loop_nest import substitute
from tvm_ext.training.gradients.registration import dtype_of, sizes


class NoGradient(Exception):
    """A kernel has another form, or something in it has no derivative that is known."""


@dataclass(frozen=True)
class Part:
    """What one read of an operand adds to its gradient.

    Attributes
    ----------
    place : int
        Which operand.
    indices : tuple
        Of the element that is read.
    factor : tirx.Expr
        The derivative of the kernel's element by the one that is read.
    conditions : tuple
        Under which it is read.
    """

    place: int
    indices: tuple[Any, ...]
    factor: tirx.Expr
    conditions: tuple[tirx.Expr, ...]


@dataclass(frozen=True)
class DifferentiableKernel:
    """A kernel as the element that it computes for each place of its loops.

    Attributes
    ----------
    func : tirx.PrimFunc
        The kernel.
    axes : tuple[tirx.IterVar, ...]
        Its loops.
    written : tuple
        The place of the element.
    parts : tuple[Part, ...]
        What its reads of operands add to their gradients.
    """

    func: tirx.PrimFunc
    axes: tuple[tirx.IterVar, ...]
    written: tuple[Any, ...]
    parts: tuple[Part, ...]

    @classmethod
    def of(cls, func: tirx.PrimFunc, places: Sequence[int]) -> "DifferentiableKernel":
        """The kernel with the derivatives by the operands at these places.

        Raises
        ------
        NoGradient
            There are none.
        """
        block, value = _element(func)
        if not block.body.buffer.same_as(func.params[-1]):
            raise NoGradient
        reads = _Reads([(func.params[place], place) for place in places])
        reads.differentiate(value, tirx.const(1, value.ty.dtype), ())
        return cls(func, tuple(block.iter_vars), tuple(block.body.indices), tuple(reads.parts))

    def emit(
        self, bb: relax.BlockBuilder, operands: Sequence[relax.Expr], given: relax.Expr
    ) -> dict[int, relax.Expr]:
        """The gradient of each operand that is read, by its place."""
        places = sorted({part.place for part in self.parts})
        if not places:
            return {}
        outputs = [(sizes(operands[place]), dtype_of(operands[place])) for place in places]

        def body(*buffers: Any) -> None:
            read, factor = buffers[: len(operands)], buffers[len(operands)]
            gradients = buffers[len(operands) + 1 :]
            for (shape, dtype), gradient in zip(outputs, gradients, strict=True):
                with on_threads(*shape) as index:
                    gradient[tuple(index)] = tirx.const(0, dtype)
            self._add_up(read, factor, dict(zip(places, gradients, strict=True)))

        made = emit_loops(bb, "kernel_gradient", [*operands, given], outputs, body)
        return dict(zip(places, made, strict=True))

    def _add_up(self, read: Sequence[Any], given: Any, gradients: Mapping[int, Any]) -> None:
        apart = [axis for axis in self.axes if self._tells_apart(axis)]
        others = [axis for axis in self.axes if not self._tells_apart(axis)]
        extents = [[int(axis.dom.extent) for axis in group] for group in (apart, others)]
        with on_threads(*extents[0]) as outer, nested(*extents[1]) as inner:
            numbers = zip([*apart, *others], [*outer, *inner], strict=True)
            values = {axis.var: number.astype(axis.var.ty.dtype) for axis, number in numbers}

            def own_load(load: tvm.ir.TensorLoad) -> Any:
                return read[_place(self.func.params, load.source)][tuple(load.indices)]

            def own(expr: Any) -> Any:
                loads = (tvm.ir.TensorLoad, own_load)
                return substitute(tvm_ffi.structural_map(expr, loads), values)

            factor = given[tuple(own(index) for index in self.written)]
            for part in self.parts:
                _add(part, gradients[part.place], factor, own)

    def _tells_apart(self, axis: tirx.IterVar) -> bool:
        """Whether no two numbers of an axis add to the same element."""
        positions: dict[int, set[int]] = {}
        for part in self.parts:
            found = {
                position
                for position, index in enumerate(part.indices)
                if isinstance(index, tirx.Var) and index.same_as(axis.var)
            }
            positions[part.place] = positions.get(part.place, found) & found
        return all(positions.values())


def _add(part: Part, gradient: Any, given: Any, own: Callable[[Any], Any]) -> None:
    index = tuple(own(one) for one in part.indices)
    if not part.conditions:
        gradient[index] = gradient[index] + given * own(part.factor)
        return
    with T.If(tirx.all(*(own(one) for one in part.conditions))), T.Then():
        gradient[index] = gradient[index] + given * own(part.factor)


def _element(func: tirx.PrimFunc) -> tuple[s_tir.SBlock, tirx.Expr]:
    """The last block of a kernel, and what that writes or adds up.

    What other blocks compute stands in it instead of their buffers.
    """
    blocks = [block for block in nodes(func.body, s_tir.SBlock) if block.iter_vars]
    plain = [block.body for block in blocks if isinstance(block.body, tirx.BufferStore)]
    starts = [block.init for block in blocks if block.init is not None]
    # Each statement is the only one of a block; the last block alone adds up.
    is_known = blocks and len(plain) == len(blocks) and not starts[:-1]
    if not is_known or len(nodes(func.body, tirx.BufferStore)) != len(plain) + len(starts):
        raise NoGradient
    *before, last = blocks
    values: list[tuple[s_tir.SBlock, tirx.Expr]] = []
    for block in before:
        if block.init is not None or not _is_in_order(block):
            raise NoGradient
        values.append((block, _inlined(block.body.value, values)))
    value = _inlined(_added(last), values)
    # What reads what it writes depends on the order of its loops.
    loads = nodes(value, tvm.ir.TensorLoad)
    if any(is_load(load, store.buffer) for load in loads for store in plain):
        raise NoGradient
    return last, value


def _added(block: s_tir.SBlock) -> tirx.Expr:
    """What a block writes, or adds to what it wrote."""
    store = block.body
    if block.init is None:
        return store.value
    start = block.init.value if isinstance(block.init, tirx.BufferStore) else None
    is_sum = isinstance(store.value, tirx.Add) and is_load(store.value.a, store.buffer)
    if not is_sum or not _is_zero(start):
        raise NoGradient
    return store.value.b


def _is_in_order(block: s_tir.SBlock) -> bool:
    """Whether a block writes to just the place that its loops say."""
    indices, axes = list(block.body.indices), list(block.iter_vars)
    return len(indices) == len(axes) and all(
        isinstance(index, tirx.Var) and index.same_as(axis.var)
        for index, axis in zip(indices, axes, strict=True)
    )


def _inlined(value: tirx.Expr, values: Sequence[tuple[s_tir.SBlock, tirx.Expr]]) -> tirx.Expr:
    """An expression without reads of what these blocks compute."""

    def computed(load: tvm.ir.TensorLoad) -> tirx.Expr:
        for block, element in values:
            if load.source.same_as(block.body.buffer):
                axes = [axis.var for axis in block.iter_vars]
                return substitute(element, dict(zip(axes, load.indices, strict=True)))
        return load

    return tvm_ffi.structural_map(value, (tvm.ir.TensorLoad, computed)) if values else value


def _place(buffers: Sequence[Any], buffer: Any) -> int:
    """Which of the buffers one is."""
    return next(place for place, one in enumerate(buffers) if one.same_as(buffer))


def _is_zero(value: Any) -> bool:
    return isinstance(value, tirx.FloatImm) and float(value.value) == 0


_Derivative = Callable[[tirx.Expr, tirx.Expr], tirx.Expr]


def _number(value: float, like: tirx.Expr) -> tirx.Expr:
    return tirx.const(value, like.ty.dtype)


# From the operand and the result of a function of TVM's to the derivative.
_DERIVATIVES: dict[str, _Derivative] = {
    "tirx.cos": lambda x, y: -tirx.sin(x),
    "tirx.erf": lambda x, y: tirx.exp(-x * x) * _number(2 / math.sqrt(math.pi), x),
    "tirx.exp": lambda x, y: y,
    "tirx.fabs": lambda x, y: tirx.Select(
        x < 0, _number(-1, x), tirx.Select(x > 0, _number(1, x), _number(0, x))
    ),
    "tirx.log": lambda x, y: _number(1, x) / x,
    "tirx.rsqrt": lambda x, y: y * y * y * _number(-0.5, x),
    "tirx.sigmoid": lambda x, y: y * (_number(1, x) - y),
    "tirx.sin": lambda x, y: tirx.cos(x),
    "tirx.sqrt": lambda x, y: _number(0.5, x) / y,
    "tirx.tanh": lambda x, y: _number(1, x) - y * y,
}
# Their derivative is 0 wherever there is one.
_STEPS = ("tirx.ceil", "tirx.floor", "tirx.nearbyint", "tirx.round", "tirx.trunc")


@dataclass
class _Reads:
    """Reverse mode over one expression, from the element to what it reads."""

    wanted: Sequence[tuple[Any, int]]
    parts: list[Part] = field(default_factory=list)

    def differentiate(
        self, expr: tirx.Expr, factor: tirx.Expr, conditions: tuple[tirx.Expr, ...]
    ) -> None:
        """Notes what each read below ``expr`` adds, where ``expr`` counts ``factor`` times."""
        for buffer, place in self.wanted:
            if is_load(expr, buffer):
                self.parts.append(Part(place, tuple(expr.indices), factor, conditions))
                return
        if not self._reads(expr):
            return
        for operand, share, condition in self._operands(expr):
            added = () if condition is None else (condition,)
            self.differentiate(operand, factor * share, (*conditions, *added))

    def _reads(self, expr: Any) -> bool:
        loads = nodes(expr, tvm.ir.TensorLoad)
        return any(is_load(load, buffer) for load in loads for buffer, _ in self.wanted)

    def _operands(self, expr: tirx.Expr) -> list[tuple[tirx.Expr, tirx.Expr, tirx.Expr | None]]:
        """Each operand, the derivative by it, and when it counts."""
        if isinstance(expr, tirx.Add | tirx.Sub):
            sign = 1 if isinstance(expr, tirx.Add) else -1
            return [(expr.a, _number(1, expr), None), (expr.b, _number(sign, expr), None)]
        if isinstance(expr, tirx.Mul):
            return [(expr.a, expr.b, None), (expr.b, expr.a, None)]
        if isinstance(expr, tirx.Div):
            return [(expr.a, 1 / expr.b, None), (expr.b, -expr / expr.b, None)]
        if isinstance(expr, tirx.Max | tirx.Min):
            # Half to each of two that are equal.
            share = tirx.Select(expr.a.equal(expr.b), _number(0.5, expr), _number(1, expr))
            low, high = (expr.b, expr.a) if isinstance(expr, tirx.Max) else (expr.a, expr.b)
            return [(expr.a, share, high >= low), (expr.b, share, high <= low)]
        if isinstance(expr, tirx.Select):
            return self._choice(expr.condition, expr.true_value, expr.false_value)
        if isinstance(expr, tirx.Cast) and "float" in str(expr.value.ty.dtype):
            return [(expr.value, _number(1, expr.value), None)]
        if isinstance(expr, tvm.ir.Call) and isinstance(expr.op, tvm.ir.Op):
            return self._operands_of_call(expr, str(expr.op.name))
        raise NoGradient

    def _operands_of_call(
        self, expr: tvm.ir.Call, name: str
    ) -> list[tuple[tirx.Expr, tirx.Expr, tirx.Expr | None]]:
        if name == "prim.if_then_else":
            return self._choice(*expr.args)
        if name in _STEPS:
            return []
        if name == "tirx.pow" and not self._reads(expr.args[1]):
            x, power = expr.args
            return [(x, power * tirx.power(x, power - _number(1, power)), None)]
        if name not in _DERIVATIVES:
            raise NoGradient
        (x,) = expr.args
        return [(x, _DERIVATIVES[name](x, expr), None)]

    def _choice(
        self, condition: tirx.Expr, chosen: tirx.Expr, otherwise: tirx.Expr
    ) -> list[tuple[tirx.Expr, tirx.Expr, tirx.Expr | None]]:
        one = _number(1, chosen)
        return [(chosen, one, condition), (otherwise, one, tirx.Not(condition))]
