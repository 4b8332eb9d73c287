"""Code for contractions with symbolic extents: tiles of sums in registers, of whatever size fits.

A tile that would reach beyond the end of a loop starts earlier and repeats a few sums. A loop that
is shorter than a tile, which is known when the kernel runs, has a version of the code of its own
with smaller tiles, down to one.

Where the rows of the operand that fills the vectors are far apart, the columns of some tiles are
copied next to each other first, and stay in L2 while all rows of tiles pass (see ``column_panel``).
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.sym import Analyzer

from tvm_ext.tir_schedules.analysis.buffer_access import (
    LoopAxis,
    depends,
    static_extent,
)
from tvm_ext.tir_schedules.analysis.loop_nest import substitute
from tvm_ext.tir_schedules.cpu.dot_product import DotProduct
from tvm_ext.tir_schedules.cpu.implicit_padding import ImplicitPadding
from tvm_ext.tir_schedules.cpu.nest_code import chunk_start
from tvm_ext.tir_schedules.cpu.prefetch import prefetches_along, prefetches_of, rows_ahead
from tvm_ext.tir_schedules.cpu.symbolic_contraction import SymbolicContraction
from tvm_ext.tir_schedules.cpu.symbolic_tile_cut import (
    MOST_FAR_ROWS,
    CommonFactor,
    Panel,
    SymbolicTile,
)
from tvm_ext.tir_schedules.statements import sequence, stack_array, where_long

# A tile that is at most so many times as long as the next smaller one is used for loops of so many
# tiles.
_LONGER = 2
_TILES_OF_WIDER = 4

# Vectors of sums that hide the latency of the multiply-add units: two units, and four cycles.
_BUSY_VECTORS = 8
# Steps of a sum, at least, that are added in parts, which are added up at the end.
_LEAST_STEPS = 32

# Steps of a sum that are added to sums in memory at a time: rows of an operand that are read along.
_STEPS = 4


def symbolic_tile_code(
    contraction: SymbolicContraction, tile: SymbolicTile, threads: bool
) -> tirx.Stmt:
    """The loops of a contraction; ``threads``: the tiles are shared by all threads."""

    def by_columns(rows: int, panel: Panel | None) -> tirx.Stmt:
        # One row has no use for wide tiles: they are there to read each of many rows less often.
        sizes = tile.column_sizes[-3:] if rows == 1 else tile.column_sizes
        far = tile.far_rows if panel is None and rows <= MOST_FAR_ROWS else None
        if far is not None:
            sizes = (*far.column_sizes(tile.columns, rows, sizes[0]), *sizes)
        cut = replace(tile, panel=panel, far_rows=far)
        versions = [(size, _Version(contraction, cut, rows, size).loops(threads)) for size in sizes]
        return _first_that_fits(tile.columns, versions)

    if tile.rows is None:
        return by_columns(1, None)
    versions = [(least, by_columns(size, panel)) for least, size, panel in _row_versions(tile)]
    *others, (smaller, code) = versions
    rows = tile.rows.extent
    for least, longer in reversed(others):
        code = where_long([rows], least, longer, code, _saves(tile.row_sizes, rows, least, smaller))
        smaller = least
    return code


def _saves(sizes: Sequence[int], rows: Any, least: int, smaller: int) -> list[Any]:
    """Whether tiles of ``least`` rows are better than those of fewer; no condition where always."""
    if smaller == 1 or least not in sizes:
        return []
    tiles = [tirx.truncdiv(rows + (n - 1), tirx.const(n, str(rows.ty))) for n in (least, smaller)]
    if least == sizes[0]:
        # Those read the operand of the columns less often: eight rows are two of six or of four.
        return [tiles[0] < tiles[1]]
    # Of few rows as many as there are in whole tiles are computed: five in two tiles of three.
    return [tiles[0] * least <= tiles[1] * smaller]


def _row_versions(tile: SymbolicTile) -> list[tuple[int, int, Panel | None]]:
    """Rows of the loop at least, rows of a tile, and the panel, of each version of the code.

    A version with more rows is used wherever the loop is as long: what its last tile repeats is
    less work than to read the operand of the columns once more for fewer rows.
    """
    panel = tile.panel
    without: list[tuple[int, int, Panel | None]] = [(size, size, None) for size in tile.row_sizes]
    if panel is None:
        return without
    largest = tile.row_sizes[0]
    shorter = [version for version in without if version[0] < panel.least_rows]
    return [(max(largest, panel.least_rows), largest, panel), *shorter]


def _first_that_fits(axis: LoopAxis, versions: Sequence[tuple[int, tirx.Stmt]]) -> tirx.Stmt:
    *others, (_, code) = versions
    sizes = [size for size, _ in versions]
    for (size, longer), next_size in reversed(list(zip(others, sizes[1:], strict=True))):
        # Of two that would do, the wider one only where what its last tile repeats is little.
        least = size if size > _LONGER * next_size else _TILES_OF_WIDER * size
        code = where_long([axis.extent], least, longer, code)
    return code


def _quotient(place: tvm.ir.Expr, divisor: tvm.ir.Expr) -> tvm.ir.Expr:
    return place if static_extent(divisor) == 1 else tirx.truncdiv(place, _not_zero(divisor))


def _not_zero(divisor: tvm.ir.Expr) -> tvm.ir.Expr:
    """A number of tiles in a loop over them: not zero, which TVM finds it to be in a branch for
    sizes that cannot be, and stops at.
    """
    known = static_extent(divisor)
    return divisor if known else tirx.max(divisor, tirx.const(1, str(divisor.ty)))


class _Version:
    """The code for one size of tiles, with variables of its own."""

    def __init__(
        self, contraction: SymbolicContraction, tile: SymbolicTile, rows: int, columns: int
    ) -> None:
        self.contraction = contraction
        self.tile = tile
        self.rows = rows
        self.columns = columns
        self.dtype = str(contraction.start.ty)
        self.index = str(tile.columns.var.ty)
        self.values: dict[Any, Any] = {}
        # The same for each row, of the variables that say which it is.
        self.places: list[dict[Any, Any]] = [{}] * rows
        # An array for each row: TVM takes larger ones from the heap, where LLVM leaves them.
        arrays = [stack_array(columns, self.dtype, "sums") for _ in range(rows)]
        self.arrays = [array for array, _ in arrays]
        self.declarations = [declaration for _, declaration in arrays]
        # Sums that one vector operation takes: of tiles longer than registers, a part.
        self.lanes = columns
        if tile.far_rows is not None and rows == 1:
            self.lanes = min(columns, tile.far_rows.lanes)
        # Those that the instructions of a dot product add to, each of one or of several rows.
        self.added = self.arrays
        if tile.dot_product is not None and tile.dot_product.rows > 1:
            each = tile.dot_product.rows
            pairs = [stack_array(each * columns, self.dtype, "pairs") for _ in range(0, rows, each)]
            self.added = [array for array, _ in pairs]
            self.declarations += [declaration for _, declaration in pairs]
        # For each row, arrays that steps are added to in turn: those of a block, whose sum is
        # multiplied, or all.
        self.blocks: list[list[Any]] = []
        if parts := self._parts():
            made = [stack_array(columns, self.dtype, "block") for _ in range(rows * parts)]
            self.blocks = [[a for a, _ in made[row * parts :][:parts]] for row in range(rows)]
            self.declarations += [declaration for _, declaration in made]
        # Stand in the product for the column of the tile, and for the tile of a panel.
        self.column, self.member = (tirx.Var(name, self.index) for name in ("column", "member"))
        self.panel = tile.panel
        self.copied = self._panel_buffer(self.panel) if self.panel is not None else None
        padding = tile.implicit_padding
        self.pixels = self._pixel_buffer(padding) if padding is not None else None

    def _parts(self) -> int:
        """How many arrays a row's steps are added to in turn; 0 where its sums themselves are."""
        sums, tile = self.rows * self.columns, self.tile
        common = tile.common_factor if tile.panel is None else None
        if common is not None:
            return max(1, common.enough_sums // sums) if sums <= common.most_sums else 0
        if not self._may_be_in_parts():
            return 0
        parts = _BUSY_VECTORS // (self.rows * -(-self.columns // tile.vector_sums))
        return parts if parts > 1 else 0

    def _panel_buffer(self, panel: Panel) -> Any:
        steps = math.prod(axis.extent for axis in self.contraction.reduction)
        shape = (panel.tiles * steps * self.columns,)
        # In a scope of its own, so that TVM does not lay small arrays into the same memory.
        return tirx.decl_buffer(shape, str(panel.element.ty), "panel", scope="local")

    def _pixel_buffer(self, padding: ImplicitPadding) -> Any:
        shape = (self.rows * padding.channels.extent,)
        return tirx.decl_buffer(shape, padding.stored_type, "pixels", scope="local")

    def loops(self, threads: bool) -> tirx.Stmt:
        """All tiles."""
        panel = self.panel
        around, body = self._without_panels() if panel is None else self._with_panels(panel)
        if not threads:
            for step in reversed(around):
                body = self._loop(step.var, step.extent, body)
            return body
        every = tirx.Var("tile", self.index)
        places: list[tirx.Stmt] = []
        inner: Any = tirx.const(1, self.index)
        # Divided once for a tile: within the addresses, LLVM would divide for each of them.
        for step in reversed(around[1:]):
            place = _quotient(every, inner)
            places.append(tirx.Bind(step.var, tirx.truncmod(place, _not_zero(step.extent))))
            inner = step.extent * inner
        places.append(tirx.Bind(around[0].var, _quotient(every, inner)))
        body = sequence([*places, body])
        return self._loop(every, inner * around[0].extent, body, tirx.ForKind.PARALLEL)

    def _without_panels(self) -> tuple[list[LoopAxis], tirx.Stmt]:
        """The loops over tiles, and what is in them."""
        tile = self.tile
        last, bind = self._step(tile.columns, self.columns)
        if tile.rows is not None and tile.row_block:
            (every, within), row_bind = self._blocks_of_rows(tile.rows, tile.row_block)
            others, binds = self._others(tile.rows)
            around = [every, last, *others, within]
            binds = [*binds, *row_bind]
        else:
            others, binds = self._others()
            around = [last, *others] if tile.columns_first else [*others, last]
        return around, sequence([*binds, *bind, *self.declarations, *self._tile()])

    def _blocks_of_rows(
        self, rows: LoopAxis, most: int
    ) -> tuple[tuple[LoopAxis, LoopAxis], list[tirx.Stmt]]:
        """Loops over even blocks of at most so many tiles, and over those of a block; the last ones
        are computed twice where blocks are no divisor of all.
        """
        count = self._count(rows.extent, self.rows)
        blocks = self._count(count, most)
        each = _quotient(count + blocks - 1, blocks)
        every = LoopAxis(tirx.Var("block", self.index), blocks)
        within = LoopAxis(tirx.Var(rows.var.name, self.index), each)
        number = tirx.min(every.var * each + within.var, count - 1)
        _, binds = self._step(rows, self.rows, number)
        return (every, within), binds

    def _with_panels(self, panel: Panel) -> tuple[list[LoopAxis], tirx.Stmt]:
        """The loops over panels, and what is in them: the copy, then the tiles of all rows."""
        columns, most = self.tile.columns, panel.tiles
        others, binds = self._others(panel.rows)
        count = self._count(columns.extent, self.columns)
        every = LoopAxis(tirx.Var("panel", self.index), self._count(count, most))
        here = tirx.Var("tiles", self.index)
        least = tirx.min(tirx.const(most, self.index), count - every.var * most)
        copy = self._panel_copy(panel, every.var * most, here)
        rows, row_bind = self._step(panel.rows, self.rows)
        _, bind = self._step(columns, self.columns, every.var * most + self.member)
        body = sequence([*bind, *self.declarations, *self._tile()])
        body = sequence([*row_bind, self._loop(self.member, here, body)])
        body = self._loop(rows.var, rows.extent, body)
        return [*others, every], sequence([*binds, tirx.Bind(here, least), *copy, body])

    def _others(self, inside: LoopAxis | None = None) -> tuple[list[LoopAxis], list[tirx.Stmt]]:
        """The loops over tiles along all but the columns, and rows that are within these."""
        steps, binds = [], []
        for axis in self.contraction.spatial:
            if axis is self.tile.columns or axis is inside:
                continue
            step, bind = self._step(axis, self.rows if axis is self.tile.rows else 1)
            steps.append(step)
            binds += bind
        return steps, binds

    def _step(
        self, axis: LoopAxis, size: int, chunk: Any = None
    ) -> tuple[LoopAxis, list[tirx.Stmt]]:
        """A loop over tiles, and what its body begins with: the first sum of a tile along it."""
        var = tirx.Var(axis.var.name, self.index)
        number = var if chunk is None else chunk
        if self.tile.padded and axis is self.tile.columns:
            self.values[axis.var] = number * tirx.const(size, self.index)
            return LoopAxis(var, self._count(axis.extent, size)), []
        start = chunk_start(number, size, axis.extent)
        binds: list[tirx.Stmt] = []
        if isinstance(start, tirx.Min):
            first = tirx.Var(f"first_{axis.var.name}", self.index)
            binds.append(tirx.Bind(first, start))
            start = first
        if axis is self.tile.rows:
            binds += self._row_places(axis, start)
        else:
            self.values[axis.var] = start
        return LoopAxis(var, self._count(axis.extent, size)), binds

    def _row_places(self, rows: LoopAxis, first: tvm.ir.Expr) -> list[tirx.Stmt]:
        """Where each row of a tile lies, whose first is ``first``; binds what that takes.

        Of several loops the first row is found by divisions, the others each from the one before.
        """
        if not self.tile.row_parts:
            self.places = [{rows.var: first + row} for row in range(self.rows)]
            return []
        outermost, *others = self.tile.row_parts
        # In memory: TVM would put the values into each address, and one into the next.
        made = {
            part.var: stack_array(self.rows, self.index, part.var.name)
            for part in self.tile.row_parts
        }
        statements = [declaration for _, declaration in made.values()]
        self.places = [
            {var: tirx.BufferLoad(array, [self._number(row)]) for var, (array, _) in made.items()}
            for row in range(self.rows)
        ]

        def store(part: LoopAxis, row: int, value: tvm.ir.Expr) -> None:
            array, _ = made[part.var]
            statements.append(tirx.BufferStore(array, value, [self._number(row)]))

        rest: Any = first
        for part in reversed(others):
            lines = tirx.Var(f"{part.var.name}_lines", self.index)
            statements.append(tirx.Bind(lines, _quotient(rest, part.extent)))
            store(part, 0, rest - lines * part.extent)
            rest = lines
        store(outermost, 0, rest)
        for row in range(1, self.rows):
            advance: Any = self._number(1)
            for part in reversed(others):
                following = self.places[row - 1][part.var] + advance
                ends = tirx.EQ(following, part.extent)
                store(part, row, tirx.Select(ends, self._number(0), following))
                advance = tirx.Cast(self.index, ends)
            store(outermost, row, self.places[row - 1][outermost.var] + advance)
        return statements

    def _number(self, value: int) -> tvm.ir.Expr:
        return tirx.const(value, self.index)

    def _count(self, extent: tvm.ir.Expr, size: int) -> tvm.ir.Expr:
        count = extent if size == 1 else tirx.truncdiv(extent + (size - 1), size)
        return Analyzer().simplify(count)

    def _reduction(self) -> tuple[list[LoopAxis], dict[Any, Any]]:
        """Loops over what is summed up, and their variables by those of the contraction."""
        own = [
            LoopAxis(tirx.Var(axis.var.name, self.index), axis.extent)
            for axis in self.contraction.reduction
        ]
        pairs = zip(self.contraction.reduction, own, strict=True)
        return own, {old.var: new.var for old, new in pairs}

    def _panel_copy(self, panel: Panel, first: Any, count: Any) -> list[tirx.Stmt]:
        """Declares the panel and fills it with the columns of ``count`` tiles, row by row."""
        reduction, steps = self._reduction()
        lane, member = tirx.Var("lane", self.index), tirx.Var("member", self.index)
        columns = self.tile.columns
        _, bind = self._step(columns, self.columns, first + member)
        values = {**self.values, **steps, self.column: lane, self.member: member}
        values[columns.var] = values[columns.var] + lane
        element = self._at(panel.element, values)
        body = tirx.BufferStore(self.copied, element, [self._at(self._panel_place(), values)])
        body = self._loop(lane, self.columns, body, tirx.ForKind.VECTORIZED)
        body = self._loop(member, count, sequence([*bind, body]))
        for axis in reversed(reduction):
            body = self._loop(axis.var, axis.extent, body)
        return [tirx.AllocBuffer(self.copied), body]

    def _panel_place(self) -> Any:
        """Where a step's element of a column lies in the panel."""
        place: Any = self.member
        for axis in self.contraction.reduction:
            place = place * axis.extent + axis.var
        return place * self.columns + self.column

    def _product(self, row: int) -> tvm.ir.Expr:
        """What is added, its operands read from the panel and the pixels where there are such."""
        padding, product = self.tile.implicit_padding, self.contraction.product
        if self.panel is not None:
            element = self.panel.element
            copied = tirx.BufferLoad(self.copied, [self._panel_place()])
            product = tvm_ffi.structural_map(
                product, (type(element), lambda e: copied if e.same_as(element) else e)
            )
        if padding is None:
            return product
        return tvm_ffi.structural_map(
            product, (tvm.ir.TensorLoad, lambda load: self._pixel_or(load, row))
        )

    def _pixel_or(self, load: tvm.ir.TensorLoad, row: int) -> tvm.ir.TensorLoad:
        """``load``, from the pixels where it is of the padded image."""
        padding = self.tile.implicit_padding
        if padding is None or not load.same_as(padding.load):
            return load
        return tirx.BufferLoad(self.pixels, [padding.channels.extent * row + padding.channels.var])

    def _tile(self) -> list[tirx.Stmt]:
        reduction, steps = self._reduction()
        products = [self._product(row) for row in range(self.rows)]

        def zero(row: int, place: tvm.ir.Expr, _: dict[Any, Any]) -> tirx.Stmt:
            return tirx.BufferStore(self.arrays[row], self.contraction.start, [place])

        def add(row: int, place: tvm.ir.Expr, values: dict[Any, Any]) -> tirx.Stmt:
            more = self._at(products[row], {**values, **steps})
            value = tirx.BufferLoad(self.arrays[row], [place]) + more
            return tirx.BufferStore(self.arrays[row], value, [place])

        def finish(row: int, place: tvm.ir.Expr, values: dict[Any, Any]) -> tirx.Stmt:
            total = tirx.BufferLoad(self.arrays[row], [place])
            values = {**values, self.contraction.total: total}
            store = self.contraction.store
            indices = [self._at(index, values) for index in store.indices]
            return tirx.BufferStore(store.buffer, self._at(store.value, values), indices)

        if together := self._steps_together(products, self._each(zero)):
            return [*together, self._finished(finish)]
        dot = self.tile.dot_product
        if dot is None:
            start, body, end = self._each(zero), self._each(add), []
        else:
            reduction, body = self._dot_products(dot, reduction, steps)
            start, end = self._zeros(dot), self._in_rows(dot)
        body = sequence([*self._prefetches(steps, innermost=True), body])
        for axis in reversed(reduction):
            body = self._loop(axis.var, axis.extent, body)
            if axis is reduction[-1]:
                body = sequence([*self._prefetches(steps, innermost=False), body])
            if self.tile.implicit_padding is not None and axis is reduction[-1]:
                body = self._with_pixels(self.tile.implicit_padding, body, steps)
            if self.contraction.condition is not None and axis is reduction[-1]:
                adds = self._at(self.contraction.condition, {**self.values, **steps})
                body = tirx.IfThenElse(adds, body, None)
        declared = [tirx.AllocBuffer(self.pixels)] if self.pixels is not None else []
        return [*declared, start, body, *end, self._finished(finish)]

    def _steps_together(self, products: list[tvm.ir.Expr], start: tirx.Stmt) -> list[tirx.Stmt]:
        """The loops of a sum that takes several steps in a turn; empty for one after the other."""
        if self.lanes < self.columns:
            return [start, *self._in_lines(products)]
        if self.panel is None and self.tile.common_factor is not None:
            return [start, self._in_blocks(self.tile.common_factor)]
        return [self._in_parts()] if self.blocks else []

    def _may_be_in_parts(self) -> bool:
        """Whether steps of the sum are added to sums in registers one by one, and are many."""
        tile, axes = self.tile, self.contraction.reduction
        one_by_one = tile.dot_product is None and tile.common_factor is None
        is_plain = one_by_one and tile.panel is None and tile.implicit_padding is None
        is_plain = is_plain and self.contraction.condition is None
        is_plain = is_plain and tile.vector_sums > 0
        steps = axes[-1].length if axes else 0
        return is_plain and self.lanes == self.columns and (steps is None or steps >= _LEAST_STEPS)

    def _in_parts(self) -> tirx.Stmt:
        """The loops of a sum whose steps are added to the parts of each sum in turn."""
        (*outer, depth), steps = self._reduction()
        old, count = self.contraction.reduction[-1].var, len(self.blocks[0])

        def added(step: Any, part: int) -> tirx.Stmt:
            arrays = [row[part] for row in self.blocks]
            return self._added_to(arrays, self.contraction.product, {**steps, old: step})

        def total(row: int, place: tvm.ir.Expr, _: dict[Any, Any]) -> tirx.Stmt:
            parts = [tirx.BufferLoad(array, [place]) for array in self.blocks[row]]
            return tirx.BufferStore(self.arrays[row], functools.reduce(tirx.Add, parts), [place])

        turns = Analyzer().simplify(tirx.truncdiv(depth.extent, self._number(count)))
        turn = tirx.Var("turn", self.index)
        each = [added(turn * count + part, part) for part in range(count)]
        ahead = self._prefetches({**steps, old: turn * count}, innermost=True)
        body = self._loop(turn, turns, sequence([*ahead, *each]))
        left = Analyzer().simplify(depth.extent - turns * count)
        if static_extent(left) != 0:
            rest = self._loop(depth.var, left, added(turns * count + depth.var, 0))
            body = sequence([body, rest])
        body = sequence([*self._prefetches(steps, innermost=False), body])
        for axis in reversed(outer):
            body = self._loop(axis.var, axis.extent, body)
        return sequence([self._empty_blocks(), body, self._each(total)])

    def _in_blocks(self, common: CommonFactor) -> tirx.Stmt:
        """The loops of a sum whose products have a common factor, the innermost written out."""
        (*loops, place), steps = self._reduction()
        axes = self.contraction.reduction
        outer = sum(depends(common.factor, axis.var) for axis in axes)
        product = common.product if self.blocks else self.contraction.product
        arrays = self.blocks or [[array] for array in self.arrays]
        stream = self.tile.stream
        statements = [] if stream is None else self._stream_prefetches(stream, steps)
        for number in range(place.length or 0):
            here = {**steps, axes[-1].var: self._number(number)}
            added = [row[number % len(row)] for row in arrays]
            statements.append(self._added_to(added, product, here))
        body = sequence(statements)
        for axis in reversed(loops[outer:]):
            body = self._loop(axis.var, axis.extent, body)
        if self.blocks:
            body = sequence([self._empty_blocks(), body, self._multiplied(common, steps)])
        for axis in reversed(loops[:outer]):
            body = self._loop(axis.var, axis.extent, body)
        return body

    def _added_to(self, arrays: list[Any], product: Any, steps: dict[Any, Any]) -> tirx.Stmt:
        """The products of one step of the sum, added to the array of each row."""

        def add(row: int, place: tvm.ir.Expr, values: dict[Any, Any]) -> tirx.Stmt:
            more = self._at(product, {**values, **steps})
            return tirx.BufferStore(
                arrays[row], tirx.BufferLoad(arrays[row], [place]) + more, [place]
            )

        return self._each(add)

    def _empty_blocks(self) -> tirx.Stmt:
        def zero(row: int, place: tvm.ir.Expr, _: dict[Any, Any]) -> tirx.Stmt:
            start = self.contraction.start
            return sequence([tirx.BufferStore(a, start, [place]) for a in self.blocks[row]])

        return self._each(zero)

    def _multiplied(self, common: CommonFactor, steps: dict[Any, Any]) -> tirx.Stmt:
        """Adds what a block adds up to, times its factor, to the sums."""

        def add(row: int, place: tvm.ir.Expr, values: dict[Any, Any]) -> tirx.Stmt:
            first, *others = (tirx.BufferLoad(array, [place]) for array in self.blocks[row])
            factor = self._at(common.factor, {**values, **steps})
            more = functools.reduce(tirx.Add, others, first) * factor
            value = tirx.BufferLoad(self.arrays[row], [place]) + more
            return tirx.BufferStore(self.arrays[row], value, [place])

        return self._each(add)

    def _prefetches(self, steps: dict[Any, Any], innermost: bool) -> list[tirx.Stmt]:
        """What each iteration of the innermost loop of the sum asks for ahead, or what it is asked
        for before that loop. What a panel holds was read when it was filled.
        """
        if self.panel is not None or not self.contraction.reduction:
            return []
        depth, values = self.contraction.reduction[-1].var, {**self.values, **steps}
        if self.tile.far_rows is not None and innermost:
            load = self.tile.far_rows.load
            values[depth] = values[depth] + rows_ahead(load.source, self.columns)
            places = [self._at(index, values) for index in load.indices]
            return prefetches_of(load.source, places, self.columns)
        stream = self.tile.stream
        if stream is None or depends(stream, depth) != innermost:
            return []
        return self._stream_prefetches(stream, steps)

    def _stream_prefetches(
        self, stream: tvm.ir.TensorLoad, steps: dict[Any, Any]
    ) -> list[tirx.Stmt]:
        places = [self._at(index, {**self.values, **steps}) for index in stream.indices]
        return prefetches_along(stream.source, places, self.columns)

    def _in_lines(self, products: Sequence[tvm.ir.Expr]) -> list[tirx.Stmt]:
        """The loops of a sum that add some of its steps to all sums of the tile, in memory."""
        (*outer, depth), steps = self._reduction()
        old = self.contraction.reduction[-1].var

        def added(first: tvm.ir.Expr, count: int) -> tirx.Stmt:
            def add(row: int, place: tvm.ir.Expr, values: dict[Any, Any]) -> tirx.Stmt:
                each = [{**values, **steps, old: first + step} for step in range(count)]
                total = tirx.BufferLoad(self.arrays[row], [place])
                value = sum((self._at(products[row], here) for here in each), start=total)
                return tirx.BufferStore(self.arrays[row], value, [place])

            return self._each(add)

        blocks = Analyzer().simplify(tirx.truncdiv(depth.extent, self._number(_STEPS)))
        block = tirx.Var("steps", self.index)
        whole = self._loop(block, blocks, added(block * _STEPS, _STEPS))
        left = Analyzer().simplify(depth.extent - blocks * _STEPS)
        rest = self._loop(depth.var, left, added(blocks * _STEPS + depth.var, 1))
        body = whole if static_extent(left) == 0 else sequence([whole, rest])
        for axis in reversed(outer):
            body = self._loop(axis.var, axis.extent, body)
        return [body]

    def _dot_products(
        self, dot: DotProduct, reduction: Sequence[LoopAxis], steps: dict[Any, Any]
    ) -> tuple[list[LoopAxis], tirx.Stmt]:
        """The loops of the sum, of which one is shorter by what an instruction adds, and their
        body: an instruction for each vector of the tile's sums.
        """
        k = dot.instruction.k
        loop = LoopAxis(tirx.Var(dot.depth.var.name, self.index), dot.depth.extent // k)
        position = next(
            i for i, a in enumerate(self.contraction.reduction) if a.var.same_as(dot.depth.var)
        )
        loops = [loop if i == position else axis for i, axis in enumerate(reduction)]
        steps = {**steps, dot.depth.var: loop.var * k}
        firsts = range(0, self.rows, dot.rows)
        data = [tirx.Bind(tirx.Var("data", dot.operand), self._data(dot, n, steps)) for n in firsts]
        *places, _ = (self._at(i, {**self.values, **steps}) for i in dot.weights.indices)
        starts = (self._number(n * k) for n in range(0, self.columns, dot.columns))
        weights = [
            tirx.Bind(tirx.Var("weights", dot.operand), dot.vector([*places, n])) for n in starts
        ]

        def add(row: int, n: int) -> tirx.Stmt:
            sums, place = self.added[row], self._vector(dot, n)
            more = dot.added(tirx.BufferLoad(sums, place), data[row].var, weights[n].var)
            return tirx.BufferStore(sums, more, place)

        # The operand of fewer vectors stays in registers, beside one vector of the other: LLVM
        # keeps the order, and has sums in memory where both are loaded first.
        statements: list[tirx.Stmt] = []
        if len(weights) <= len(data):
            statements += weights
            for row, bind in enumerate(data):
                statements += [bind, *(add(row, n) for n in range(len(weights)))]
        else:
            statements += data
            for n, bind in enumerate(weights):
                statements += [bind, *(add(row, n) for row in range(len(data)))]
        return loops, sequence(statements)

    def _data(self, dot: DotProduct, first: int, steps: dict[Any, Any]) -> tvm.ir.Expr:
        """The vector of the data of the rows that are added up together, from ``first`` on."""
        loads = [
            (self._pixel_or(dot.data, row), {**self.values, **self.places[row], **steps})
            for row in range(first, min(first + dot.rows, self.rows))
        ]
        places = [[self._at(index, values) for index in load.indices] for load, values in loads]
        return dot.of_rows(loads[0][0].source, places)

    def _vector(self, dot: DotProduct, n: int) -> list[tvm.ir.Expr]:
        """Where the ``n``-th vector of sums is in its array."""
        return [tirx.Ramp(self._number(n * dot.lanes), self._number(1), dot.lanes)]

    def _zeros(self, dot: DotProduct) -> tirx.Stmt:
        """The start of all sums that instructions add to."""
        start = tirx.Broadcast(self.contraction.start, dot.lanes)
        vectors = range(self.columns // dot.columns)
        return sequence(
            [tirx.BufferStore(a, start, self._vector(dot, n)) for a in self.added for n in vectors]
        )

    def _in_rows(self, dot: DotProduct) -> list[tirx.Stmt]:
        """The copies of sums to arrays of single rows, where they are not in these already."""
        if dot.rows == 1:
            return []
        return [
            statement
            for number, sums in enumerate(self.added)
            for statement in dot.put_into_rows(sums, self.arrays[number * dot.rows :])
        ]

    def _with_pixels(
        self, padding: ImplicitPadding, body: tirx.Stmt, steps: dict[Any, Any]
    ) -> tirx.Stmt:
        """``body``, which adds what a tap gives, after the copy of the pixels under it; nothing
        where no row has one.
        """
        each = [{**self.values, **places, **steps} for places in self.places]
        copies = [padding.copy(row, self.pixels, values) for row, values in enumerate(each)]
        is_any = functools.reduce(tirx.Or, (self._at(padding.inside, v) for v in each))
        return tirx.IfThenElse(is_any, sequence([*copies, body]), None)

    def _finished(self, finish: Any) -> tirx.Stmt:
        """``finish`` for the sums of the tile that are wanted."""
        length = self.tile.columns.length
        if not self.tile.padded or length is None or length % self.columns == 0:
            return self._each(finish)
        first = self.values[self.tile.columns.var]
        is_whole = first < tirx.const(length - length % self.columns, self.index)
        return tirx.IfThenElse(
            is_whole, self._each(finish), self._each(finish, length % self.columns)
        )

    def _each(self, statement: Any, lanes: int | None = None) -> tirx.Stmt:
        """``statement`` for each sum of the tile: rows written out, columns in vectors."""
        count = self.columns if lanes is None else lanes
        return sequence([self._row(statement, row, count) for row in range(self.rows)])

    def _row(self, statement: Any, row: int, lanes: int) -> tirx.Stmt:
        columns = self.tile.columns
        lane: Any = tirx.Var("lane", self.index)
        place = lane if self.columns > 1 else tirx.const(0, self.index)
        piece = tirx.Var("piece", self.index)
        if self.lanes < self.columns:
            place, lanes = piece * self.lanes + lane, self.lanes
        values = {**self.values, **self.places[row], self.column: place}
        values[columns.var] = values[columns.var] + place
        body = statement(row, place, values)
        if self.columns == 1:
            return body
        body = self._loop(lane, lanes, body, tirx.ForKind.VECTORIZED)
        if self.lanes < self.columns:
            body = self._loop(piece, self.columns // self.lanes, body)
        return body

    def _at(self, expr: tvm.ir.Expr, values: dict[Any, Any]) -> tvm.ir.Expr:
        analyzer = Analyzer()
        moved = substitute(expr, values)
        for var in tirx.analysis.undefined_vars(moved):
            if var.name == "lane":
                analyzer.bind(var, tvm.ir.Range(0, self.columns))
        return analyzer.simplify(moved)

    def _loop(
        self, var: tirx.Var, extent: Any, body: tirx.Stmt, kind: tirx.ForKind = tirx.ForKind.SERIAL
    ) -> tirx.Stmt:
        if isinstance(extent, int):
            extent = tirx.const(extent, self.index)
        return tirx.For(var, tirx.const(0, self.index), extent, kind, body)
