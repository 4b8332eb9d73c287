"""Arrays next to memory that may not be touched: reading beyond them ends the program."""

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

_ALIGNMENT = 64
_NO_ACCESS = 0
_LIBC = ctypes.CDLL(None, use_errno=True)


@contextmanager
def guarded(array: np.ndarray, at_end: bool) -> Iterator[np.ndarray]:
    """A copy of ``array`` between two forbidden pages, as near as may be to one of them.

    The rest of its own pages is NaN, or the largest number where there is none, or true.
    """
    page = mmap.PAGESIZE
    size = max(array.nbytes, 1)
    inner = -(-size // page) * page
    memory = mmap.mmap(-1, inner + 2 * page)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    pages = np.frombuffer(memory, "uint8")
    # bfloat16 is of a kind of its own, "V".
    kind = array.dtype.kind
    filler = np.nan if kind in "fV" else kind == "b" or np.iinfo(array.dtype).max
    pages[:] = np.full(pages.nbytes // array.itemsize, filler, array.dtype).view("uint8")
    offset = page + ((inner - size) // _ALIGNMENT * _ALIGNMENT if at_end else 0)
    found = pages[offset : offset + array.nbytes].view(array.dtype).reshape(array.shape)
    found[...] = array
    before = pages.copy()
    for start in (base, base + page + inner):
        assert _LIBC.mprotect(ctypes.c_void_p(start), page, _NO_ACCESS) == 0
    try:
        yield found
    finally:
        for start in (base, base + page + inner):
            _LIBC.mprotect(ctypes.c_void_p(start), page, mmap.PROT_READ | mmap.PROT_WRITE)
    own = np.zeros(pages.nbytes, bool)
    own[offset : offset + array.nbytes] = True
    assert np.array_equal(pages[~own], before[~own]), "memory beside the array was written"
