"""Into which lengths a number of rows, or of elements of a row, is cut."""

from collections.abc import Sequence
from typing import Any

from tvm import tirx

from tvm_ext.tir_schedules.rows.row_strides import sized

# Start, how many, and width; the first two may be expressions of what a run decides.
Stretch = tuple[Any, Any, int]


def stretches(length: int, widths: Sequence[int]) -> list[tuple[int, int, int]]:
    """(start, how many, width): the whole of ``length`` in parts of each width, and the rest."""
    found = []
    start = 0
    for width in widths:
        count = (length - start) // width
        if count:
            found.append((start, count, width))
            start += count * width
    if start < length:
        found.append((start, 1, length - start))
    return found


def open_stretches(length: Any, widths: Sequence[int], dtype: str) -> list[Stretch]:
    """``stretches`` of a length that may be known in the run only: the last width is then 1."""
    if isinstance(length, int):
        return list(stretches(length, widths))
    found: list[Stretch] = []
    whole, start = sized(length, dtype), 0
    for width in dict.fromkeys(widths):
        count = whole - start if width == 1 else tirx.truncdiv(whole - start, sized(width, dtype))
        found.append((start, count, width))
        start = count * width + start
    return found


def stretches_across(
    length: int, groups: int, lanes: int, registers: int, chunks: int
) -> list[tuple[int, int, int]]:
    """``stretches`` of neighbouring rows, a tile each, of a length that there is in ``groups``.

    They are as even as vectors allow: the last one is not to be a small rest. Where the tiles are
    what threads share, there are as many equal ones for each of the ``chunks``, and a rest.
    """
    vectors = -(-length // lanes)
    tiles = -(-vectors // registers)
    if groups < chunks and length // lanes >= chunks:
        tiles = -(-tiles // chunks) * chunks
        return stretches(length, [lanes * max(1, length // lanes // tiles)])
    return stretches(length, [lanes * -(-vectors // tiles)])
