"""The epilogue, applied to the results that a thread of a warpgroup has in registers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.tir_schedules.analysis.buffer_access import nodes
from tvm_ext.tir_schedules.cuda.launch import Arrays, guarded
from tvm_ext.tir_schedules.cuda.vector_group import Lanes, vector_widths
from tvm_ext.tir_schedules.cuda.warpgroup.warpgroup_operands import PixelBoxes
from tvm_ext.tir_schedules.statements import FlatViews, flattened, sequence

COLUMNS = 8
"""Neighbouring columns of a thread, of every 32."""

GROUP_COLUMNS = 32

MAX_NODES = 400
"""Nodes of the epilogue beyond which writing it out for every result is too long."""

Result = Callable[[Any, Any, Any], Any]
"""A thread's result of (group of 32 columns, half, column of 8)."""


@dataclass(frozen=True)
class EpilogueStore:
    """What is done with the result of a matmul at (batch, row, column).

    Attributes
    ----------
    store : tirx.BufferStore
        The assignment.
    variables : tuple
        Batch, row and column.
    product : tirx.Buffer
        What it reads the matmul's result from.
    """

    store: tirx.BufferStore
    variables: tuple[tirx.Expr, ...]
    product: tirx.Buffer


@dataclass(frozen=True)
class ResultPosition:
    """Where a thread's results begin: in product ``batch``, at ``row`` and ``column``."""

    batch: tirx.Expr
    row: tirx.Expr
    column: tirx.Expr


@dataclass(frozen=True)
class WarpgroupEpilogue:
    """The statements that write a thread's results, ``width`` columns at a time.

    Attributes
    ----------
    store : tirx.BufferStore
        The assignment, to and from flat views.
    variables : tuple
        Batch, row and column in it.
    product : tirx.Buffer
        The flat view of the matmul's result.
    sizes : tuple[int, int, int]
        Products, rows and columns.
    tile : tuple[int, int]
        Rows and columns of a tile.
    width : int
        Columns that are read and written at once.
    pixels : PixelBoxes or None
        Which rows the rows of the tiles are, where these are pixels of a convolution.
    """

    store: tirx.BufferStore
    variables: tuple[tirx.Expr, ...]
    product: tirx.Buffer
    sizes: tuple[int, int, int]
    tile: tuple[int, int]
    width: int
    pixels: PixelBoxes | None = None

    @staticmethod
    def of(
        written: EpilogueStore,
        sizes: Sequence[int],
        tile: tuple[int, int],
        machine: CudaDescription,
        views: FlatViews,
        pixels: PixelBoxes | None = None,
    ) -> "WarpgroupEpilogue":
        """The widest that the buffers' addresses allow. Raises NotApplicable for none.

        ``sizes``: products, rows and columns.
        """
        batch, rows, columns = sizes
        plain = flattened(written.store, views)
        if plain is None:
            raise NotApplicable("the layout of what is written is not plain")
        if len(nodes(plain.value, tvm.ir.Expr)) > MAX_NODES:
            raise NotApplicable("the epilogue is too long to be written out")
        product = views.of(written.product)
        without = tirx.BufferStore(
            plain.buffer, _replaced(plain.value, product, None), plain.indices
        )
        for width in vector_widths(without, machine):
            if width > COLUMNS or columns % width:
                continue
            known = (batch, rows, columns)
            found = WarpgroupEpilogue(plain, written.variables, product, known, tile, width, pixels)
            lanes, _ = found._lanes(lambda *_: tirx.const(0, str(product.dtype)), 0, 0, 0)
            if lanes.fits():
                return found
        raise NotApplicable("the epilogue branches in a way that no vector can")

    def code(
        self, at: ResultPosition, result: Result, arrays: Arrays, threads: Sequence[tuple[Any, int]]
    ) -> tirx.Stmt:
        """The statements for all of a thread's results; its registers go to ``arrays``."""
        groups = self.tile[1] // GROUP_COLUMNS
        return sequence(
            [
                self.row(at, group, half, result, arrays, threads)
                for group in range(groups)
                for half in (0, 1)
            ]
        )

    def row(
        self,
        at: ResultPosition,
        group: tirx.Expr | int,
        half: tirx.Expr | int,
        result: Result,
        arrays: Arrays,
        threads: Sequence[tuple[Any, int]],
    ) -> tirx.Stmt:
        """The statements for 8 neighbouring columns, of one ``group`` of 32 and one ``half``."""
        dtype = str(self.variables[0].ty)
        found = []
        for part in range(COLUMNS // self.width):
            lanes, (batch, row, vector) = self._lanes(result, group, half, part)
            number, inside = self._placed(at.row + half * 8)
            values = (
                (batch, at.batch),
                (row, number),
                (vector, (at.column + group * GROUP_COLUMNS) // self.width + part),
            )
            if self.sizes[2] % self.tile[1]:
                fits = vector < tirx.const(self.sizes[2] // self.width, dtype)
                inside = fits if inside is None else tirx.And(inside, fits)
            found += [tirx.Bind(var, value) for var, value in values]
            found.append(guarded(inside, lanes.code(arrays, threads)))
        return sequence(found)

    def _placed(self, row: tvm.ir.Expr) -> tuple[Any, Any]:
        """Which row of the matmul a row of the tiles is, and under which condition it is one."""
        if self.pixels is not None:
            return self.pixels.placed(row)
        rows = tirx.const(self.sizes[1], str(row.ty))
        return row, row < rows if self.sizes[1] % self.tile[0] else None

    def _lanes(
        self, result: Result, group: tirx.Expr | int, half: tirx.Expr | int, part: int
    ) -> tuple[Lanes, tuple[Any, Any, Any]]:
        """One vector of columns, and the variables of its batch, row, and number in the row."""
        dtype = str(self.variables[0].ty)
        names = tuple(tirx.Var(name, dtype) for name in ("batch", "row", "vector"))
        lane = tirx.Var("lane", dtype)
        at = (*names[:2], names[2] * self.width + lane)

        def placed(var: tirx.Var) -> Any:
            pairs = zip(self.variables, at, strict=True)
            return next((new for old, new in pairs if old.same_as(var)), var)

        def put(expr: tvm.ir.Expr) -> tvm.ir.Expr:
            return tvm_ffi.structural_map(expr, (tvm.ir.Var, placed))

        own = result(group, half, part * self.width + lane)
        value = _replaced(put(self.store.value), self.product, own)
        store = tirx.BufferStore(self.store.buffer, value, [put(i) for i in self.store.indices])
        extents = (self.sizes[0], self.sizes[1], self.sizes[2] // self.width)
        ranges = list(zip(names, extents, strict=True))
        return Lanes(store, lane, self.width, ranges), names


def _replaced(value: tvm.ir.Expr, product: tirx.Buffer, result: Any) -> tvm.ir.Expr:
    """``value`` with ``result`` in place of what is loaded from ``product``."""

    def replaced(load: tvm.ir.TensorLoad) -> tvm.ir.Expr:
        if not load.source.same_as(product):
            return load
        own = tirx.const(0, str(product.dtype)) if result is None else result
        return own.astype(str(product.dtype))

    return tvm_ffi.structural_map(value, (tvm.ir.TensorLoad, replaced))
