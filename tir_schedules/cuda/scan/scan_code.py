"""Writes a scan for threads: totals of the chunks first, then every chunk from its prefix on.

Reading twice and writing once (D. Merrill, M. Garland, "Single-pass Parallel Prefix Scan with
Decoupled Look-back", 2016, on reduce-then-scan) needs no order of the blocks, and gives the same
rounding in every run.
"""

from typing import Any

from tvm import tirx

from tvm_ext.tir_schedules.cuda.launch import bound
from tvm_ext.tir_schedules.cuda.scan.scan_across import ScanAcross
from tvm_ext.tir_schedules.cuda.scan.scan_along import ScanAlong
from tvm_ext.tir_schedules.cuda.warp_code import without_added_barriers
from tvm_ext.tir_schedules.statements import sequence


class ScanCode(ScanAlong, ScanAcross):
    """The statements of a scan under a launch."""

    def write(self, totals: Any) -> tirx.Stmt:
        """The grid; ``totals`` holds one value for every chunk but the last of every scan."""
        groups = -(-self.kernel.count // self.launch.rows)
        chunks = self.launch.chunks

        def block(index: Any) -> tirx.Stmt:
            self.group = tirx.floordiv(index, self.number(chunks)) if chunks > 1 else index
            self.chunk = tirx.floormod(index, self.number(chunks)) if chunks > 1 else self.number(0)
            statements = self.across(totals) if self.launch.across else self.along(totals)
            return without_added_barriers(sequence(statements))

        return bound("blockIdx.x", groups * chunks, self.dtype, block)
