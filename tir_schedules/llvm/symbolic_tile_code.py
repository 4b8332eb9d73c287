"""Code for sums of products with open extents: tiles of sums in registers, of whatever size fits.

A tile that would reach beyond the end of a loop starts earlier and repeats a few sums. A loop that
is shorter than a tile, which is known when the kernel runs, has a version of the code of its own
with smaller tiles, down to one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.sym import Analyzer

from tvm_ext.tir_schedules.block_access import static_extent
from tvm_ext.tir_schedules.llvm.contraction import Contraction, OpenAxis
from tvm_ext.tir_schedules.llvm.nest_code import chunk_start
from tvm_ext.tir_schedules.llvm.stack_arrays import stack_array
from tvm_ext.tir_schedules.nest import substitute
from tvm_ext.tir_schedules.statements import sequence


@dataclass(frozen=True)
class SymbolicTile:
    """How the loops are cut.

    Attributes
    ----------
    columns : OpenAxis
        Its sums fill the vectors.
    column_sizes : tuple[int, ...]
        Sums of a tile along it, the largest first: the first that the loop is as long as is used.
    rows : OpenAxis or None
        The other loop of a tile; None where a vector serves only one sum.
    row_sizes : tuple[int, ...]
        The same along it.
    columns_first : bool
        Whether all other tiles pass before the columns advance.
    """

    columns: OpenAxis
    column_sizes: tuple[int, ...]
    rows: OpenAxis | None
    row_sizes: tuple[int, ...]
    columns_first: bool = False


def symbolic_tile_code(found: Contraction, tile: SymbolicTile, threads: bool) -> tirx.Stmt:
    """The loops of a contraction; ``threads``: the tiles are shared by all threads."""

    def by_columns(rows: int) -> tirx.Stmt:
        versions = [
            (size, _Version(found, tile, rows, size).loops(threads)) for size in tile.column_sizes
        ]
        return _first_that_fits(tile.columns, versions)

    if tile.rows is None:
        return by_columns(1)
    return _first_that_fits(tile.rows, [(size, by_columns(size)) for size in tile.row_sizes])


def _first_that_fits(axis: OpenAxis, versions: Sequence[tuple[int, tirx.Stmt]]) -> tirx.Stmt:
    *others, (_, code) = versions
    for size, longer in reversed(others):
        code = tirx.IfThenElse(axis.extent >= size, longer, code)
    return code


def _quotient(place: Any, divisor: Any) -> Any:
    return place if static_extent(divisor) == 1 else tirx.truncdiv(place, _not_zero(divisor))


def _not_zero(divisor: Any) -> Any:
    """A number of tiles in a loop over them: not zero, which TVM finds it to be in a branch for
    sizes that cannot be, and stops at."""
    known = static_extent(divisor)
    return divisor if known else tirx.max(divisor, tirx.const(1, str(divisor.ty)))


class _Version:
    """The code for one size of tiles, with variables of its own."""

    def __init__(self, found: Contraction, tile: SymbolicTile, rows: int, columns: int) -> None:
        self.found = found
        self.tile = tile
        self.rows = rows
        self.columns = columns
        self.dtype = str(found.start.ty)
        self.index = str(tile.columns.var.ty)
        self.values: dict[Any, Any] = {}
        self.binds: list[tirx.Stmt] = []
        self.array, self.declaration = stack_array(rows * columns, self.dtype, "sums")

    def loops(self, threads: bool) -> tirx.Stmt:
        """All tiles."""
        steps = self._steps()
        body = sequence([*self.binds, self.declaration, *self._tile()])
        if not threads:
            for step in reversed(steps):
                body = self._loop(step.var, step.extent, body)
            return body
        every = tirx.Var("tile", self.index)
        places: list[tirx.Stmt] = []
        inner: Any = tirx.const(1, self.index)
        # Divided once for a tile: within the addresses, LLVM would divide for each of them.
        for step in reversed(steps[1:]):
            place = _quotient(every, inner)
            places.append(tirx.Bind(step.var, tirx.truncmod(place, _not_zero(step.extent))))
            inner = step.extent * inner
        places.append(tirx.Bind(steps[0].var, _quotient(every, inner)))
        body = sequence([*places, body])
        return self._loop(every, inner * steps[0].extent, body, tirx.ForKind.PARALLEL)

    def _steps(self) -> list[OpenAxis]:
        """The loops over tiles, and the first sum of each."""
        rows, columns = self.tile.rows, self.tile.columns
        steps = []
        for axis in self.found.spatial:
            if axis is columns:
                continue
            steps.append(self._step(axis, self.rows if axis is rows else 1))
        last = self._step(columns, self.columns)
        return [last, *steps] if self.tile.columns_first else [*steps, last]

    def _step(self, axis: OpenAxis, size: int) -> OpenAxis:
        chunk = tirx.Var(axis.var.name, self.index)
        start = chunk_start(chunk, size, axis.extent)
        if isinstance(start, tirx.Min):
            first = tirx.Var(f"first_{axis.var.name}", self.index)
            self.binds.append(tirx.Bind(first, start))
            start = first
        self.values[axis.var] = start
        count = axis.extent if size == 1 else tirx.truncdiv(axis.extent + (size - 1), size)
        return OpenAxis(chunk, Analyzer().simplify(count))

    def _tile(self) -> list[tirx.Stmt]:
        zero = self._each(lambda place, _: tirx.BufferStore(self.array, self.found.start, [place]))
        reduction = [
            OpenAxis(tirx.Var(axis.var.name, self.index), axis.extent)
            for axis in self.found.reduction
        ]
        pairs = zip(self.found.reduction, reduction, strict=True)
        steps = {old.var: new.var for old, new in pairs}

        def add(place: Any, values: dict[Any, Any]) -> tirx.Stmt:
            more = self._at(self.found.product, {**values, **steps})
            value = tirx.BufferLoad(self.array, [place]) + more
            return tirx.BufferStore(self.array, value, [place])

        def finish(place: Any, values: dict[Any, Any]) -> tirx.Stmt:
            values = {**values, self.found.total: tirx.BufferLoad(self.array, [place])}
            store = self.found.store
            indices = [self._at(index, values) for index in store.indices]
            return tirx.BufferStore(store.buffer, self._at(store.value, values), indices)

        body = self._each(add)
        for axis in reversed(reduction):
            body = self._loop(axis.var, axis.extent, body)
        return [zero, body, self._each(finish)]

    def _each(self, statement: Any) -> tirx.Stmt:
        """``statement`` for each sum of the tile: rows unrolled, columns in vectors."""
        row, lane = tirx.Var("row", self.index), tirx.Var("lane", self.index)
        rows, columns = self.tile.rows, self.tile.columns
        values = dict(self.values)
        in_row: Any = lane
        if self.columns == 1:
            in_row = tirx.const(0, self.index)
        values[columns.var] = values[columns.var] + in_row
        place = in_row
        if rows is not None and self.rows > 1:
            values[rows.var] = values[rows.var] + row
            place = row * self.columns + in_row
        body = statement(place, values)
        if self.columns > 1:
            body = self._loop(lane, self.columns, body, tirx.ForKind.VECTORIZED)
        if self.rows > 1:
            body = self._loop(row, self.rows, body, tirx.ForKind.UNROLLED)
        return body

    def _at(self, expr: Any, values: dict[Any, Any]) -> Any:
        analyzer = Analyzer()
        moved = substitute(expr, values)
        for var in tirx.analysis.undefined_vars(moved):
            if var.name == "lane":
                analyzer.bind(var, tvm.ir.Range(0, self.columns))
        return analyzer.simplify(moved)

    def _loop(
        self, var: tirx.Var, extent: Any, body: tirx.Stmt, kind: Any = tirx.ForKind.SERIAL
    ) -> tirx.Stmt:
        if isinstance(extent, int):
            extent = tirx.const(extent, self.index)
        return tirx.For(var, tirx.const(0, self.index), extent, kind, body)
