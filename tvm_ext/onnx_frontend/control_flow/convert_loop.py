"""Loop as calls of a private function that computes one iteration."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import tvm
import tvm_ffi
from tvm import relax, tirx

from tvm_ext.errors import FormError
from tvm_ext.onnx_frontend.control_flow.functions import (
    BodyConverter,
    Captured,
    Signature,
    as_tensor,
    branches,
    capture,
    fields,
    function,
    function_name,
    integer,
    is_one_element,
    renewed,
    scalar,
    truth,
    unknown_symbols,
)
from tvm_ext.onnx_frontend.converters.random import ITERATIONS
from tvm_ext.onnx_frontend.ir_edits import draws_inside
from tvm_ext.onnx_frontend.onnx_graph import names_read

# A loop whose body is a function, and how functions of the loop call each other.


class Sizes:
    """Symbols of one function: those of the signature, and of the elements of scan outputs."""

    def __init__(self, symbols: dict[tirx.Var, Any], parameters: Sequence[relax.Var] = ()) -> None:
        self.symbols = symbols
        self.parameters = list(parameters)
        self._elements: dict[int, list[Any]] = {}

    def stacked(self, index: int, ty: relax.TensorType) -> relax.TensorType:
        """Of a scan output after some iterations; all calls in a function agree in elements."""
        if index not in self._elements:
            self._elements[index] = list(renewed(ty, self.symbols).shape.values[1:])
        count = tirx.Var("count", "int64")
        return relax.TensorType([count, *self._elements[index]], str(ty.dtype))


@dataclass(frozen=True)
class Loop:
    """A loop whose body has been converted.

    Attributes
    ----------
    signature : Signature
        Of the functions: iteration number, loop-carried values, then ``around``.
    around : list[relax.Expr]
        Arguments that stay the same: the trip count where it is computed, captured values.
    state : int
        How many parameters change: the iteration number and the loop-carried values.
    elements : list[relax.TensorType]
        Of the scan outputs, one iteration's part, with the new axis.
    counted : bool
        Whether nothing but the trip count ends the loop, so that there is no condition.
    body : tvm.ir.GlobalVar
        Level 0: takes ``signature``, returns the condition unless counted, the state, the elements.
    """

    bb: relax.BlockBuilder
    name: str
    signature: Signature
    around: list[relax.Expr]
    state: int
    elements: list[relax.TensorType]
    counted: bool
    body: tvm.ir.GlobalVar

    def call(
        self,
        callee: tvm.ir.GlobalVar,
        state: list[relax.Expr],
        rest: list[relax.Expr],
        sizes: Sizes,
    ) -> tuple[relax.Expr | None, list[relax.Expr], list[relax.Expr]]:
        """The condition, the state and the scan outputs after a call; ``sizes`` by symbol."""
        value = self.bb.emit(
            relax.Call(callee, self.signature.arguments([*state, *rest], sizes.symbols))
        )
        types = [renewed(ty, sizes.symbols) for ty in self.signature.types[: self.state]]
        # A counted loop stacks elements of known sizes to known sizes: nothing to cast.
        types += [
            None
            if self.counted and not unknown_symbols(ty, self.signature.fixed)
            else sizes.stacked(index, ty)
            for index, ty in enumerate(self.elements)
        ]
        found = fields(self.bb, value, types if self.counted else [None, *types])
        more = None if self.counted else found.pop(0)
        return more, found[: self.state], found[self.state :]

    def joined(self, parts: Sequence[list[relax.Expr]]) -> list[relax.Expr]:
        """The scan outputs of several calls, one after the other."""
        if len(parts) == 1:
            return parts[0]
        return [
            self.bb.emit(relax.op.concat(list(outputs), axis=0))
            for outputs in zip(*parts, strict=True)
        ]

    def nothing(self, symbols: Any) -> list[relax.Expr]:
        """The scan outputs of no iteration."""
        found = []
        for ty in self.elements:
            sizes = [
                0 if unknown_symbols(relax.ShapeType([size]), self.signature.fixed) else size
                for size in ty.shape.values[1:]
            ]
            shape = [0, *(_in_symbols(size, symbols) for size in sizes)]
            if all(isinstance(size, int) for size in shape):
                found.append(relax.const(np.zeros(shape), str(ty.dtype)))
            else:
                found.append(self.bb.emit(relax.op.zeros(relax.ShapeExpr(shape), str(ty.dtype))))
        return found


Build = Callable[[list[relax.Expr], Sizes], relax.Expr]


def loop_function(
    loop: Loop,
    name: str,
    build: Build,
    straight: bool = False,
    into: tvm.ir.GlobalVar | None = None,
) -> tvm.ir.GlobalVar:
    """Adds a function of the loop's signature, or puts it in the place of another one."""
    parameters, values, symbols = loop.signature.parameters()
    known = {var: symbols[var] for var in loop.signature.fixed}
    sizes = Sizes(known, parameters)
    func = function(loop.bb, parameters, lambda: build(values, sizes), straight)
    if into is None:
        return loop.bb.add_func(func, function_name(loop.name, name))
    loop.bb.update_func(into, func)
    return into


def _in_symbols(size: Any, symbols: dict[tirx.Var, Any]) -> Any:
    if isinstance(size, int | tirx.IntImm):
        return int(size)
    return renewed(relax.TensorType([size], "int64"), symbols).shape.values[0]


# The body of a Loop as the function of one iteration.


_SCALAR = relax.TensorType((), "int64")


def typed_loop(
    importer: BodyConverter,
    name: str,
    body: onnx.GraphProto,
    limit: relax.Expr | None,
    carried: list[relax.Expr],
    begins: bool,
) -> Loop:
    """Converts the body until the types of the loop-carried values hold after an iteration.

    Only iterations of a loop that surely ``begins`` can be counted beforehand.
    """
    bb = importer.bb
    captured = capture(bb, [body], importer._nodes)
    around = captured.arguments()
    if limit is not None and integer(limit) is None:
        around = [limit, *around]
    types = [value.ty for value in carried]
    fixed = list(captured.symbols())
    # What a loop leaves in a variable that it does not read may begin as anything.
    unread = set(_carried(body)) - _read(body) if begins else set()
    for ty in types:
        fixed += unknown_symbols(ty, fixed)
    while True:
        signature = Signature(tuple(fixed), (_SCALAR, *types, *(value.ty for value in around)))
        func, results, always = _iteration(
            importer, body, captured, signature, limit, len(types), begins
        )
        after = results[1 : 1 + len(types)]
        widened = [
            renewed(b, {v: v for v in fixed})
            if name in unread and not _alike(a, b)
            else _widened(name, fixed, a, b)
            for name, a, b in zip(_carried(body), types, after, strict=True)
        ]
        if all(a is b for a, b in zip(types, widened, strict=True)):
            break
        types = widened
    return Loop(
        bb=bb,
        name=name,
        signature=signature,
        around=around,
        state=1 + len(types),
        elements=results[1 + len(types) :],
        counted=always and integer(limit) is not None,
        body=bb.add_func(func, function_name(name, "iteration")),
    )


def _iteration(
    importer: BodyConverter,
    body: onnx.GraphProto,
    captured: Captured,
    signature: Signature,
    limit: relax.Expr | None,
    carried: int,
    begins: bool,
) -> tuple[relax.Function, list[relax.TensorType], bool]:
    """The function of an iteration, types of its state and elements, and if it asks for nothing."""
    bb = importer.bb
    parameters, values, symbols = signature.parameters()
    always = False

    def build() -> relax.Expr:
        nonlocal always
        number, state = values[0], values[1 : 1 + carried]
        around, stop = values[1 + carried :], limit
        if limit is not None and integer(limit) is None:
            stop, around = around[0], around[1:]
        nodes = captured.inside(around, symbols) | _arguments(bb, body, number, state)
        if draws_inside(body):
            nodes[ITERATIONS] = _iterations(bb, nodes.get(ITERATIONS), number)
        condition, *outputs = importer.convert_body(body, nodes)
        always = begins and truth(condition) is True
        outputs = [as_tensor(bb, value) for value in outputs]
        stacked = [bb.emit(relax.op.expand_dims(value, 0)) for value in outputs[carried:]]
        following = bb.emit(relax.op.add(number, relax.const(1, "int64")))
        more = [] if always else [scalar(bb, as_tensor(bb, condition))]
        if stop is not None and not (always and integer(limit) is not None):
            inside = bb.emit(relax.op.less(following, stop))
            more = [bb.emit(relax.op.logical_and(inside, more[0])) if more else inside]
        elif not more and limit is None:
            more = [relax.const(True, "bool")]
        return relax.Tuple([*more, following, *outputs[:carried], *stacked])

    func = function(bb, parameters, build)
    results = list(func.body.body.ty.fields)[-1 - len(body.output) + 1 :]
    return func, [signature.outside(ty, symbols) for ty in results], always


def _arguments(
    bb: relax.BlockBuilder, body: onnx.GraphProto, number: relax.Expr, state: list[relax.Expr]
) -> dict[str, relax.Expr]:
    """The inputs of the body, by name."""
    numbered, going, *carried = body.input
    return {
        numbered.name: _as_declared(bb, number, numbered),
        going.name: _as_declared(bb, relax.const(True, "bool"), going),
        **dict(zip([value.name for value in carried], state, strict=True)),
    }


def _iterations(
    bb: relax.BlockBuilder, around: relax.Expr | None, number: relax.Expr
) -> relax.Expr:
    """The iteration numbers of the loops around the body and of this one: int64[n]."""
    listed = bb.emit(relax.op.reshape(number, (1,)))
    return listed if around is None else bb.emit(relax.op.concat([around, listed], axis=0))


def _widened(
    name: str, fixed: list[tirx.Var], before: relax.TensorType, after: relax.TensorType
) -> relax.TensorType:
    """``before``, or a type that covers both, with a symbol for each size that changes.

    A single element may get axes in an iteration: it has them from the beginning then.
    """
    grows = str(before.dtype) == str(after.dtype) and before.ndim < after.ndim
    if grows and is_one_element(before) and is_one_element(after):
        return after
    if not _alike(before, after):
        raise FormError(
            f"loop-carried value '{name}' begins as {before.ndim}-dimensional {before.dtype} and "
            f"becomes {after.ndim}-dimensional {after.dtype}; a compiled model needs them alike"
        )
    sizes, old, new = list(before.shape.values), before.shape.values, after.shape.values
    changed = False
    for axis, (a, b) in enumerate(zip(old, new, strict=True)):
        own = isinstance(a, tirx.Var) and not any(a.same_as(var) for var in fixed)
        if not own and not tvm_ffi.structural_equal(a, b):
            sizes[axis], changed = tirx.Var(f"d{axis}", "int64"), True
    return relax.TensorType(sizes, str(before.dtype)) if changed else before


def _alike(a: relax.TensorType, b: relax.TensorType) -> bool:
    return str(a.dtype) == str(b.dtype) and a.ndim == b.ndim


def _read(body: onnx.GraphProto) -> set[str]:
    """Names that nodes of the body read, or that it gives back."""
    return {name for node in body.node for name in names_read(node)} | {
        value.name for value in body.output
    }


def _carried(body: onnx.GraphProto) -> list[str]:
    return [value.name for value in body.input][2:]


def _as_declared(
    bb: relax.BlockBuilder, given: relax.Expr, value: onnx.ValueInfoProto
) -> relax.Expr:
    """With as many axes as the body declares for its iteration number or condition."""
    axes = len(value.type.tensor_type.shape.dim)
    if not axes:
        return given
    if isinstance(given, tvm.ir.GenericConst):
        return relax.const(given.value.numpy().reshape([1] * axes))
    return bb.emit(relax.op.reshape(given, [1] * axes))


# Iterations as calls of functions of levels.
#
# Relax has no loop, and a function that calls itself once an iteration would need a frame of the
# process's stack for each. Here a function of level ``k`` calls the one of level ``k - 1`` up to
# four times, so that the depth grows with the logarithm of the trip count; scan outputs are
# joined level by level and copied as many times, not once an iteration.
#
#     level 0    one iteration: the body, the next iteration number, whether there is another one
#     level k    level k-1, and while there is another iteration, level k-1 again
#     all        level 0, then level 1, ... up to ``LEVELS``, then itself
#
# With a constant trip count and no other condition, the number of calls at each level are the
# digits of the count and nothing is compared in the run.


CALLS_A_LEVEL = 4
LEVELS = 8


def counted(loop: Loop, state: list[relax.Expr], trips: int) -> list[relax.Expr]:
    """The results of a known number of iterations."""
    levels, counts = [loop.body], [1]
    while counts[-1] * CALLS_A_LEVEL <= trips:

        def build(values: list[relax.Expr], sizes: Sizes) -> relax.Expr:
            inner, rest, parts = values[: loop.state], values[loop.state :], []
            for _ in range(CALLS_A_LEVEL):
                _, inner, part = loop.call(levels[-1], inner, rest, sizes)
                parts.append(part)
            return relax.Tuple([*inner, *loop.joined(parts)])

        levels.append(loop_function(loop, f"level{len(levels)}", build, straight=True))
        counts.append(counts[-1] * CALLS_A_LEVEL)
    sizes = Sizes({var: var for var in loop.signature.fixed})
    parts = []
    for level, count in zip(reversed(levels), reversed(counts), strict=True):
        for _ in range(trips // count):
            _, state, part = loop.call(level, state, loop.around, sizes)
            parts.append(part)
        trips %= count
    return [*state[1:], *loop.joined(parts)]


def conditional(loop: Loop, state: list[relax.Expr], first: relax.Expr) -> list[relax.Expr]:
    """The results of iterations as long as their condition holds."""
    levels = [loop.body]
    for level in range(1, LEVELS + 1):
        levels.append(loop_function(loop, f"level{level}", _level_of(loop, levels[-1])))
    # To call itself, the function must have a name and a type: those of one that does not.
    every = loop_function(loop, "all", _all_of(loop, levels, None))
    again = loop_function(loop, "all", _all_of(loop, levels, every), into=every)
    symbols = {var: var for var in loop.signature.fixed}
    types = [renewed(ty, symbols) for ty in loop.signature.types[1 : loop.state]]
    sizes = Sizes(symbols)
    types += [sizes.stacked(index, ty) for index, ty in enumerate(loop.elements)]
    if truth(first):
        arguments = loop.signature.arguments([*state, *loop.around], symbols)
        return fields(loop.bb, loop.bb.emit(relax.Call(again, arguments)), types)
    flagged = Signature(loop.signature.fixed, (first.ty, *loop.signature.types))
    parameters, (flag, *values), inner = flagged.parameters()

    def build() -> relax.Expr:
        arguments = loop.signature.arguments(values, inner)
        return branches(
            loop.bb,
            parameters,
            flag,
            lambda: relax.Call(again, arguments),
            lambda: relax.Tuple([*values[1 : loop.state], *loop.nothing(inner)]),
        )

    func = function(loop.bb, parameters, build, straight=False)
    guarded = loop.bb.add_func(func, function_name(loop.name, "loop"))
    arguments = flagged.arguments([first, *state, *loop.around], symbols)
    return fields(loop.bb, loop.bb.emit(relax.Call(guarded, arguments)), types)


def _level_of(loop: Loop, callee: tvm.ir.GlobalVar) -> Build:
    def build(values: list[relax.Expr], sizes: Sizes) -> relax.Expr:
        rest = values[loop.state :]

        def go_on(state: list[relax.Expr], parts: list[list[relax.Expr]]) -> relax.Expr:
            more, state, part = loop.call(callee, state, rest, sizes)
            parts = [*parts, part]

            def done() -> relax.Expr:
                return relax.Tuple([more, *state, *loop.joined(parts)])

            if len(parts) == CALLS_A_LEVEL:
                return done()
            return branches(loop.bb, sizes.parameters, more, lambda: go_on(state, parts), done)

        return go_on(values[: loop.state], [])

    return build


def _all_of(loop: Loop, levels: list[tvm.ir.GlobalVar], itself: tvm.ir.GlobalVar | None) -> Build:
    def build(values: list[relax.Expr], sizes: Sizes) -> relax.Expr:
        rest = values[loop.state :]

        def repeat(state: list[relax.Expr], parts: list[list[relax.Expr]]) -> relax.Expr:
            arguments = loop.signature.arguments([*state, *rest], sizes.symbols)
            types = [None] * (loop.state - 1)
            types += [sizes.stacked(index, ty) for index, ty in enumerate(loop.elements)]
            found = fields(loop.bb, loop.bb.emit(relax.Call(itself, arguments)), types)
            joined = loop.joined([*parts, found[loop.state - 1 :]])
            return relax.Tuple([*found[: loop.state - 1], *joined])

        def go_on(level: int, state: list[relax.Expr], parts: list[list[relax.Expr]]) -> relax.Expr:
            if level == len(levels):
                return repeat(state, parts)
            more, state, part = loop.call(levels[level], state, rest, sizes)
            parts = [*parts, part]

            def done() -> relax.Expr:
                return relax.Tuple([*state[1:], *loop.joined(parts)])

            if level + 1 == len(levels) and itself is None:
                return done()
            return branches(
                loop.bb, sizes.parameters, more, lambda: go_on(level + 1, state, parts), done
            )

        return go_on(0, values[: loop.state], [])

    return build


def convert_loop(importer: BodyConverter, name: str, inputs: Any, attrs: dict) -> relax.Tuple:
    """The last loop-carried values and the scan outputs, stacked along a new first axis.

    A loop-carried size that an iteration changes is unknown along its axis. Without an iteration,
    sizes of scan outputs that only an iteration could tell are 0, as in ONNX Runtime.

    Raises
    ------
    ValueError
        A loop-carried value changes its type, or its rank with several elements, or is a sequence.
    """
    bb, body = importer.bb, attrs["body"]
    limit = None if inputs[0] is None else scalar(bb, as_tensor(bb, inputs[0]))
    condition = None if inputs[1] is None else scalar(bb, as_tensor(bb, inputs[1]))
    carried = [as_tensor(bb, value) for value in inputs[2:]]
    first = _first_condition(bb, limit, condition)
    loop = typed_loop(importer, name, body, limit, carried, begins=truth(first) is True)
    types = loop.signature.types[1 : 1 + len(carried)]
    carried = [
        _of_type(bb, value, ty, loop.signature.fixed)
        for value, ty in zip(carried, types, strict=True)
    ]
    start = [relax.const(0, "int64"), *carried]
    trips = integer(limit)
    if truth(first) is False:
        return relax.Tuple([*carried, *loop.nothing({v: v for v in loop.signature.fixed})])
    if loop.counted and trips is not None and truth(first):
        return relax.Tuple(counted(loop, start, trips))
    return relax.Tuple(conditional(loop, start, first))


def _of_type(
    bb: relax.BlockBuilder, value: relax.Expr, ty: relax.TensorType, known: Sequence[tirx.Var]
) -> relax.Expr:
    """What the first iteration gets: one element with more axes, zeros for what it never reads."""
    dtype = str(ty.dtype)
    if value.ty.ndim == ty.ndim and str(value.ty.dtype) == dtype:
        return value
    if str(value.ty.dtype) == dtype and is_one_element(ty):
        return bb.emit(relax.op.reshape(value, [1] * ty.ndim))
    sizes = [
        0 if unknown_symbols(relax.ShapeType([size]), known) else size for size in ty.shape.values
    ]
    return bb.emit(relax.op.zeros(relax.ShapeExpr(sizes), dtype))


def _first_condition(
    bb: relax.BlockBuilder, limit: relax.Expr | None, condition: relax.Expr | None
) -> relax.Expr:
    """Whether there is a first iteration."""
    trips = integer(limit)
    given = True if condition is None else truth(condition)
    if given is False or (trips is not None and trips <= 0):
        return relax.const(False, "bool")
    asked = [] if given or condition is None else [condition]
    if limit is not None and trips is None:
        asked.append(bb.emit(relax.op.less(relax.const(0, "int64"), limit)))
    if not asked:
        return relax.const(True, "bool")
    return asked[0] if len(asked) == 1 else bb.emit(relax.op.logical_and(*asked))
