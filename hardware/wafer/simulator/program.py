"""What runs on a simulated mesh: streams of wavelets with static routes, and tasks of the PEs."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from tvm_ext.hardware.wafer.description import WaferDescription, WaferLimitError

# Routes over the links of a mesh, as trees: a router copies a wavelet to several links.


Place: TypeAlias = tuple[int, int]
"""Row and column of a PE."""

NORTH, EAST, SOUTH, WEST = range(4)
_STEPS = {NORTH: (-1, 0), EAST: (0, 1), SOUTH: (1, 0), WEST: (0, -1)}


class Branch(NamedTuple):
    """One link of a route."""

    place: Place
    """The router that sends over it."""
    direction: int
    """``NORTH``, ``EAST``, ``SOUTH`` or ``WEST``."""
    parent: int
    """The branch before, by number; -1 at the source."""


class Route(NamedTuple):
    """Branches, each after its parent, and where the wavelets leave the fabric."""

    branches: tuple[Branch, ...]
    targets: tuple[tuple[Place, int], ...]
    """Each target with the number of the branch that ends there; -1 for the source itself."""


def route_to(source: Place, targets: Sequence[Place]) -> Route:
    """From ``source`` to each target along the row first; common beginnings are sent once."""
    branches: list[Branch] = []
    known: dict[Branch, int] = {}
    ends: list[tuple[Place, int]] = []
    for target in targets:
        place, parent = source, -1
        while place != target:
            direction = _towards(place, target)
            branch = Branch(place, direction, parent)
            if branch not in known:
                known[branch] = len(branches)
                branches.append(branch)
            parent = known[branch]
            place = neighbour(place, direction)
        ends.append((target, parent))
    return Route(tuple(branches), tuple(ends))


def neighbour(place: Place, direction: int) -> Place:
    """The PE at the other end of a link."""
    rows, columns = _STEPS[direction]
    return place[0] + rows, place[1] + columns


def _towards(place: Place, target: Place) -> int:
    if place[1] != target[1]:
        return EAST if target[1] > place[1] else WEST
    return SOUTH if target[0] > place[0] else NORTH


@dataclass(frozen=True)
class WaveletStream:
    """Wavelets from one PE to one or more others.

    Attributes
    ----------
    source : Place
        Row and column of the sender.
    route : Route
        The links that the routers send them over.
    words : int
        Wavelets; 1 or more.
    colour : int
    turn : int, optional
        Of streams with the same colour, a router lets those with the lower turn pass first: the
        positions of its switch. Without one, whatever comes first.
    """

    source: Place
    route: Route
    words: int
    colour: int
    turn: int | None


@dataclass(frozen=True)
class Task:
    """Vector instruction of one PE: a word a cycle is taken in, worked on, sent, or all three.

    Attributes
    ----------
    place : Place
        The PE.
    received, sent : int, optional
        Streams that it takes words from and sends words on; the other end is memory.
    after : tuple[int, ...]
        Tasks of the same PE that have to be over before it starts.
    words : int
    """

    place: Place
    received: int | None
    sent: int | None
    after: tuple[int, ...]
    words: int


class Program:
    """Streams and tasks of a grid, put together by ``stream``, ``send``, ``receive``, ``forward``.

    Parameters
    ----------
    rows, columns : int
        The grid, 1 or more of each.
    """

    def __init__(self, rows: int, columns: int) -> None:
        if rows < 1 or columns < 1:
            raise WaferLimitError(f"a grid of {rows}x{columns} PEs; expected 1x1 or more")
        self.rows = rows
        self.columns = columns
        self.streams: list[WaveletStream] = []
        self.tasks: list[Task] = []

    def stream(
        self,
        source: Place,
        targets: Sequence[Place],
        words: int,
        colour: int,
        turn: int | None = None,
    ) -> int:
        """Declares a stream, along the row first and then along the columns; its number."""
        if words < 1:
            raise WaferLimitError(f"a stream of {words} words; expected 1 or more")
        for row, column in (source, *targets):
            if not (0 <= row < self.rows and 0 <= column < self.columns):
                raise WaferLimitError(
                    f"PE ({row}, {column}) is outside the grid of {self.rows}x{self.columns}"
                )
        route = route_to(source, targets)
        self.streams.append(WaveletStream(source, route, words, colour, turn))
        return len(self.streams) - 1

    def send(self, stream: int, after: Iterable[int] = ()) -> int:
        """The source of ``stream`` sends it from memory; the task's number."""
        return self._task(self.streams[stream].source, None, stream, after)

    def receive(self, place: Place, stream: int, after: Iterable[int] = ()) -> int:
        """The PE at ``place`` stores ``stream`` or adds it to what it has; the task's number."""
        return self._task(place, stream, None, after)

    def forward(self, received: int, sent: int, after: Iterable[int] = ()) -> int:
        """The source of ``sent`` adds each word of ``received`` to its own and sends the sum on."""
        return self._task(self.streams[sent].source, received, sent, after)

    def _task(
        self, place: Place, received: int | None, sent: int | None, after: Iterable[int]
    ) -> int:
        words = {self.streams[one].words for one in (received, sent) if one is not None}
        if len(words) != 1:
            raise WaferLimitError(
                f"one task for streams of {sorted(words)} words; expected as many"
            )
        self.tasks.append(Task(place, received, sent, tuple(after), words.pop()))
        return len(self.tasks) - 1


# Colours: what a router does with a wavelet depends on its colour only.


_RAMP = 4


def colours_in_use(mesh: WaferDescription, program: Program) -> int:
    """The most colours in one router.

    Raises WaferLimitError if a router would have to send wavelets of one colour different ways
    without turns, which a switch needs, or with more positions than a switch has.
    """
    ways: dict[tuple[Place, int], set[frozenset[int]]] = defaultdict(set)
    switched: dict[int, bool] = {}
    for stream in program.streams:
        switched[stream.colour] = stream.turn is not None and switched.get(stream.colour, True)
        for place, outputs in _outputs(stream).items():
            ways[place, stream.colour].add(frozenset(outputs))
    for (place, colour), found in ways.items():
        positions = mesh.switch_positions if switched[colour] else 1
        if len(found) > positions:
            raise WaferLimitError(
                f"colour {colour} goes {len(found)} ways at PE {place}; expected at most "
                f"{positions}: use another colour"
            )
    colours: dict[Place, set[int]] = defaultdict(set)
    for place, colour in ways:
        colours[place].add(colour)
    return max((len(found) for found in colours.values()), default=0)


def _outputs(stream: WaveletStream) -> dict[Place, set[int]]:
    """Where each router on the way of a stream sends its wavelets."""
    outputs: dict[Place, set[int]] = defaultdict(set)
    for branch in stream.route.branches:
        outputs[branch.place].add(branch.direction)
    for target, _ in stream.route.targets:
        outputs[target].add(_RAMP)
    return outputs
