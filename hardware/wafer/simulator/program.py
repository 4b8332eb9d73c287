"""What runs on a simulated mesh: streams of wavelets with static routes, and tasks of the PEs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tvm_ext.hardware.wafer.errors import MeshLimitError
from tvm_ext.hardware.wafer.simulator.routes import Place, Route, route_to


@dataclass(frozen=True)
class Stream:
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
            raise MeshLimitError(f"a grid of {rows}x{columns} PEs; expected 1x1 or more")
        self.rows = rows
        self.columns = columns
        self.streams: list[Stream] = []
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
            raise MeshLimitError(f"a stream of {words} words; expected 1 or more")
        for row, column in (source, *targets):
            if not (0 <= row < self.rows and 0 <= column < self.columns):
                raise MeshLimitError(
                    f"PE ({row}, {column}) is outside the grid of {self.rows}x{self.columns}"
                )
        route = route_to(source, targets)
        self.streams.append(Stream(source, route, words, colour, turn))
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
            raise MeshLimitError(f"one task for streams of {sorted(words)} words; expected as many")
        self.tasks.append(Task(place, received, sent, tuple(after), words.pop()))
        return len(self.tasks) - 1
