"""How an attention is cut into tiles, and the statements that it is written with."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_ext.tir_schedules.operators.recurrence import loop, number
from tvm_ext.tir_schedules.statements import sequence

FLOAT = "float32"
"""Of the scores and of all sums."""


@dataclass(frozen=True)
class AttentionTiles:
    """How the loops of an attention are cut.

    Attributes
    ----------
    lanes : int
        Elements of a vector.
    rows : int
        Rows of the query that pass together.
    columns : int
        Sums of a row that are in registers: of scores, and of the result.
    keys : int
        Keys whose scores are in L1 together: all of them, or a multiple of ``columns``.
    block : int
        Rows that pass before the next keys come, a multiple of ``rows``.
    parts : int
        Tasks that share the rows of a head.
    packs_values : bool
        Whether the values are copied next to each other.
    threads : bool
        Whether threads share the tasks.
    abreast : int
        Keys whose products with a row are summed side by side, where the keys are not copied.
    few : AttentionTiles or None
        Of rows that may be too few for a copy of the keys: they have tiles of their own.
    """

    lanes: int
    rows: int
    columns: int
    keys: int
    block: int
    parts: int
    packs_values: bool
    threads: bool
    abreast: int = 1
    few: "AttentionTiles | None" = None

    def takes_all(self, keys: Any) -> bool:
        """Whether so many keys, which may be a size that a run decides, are taken together."""
        return isinstance(keys, int) and keys == self.keys


# What a core may have more to do than others before the work of a head is cut once more.
_UNEVEN = 1.1


def even_parts(heads: int, blocks: int, most: int) -> int:
    """The fewest parts of the blocks of a head with which no core waits long for another."""

    def share(parts: int) -> float:
        return math.ceil(heads * parts / most) * math.ceil(blocks / parts) / blocks

    counts = range(1, most + 1)
    best = min(map(share, counts))
    return next(parts for parts in counts if share(parts) <= _UNEVEN * best)


# Arrays, vectors and extents that an attention is written with.


def array_of(size: Any, name: str) -> Any:
    """An array of ``size`` sums."""
    return tirx.decl_buffer([extent_of(size)], FLOAT, name)


def extent_of(size: Any) -> Any:
    """A number, or a size that a run decides, as an extent."""
    return number(size) if isinstance(size, int) else size


def count_of(size: Any, each: int) -> Any:
    """How many times ``each``, the last time a part of it, make up ``size``."""
    if isinstance(size, int):
        return math.ceil(size / each)
    return size if each == 1 else tirx.truncdiv(size + number(each - 1), number(each))


def divided(size: Any, each: int) -> tuple[Any, Any]:
    """How many times ``each`` is in ``size``, and what is left."""
    if isinstance(size, int):
        return divmod(size, each)
    return tirx.truncdiv(size, number(each)), tirx.truncmod(size, number(each))


def is_none(count: Any) -> bool:
    """Whether a count is known to be zero."""
    return isinstance(count, int) and count == 0


def where_any(count: Any, code: tirx.Stmt) -> tirx.Stmt:
    """``code`` where a count is not zero in a run."""
    return tirx.IfThenElse(count > number(0), code, None)


def at(array: Any, place: Any) -> Any:
    """An element."""
    return tirx.BufferLoad(array, [place])


def widened(array: Any, place: Any) -> Any:
    """An element of an operand, as the sums are."""
    element = at(array, place)
    if str(array.dtype) == FLOAT:
        return element
    is_vector = isinstance(place, tirx.Ramp)
    return element.astype(f"{FLOAT}x{int(place.lanes)}" if is_vector else FLOAT)


def ramp(start: Any, size: int) -> Any:
    """``size`` neighbours from ``start`` on."""
    return tirx.Ramp(start, tirx.const(1, str(start.ty)), size)


def store_of(array: Any, value: Any) -> Callable[[Any], tirx.Stmt]:
    """What stores ``value``, or what it gives for a place, at a place."""

    def store(n: Any) -> tirx.Stmt:
        return tirx.BufferStore(array, value(n) if callable(value) else value, [n])

    return store


def vector(width: int, body: Callable[[Any], tirx.Stmt]) -> tirx.Stmt:
    """``body`` for each number below ``width``, at once."""
    if width == 1:
        return body(number(0))
    lane = tirx.Var("lane", "int64")
    return tirx.For(lane, number(0), number(width), tirx.ForKind.VECTORIZED, body(lane))


def unrolled(count: Any, body: Callable[[Any], tirx.Stmt]) -> tirx.Stmt:
    """A loop of a few steps at a time, so that its own instructions take no place of theirs."""
    if not isinstance(count, int):
        return loop(count, body)
    whole, left = divmod(count, _STEPS)

    def steps(first: Any, many: int) -> tirx.Stmt:
        return sequence([body(first + number(step)) for step in range(many)])

    found = [loop(whole, lambda i: steps(i * number(_STEPS), _STEPS))] if whole else []
    if left:
        found.append(steps(number(whole * _STEPS), left))
    return sequence(found)


_STEPS = 4


def in_lanes(start: int, end: int, body: Callable[[Any], tirx.Stmt]) -> list[tirx.Stmt]:
    """``body`` for each number from ``start`` to before ``end``, in vectors of powers of two."""

    def part(first: int, width: int) -> tirx.Stmt:
        return vector(width, lambda n: body(number(first) + n))

    found: list[tirx.Stmt] = []
    while start < end:
        width = min(power_of_two(end - start), _WIDEST)
        found.append(part(start, width))
        start += width
    return found


_WIDEST = 64


def power_of_two(size: int) -> int:
    """The largest that is at most ``size``."""
    return 1 << (size.bit_length() - 1)


def halved(
    array: Any, size: int, combine: Callable[[Any, Any], Any], start: int = 0
) -> list[tirx.Stmt]:
    """The one at ``start``, of ``size`` partial results, becomes that of all."""

    def step(half: int) -> tirx.Stmt:
        def joined(n: Any) -> tirx.Stmt:
            place = number(start) + n
            value = combine(at(array, place), at(array, place + number(half)))
            return tirx.BufferStore(array, value, [place])

        return vector(half, joined)

    halves = [1 << power for power in reversed(range(size.bit_length() - 1))]
    return [step(half) for half in halves]
