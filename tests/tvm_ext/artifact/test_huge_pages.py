"""Weights lie in huge pages where the system has them."""

import mmap
from pathlib import Path

import numpy as np
import pytest

from tvm_ext.artifact import huge_pages
from tvm_ext.artifact.huge_pages import use_huge_pages

_PAGE = 2 << 20


def _kib_of_huge_pages(address: int) -> int:
    """Of the mapping that an address is in."""
    is_in = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if "-" in first and not first.endswith(":"):
            begin, end = (int(number, 16) for number in first.split("-"))
            is_in = begin <= address < end
        elif is_in and first == "AnonHugePages:":
            return int(rest[0])
    return 0


@pytest.mark.skipif(not huge_pages._huge_page_bytes(), reason="the system has no huge pages")
def test_neighbours_fill_huge_pages_and_keep_their_values() -> None:
    with mmap.mmap(-1, 8 * _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as region:
        region.madvise(mmap.MADV_NOHUGEPAGE)
        values = np.frombuffer(region, np.uint8)
        values[:] = np.arange(values.size) % 251
        before = values.copy()
        address = values.ctypes.data
        assert _kib_of_huge_pages(address) == 0
        # Each is smaller than a huge page; together they are seven at least.
        pieces = [(address + at, _PAGE // 4) for at in range(0, values.size, _PAGE // 4)]
        use_huge_pages(reversed(pieces))
        # Linux before 6.1 makes them in time.
        assert _kib_of_huge_pages(address) in (0, *range(7 * 2048, 8 * 2048 + 1, 2048))
        np.testing.assert_array_equal(values, before)
        del values


def test_what_lies_apart_is_not_joined() -> None:
    assert huge_pages._joined([(1 << 20, 50), (0, 100), (200, 100)]) == [
        (0, 300),
        (1 << 20, (1 << 20) + 50),
    ]
