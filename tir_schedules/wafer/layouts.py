"""Where the pieces of a tensor lie on a mesh, and whether a block finds what it reads in its PE."""

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import s_tir

from tvm_ext.tir_schedules.block_access import static_extent
from tvm_ext.tir_schedules.wafer.annotations import COLUMN, ROW, WHOLE
from tvm_ext.tir_schedules.wafer.dimensions import loop_index, loop_indices
from tvm_ext.tir_schedules.wafer.mesh_cut import MeshCut

# For each axis of a tensor, "row", "column" or "-", and the elements of one piece.
Layout = tuple[tuple[str, int], ...]


def largest_two(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Of (position, extent) pairs, the two with the largest extents above one, in order."""
    large = sorted(pairs, key=lambda pair: -pair[1])[:2]
    return [pair for pair in pairs if pair in large and pair[1] > 1]


def home_layout(buffer: Any, grid: Mapping[str, int], axes: Sequence[str]) -> Layout:
    """A tensor cut by its two largest axes over a grid, the first of them over the rows.

    A vector lies along the line of PEs that ``axes`` names for it, if it does.
    """
    sizes = [static_extent(size) or 1 for size in buffer.shape]
    chosen = [position for position, _ in largest_two(list(enumerate(sizes)))]
    lines = dict(zip(chosen, (ROW, COLUMN), strict=False))
    if len(chosen) == 1 and axes and axes[chosen[0]] != WHOLE:
        lines = {chosen[0]: axes[chosen[0]]}
    return tuple(
        (lines[i], -(-size // grid[lines[i]])) if i in lines else (WHOLE, size)
        for i, size in enumerate(sizes)
    )


def home_words(layout: Layout, grid: Mapping[str, int]) -> str:
    """A layout as annotations of homes say it."""
    return " ".join(WHOLE if axis == WHOLE else f"{axis}/{grid[axis]}" for axis, _ in layout)


def axes_read(stmt: s_tir.SBlock, buffer: Any, indices: Sequence[Any], cut: MeshCut) -> list[str]:
    """For each axis of a tensor, what of the mesh the loop is that goes over all of it.

    ``cut`` is by positions of iteration variables of ``stmt``.
    """
    return [
        WHOLE if static_extent(size) == 1 else cut.axis_of(loop_index(stmt, size, index))
        for size, index in zip(buffer.shape, indices, strict=True)
    ]


def layout_written(stmt: s_tir.SBlock, region: Any, cut: MeshCut) -> Layout | None:
    """Which piece of its result a PE writes; None where it is no piece."""
    positions = loop_indices(stmt, region)
    if positions is None:
        return None
    return tuple(
        (cut.axis_of(position), -(-(static_extent(size) or 1) // cut.pieces(position)))
        for position, size in zip(positions, region.source.shape, strict=True)
    )


def lines_followed(
    stmt: s_tir.SBlock, buffer: Any, indices: Sequence[Any], cut: MeshCut, lies: Layout | None
) -> set[str] | None:
    """Along which lines of PEs a tensor is cut, if each PE has all that it reads of it.

    None if it has not, or if nobody knows where the tensor ``lies``. An axis that is not cut may be
    read at any place.
    """
    if lies is None:
        return None
    for size, index, (axis, piece) in zip(buffer.shape, indices, lies, strict=True):
        extent = static_extent(size) or 1
        if piece == extent:
            continue
        position = loop_index(stmt, size, index)
        if cut.axis_of(position) != axis or -(-extent // cut.pieces(position)) != piece:
            return None
    return {axis for axis, _ in lies}
