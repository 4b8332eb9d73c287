"""How the loops of a block are partitioned over a mesh, and what is broadcast for it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvm_ext.hardware.wafer.description import WaferDescription
from tvm_ext.tir_schedules.analysis.buffer_access import (
    constant_parameter,
    operands_of,
    read_position,
)
from tvm_ext.tir_schedules.analysis.dimensions import Dimensions
from tvm_ext.tir_schedules.analysis.row_kernel import buffer_key
from tvm_ext.tir_schedules.template import Decisions
from tvm_ext.tir_schedules.wafer.annotations import (
    COLUMN,
    COMMUNICATION,
    HOME,
    MESH_AXIS,
    ROW,
    VECTOR,
    WHOLE,
    Pattern,
)

# Grids that are worth a try: how many PEs to cut an extent over.


def grid_options(extent: int, most: int, count: int = 12) -> list[int]:
    """Numbers of PEs for ``extent`` elements, at most ``most``, ascending.

    Only those that leave as few PEs idle as they can: with ``t`` elements for each, the elements
    fill ceil(extent / t) PEs, and any more of them would have none. Thinned out evenly, in the
    logarithm, to ``count`` options; the largest one stays.
    """
    smallest_tile = max(1, -(-extent // most))
    found = []
    tile = smallest_tile
    while tile < extent:
        found.append(-(-extent // tile))
        tile = max(tile + 1, int(tile * 1.12))
    found.append(1)
    distinct = sorted(set(found))
    if len(distinct) <= count:
        return distinct
    step = (len(distinct) - 1) / (count - 1)
    return sorted({distinct[round(number * step)] for number in range(count)})


def largest_two(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Of (position, extent) pairs, the two with the largest extents above one, in order."""
    large = sorted(pairs, key=lambda pair: -pair[1])[:2]
    return [pair for pair in pairs if pair in large and pair[1] > 1]


@dataclass(frozen=True)
class MeshPartition:
    """Which dimensions of a kernel are cut, and into how many pieces.

    Attributes
    ----------
    row, column : int or None
        The dimension that is cut over the rows of the mesh, and the one over its columns; the same
        one where each row of PEs cuts its piece again.
    rows, columns : int
        Pieces.
    """

    row: int | None
    column: int | None
    rows: int = 1
    columns: int = 1

    @property
    def together(self) -> bool:
        """Whether one dimension is cut over rows and columns."""
        return self.row is not None and self.row == self.column

    def missing(self, dimensions: set[int]) -> tuple[bool, bool]:
        """Whether a tensor of these dimensions is the same for PEs of a column, and of a row."""
        return (
            self.rows > 1 and self.row not in dimensions,
            self.columns > 1 and self.column not in dimensions,
        )

    def transposes(self, axes: Sequence[int | None]) -> bool:
        """Whether a tensor with these axes has that of the columns before that of the rows."""
        if self.together or self.row not in axes or self.column not in axes:
            return False
        return axes.index(self.row) > axes.index(self.column)

    def axis_of(self, dimension: int | None) -> str:
        """What of the mesh each piece of a dimension is: "row", "column", or "-" if it is whole."""
        if dimension is None or dimension not in (self.row, self.column):
            return WHOLE
        return ROW if dimension == self.row else COLUMN

    def pieces(self, dimension: int | None) -> int:
        """Into how many pieces a dimension is cut."""
        if self.together and dimension == self.row:
            return self.rows * self.columns
        return {ROW: self.rows, COLUMN: self.columns, WHOLE: 1}[self.axis_of(dimension)]

    def word(self, dimension: int | None) -> str:
        """How an annotation of a home says it."""
        axis = self.axis_of(dimension)
        return axis if axis == WHOLE else f"{axis}/{self.pieces(dimension)}"


def decide_cut(
    dimensions: Sequence[tuple[int, int]], machine: WaferDescription, decisions: Decisions
) -> MeshPartition:
    """The two largest of ``dimensions``, pairs of number and extent, cut over rows and columns.

    The one that comes first is cut over the rows, as in matmuls, so that results lie where the
    next kernel wants them. Where that leaves more PEs idle, the largest one over both.
    """
    large = largest_two(dimensions)
    if not large:
        return MeshPartition(None, None)
    longest = max(large, key=lambda pair: pair[1])
    apart = min(large[0][1], machine.rows) * min(large[-1][1], machine.columns)
    if len(large) == 1 or apart < min(longest[1], machine.processing_elements):
        return _together(longest, machine, decisions)
    (row, row_extent), (column, column_extent) = large
    return MeshPartition(
        row,
        column,
        pick_pieces("rows", row_extent, machine.rows, decisions),
        pick_pieces("columns", column_extent, machine.columns, decisions),
    )


def _together(
    dimension: tuple[int, int], machine: WaferDescription, decisions: Decisions
) -> MeshPartition:
    number, extent = dimension
    rows = pick_pieces("rows", extent, machine.rows, decisions)
    columns = pick_pieces("columns", -(-extent // rows), machine.columns, decisions)
    return MeshPartition(number, number, rows, columns)


def pick_pieces(name: str, extent: int, most: int, decisions: Decisions) -> int:
    """Into how many pieces an extent is cut; as many as there are PEs for by default."""
    options = grid_options(extent, most)
    return decisions.pick(name, options, options[-1])


@dataclass(frozen=True)
class LoopShare:
    """One loop of a block.

    Attributes
    ----------
    loop : LoopRV
        The loop.
    dimension : int or None
        What it goes over.
    reduces : bool
        Whether it reduces.
    axis : str
        "row" or "column" if each of its iterations is one row or column of PEs already.
    """

    loop: LoopRV
    dimension: int | None
    reduces: bool = False
    axis: str = ""


def parts_of(
    sch: s_tir.Schedule, block: SBlockRV, loops: Sequence[int | None], reduces: Sequence[bool]
) -> list[LoopShare]:
    """The loops of a block that nothing was done to yet, with the dimension of each."""
    found = list(sch.get_loops(block))
    if not found:
        # Without loops, all of a block's iteration variables take one value.
        return []
    return [LoopShare(*one) for one in zip(found, loops, reduces, strict=True)]


@dataclass(frozen=True)
class Placed:
    """A block with loops of the mesh around it.

    Attributes
    ----------
    block : SBlockRV
        The block.
    under : LoopRV
        The inner one of the two loops.
    """

    block: SBlockRV
    under: LoopRV


def place_block(
    sch: s_tir.Schedule, block: SBlockRV, parts: Sequence[LoopShare], cut: MeshPartition
) -> Placed:
    """Puts the loops of the mesh around a block.

    A block that a dimension of the cut is none of runs in the first row or column only, so it gets
    a loop of one iteration. The longest loop of what one PE does becomes a vector: a descriptor
    walks through memory with any step.
    """
    mesh: dict[str, LoopRV] = {}
    inner: list[LoopShare] = []
    for part in parts:
        inner += _cut_part(sch, part, cut, mesh)
    for axis in (ROW, COLUMN):
        if axis not in mesh:
            outermost = sch.get_loops(block)
            mesh[axis] = sch.add_unit_loop(outermost[0] if outermost else block)
    vector = _vector(sch, inner)
    ordered = [one for one in inner if not one.reduces and one is not vector]
    ordered += [one for one in inner if one.reduces and one is not vector]
    ordered += [vector] if vector is not None else []
    sch.reorder(mesh[ROW], mesh[COLUMN], *(one.loop for one in ordered))
    for axis, loop in mesh.items():
        sch.annotate(loop, MESH_AXIS, axis)
    if vector is not None:
        sch.annotate(vector.loop, VECTOR, 1)
    reducing = next((one.loop for one in ordered if one.reduces), None)
    if reducing is not None:
        sch.decompose_reduction(block, reducing)
    return Placed(block, mesh[COLUMN])


def _cut_part(
    sch: s_tir.Schedule, part: LoopShare, cut: MeshPartition, mesh: dict[str, LoopRV]
) -> list[LoopShare]:
    """Takes from a loop what goes over PEs; returns what is left of it."""
    loop = part.loop
    if part.axis:
        mesh[part.axis] = loop
        return []
    if part.dimension is None or part.dimension not in (cut.row, cut.column):
        return [part]
    if cut.together:
        tile = -(-int(sch.get(loop).extent) // (cut.rows * cut.columns))
        mesh[ROW], mesh[COLUMN], loop = sch.split(loop, factors=[cut.rows, cut.columns, tile])
    elif part.dimension == cut.row:
        mesh[ROW], loop = cut_loop(sch, loop, cut.rows)
    else:
        mesh[COLUMN], loop = cut_loop(sch, loop, cut.columns)
    return [LoopShare(loop, part.dimension, part.reduces)]


def cut_loop(sch: s_tir.Schedule, loop: LoopRV, count: int) -> tuple[LoopRV, LoopRV]:
    """``count`` pieces and the iterations of one; the last pieces may have fewer, or none."""
    extent = int(sch.get(loop).extent)
    outer, inner = sch.split(loop, factors=[count, -(-extent // count)])
    return outer, inner


def _vector(sch: s_tir.Schedule, parts: Sequence[LoopShare]) -> LoopShare | None:
    """The longest loop; of several the last one, whose elements lie side by side."""
    return max(reversed(parts), key=lambda item: int(sch.get(item.loop).extent), default=None)


# Copies for what several PEs of a block need and one PE has: sent along rows, columns or both.


_PATTERNS = {
    (False, True): Pattern.MULTICAST_ROW,
    (True, False): Pattern.MULTICAST_COLUMN,
    (True, True): Pattern.MULTICAST,
}


def broadcast_pattern(over_rows: bool, over_columns: bool) -> str | None:
    """The pattern for data that are the same in PEs of a column, of a row, or of both."""
    return _PATTERNS.get((over_rows, over_columns))


class Broadcasts:
    """Brings to all PEs what does not follow the cut of a kernel.

    Constants lie wherever they are needed, before the kernel starts; and what was sent once stays.
    """

    def __init__(self, sch: s_tir.Schedule, dimensions: Dimensions, cut: MeshPartition) -> None:
        self._sch = sch
        self._dimensions = dimensions
        self._cut = cut
        self._sent: set[tuple[int, str]] = set()

    def copy_operands(self, placed: Placed, over: set[int]) -> None:
        """Copies for the operands of a block, which goes over the dimensions ``over``."""
        sch, block = self._sch, placed.block
        stmt = sch.get(block)
        idle = self._cut.missing(over)
        for buffer in [region.source for region in operands_of(stmt)]:
            pattern = self._pattern(buffer, idle)
            if pattern is None:
                continue
            position = read_position(sch.get(block), buffer)
            copy = sch.cache_read(block, position, "local", [block])
            sch.compute_at(copy, placed.under)
            key = buffer_key(buffer), pattern
            sch.annotate(copy, COMMUNICATION, Pattern.RESIDENT if key in self._sent else pattern)
            self._sent.add(key)

    def _pattern(self, buffer: tirx.Buffer, idle: tuple[bool, bool]) -> str | None:
        """How a tensor comes to the PEs of a block that runs in one row, or column, if ``idle``."""
        if constant_parameter(self._sch.mod["main"], buffer) is not None:
            return None
        if buffer_key(buffer) not in self._dimensions.axes:
            # Partial results, each in the PE that goes on with it.
            return None
        rows, columns = self._cut.missing(self._dimensions.of(buffer))
        return broadcast_pattern(rows and not idle[0], columns and not idle[1])


def state_home(sch: s_tir.Schedule, buffer: tirx.Buffer, words: Iterable[str]) -> None:
    """Says where a parameter lies, one word a dimension; nothing of any other buffer."""
    for position, param in enumerate(sch.mod["main"].params):
        if param.same_as(buffer):
            sch.annotate(sch.get_sblock("root"), f"{HOME}{position}", " ".join(words))


def state_homes(sch: s_tir.Schedule, dimensions: Dimensions, cut: MeshPartition) -> None:
    """Says where parameters lie that are cut over rows and columns along one axis.

    The analysis would take them to be cut over the rows only. All others lie where they are used.
    """
    if not cut.together:
        return
    for param in sch.mod["main"].params:
        axes = dimensions.axes.get(buffer_key(param))
        if axes is not None and cut.row in axes:
            state_home(sch, param, map(cut.word, axes))
