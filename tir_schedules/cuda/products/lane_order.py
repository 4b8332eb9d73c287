"""Where a tile in shared memory keeps the rows and columns of a product, by the lanes they are of.

A lane of a warp multiplies ``OWN`` neighbours. Where these are neighbours in shared memory too, the
lanes' first ones are ``OWN`` elements apart, and fall into few of the 32 banks. So four neighbours
of every lane come first, and after them the next four of every lane; in a tile whose rows the lanes
share, the first row of every lane, then the second. Each of these groups begins with another lane,
so that neighbours, which are written together, are not in the same banks either.
"""

from collections.abc import Callable
from typing import Any

from tvm import s_tir
from tvm.s_tir.schedule import SBlockRV

from tvm_ext.tir_schedules.block_access import element_bytes, static_extent

OWN = 8
"""Neighbours that a lane multiplies."""

PIECE_BYTES = 16
"""Neighbours that stay neighbours: the widest copy."""


def order_columns(sch: s_tir.Schedule, block: SBlockRV, side: str, lanes: int) -> None:
    """Orders the columns of the tile that ``block`` reads or writes by the lanes that share them.

    ``side``: "read" or "write".
    """
    piece = PIECE_BYTES // element_bytes(_tile(sch, block, side))
    _order(sch, block, side, -1, lambda at: _place(at, lanes, piece, lanes // 2))


def order_rows(sch: s_tir.Schedule, reader: SBlockRV, lanes: int, row_elements: int) -> None:
    """Orders the rows, of ``row_elements``, of the tile that ``reader`` reads by lanes."""
    pieces = row_elements * element_bytes(_tile(sch, reader, "read")) // PIECE_BYTES
    _order(sch, reader, "read", -2, lambda at: _place(at, lanes, 1, max(1, pieces)))


def _order(
    sch: s_tir.Schedule, block: SBlockRV, side: str, axis: int, place: Callable[[Any], Any]
) -> None:
    """Changes the order of a tile's axis; one of unknown extent stays as it is."""
    if static_extent(_tile(sch, block, side).shape[axis]) is None:
        return

    def places(*indices: Any) -> list[Any]:
        at = list(indices)
        at[axis] = place(at[axis])
        return at

    # What TVM 0.27 cannot invert, it cannot see to be one to one.
    sch.transform_layout(block, (side, 0), places, assume_injective_transform=True)


def _tile(sch: s_tir.Schedule, block: SBlockRV, side: str) -> Any:
    found = sch.get(block)
    return (found.reads if side == "read" else found.writes)[0].source


def _place(at: Any, lanes: int, piece: int, turn: int) -> Any:
    """By the number of a lane's piece, the lane, and the place in the piece."""
    span = OWN * lanes
    number, lane = at % OWN // piece, at % span // OWN
    turned = (lane + number * turn) % lanes
    return at // span * span + number * (piece * lanes) + turned * piece + at % piece
