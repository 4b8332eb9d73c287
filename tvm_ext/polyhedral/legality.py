"""Whether a loop may be parallel or vectorised, and whether loops may be reordered.

A transformation gives each run another time. It is legal if every dependence still leads from an
earlier run to a later one. Where one does not, the answer is a Violation: the array, both
statements, and a pair of iterations.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import islpy as isl
from tvm import tirx

from tvm_ext.polyhedral.dependences import Dependence
from tvm_ext.polyhedral.iteration_domains import KernelDomain, Place, Statement, place_of

LoopName: TypeAlias = "str | tirx.For"
"""A loop, or the name of its variable."""


@dataclass(frozen=True)
class Violation:
    """A dependence that a transformation would break.

    Attributes
    ----------
    what : str
        The transformation.
    dependence : Dependence
        What it would break.
    source, sink : dict[str, int]
        An example: the loops' values in a run of the source, and in one of the sink.
    sizes : dict[str, int]
        The symbolic sizes of the example.
    """

    what: str
    dependence: Dependence
    source: dict[str, int]
    sink: dict[str, int]
    sizes: dict[str, int]

    def __str__(self) -> str:
        """One line that names the array, both statements and the pair of iterations."""
        one = self.dependence
        sizes = f" with {_listed(self.sizes)}" if self.sizes else ""
        ends = [
            f"{statement.name} ({statement.text}) at ({_listed(values)})"
            for statement, values in ((one.source, self.source), (one.sink, self.sink))
        ]
        return (
            f"{self.what} is not legal: {one.kind} dependence on {one.buffer} "
            f"from {ends[0]} to {ends[1]}{sizes}"
        )


def _listed(values: dict[str, int]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


class LoopNest:
    """A kernel with its dependences, which is asked what may be done to its loops.

    Loops are given by the names of their variables. Each question is answered by None where the
    transformation is legal, and by the dependence that forbids it where it is not.

    Parameters
    ----------
    kernel : KernelDomain
        The kernel.
    dependences : sequence of Dependence
        Its dependences.
    """

    def __init__(self, kernel: KernelDomain, dependences: Sequence[Dependence]) -> None:
        self.kernel = kernel
        self.dependences = dependences

    def parallel(self, loop: str) -> Violation | None:
        """Whether the iterations of a loop may run at the same time, in any order."""
        for one in self.dependences:
            carried = carried_by(self.kernel, one, loop)
            if not carried.is_empty():
                return violation(f"a parallel loop {loop}", one, carried)
        return None

    def vectorized(self, loop: str) -> Violation | None:
        """Whether the iterations of a loop may be lanes: of each statement all at a time.

        A statement loads for all lanes before it stores.
        """
        for one in self.dependences:
            broken = broken_by_lanes(self.kernel, one, loop)
            if not broken.is_empty():
                return violation(f"a vectorised loop {loop}", one, broken)
        return None

    def interchange(self, outer: str, inner: str) -> Violation | None:
        """Whether two loops around the same statements may change places."""

        def swapped(statement: Statement, place: Place) -> Place:
            first, second = place_in(statement, outer), place_in(statement, inner)
            if first is None or second is None:
                return place
            place[first], place[second] = place[second], place[first]
            return place

        return self._kept(f"interchange of {outer} and {inner}", swapped)

    def reversal(self, loop: str) -> Violation | None:
        """Whether a loop may run from its last iteration to its first."""

        def turned(statement: Statement, place: Place) -> Place:
            at = place_in(statement, loop)
            if at is not None:
                place[at] = f"-({place[at]})"
            return place

        return self._kept(f"reversal of {loop}", turned)

    def skewing(self, outer: str, inner: str, factor: int) -> Violation | None:
        """Whether ``inner`` may start ``factor`` later with each iteration of ``outer``.

        The order of a nest in which ``inner`` is inside of ``outer`` stays the same, so this is
        legal there always; what it makes legal is asked with ``tiling`` and ``skewed``.
        """
        return self._kept(f"skewing of {inner} by {factor} {outer}", _skewed(outer, inner, factor))

    def tiling(
        self, sizes: dict[str, int], skewed: Iterable[tuple[str, str, int]] = ()
    ) -> Violation | None:
        """Whether nested loops may be tiled.

        Parameters
        ----------
        sizes : dict of str to int
            The tile's length along each loop, outermost loop first.
        skewed : iterable of (outer, inner, factor)
            Skewings that take place before.
        """
        steps = [_skewed(*one) for one in skewed]

        def tiled(statement: Statement, place: Place) -> Place:
            for step in steps:
                place = step(statement, place)
            found = [(place_in(statement, loop), size) for loop, size in sizes.items()]
            present = [(at, size) for at, size in found if at is not None]
            if not present:
                return place
            first = min(at for at, _ in present)
            tiles = [f"floor(({place[at]})/{size})" for at, size in present]
            return [*place[:first], *tiles, *place[first:]]

        return self._kept(f"tiling of {', '.join(sizes)}", tiled)

    def fusion(self, first: str, second: str) -> Violation | None:
        """Whether two loops that follow each other may become one, iteration by iteration."""
        one, other = self._loop(first), self._loop(second)
        beside = max(s.position[len(one)] for s in self.kernel.statements if _has_loops(s, one))

        def fused(statement: Statement, place: Place) -> Place:
            if not _has_loops(statement, other):
                return place
            level = len(other) - 1
            target = next(s for s in self.kernel.statements if _has_loops(s, one))
            place[2 * level] = str(target.position[level])
            place[2 * level + 2] = str(statement.position[level + 1] + beside + 1)
            return place

        return self._kept(f"fusion of {first} and {second}", fused)

    def distribution(self, loop: str, before: str) -> Violation | None:
        """Whether a loop may become two: what is before statement ``before``, and the rest."""
        number = [s.name for s in self.kernel.statements].index(before)
        behind = {s.name for s in self.kernel.statements[number:]}

        def distributed(statement: Statement, place: Place) -> Place:
            at = place_in(statement, loop)
            if at is None:
                return place
            return [*place[:at], str(int(statement.name in behind)), *place[at:]]

        return self._kept(f"distribution of {loop}", distributed)

    def _loop(self, name: str) -> tuple[Any, ...]:
        """The loops around the first loop of a name, and that loop."""
        for statement in self.kernel.statements:
            if name in statement.loop_names:
                return statement.loops[: statement.loop_names.index(name) + 1]
        raise KeyError(name)

    def _kept(self, what: str, change: Callable[[Statement, Place], Place]) -> Violation | None:
        for one in self.dependences:
            pair = (one.source, one.sink)
            times = [change(statement, place_of(statement)) for statement in pair]
            source, sink = _timed(self.kernel, pair, times)
            broken = one.relation.intersect(source.lex_ge_map(sink))
            if not broken.is_empty():
                return violation(what, one, broken)
        return None


def _skewed(outer: str, inner: str, factor: int) -> Callable[[Statement, Place], Place]:
    def changed(statement: Statement, place: Place) -> Place:
        first, second = place_in(statement, outer), place_in(statement, inner)
        if first is not None and second is not None:
            place[second] = f"{place[second]} + {factor}*({place[first]})"
        return place

    return changed


def _has_loops(statement: Statement, loops: Sequence[Any]) -> bool:
    own = statement.loops[: len(loops)]
    return len(own) == len(loops) and all(a.same_as(b) for a, b in zip(own, loops, strict=True))


def place_in(statement: Statement, loop: LoopName) -> int | None:
    """The position of a loop's coordinate in the time of ``statement``; None without that loop."""
    for number, (own, name) in enumerate(zip(statement.loops, statement.loop_names, strict=True)):
        if name == loop if isinstance(loop, str) else own.same_as(loop):
            return 2 * number + 1
    return None


def _timed(
    kernel: KernelDomain, statements: Sequence[Statement], places: Sequence[Place]
) -> list[isl.Map]:
    """The times of two statements, of equal length."""
    length = max(len(place) for place in places)
    padded = [[*place, *["0"] * (length - len(place))] for place in places]
    return [
        kernel.placed(statement, place) for statement, place in zip(statements, padded, strict=True)
    ]


def carried_by(kernel: KernelDomain, one: Dependence, loop: LoopName) -> isl.Map:
    """The pairs of a dependence that lie in two iterations of a loop, in one of those around."""
    first, second = place_in(one.source, loop), place_in(one.sink, loop)
    nothing = one.relation.subtract(one.relation)
    if first is None or first != second:
        return nothing
    depth = first // 2
    if not _has_loops(one.sink, one.source.loops[: depth + 1]):
        return nothing
    times = [place_of(statement) for statement in (one.source, one.sink)]
    around = _timed(kernel, (one.source, one.sink), [time[:first] for time in times])
    inside = _timed(kernel, (one.source, one.sink), [time[first : first + 1] for time in times])
    together = around[0].apply_range(around[1].reverse())
    differ = inside[0].lex_lt_map(inside[1]).union(inside[0].lex_gt_map(inside[1]))
    return one.relation.intersect(together).intersect(differ)


def broken_by_lanes(kernel: KernelDomain, one: Dependence, loop: LoopName) -> isl.Map:
    """The pairs of a dependence that come in the wrong order where iterations are lanes."""
    carried = carried_by(kernel, one, loop)
    if carried.is_empty():
        return carried
    times = []
    for statement in (one.source, one.sink):
        place = place_of(statement)
        coordinate = place_in(statement, loop)
        if coordinate is not None:
            place = place[:coordinate] + place[coordinate + 1 :]
        times.append(place)
    source, sink = _timed(kernel, (one.source, one.sink), times)
    # A statement loads for all lanes before it stores.
    if one.kind == "anti" and one.source.name == one.sink.name:
        return carried.intersect(source.lex_gt_map(sink))
    return carried.intersect(source.lex_ge_map(sink))


def violation(what: str, one: Dependence, broken: isl.Map) -> Violation:
    """The violation of a dependence, with the first pair of ``broken`` as its example."""
    pair = broken.wrap().lexmin().sample_point()

    def value(kind: isl.dim_type, number: int) -> int:
        return int(pair.get_coordinate_val(kind, number).to_python())

    split = broken.dim(isl.dim_type.in_)
    source = [value(isl.dim_type.set, number) for number in range(len(one.source.loops))]
    sink = [value(isl.dim_type.set, split + number) for number in range(len(one.sink.loops))]
    names = [
        broken.get_dim_name(isl.dim_type.param, number)
        for number in range(broken.dim(isl.dim_type.param))
    ]
    sizes = {str(name): value(isl.dim_type.param, number) for number, name in enumerate(names)}
    return Violation(what, one, _named(one.source, source), _named(one.sink, sink), sizes)


def _named(statement: Statement, values: Sequence[int]) -> dict[str, int]:
    """The values of the loops by name; of two loops of one name the inner one is marked."""
    found: dict[str, int] = {}
    for name, value in zip(statement.loop_names, values, strict=True):
        while name in found:
            name += "'"
        found[name] = value
    return found
