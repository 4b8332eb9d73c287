"""Loops for nests: on threads outside, in vectors inside, with tails that lap over."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.sym import Analyzer

from tvm_ext.tir_schedules.analysis.buffer_access import (
    LoopAxis,
    among,
    count_calls,
    depends,
    flat_address,
    is_compact,
    static_extent,
)
from tvm_ext.tir_schedules.analysis.loop_nest import (
    Nest,
    index_of,
    load_strides,
    restricted,
    store_strides,
    substitute,
    with_own_variables,
)
from tvm_ext.tir_schedules.cpu.parallel_vectorize import (
    REGISTERS_PER_VECTOR_LOOP,
    branch_comparisons,
)
from tvm_ext.tir_schedules.statements import FlatViews, sequence, through_memory

# Iterations a thread should have, so that threads end at about the same time.
_ITERATIONS_PER_THREAD = 8

# Loops of up to so many registers are written out.
_UNROLLED_REGISTERS = 8

# A vector that laps over computes some elements twice: at most this part of all.
_MAX_REPEATED = 1 / 16


def loop(axis: LoopAxis, body: tirx.Stmt, kind: tirx.ForKind = tirx.ForKind.SERIAL) -> tirx.Stmt:
    """``body`` for every iteration of ``axis``."""
    first, count = tirx.const(0, str(axis.var.ty)), index_of(axis.extent, axis.var)
    return tirx.For(axis.var, first, count, kind, body)


def new_axis(name: str, extent: tirx.Expr | int, like: tirx.Var) -> LoopAxis:
    """A loop of the same integer type as another."""
    return LoopAxis(tirx.Var(name, str(like.ty)), extent)


def loops_around(axes: Sequence[LoopAxis], body: tirx.Stmt, cores: int) -> tirx.Stmt:
    """``body`` inside of ``axes``; with more than one core, the outer ones run on threads."""
    if not axes:
        return body
    if any(axis.is_symbolic for axis in axes):
        return _symbolic_loops_around(axes, body, cores)
    count = 0 if cores < 2 else 1
    while 0 < count < len(axes) and not _balanced(_trips(axes[:count]), cores):
        count += 1
    if _trips(axes[:count]) == 1:
        count = 0
    for axis in reversed(axes[count:]):
        body = loop(axis, body)
    return _parallel(axes[:count], body) if count else body


def _symbolic_loops_around(axes: Sequence[LoopAxis], body: tirx.Stmt, cores: int) -> tirx.Stmt:
    """The same where some extents are known in the run only.

    The innermost loop stays by itself: its place in a joined one would take divisions every time.
    Where that would leave the threads a batch alone, which is often of one, it is cut in two.
    """
    if len(axes) == 2 and cores > 1 and not axes[1].is_symbolic:
        axes, body = _with_parts(axes, body, _ITERATIONS_PER_THREAD * cores)
    count = max(1, len(axes) - 1)
    if len(axes) == 2 and axes[1].is_symbolic:
        # The outer one is often a batch of one.
        count = 2
    if cores < 2:
        count = 0
    for axis in reversed(axes[count:]):
        body = loop(axis, body)
    if count < 2:
        return loop(axes[0], body, tirx.ForKind.PARALLEL) if count else body
    like = axes[0].var
    fused = tirx.Var("fused", str(like.ty))
    indices: list[tirx.Stmt] = []
    one = tirx.const(1, str(like.ty))
    inner: Any = one
    for axis in reversed(axes[:count]):
        extent = index_of(axis.extent, like)
        # Never zero inside of the loop, which TVM cannot see.
        place = tirx.truncmod(tirx.truncdiv(fused, tirx.max(inner, one)), tirx.max(extent, one))
        indices.append(tirx.Bind(axis.var, Analyzer().simplify(place)))
        inner = extent * inner
    return loop(LoopAxis(fused, inner), sequence([*indices, body]), tirx.ForKind.PARALLEL)


def _with_parts(
    axes: Sequence[LoopAxis], body: tirx.Stmt, parts: int
) -> tuple[Sequence[LoopAxis], tirx.Stmt]:
    """The axes with the last one in two, the outer of at most ``parts``; unchanged if it is short.

    The last part begins earlier where that is no divisor, and repeats what the one before does.
    """
    *outer, axis = axes
    length = -(-axis.extent // parts)
    if length < 2:
        return axes, body
    part, start = chunks(axis.extent, length, axis.var)
    inner = new_axis("within", length, axis.var)
    return [*outer, part, inner], sequence([tirx.Bind(axis.var, start + inner.var), body])


def _trips(axes: Sequence[LoopAxis]) -> int:
    return math.prod(axis.extent for axis in axes)


def _balanced(trips: int, cores: int) -> bool:
    return trips >= _ITERATIONS_PER_THREAD * cores or trips % cores == 0


def _parallel(axes: Sequence[LoopAxis], body: tirx.Stmt) -> tirx.Stmt:
    if len(axes) == 1:
        return loop(axes[0], body, tirx.ForKind.PARALLEL)
    fused = new_axis("fused", _trips(axes), axes[0].var)
    indices: list[tirx.Stmt] = []
    inner = fused.extent
    for axis in axes:
        inner //= axis.extent
        value = tirx.floormod(tirx.floordiv(fused.var, inner), axis.extent)
        indices.append(tirx.Bind(axis.var, Analyzer().simplify(value)))
    return loop(fused, sequence([*indices, body]), tirx.ForKind.PARALLEL)


def chunks(extent: tirx.Expr | int, length: int, like: tirx.Var) -> tuple[LoopAxis, tvm.ir.Expr]:
    """A loop over stretches of ``length`` iterations, and the first iteration of each.

    The last stretch starts earlier when ``extent`` is no multiple of ``length``: it repeats what
    the one before has done, and needs no branch. A symbolic extent is at least ``length``.
    """
    is_known = isinstance(extent, int)
    count = -(-extent // length) if is_known else tirx.truncdiv(extent + (length - 1), length)
    axis = new_axis("chunk", count, like)
    return axis, chunk_start(axis.var, length, index_of(extent, like))


def chunk_start(chunk: tvm.ir.Expr, length: int, extent: tvm.ir.Expr) -> tvm.ir.Expr:
    """The first of the iterations of a chunk, of an extent that is at least one chunk long."""
    known = static_extent(extent)
    if length == 1 or (known is not None and known % length == 0):
        return chunk * length
    return tirx.min(chunk * length, extent - length)


def vector_chunk(extent: int, lanes: int, registers: int = REGISTERS_PER_VECTOR_LOOP) -> int:
    """Elements of a vectorised loop: a power of two, several registers where little is repeated."""
    if extent < lanes:
        return 1 << (extent.bit_length() - 1)
    best = lanes
    length = 2 * lanes
    while length <= min(extent, registers * lanes):
        done = -(-extent // length) * length
        if done - extent <= _MAX_REPEATED * extent:
            best = length
        length *= 2
    return best


def vector_cut(nest: Nest, lanes: int, once: bool, registers: int) -> tuple[tuple[int, int], ...]:
    """First elements and lengths of the vectors of the innermost loop of ``nest``.

    They cover all of it, or it is a loop over vectors of the only length there is.
    """
    once = _only_once(nest, once)
    extent = nest.axes[-1].extent
    # Code for functions is long: it is written once, and short loops are not written out.
    short = extent <= _UNROLLED_REGISTERS * lanes and not count_calls(nest.store.value)
    if short or (once and extent < lanes):
        return tuple(vector_pieces(extent, lanes, once, registers))
    return ((0, vector_chunk(extent, lanes, registers)),)


def vector_loops(
    nest: Nest, lanes: int, once: bool, registers: int = REGISTERS_PER_VECTOR_LOOP
) -> list[tuple[list[LoopAxis], tirx.Stmt]]:
    """The innermost loop of ``nest`` in vectors: outer loops and bodies, one after the other.

    A vector has ``registers`` times ``lanes`` elements at most. With ``once``, or when the nest
    reads its own result, no element is computed twice.
    """
    *outer, axis = nest.axes
    pieces = vector_cut(nest, lanes, once, registers)
    _, length = pieces[0]
    if len(pieces) > 1 or length == axis.extent:
        return [(outer, sequence([_vector(nest, *piece) for piece in pieces]))]
    done = axis.extent // length * length
    if not _only_once(nest, once) or done == axis.extent:
        chunk, start = chunks(axis.extent, length, axis.var)
        return [([*outer, chunk], _vector(nest, start, length))]
    chunk, start = chunks(done, length, axis.var)
    whole = ([*outer, chunk], _vector(nest, start, length))
    return [whole, _tail(nest, done, lanes)]


def _only_once(nest: Nest, once: bool) -> bool:
    return once or any(load.source.same_as(nest.store.buffer) for load in nest.loads())


def _tail(nest: Nest, start: int, lanes: int) -> tuple[list[LoopAxis], tirx.Stmt]:
    """The innermost loop from ``start`` on, written out."""
    position = len(nest.axes) - 1
    count = nest.axes[-1].extent - start
    rest = with_own_variables(restricted(nest, position, start, count))
    outer = list(rest.axes[:position])
    if count == 1:
        return outer, rest.store
    return outer, sequence([_vector(rest, *piece) for piece in vector_pieces(count, lanes, True)])


def _vector(nest: Nest, start: tirx.Expr | int, length: int) -> tirx.Stmt:
    axis = nest.axes[-1]
    if length == 1:
        return _at(nest, {axis.var: tirx.const(start, str(axis.var.ty))})
    lane = new_axis("lane", length, axis.var)
    return loop(lane, _at(nest, {axis.var: start + lane.var}), tirx.ForKind.VECTORIZED)


def _at(nest: Nest, values: dict[tirx.Var, Any]) -> tirx.BufferStore:
    return nest.with_expressions(lambda expr: substitute(expr, values)).store


def vector_pieces(
    extent: int, lanes: int, once: bool = False, registers: int = REGISTERS_PER_VECTOR_LOOP
) -> list[tuple[int, int]]:
    """First elements and lengths of vectors that cover a short loop.

    The last one laps over the one before, so as to be long, unless every element is to be computed
    once only.
    """
    pieces: list[tuple[int, int]] = []
    start = 0
    length = registers * lanes
    while start < extent:
        rest = extent - start
        if rest < lanes and not once and rest & (rest - 1):
            length = 1 << rest.bit_length()
            if length > extent:
                length //= 2
                pieces.append((start, length))
            return [*pieces, (extent - length, length)]
        while length > rest:
            length //= 2
        pieces.append((start, length))
        start += length
    return pieces


def walks_in_steps_of_one(nest: Nest) -> bool:
    """Whether the innermost loop stores whole vectors, and loads them or repeats one element."""
    if not nest.axes or _branches_inside(nest):
        return False
    inner = [strides[-1] for strides in load_strides(nest)]
    return store_strides(nest)[-1] == 1 and all(stride in (0, 1) for stride in inner)


def _branches_inside(nest: Nest) -> bool:
    """Whether a branch is left that neighbours may take differently: vectors would fall apart."""
    inner = nest.axes[-1].var
    return any(depends(c, inner) for c in branch_comparisons(nest.store.value))


# Addresses in tiles of kernels of symbolic sizes.


_INDEX = "int64"


class FlatPlaces:
    """An expression or a store of a place in a tile, with addresses that cost an addition.

    Addresses in tensors of symbolic sizes are products of these. Where they move by the same number
    of elements from row to row of a tile and from column to column, the first address and those
    numbers are computed once for a tile, in ``statements``.

    Parameters
    ----------
    make : callable
        The expression or store at a row, a column and a lane.
    params : Sequence of buffers
        The kernel's; other tensors are accessed as they are.
    views : FlatViews
        Where the views of parameters are noted.
    """

    def __init__(
        self, make: Callable[[Any, Any, Any], Any], params: Sequence[Any], views: FlatViews
    ) -> None:
        self.params = params
        self.views = views
        self.statements: list[tirx.Stmt] = []
        self.variables = [tirx.Var(name, _INDEX) for name in ("row", "column", "lane")]
        # Made once: with numbers for the variables it might read in fewer places.
        self.made = _with_places(make(*self.variables), self._place)

    def _place(self, buffer: Any, indices: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
        moves = self._moves(buffer, indices, self.variables)
        if moves is None:
            return buffer, indices
        address, *steps = moves
        for var, step in zip(self.variables, steps, strict=True):
            address = address + var * step
        return self.views.of(buffer), [address]

    def _moves(
        self, buffer: Any, indices: Sequence[Any], at: Sequence[Any]
    ) -> tuple[Any, Any, Any, Any] | None:
        """The first address, and how far it moves by row, column and lane; or nothing."""
        if not among(buffer, self.params) or not is_compact(buffer, True):
            return None
        address = flat_address(buffer, indices, _INDEX)
        zeros: dict[Any, Any] = dict.fromkeys(at, _index(0))
        start = substitute(address, zeros)
        analyzer = Analyzer()
        steps = [
            analyzer.simplify(substitute(address, {**zeros, var: _index(1)}) - start) for var in at
        ]
        linear = start
        for var, step in zip(at, steps, strict=True):
            linear = linear + var * step
        if static_extent(steps[2]) is None or not analyzer.can_prove_equal(address, linear):
            return None
        first = self._known(start, "start")
        return first, self._known(steps[0], "pitch"), self._known(steps[1], "step"), steps[2]

    def _known(self, value: Any, name: str) -> Any:
        """``value`` itself where it is a number."""
        if static_extent(value) is not None:
            return value
        var = tirx.Var(name, _INDEX)
        self.statements += through_memory(var, value)
        return var

    def at(self, row: Any, column: Any, lane: Any) -> Any:
        """The expression or store at one place."""
        numbers = (_index(row), _index(column), lane)
        values = dict(zip(self.variables, numbers, strict=True))
        if not isinstance(self.made, tirx.BufferStore):
            return substitute(self.made, values)
        indices = [substitute(index, values) for index in self.made.indices]
        return tirx.BufferStore(self.made.buffer, substitute(self.made.value, values), indices)


def _with_places(
    made: Any, place: Callable[[Any, Sequence[Any]], tuple[Any, Sequence[Any]]]
) -> Any:
    """An expression or store with other buffers and indices."""
    if isinstance(made, tirx.BufferStore):
        buffer, indices = place(made.buffer, made.indices)
        return tirx.BufferStore(buffer, _with_places(made.value, place), list(indices))

    def load(node: tvm.ir.TensorLoad) -> Any:
        buffer, indices = place(node.source, node.indices)
        return node if buffer.same_as(node.source) else tirx.BufferLoad(buffer, list(indices))

    return tvm_ffi.structural_map(made, (tvm.ir.TensorLoad, load))


def _index(value: Any) -> Any:
    return tirx.const(value, _INDEX) if isinstance(value, int) else value
