"""Which elements of a tile of results a thread has after matrix instructions.

An instruction of one warp and one of a warp group leave them alike: of every 8 columns, a lane has
two neighbours in row ``lane // 4`` and two in the row 8 further down. PTX ISA, "Matrix fragments
for mma.m16n8k16" and "Register fragments for wgmma.mma_async.m64nNk16".
"""

from typing import Any

from tvm import tirx

from tvm_ext.tir_schedules.cuda.attention.attention_scores import ScorePlaces, number

RESULTS = 4
"""Results that one thread has of 16 rows and 8 columns."""

# Distances of the lanes that have the other columns of the same rows.
_LANES = (1, 2)
_NEIGHBOURS = 2


def fragment_register(i: Any, j: Any, columns: int) -> Any:
    """The register of the thread's column ``j`` of its row ``i``, of a tile of so many columns."""
    tile, half = tirx.floordiv(i, number(2)), tirx.floormod(i, number(2))
    pair, one = tirx.floordiv(j, number(2)), tirx.floormod(j, number(2))
    eighths = tile * number(columns // 8) + pair
    return eighths * number(RESULTS) + half * number(2) + one


def fragment_column(j: Any, lane: Any) -> Any:
    """The column of the tile that is a thread's column ``j``."""
    pair, one = tirx.floordiv(j, number(2)), tirx.floormod(j, number(2))
    return pair * number(8) + tirx.floormod(lane, number(4)) * number(2) + one


def fragment_places(rows: int, keys: int, first_row: Any, lane: Any) -> ScorePlaces:
    """The scores of ``rows`` rows of a thread, 8 apart, the first of its warp's ``first_row``."""

    def row(i: Any) -> Any:
        return first_row + i * number(8) + tirx.floordiv(lane, number(4))

    def column(j: Any) -> Any:
        return fragment_column(j, lane)

    def register(i: Any, j: Any) -> Any:
        return fragment_register(i, j, keys)

    return ScorePlaces(rows, keys // 4, row, column, register, _LANES, _NEIGHBOURS)
