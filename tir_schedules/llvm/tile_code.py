"""Code for a nest that reads along one axis and writes along another: tiles turned in registers.

The rows of a tile, each a vector along the axis that is read, are turned into vectors along the
axis that is written. Every cache line is then read once and written once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import tvm
import tvm_ffi
from tvm import tirx
from tvm.sym import Analyzer

from tvm_ext.tir_schedules.flat_views import nodes
from tvm_ext.tir_schedules.inlining import count_calls
from tvm_ext.tir_schedules.llvm.borders import branch_comparisons
from tvm_ext.tir_schedules.llvm.lane_moves import (
    deinterleaved,
    interleaved,
    strided,
    strided_starts,
    transposed,
)
from tvm_ext.tir_schedules.llvm.nest_code import chunks, loop, new_axis
from tvm_ext.tir_schedules.llvm.stack_arrays import stack_array
from tvm_ext.tir_schedules.nest import Axis, Nest, slope, substitute
from tvm_ext.tir_schedules.statements import sequence

# Above this many nodes, or with a function in it, a value is computed in a loop over the rows of a
# tile, not row by row.
_MAX_NODES_UNROLLED = 24

# Longer strides are read element by element.
MAX_STRIDE = 4


@dataclass(frozen=True)
class TileDecision:
    """How a nest is cut into tiles.

    Attributes
    ----------
    write_axis : int
        Axis along which the result is contiguous.
    read_axis : int
        Axis along which what is turned is read.
    size : int
        Lanes of the vectors, and rows of a full tile; a power of two.
    shape : str
        "square"; "interleave" when the result is dense in a short write axis, and whole vectors of
        it are stored; "deinterleave" when what is read is dense in a short read axis.
    turned : tuple[int, ...]
        Positions among the nest's loads of those that are turned, while values are computed in the
        order of writing. Empty: values are computed in the order of reading, and turned.
    swapped : bool
        Whether tiles follow each other along the shorter of the two axes, not the longer one.
    """

    write_axis: int
    read_axis: int
    size: int
    shape: Literal["square", "interleave", "deinterleave"] = "square"
    turned: tuple[int, ...] = ()
    swapped: bool = False


def tile_count(nest: Nest, decision: TileDecision) -> int:
    """How many tiles there are."""
    count = 1
    for position, axis in enumerate(nest.axes):
        turned = position in (decision.write_axis, decision.read_axis)
        count *= -(-axis.extent // decision.size) if turned else axis.extent
    return count


def tile_code(nest: Nest, decision: TileDecision) -> tuple[list[Axis], tirx.Stmt]:
    """The nest in tiles: the loops outside of a tile, and its body."""
    write, read = nest.axes[decision.write_axis], nest.axes[decision.read_axis]
    tile = _Tile(nest, decision)
    outer = [axis for axis in nest.axes if axis is not write and axis is not read]
    write_chunk, write_start = chunks(write.extent, tile.rows, write.var)
    read_chunk, read_start = chunks(read.extent, tile.columns, read.var)
    first_write = tirx.Var("first_row", str(write.var.ty))
    first_read = tirx.Var("first_column", str(read.var.ty))
    binds = [tirx.Bind(first_write, write_start), tirx.Bind(first_read, read_start)]
    body = sequence([*binds, *tile.statements(first_write, first_read)])
    # Along the longer axis inside: fewer stretches of memory are under way at a time.
    pair = [axis for axis in (write_chunk, read_chunk) if not axis.runs_once]
    pair.sort(key=lambda axis: (axis.is_open, 0 if axis.is_open else axis.extent))
    if decision.swapped:
        pair.reverse()
    once = {a.var: tirx.const(0, str(a.var.ty)) for a in (write_chunk, read_chunk)}
    once = {a: v for a, v in once.items() if not any(p.var.same_as(a) for p in pair)}
    return [*outer, *pair], substitute(body, once)


class _Tile:
    """One tile: ``rows`` along the axis that is written, ``columns`` along the one that is read."""

    def __init__(self, nest: Nest, decision: TileDecision) -> None:
        self.nest = nest
        self.size = decision.size
        self.shape = decision.shape
        self.write = nest.axes[decision.write_axis]
        self.read = nest.axes[decision.read_axis]
        self.rows = self._most(self.write)
        self.columns = self._most(self.read)
        loads = nest.loads()
        self.staged = [loads[i] for i in decision.turned] or [nest.store.value]

    def _most(self, axis: Axis) -> int:
        """How many of an axis are in a tile; one of open extent is no shorter than that."""
        return self.size if axis.is_open else min(self.size, axis.extent)

    def statements(self, first_write: tirx.Var, first_read: tirx.Var) -> list[tirx.Stmt]:
        """The statements of a tile whose first element is at these two iterations."""
        found: list[tirx.Stmt] = []
        arrays: list[tuple[Any, Any]] = []
        for index, expr in enumerate(self.staged):
            dtype = _carrier(str(expr.ty))
            array, declaration = stack_array(self.size * self.size, dtype, f"tile{index}")
            found.append(declaration)
            found += self._fill(array, expr, first_write, first_read)
            found += self._turn(array)
            arrays.append((expr, array))
        return [*found, *self._write_back(arrays, first_write, first_read)]

    def _fill(self, array: Any, expr: Any, first_write: Any, first_read: Any) -> list[tirx.Stmt]:
        def row(number: Any) -> tirx.Stmt:
            lane = new_axis("lane", self.columns, self.read.var)
            values = {self.write.var: first_write + number, self.read.var: first_read + lane.var}
            return self._store_row(array, number * self.size, substitute(expr, values), lane)

        def dense(number: Any) -> tirx.Stmt:
            lane = new_axis("lane", self.size, self.read.var)
            values = {self.write.var: first_write, self.read.var: number * self.size + lane.var}
            return self._store_row(array, number * self.size, substitute(expr, values), lane)

        if self.shape == "deinterleave":
            return self._for_each(self.columns, self.read, dense, expr)
        return self._for_each(self.rows, self.write, row, expr)

    def _store_row(self, array: Any, start: Any, expr: Any, lane: Axis) -> tirx.Stmt:
        expr = Analyzer().simplify(expr)
        plain = isinstance(expr, tvm.ir.TensorLoad) and lane.extent == self.size
        step = slope(expr.indices[0], lane.var) if plain else None
        if step is None or not 1 < step <= MAX_STRIDE:
            store = tirx.BufferStore(array, _as_type(expr, array.dtype), [start + lane.var])
            return loop(lane, store, tirx.ForKind.VECTORIZED)
        first = substitute(expr.indices[0], {lane.var: tirx.const(0, str(lane.var.ty))})
        names = _Names(f"{array.dtype}x{self.size}")
        rows = [
            names(_as_type(_vector(expr.source, first + offset, self.size), names.dtype))
            for offset in strided_starts(step, self.size)
        ]
        vector = strided(rows, step, self.size, names)
        ramp = tirx.Ramp(start, tirx.const(1, str(start.ty)), self.size)
        return sequence([*names.statements, tirx.BufferStore(array, vector, [ramp])])

    def _for_each(
        self, count: int, like: Axis, body: Callable[[Any], tirx.Stmt], expr: Any
    ) -> list[tirx.Stmt]:
        small = len(nodes(expr, tvm.ir.Expr)) <= _MAX_NODES_UNROLLED and not count_calls(expr)
        # Which way a branch goes is known only where the row is a number.
        if small or branch_comparisons(expr):
            return [body(tirx.const(number, str(like.var.ty))) for number in range(count)]
        axis = new_axis("row", count, like.var)
        return [loop(axis, body(axis.var))]

    def _turn(self, array: Any) -> list[tirx.Stmt]:
        size, names = self.size, _Names(f"{array.dtype}x{self.size}")
        count = self.columns if self.shape == "deinterleave" else self.rows
        starts = [tirx.const(number * size, "int32") for number in range(size)]
        rows = [names(_vector(array, start, size)) for start in starts[:count]]
        if self.shape == "interleave":
            vectors = interleaved(rows, size, names)
        elif self.shape == "deinterleave":
            vectors = deinterleaved(rows, size, names)
        else:
            # Rows beyond the last are never looked at: any vector will do.
            rows += [rows[0]] * (size - count)
            vectors = transposed(rows, size, names)[: self.columns]
        stores = [
            tirx.BufferStore(array, vector, [tirx.Ramp(start, tirx.const(1, "int32"), size)])
            for vector, start in zip(vectors, starts, strict=False)
        ]
        return [*names.statements, *stores]

    def _write_back(
        self, arrays: list[tuple[Any, Any]], first_write: Any, first_read: Any
    ) -> list[tirx.Stmt]:
        store = self.nest.store

        def column(number: Any) -> tirx.Stmt:
            lane = new_axis("lane", self.rows, self.write.var)
            values = {self.write.var: first_write + lane.var, self.read.var: first_read + number}
            return written(number * self.size + lane.var, values, lane)

        def dense(number: Any) -> tirx.Stmt:
            lane = new_axis("lane", self.size, self.write.var)
            values = {self.write.var: number * self.size + lane.var, self.read.var: first_read}
            return written(number * self.size + lane.var, values, lane)

        def written(index: Any, values: dict[Any, Any], lane: Axis) -> tirx.Stmt:
            places = [
                (expr, _as_type(tirx.BufferLoad(array, [index]), str(expr.ty)))
                for expr, array in arrays
            ]
            value = substitute(_with_loads(store.value, places), values)
            address = substitute(store.indices[0], values)
            body = tirx.BufferStore(store.buffer, value, [address])
            return loop(lane, body, tirx.ForKind.VECTORIZED)

        if self.shape == "interleave":
            return [dense(tirx.const(i, str(self.write.var.ty))) for i in range(self.rows)]
        value = arrays[0][1] if arrays[0][0].same_as(store.value) else store.value
        return self._for_each(self.columns, self.read, column, value)


class _Names:
    """Collects the statements that name vectors."""

    def __init__(self, dtype: str) -> None:
        self.statements: list[tirx.Stmt] = []
        self.dtype = dtype

    def __call__(self, value: Any) -> Any:
        var = tirx.Var("vector", self.dtype)
        self.statements.append(tirx.Bind(var, value))
        return var


def _carrier(dtype: str) -> str:
    """The type in which elements are moved.

    TVM turns narrow floats into integers after vectors were named, and then refuses the names.
    """
    if dtype == "bfloat16":
        return "uint16"
    return "uint8" if dtype.startswith("float8") else dtype


def _as_type(value: Any, dtype: str) -> Any:
    """The same bits as another type."""
    return value if str(value.ty) == dtype else tirx.reinterpret(dtype, value)


def _vector(array: Any, start: Any, size: int) -> Any:
    return tirx.BufferLoad(array, [tirx.Ramp(start, tirx.const(1, str(start.ty)), size)])


def _with_loads(value: Any, places: Sequence[tuple[Any, Any]]) -> Any:
    """``value`` with some of what it reads, or all of it, taken from tiles."""
    loads = {tvm_ffi.StructuralKey(expr): load for expr, load in places}
    if tvm_ffi.StructuralKey(value) in loads:
        return loads[tvm_ffi.StructuralKey(value)]

    def replaced(expr: Any) -> Any:
        return loads.get(tvm_ffi.StructuralKey(expr), expr)

    return tvm_ffi.structural_map(value, (tvm.ir.TensorLoad, replaced))
