"""Copies for what several PEs of a block need and one PE has: sent along rows, columns or both."""

from typing import Any

from tvm import s_tir

from tvm_ext.tir_schedules.block_access import constant_parameter, operands_of, read_position
from tvm_ext.tir_schedules.rows.row_kernel import buffer_key
from tvm_ext.tir_schedules.wafer.annotations import COMMUNICATION, HOME, Pattern
from tvm_ext.tir_schedules.wafer.dimensions import Dimensions
from tvm_ext.tir_schedules.wafer.mesh_cut import MeshCut, Placed

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

    def __init__(self, sch: s_tir.Schedule, dimensions: Dimensions, cut: MeshCut) -> None:
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

    def _pattern(self, buffer: Any, idle: tuple[bool, bool]) -> str | None:
        """How a tensor comes to the PEs of a block that runs in one row, or column, if ``idle``."""
        if constant_parameter(self._sch.mod["main"], buffer) is not None:
            return None
        if buffer_key(buffer) not in self._dimensions.axes:
            # Partial results, each in the PE that goes on with it.
            return None
        rows, columns = self._cut.missing(self._dimensions.of(buffer))
        return broadcast_pattern(rows and not idle[0], columns and not idle[1])


def state_homes(sch: s_tir.Schedule, dimensions: Dimensions, cut: MeshCut) -> None:
    """Says where parameters lie that are cut over rows and columns along one axis.

    The analysis would take them to be cut over the rows only. All others lie where they are used.
    """
    if not cut.together:
        return
    root = sch.get_sblock("root")
    for position, param in enumerate(sch.mod["main"].params):
        axes = dimensions.axes.get(buffer_key(param))
        if axes is not None and cut.row in axes:
            sch.annotate(root, f"{HOME}{position}", " ".join(cut.word(one) for one in axes))
