"""Memory that is read from beginning to end in each run, in pages of megabytes.

A processor finds a place in memory by a table of pages, and looks no further ahead than the end of
one: with pages of 4 KiB a sixth of the time in which weights are read goes there.
"""

import ctypes
import mmap
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

_SETTINGS = Path("/sys/kernel/mm/transparent_hugepage")

# Of Linux 6.1, which makes huge pages of small ones at once; Python does not name it.
_MADV_COLLAPSE = 25

# What lies between two tensors of the allocator's that follow each other, at most.
_GAP_BYTES = 1 << 14


def use_huge_pages(ranges: Iterable[tuple[int, int]]) -> None:
    """Asks the system for huge pages where ranges of address and bytes fill them.

    What is in memory stays, and no more memory is taken. Nothing happens where the system has no
    such pages, or was told to give none.
    """
    size = _huge_page_bytes()
    if not size:
        return
    advise = ctypes.CDLL(None).madvise
    for begin, end in _joined(ranges):
        first, last = -(-begin // size) * size, end // size * size
        if first < last:
            pages = ctypes.c_void_p(first), ctypes.c_size_t(last - first)
            # Older systems know the first alone, and make huge pages in time.
            advise(*pages, mmap.MADV_HUGEPAGE)
            advise(*pages, _MADV_COLLAPSE)


def _joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Begin and end of what lies together."""
    joined: list[tuple[int, int]] = []
    for begin, length in sorted(ranges):
        if joined and begin - joined[-1][1] <= _GAP_BYTES:
            joined[-1] = joined[-1][0], max(joined[-1][1], begin + length)
        else:
            joined.append((begin, begin + length))
    return joined


@cache
def _huge_page_bytes() -> int:
    """Bytes of a huge page; 0 where there are none."""
    if sys.platform != "linux":
        return 0
    try:
        if "[never]" in (_SETTINGS / "enabled").read_text():
            return 0
        return int((_SETTINGS / "hpage_pmd_size").read_text())
    except (OSError, ValueError):
        return 0
