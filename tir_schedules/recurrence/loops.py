"""How the loops of a recurrence are written, and the statements that they are made of."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_ext.tir_schedules.block_access import static_extent
from tvm_ext.tir_schedules.recurrence.description import RecurrenceOperands

INDEX = "int64"

Body = Callable[[Any], tirx.Stmt]


@dataclass(frozen=True)
class RecurrenceLoops:
    """How the loops are written; as it stands, one element after the other.

    Attributes
    ----------
    rows : int
        Sequences that run together and share each load of a weight.
    units : int
        Units of a block whose sums are in registers at a time; they fill vectors.
    ways : int
        Partial sums of each sum in the product of most gates, a divisor of ``SUM_UNROLL``.
    threads : bool
        Whether directions and groups of sequences are handed to threads.
    """

    rows: int = 1
    units: int = 1
    ways: int = 1
    threads: bool = False


def number(value: int) -> Any:
    """An index."""
    return tirx.const(value, INDEX)


def loop(extent: Any, body: Body, kind: tirx.ForKind = tirx.ForKind.SERIAL) -> tirx.Stmt:
    """A loop from 0; the body alone where it is known to run once."""
    if static_extent(extent) == 1:
        return body(number(0))
    var = tirx.Var("i", INDEX)
    end = number(extent) if isinstance(extent, int) else extent
    return tirx.For(var, number(0), end, kind, body(var))


def vectors(length: int, body: Body) -> list[tirx.Stmt]:
    """``body`` for each number below ``length`` in unrolled vectors of equal length.

    That is a power of two: LLVM takes others apart into single elements.
    """
    width = length & -length

    def part(start: int) -> tirx.Stmt:
        if width == 1:
            return body(number(start))
        lane = tirx.Var("lane", INDEX)
        vector = tirx.ForKind.VECTORIZED
        return tirx.For(lane, number(0), number(width), vector, body(number(start) + lane))

    return [part(start) for start in range(0, length, width)]


class SequenceTime:
    """Where one sequence is in a step.

    Attributes
    ----------
    active : Expr or None
        Whether it still runs; None when all sequences have all steps.
    position : Expr
        The step of the input and output; behind the end of a sequence that of ``y``'s zeros.
    binds : list[Stmt]
        What has to stand before uses of these.
    """

    def __init__(self, operands: RecurrenceOperands, direction: Any, row: Any, step: Any) -> None:
        recurrence, steps = operands.recurrence, operands.steps
        length = steps
        self.binds: list[tirx.Stmt] = []
        self.active: Any = None
        if recurrence.lengths:
            # A length that the model may not have would read elsewhere.
            given = operands.load("lengths", row).astype(INDEX)
            length = self._named("length", tirx.Max(number(0), tirx.Min(given, steps)))
            self.active = step < length
        backward = length - number(1) - step
        if self.active is not None:
            backward = tirx.Select(self.active, backward, step)
        if all(recurrence.reverse):
            position = backward
        elif any(recurrence.reverse):
            position = tirx.Select(direction.equal(number(1)), backward, step)
        else:
            position = step
        self.position = self._named("time", position)

    def _named(self, name: str, value: Any) -> Any:
        var = tirx.Var(name, INDEX)
        self.binds.append(tirx.Bind(var, value))
        return var
