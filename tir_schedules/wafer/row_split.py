"""Decides how rows that are reduced lie on a mesh: each in one PE, or cut over a line of PEs."""

import math
from dataclasses import dataclass

from tvm_ext.hardware.mesh_description import MeshDescription
from tvm_ext.hardware.wafer import reduces
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions
from tvm_ext.tir_schedules.wafer.annotations import COLUMN, ROW, Pattern
from tvm_ext.tir_schedules.wafer.grid_options import grid_options
from tvm_ext.tir_schedules.wafer.mesh_cut import MeshCut, decide_cut, pick_pieces

# By number, as decisions are.
COMBINATIONS = (Pattern.CHAIN, Pattern.TREE, Pattern.TWO_PHASE)
_TWO_PHASE = COMBINATIONS.index(Pattern.TWO_PHASE)


@dataclass(frozen=True)
class Rows:
    """Rows that are reduced.

    Attributes
    ----------
    across : tuple[tuple[int, int], ...]
        Dimensions by which rows are told apart, with their extents.
    along : tuple[tuple[int, int], ...]
        Those that are reduced.
    order : tuple[int, ...]
        All of them in the order in which the largest operand has them.
    element_bytes : int
        Of one result.
    """

    across: tuple[tuple[int, int], ...]
    along: tuple[tuple[int, int], ...]
    order: tuple[int, ...]
    element_bytes: int


@dataclass(frozen=True)
class RowSplit:
    """What was decided.

    Attributes
    ----------
    cut : MeshCut
        Of rows over the mesh; with ``along``, of rows and of that dimension.
    along : int or None
        The dimension that is reduced in parts, one for each PE of a line.
    parts : int
        How many.
    axis : str
        "row" or "column": what of the mesh each part is.
    pattern : str
        How partial results are combined, as annotations say it.
    group : int
        PEs of a group, 0 for patterns without groups.
    """

    cut: MeshCut
    along: int | None = None
    parts: int = 1
    axis: str = ""
    pattern: str = ""
    group: int = 0


def decide_rows(rows: Rows, machine: MeshDescription, decisions: Decisions) -> RowSplit:
    """Rows stay whole where they fill half of the mesh at least; else all of it is used.

    In closed form, a row that is cut goes to as many PEs as the mesh has in a line.
    """
    along = max(rows.along, key=lambda pair: pair[1], default=None)
    row = max(rows.across, key=lambda pair: pair[1], default=None)
    parts = 1
    lies_first = False
    if along is not None:
        # A tensor lies with its first large axis over the rows of the mesh, the other one over
        # the columns.
        lies_first = row is not None and rows.order.index(along[0]) < rows.order.index(row[0])
        line = machine.rows if lies_first else machine.columns
        options = grid_options(along[1], line)
        whole = decide_cut(rows.across, machine, CLOSED_FORM)
        fills = 2 * whole.rows * whole.columns >= machine.processing_elements
        parts = decisions.pick("split", options, 1 if fills else options[-1])
    if along is None or parts == 1:
        return RowSplit(decide_cut(rows.across, machine, decisions))
    return _cut_rows(rows, row, (along[0], parts), lies_first, machine, decisions)


def _cut_rows(
    rows: Rows,
    row: tuple[int, int] | None,
    along: tuple[int, int],
    lies_first: bool,
    machine: MeshDescription,
    decisions: Decisions,
) -> RowSplit:
    """``along`` is the dimension that is cut and the number of its pieces."""
    dimension, parts = along
    name, most = ("columns", machine.columns) if lies_first else ("rows", machine.rows)
    number, pieces = None, 1
    if row is not None:
        number, pieces = row[0], pick_pieces(name, row[1], most, decisions)
    results = math.prod(extent for _, extent in rows.across)
    words = -(-results // pieces) * rows.element_bytes / machine.word_bytes
    pattern, group = _combination(words, parts, machine, decisions)
    if lies_first:
        cut, axis, line = MeshCut(dimension, number, parts, pieces), ROW, COLUMN
    else:
        cut, axis, line = MeshCut(number, dimension, pieces, parts), COLUMN, ROW
    return RowSplit(cut, dimension, parts, axis, f"{pattern}_{line}", group)


def _combination(
    words: float, parts: int, machine: MeshDescription, decisions: Decisions
) -> tuple[str, int]:
    """The pattern that takes the fewest cycles in closed form, and the size of its groups."""
    best = reduces.best_group(parts)
    cycles = [
        reduces.chain(machine, words, parts).cycles,
        reduces.tree(machine, words, parts).cycles,
        reduces.two_phase(machine, words, parts, best).cycles,
    ]
    number = decisions.pick("combination", range(len(COMBINATIONS)), cycles.index(min(cycles)))
    if number != _TWO_PHASE:
        return COMBINATIONS[number], 0
    sizes = {best // 2, best, 2 * best}
    group = decisions.pick("group", sorted(one for one in sizes if 1 < one < parts), best)
    return COMBINATIONS[number], group
