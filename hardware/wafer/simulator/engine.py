"""The simulator's engine: when each wavelet is where.

Model. A task works on one word a cycle. A wavelet takes T_R cycles from a PE to its router, one
cycle (``hop_cycles``) from a router to the next, and T_R to a PE. Each ramp and each link takes one
wavelet a cycle and direction; those of several streams pass in the order in which they come, or by
their turns. At a PE, a stream has a queue of ``QUEUE_WORDS`` words; no more of them cross the ramp
before a task takes them. Elsewhere a wavelet that has to wait does so in a queue without limit, and
holds up neither its sender (on the machine, microthreads wait in place of the PE) nor other
colours. Tasks of one PE that do not wait for each other run at the same time.

Method. All wavelets of a stream are one event, a train of times that is handled as an array. An
event at a link that several streams share may come too early, before a stream is known that mixes
with it; then the link is served again, and what changed goes on from there, as in D. Jefferson,
"Virtual time", ACM TOPLAS 7(3), 1985. Every ramp, link and task takes time, so the times that
satisfy all recurrences at once are unique, and they are found when no event is left. Events wait in
a heap: first by the order in which parts of the program depend on each other, then by the earliest
time that changed. Links that only one stream uses need no events: they add to the delay.
"""

import heapq
from dataclasses import dataclass, field

import numpy as np

from tvm_ext.hardware.mesh_description import MeshDescription
from tvm_ext.hardware.wafer.errors import MeshLimitError
from tvm_ext.hardware.wafer.simulator.program import Program
from tvm_ext.hardware.wafer.simulator.ranks import ranks
from tvm_ext.hardware.wafer.simulator.result import SimulationResult
from tvm_ext.hardware.wafer.simulator.static_routes import colours_in_use
from tvm_ext.hardware.wafer.simulator.topology import Node, Topology
from tvm_ext.hardware.wafer.simulator.trains import Train, first_change, let_in, merged, one_a_cycle


def simulate(mesh: MeshDescription, program: Program) -> SimulationResult:
    """Runs ``program`` on a mesh.

    Raises
    ------
    MeshLimitError
        The grid is larger than the mesh's rectangle, the routes of a colour contradict each other,
        a stream has no sender or receiver, or tasks wait for each other forever.
    """
    if program.rows > mesh.rows or program.columns > mesh.columns:
        raise MeshLimitError(
            f"a program for {program.rows}x{program.columns} PEs, and '{mesh.name}' has "
            f"{mesh.rows}x{mesh.columns}; expected a smaller grid"
        )
    colours = colours_in_use(mesh, program)
    topology = Topology(mesh, program)
    return SimulationResult(
        task_ends=_Run(program, topology).task_ends(),
        colours=colours,
        link_wavelets=topology.link_wavelets,
        busy_cycles=topology.busy_cycles,
        sent_words=topology.sent_words,
        received_words=topology.received_words,
    )


# An estimate; as long as a word is on the ramp, the least that keeps a ramp busy from one task to
# the next.
QUEUE_WORDS = 4

_NONE = np.zeros(0, np.int64)


@dataclass
class _Server:
    """A ramp or link that several streams share: their trains on arrival and at the start."""

    arrivals: dict[int, Train] = field(default_factory=dict)
    starts: dict[int, Train] = field(default_factory=dict)


class _Run:
    def __init__(self, program: Program, topology: Topology) -> None:
        self._program = program
        self._topology = topology
        self._ranks = ranks(topology)
        self._room = max(QUEUE_WORDS, topology.ramp_cycles)
        self._servers = {node: _Server() for node in topology.shared}
        # Per task: words on arrival, when each word is done, ends of the tasks before.
        self._arrived: dict[int, Train] = {}
        self._done: dict[int, Train] = {}
        self._heap: list[tuple[int, int, Node]] = []
        self._waiting: dict[Node, int] = {}

    def task_ends(self) -> np.ndarray:
        """When each task is over."""
        for number, task in enumerate(self._program.tasks):
            if task.received is None and not task.after:
                self._wake(number, 0)
        while self._heap:
            _, time, node = heapq.heappop(self._heap)
            if self._waiting.get(node) != time:
                continue
            del self._waiting[node]
            if self._topology.is_task(node):
                self._run_task(node)
            else:
                self._serve(node, time)
        missing = len(self._program.tasks) - len(self._done)
        if missing:
            raise MeshLimitError(
                f"{missing} tasks of the program never start; expected words or an end to wait for"
            )
        ends = [int(self._done[number][-1]) for number in range(len(self._done))]
        return np.array(ends, np.int64)

    def _wake(self, node: Node, time: int) -> None:
        """The node is to be looked at because something changed at ``time``."""
        known = self._waiting.get(node)
        if known is None or time < known:
            self._waiting[node] = time
            heapq.heappush(self._heap, (self._ranks[node], time, node))

    def _run_task(self, number: int) -> None:
        task = self._program.tasks[number]
        earliest = self._earliest(number)
        arrived = self._arrived.get(number, _NONE)
        if earliest is None:
            return
        if task.received is None:
            starts = np.arange(earliest, earliest + task.words)
        elif len(arrived) == task.words:
            starts = one_a_cycle(arrived, earliest)
        else:
            return
        done = starts + 1
        old = self._done.get(number)
        changed = first_change(old, done)
        if changed is None:
            return
        self._done[number] = done
        if task.sent is not None:
            self._pass_on(number, task.sent, done, old)
        if old is None or old[-1] != done[-1]:
            end = int(done[-1] if old is None else min(old[-1], done[-1]))
            for other in (*self._topology.waiting_for[number], *self._topology.gated[number]):
                self._wake(other, end)

    def _earliest(self, number: int) -> int | None:
        """When a task may start; None as long as one that it waits for has not ended."""
        after = self._program.tasks[number].after
        if any(other not in self._done for other in after):
            return None
        return max((int(self._done[other][-1]) for other in after), default=0)

    def _serve(self, node: Node, time: int) -> None:
        """Serves again what had not started before ``time``; nothing earlier can change."""
        server = self._servers[node]
        self._forget(server, time)
        ready = self._ready(node, server)
        if not ready:
            return
        kept = {number: server.starts.get(number, _NONE) for number in ready}
        kept = {number: starts[: np.searchsorted(starts, time)] for number, starts in kept.items()}
        open_trains = [train[len(kept[number]) :] for number, train in ready.items()]
        for number, late in zip(ready, merged(open_trains, time), strict=True):
            old = server.starts.get(number)
            server.starts[number] = np.concatenate([kept[number], late])
            self._pass_on(node, number, server.starts[number], old)

    def _forget(self, server: _Server, time: int) -> None:
        """Drops trains that were over before ``time``, unless others wait for their turns."""
        for number, starts in list(server.starts.items()):
            stream = self._program.streams[number]
            if stream.turn is None and len(starts) == stream.words and starts[-1] < time:
                del server.starts[number], server.arrivals[number]

    def _ready(self, node: Node, server: _Server) -> dict[int, Train]:
        """The trains that are there, no earlier than queues and turns allow."""
        turns: dict[int, list[int]] = {}
        ready: dict[int, Train] = {}
        arrivals = {
            number: self._at_queue(node, number, train)
            for number, train in sorted(server.arrivals.items())
        }
        for number, train in arrivals.items():
            stream = self._program.streams[number]
            if stream.turn is None:
                ready[number] = train
            else:
                turns.setdefault(stream.colour, []).append(number)
        for numbers in turns.values():
            before = 0
            for number in sorted(numbers, key=lambda one: self._program.streams[one].turn or 0):
                ready[number] = np.maximum(arrivals[number], before)
                before = int(ready[number][-1])
        return ready

    def _at_queue(self, node: Node, number: int, train: Train) -> Train:
        """What of a train crosses a ramp, and not before the queue behind it has room."""
        task = self._topology.gates.get((node, number))
        return train if task is None else let_in(train, self._earliest(task), self._room)

    def _pass_on(self, node: Node, number: int, starts: Train, old: Train | None) -> None:
        """Words of stream ``number`` leave ``node`` at ``starts``."""
        changed = first_change(old, starts)
        if changed is None:
            return
        for follower, delay in self._topology.followers(node, number):
            if self._topology.is_task(follower):
                self._arrived[follower] = starts + delay
            else:
                self._servers[follower].arrivals[number] = starts + delay
            self._wake(follower, changed + delay)
