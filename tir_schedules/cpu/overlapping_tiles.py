"""The last tile of rows starts earlier where it would reach beyond the end.

Of 197 rows in tiles of 25, the eighth tile has 22: a branch at each row of each tile would skip the
other three. Here it starts at row 172 instead. Its first rows are computed twice, with the same
result, and nothing is asked.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.sym import Analyzer
from tvm_ffi import structural_equal, structural_map

from tvm_ext.tir_schedules.analysis.buffer_access import (
    among,
    conjuncts,
    depends,
    nodes,
    slope,
    static_extent,
)
from tvm_ext.tir_schedules.analysis.loop_nest import substitute


def with_overlapping_tiles(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func``, scheduled, with overlapping tiles instead of branches at rows.

    All or nothing: what is computed twice must be a tile's own. Left alone where a block outside
    of the tiles reads an array of theirs that has such rows, or writes it a part at a time.
    """
    loops = {
        loop.loop_var: static_extent(loop.extent)
        for loop in nodes(func.body, tirx.For)
        if loop.kind != tirx.ForKind.VECTORIZED
    }
    analyzer = Analyzer()
    for var, extent in loops.items():
        if extent is not None and extent > 0:
            analyzer.bind(var, tvm.ir.Range(0, extent))
    realizes = nodes(func.body, s_tir.SBlockRealize)
    shifted = [(realize, _shifts(realize, loops, analyzer)) for realize in realizes]
    tiled = [pair for pair in shifted if pair[1]]
    if not tiled or not _is_same(tiled) or not _is_private(func, realizes, tiled):
        return func

    def rewritten(realize: s_tir.SBlockRealize) -> s_tir.SBlockRealize:
        shifts = next((found for known, found in tiled if known.same_as(realize)), None)
        if shifts is None:
            return realize
        values = list(realize.iter_values)
        for shift in shifts:
            values[shift.position] = shift.first + shift.row
        terms = [
            t for t in conjuncts(realize.predicate) if not any(t.same_as(s.term) for s in shifts)
        ]
        predicate: Any = tirx.const(True, "bool")
        for term in terms:
            predicate = term if isinstance(predicate, tirx.IntImm) else tirx.And(predicate, term)
        return s_tir.SBlockRealize(values, predicate, realize.block)

    return func.with_body(structural_map(func.body, (s_tir.SBlockRealize, rewritten)))


@dataclass(frozen=True)
class _Shift:
    """An iteration variable of a block, by position: the tile's first row, the loop over its rows,
    and the condition that is not needed any more.
    """

    position: int
    first: tirx.Expr
    row: tirx.Var
    term: tirx.Expr


def _shifts(
    realize: s_tir.SBlockRealize, loops: dict[Any, int | None], analyzer: Analyzer
) -> list[_Shift]:
    return [
        shift
        for term in conjuncts(realize.predicate)
        if (shift := _shift(realize, term, loops, analyzer)) is not None
    ]


def _shift(
    realize: s_tir.SBlockRealize,
    term: tvm.ir.Expr,
    loops: dict[Any, int | None],
    analyzer: Analyzer,
) -> _Shift | None:
    """For a condition ``first + row < end`` on an iteration variable with just that value."""
    end = static_extent(term.b) if isinstance(term, tirx.LT) else None
    if end is None:
        return None
    for position, (variable, value) in enumerate(
        zip(realize.block.iter_vars, realize.iter_values, strict=True)
    ):
        if static_extent(variable.dom.extent) != end or not analyzer.can_prove_equal(value, term.a):
            continue
        if variable.iter_type != tirx.IterVar.DataPar:
            continue
        for row in nodes(value, tvm.ir.Var):
            rows = loops.get(row)
            if rows is None or not 1 < rows <= end or slope(value, row) != 1:
                continue
            dtype = str(value.ty)
            first = analyzer.simplify(substitute(value, {row: tirx.const(0, dtype)}))
            first = tirx.Min(first, tirx.const(end - rows, dtype))
            return _Shift(position, first, row, term)
    return None


def _is_same(shifted: Sequence[tuple[Any, list[_Shift]]]) -> bool:
    """Whether all blocks of a tile are shifted alike."""
    _, first = shifted[0]
    return all(
        len(shifts) == len(first)
        and all(structural_equal(a.first, b.first) for a, b in zip(shifts, first, strict=True))
        for _, shifts in shifted
    )


def _is_private(
    func: tirx.PrimFunc,
    realizes: Sequence[s_tir.SBlockRealize],
    shifted: Sequence[tuple[Any, list[_Shift]]],
) -> bool:
    """Whether arrays of the kernel that have the shifted rows are used by shifted blocks only, or
    written for all rows at once before these read them: a padded input.
    """
    rows = [
        (realize, [realize.block.iter_vars[shift.position].var for shift in shifts])
        for realize, shifts in shifted
    ]
    moving = [
        (buffer, [depends(i, *variables) for i in indices])
        for realize, variables in rows
        for buffer, indices in _accesses(realize.block.body)
        if not among(buffer, func.params)
    ]
    own = [(buffer, moved) for buffer, moved in moving if any(moved)]
    tiles = [realize for realize, _ in shifted]
    others = [r for r in realizes if not among(r, tiles)]
    loops = [
        loop.loop_var
        for loop in nodes(func.body, tirx.For)
        if any(among(one, tiles) for one in nodes(loop.body, s_tir.SBlockRealize))
    ]
    if not all(_is_whole(realize, own, tiles, loops) for realize in others):
        return False
    # Sums are only taken in arrays of a tile's own.
    buffers = [buffer for buffer, _ in own]
    return all(_is_pure(realize) or _writes(realize, buffers) for realize in tiles)


def _is_whole(
    other: s_tir.SBlockRealize,
    own: Sequence[tuple[Any, list[bool]]],
    tiles: Sequence[s_tir.SBlockRealize],
    loops: Sequence[Any],
) -> bool:
    """Whether a block that is not shifted has nothing to do with arrays of tiles, ``own`` with the
    axes that rows move along, or writes one that tiles only read: along these axes, the same in
    all iterations of the ``loops`` around tiles.
    """
    block = other.block
    if nodes(block.body, s_tir.SBlockRealize):
        return True
    written = [write.source for realize in tiles for write in realize.block.writes]
    values = {v.var: value for v, value in zip(block.iter_vars, other.iter_values, strict=True)}
    stores = nodes(block.body, tirx.BufferStore)
    for buffer, moved in own:
        if any(load.source.same_as(buffer) for load in nodes(block.body, tvm.ir.TensorLoad)):
            return False
        for store in stores:
            if not store.buffer.same_as(buffer):
                continue
            places = [substitute(i, values) for i, m in zip(store.indices, moved, strict=True) if m]
            if among(buffer, written) or any(depends(place, *loops) for place in places):
                return False
    return True


def _accesses(body: tirx.BufferStore) -> Iterator[tuple[Any, Sequence[Any]]]:
    for store in nodes(body, tirx.BufferStore):
        yield store.buffer, store.indices
    for load in nodes(body, tvm.ir.TensorLoad):
        yield load.source, load.indices


def _is_pure(realize: s_tir.SBlockRealize) -> bool:
    """Whether the block reads nothing that it writes."""
    if realize.block.init is not None:
        return False
    read = [read.source for read in realize.block.reads]
    return not any(among(write.source, read) for write in realize.block.writes)


def _writes(realize: s_tir.SBlockRealize, own: Sequence[Any]) -> bool:
    return all(among(write.source, own) for write in realize.block.writes)
