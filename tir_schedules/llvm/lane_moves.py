"""Moves elements between the lanes of vectors: transposes and (de)interleaving in registers."""

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx

# Gives an expression a name of its own and returns the variable.
Name = Callable[[Any], Any]


def transposed(rows: Sequence[Any], size: int, name: Name) -> list[Any]:
    """The columns of ``size`` vectors of ``size`` lanes, a power of two.

    Halves of pairs of vectors change places, then quarters, and so on: Eklundh, "A fast computer
    method for matrix transposing", IEEE Transactions on Computers C-21, 1972.
    """
    vectors = list(rows)
    distance = size // 2
    while distance:
        for i in (i for i in range(size) if not i & distance):
            pair = (vectors[i], vectors[i + distance])
            low = [k if not k & distance else size + k - distance for k in range(size)]
            high = [k + distance if not k & distance else size + k for k in range(size)]
            vectors[i] = name(_shuffle(pair, low))
            vectors[i + distance] = name(_shuffle(pair, high))
        distance //= 2
    return vectors


def interleaved(rows: Sequence[Any], size: int, name: Name) -> list[Any]:
    """As many vectors as rows: lane 0 of every row, then lane 1 of every row, and so on."""
    count = len(rows)
    flat = [(number % count, number // count) for number in range(count * size)]
    return [picked(rows, flat[i * size : (i + 1) * size], name) for i in range(count)]


def deinterleaved(rows: Sequence[Any], size: int, name: Name) -> list[Any]:
    """The inverse of ``interleaved``."""
    count = len(rows)
    places = [[divmod(lane * count + i, size) for lane in range(size)] for i in range(count)]
    return [picked(rows, place, name) for place in places]


def strided(rows: Sequence[Any], stride: int, size: int, name: Name) -> Any:
    """Every ``stride``-th element of memory, from loads that ``strided_starts`` has placed."""
    places = []
    for lane in range(size):
        offset = lane * stride
        row = min(offset // (size - 1), len(rows) - 1)
        places.append((row, offset - row * (size - 1)))
    return picked(rows, places, name)


def strided_starts(stride: int, size: int) -> list[int]:
    """Where vectors are to be loaded for ``strided``: none goes beyond the last element."""
    return [number * (size - 1) for number in range(stride)]


def picked(rows: Sequence[Any], places: Sequence[tuple[int, int]], name: Name) -> Any:
    """A vector of the elements at (row, lane), by exchanges between two vectors at a time."""
    size = len(places)
    result, first = rows[0], [lane if row == 0 else 0 for row, lane in places]
    if len(rows) == 1:
        return name(_shuffle([result], first))
    for number in range(1, len(rows)):
        kept = first if number == 1 else list(range(size))
        lanes = [size + lane if row == number else kept[i] for i, (row, lane) in enumerate(places)]
        result = name(_shuffle([result, rows[number]], lanes))
    return result


def _shuffle(vectors: Sequence[Any], lanes: Sequence[int]) -> Any:
    return tirx.Shuffle(list(vectors), [tirx.const(lane, "int32") for lane in lanes])
