"""Lines of memory that the processor is told of before they are read."""

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import tirx

from tvm_ext.tir_schedules.analysis.buffer_access import element_bytes

_LINE_BYTES = 64

# How far ahead: what memory delivers in the time that it takes to answer. A processor itself looks
# no further than the end of a page.
_LINES_AHEAD = 64


def prefetches_along(
    source: tirx.Buffer, places: Sequence[tvm.ir.Expr], columns: int
) -> list[tirx.Stmt]:
    """Brings as many elements as ``columns`` into L1, some lines after ``places``."""
    return _prefetches(source, places, columns, _LINES_AHEAD * _per_line(source))


def prefetches_of(
    source: tirx.Buffer, places: Sequence[tvm.ir.Expr], columns: int
) -> list[tirx.Stmt]:
    """Brings as many elements as ``columns`` into L1, from ``places`` on."""
    return _prefetches(source, places, columns, 0)


def rows_ahead(source: tirx.Buffer, columns: int) -> int:
    """The row to ask for, counted from that which is read, of rows of ``columns`` elements."""
    return max(1, _LINES_AHEAD * _per_line(source) // columns)


def _per_line(source: tirx.Buffer) -> int:
    return _LINE_BYTES // element_bytes(source)


def _prefetches(
    source: tirx.Buffer, places: Sequence[Any], columns: int, skipped: int
) -> list[tirx.Stmt]:
    *outer, first = places
    statements: list[tirx.Stmt] = []
    for start in range(0, columns, _per_line(source)):
        # Beyond the end of the buffer, this does nothing.
        far = tirx.BufferLoad(source, [*outer, first + (start + skipped)])
        # Read, to be used again, of data.
        kinds = [tirx.const(n, "int32") for n in (0, 3, 1)]
        place = tirx.address_of(far)
        call = tirx.call_llvm_intrin("void", "llvm.prefetch.p0", place, *kinds)
        statements.append(tirx.Evaluate(call))
    return statements
