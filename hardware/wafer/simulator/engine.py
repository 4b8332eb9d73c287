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
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

from tvm_ext.hardware.wafer.description import WaferDescription, WaferLimitError
from tvm_ext.hardware.wafer.simulator.program import Place, Program, WaveletStream, colours_in_use

# What depends on what in a program: the way of each stream through links that it shares.


Node: TypeAlias = int
"""A task, by its number, or a ramp or link that several streams share."""

# What takes one wavelet a cycle: a PE's ramp to its router, a link, a router's ramp to its PE.
_ServedPlace: TypeAlias = tuple[Place, int]
_UP, _DOWN = 4, 5


class Topology:
    """A program's nodes, and how far it is from one to the next.

    Attributes
    ----------
    ramp_cycles : int
        T_R.
    shared : list[Node]
        Ramps and links that several streams share.
    waiting_for : dict[int, list[int]]
        For each task, those that start after it.
    gates : dict[tuple[Node, int], int]
        For ramps to a PE that several streams share: by ramp and stream, the task that takes it, if
        that task waits for others.
    gated : dict[int, list[Node]]
        For each task, ramps with a stream whose task starts after it.
    link_wavelets, busy_cycles, sent_words, received_words : np.ndarray
        As in ``SimulationResult``; the routes alone decide them.
    """

    def __init__(self, mesh: WaferDescription, program: Program) -> None:
        self.ramp_cycles = mesh.ramp_cycles
        self._hop_cycles = mesh.hop_cycles
        self._program = program
        self._tasks = len(program.tasks)
        grid = (program.rows, program.columns)
        self.link_wavelets = np.zeros((*grid, 4), np.int64)
        self.busy_cycles = np.zeros(grid, np.int64)
        self.sent_words = np.zeros(grid, np.int64)
        self.received_words = np.zeros(grid, np.int64)
        self.waiting_for: dict[int, list[int]] = defaultdict(list)
        self.gates: dict[tuple[Node, int], int] = {}
        self.gated: dict[int, list[Node]] = defaultdict(list)
        self._followers: dict[tuple[Node, int], list[tuple[Node, int]]] = defaultdict(list)
        self._senders, self._receivers = self._ends()
        self._nodes = self._shared_servers()
        self.shared = list(self._nodes.values())
        for number, stream in enumerate(program.streams):
            self._connect(number, stream)

    def is_task(self, node: Node) -> bool:
        """Whether a node is a task, and not a ramp or link."""
        return node < self._tasks

    def followers(self, node: Node, stream: int) -> list[tuple[Node, int]]:
        """Where the wavelets of a stream come to after ``node``, and after how many cycles."""
        return self._followers[node, stream]

    def edges(self) -> list[tuple[Node, Node]]:
        """All pairs of a node and one that waits for it."""
        by_words = [
            (node, follower)
            for (node, _), found in self._followers.items()
            for follower, _ in found
        ]
        waits = [*self.waiting_for.items(), *self.gated.items()]
        return by_words + [(task, other) for task, found in waits for other in found]

    @property
    def nodes(self) -> int:
        """How many there are, counted from 0."""
        return self._tasks + len(self.shared)

    def _ends(self) -> tuple[dict[int, int], dict[tuple[int, Place], int]]:
        senders: dict[int, int] = {}
        receivers: dict[tuple[int, Place], int] = {}
        for number, task in enumerate(self._program.tasks):
            self.busy_cycles[task.place] += task.words
            for other in task.after:
                self.waiting_for[other].append(number)
            if task.sent is not None:
                self._once(task.sent not in senders, task.sent, "sent")
                senders[task.sent] = number
                self.sent_words[task.place] += task.words
            if task.received is not None:
                key = (task.received, task.place)
                self._once(key not in receivers, task.received, f"received at {task.place}")
                receivers[key] = number
                self.received_words[task.place] += task.words
        return senders, receivers

    def _once(self, first: bool, stream: int, what: str) -> None:
        if not first:
            raise WaferLimitError(f"stream {stream} is {what} by two tasks; expected one")

    def _shared_servers(self) -> dict[_ServedPlace, Node]:
        uses: Counter[_ServedPlace] = Counter()
        for stream in self._program.streams:
            uses[stream.source, _UP] += 1
            for branch in stream.route.branches:
                uses[branch.place, branch.direction] += 1
                self.link_wavelets[branch.place][branch.direction] += stream.words
            for target, _ in stream.route.targets:
                uses[target, _DOWN] += 1
        shared = (server for server, count in uses.items() if count > 1)
        return {server: self._tasks + index for index, server in enumerate(shared)}

    def _connect(self, number: int, stream: WaveletStream) -> None:
        """Notes the ways between the tasks of a stream and the servers that it shares."""
        if number not in self._senders:
            raise WaferLimitError(f"stream {number} is never sent; expected a task that does")
        ramp, hop = self.ramp_cycles, self._hop_cycles
        first = self._pass(number, self._senders[number], 0, (stream.source, _UP))
        after_source = (first[0], first[1] + ramp)
        after: list[tuple[Node, int]] = []
        for branch in stream.route.branches:
            node, delay = after[branch.parent] if branch.parent >= 0 else after_source
            node, delay = self._pass(number, node, delay, (branch.place, branch.direction))
            after.append((node, delay + hop))
        for target, end in stream.route.targets:
            node, delay = after[end] if end >= 0 else after_source
            node, delay = self._pass(number, node, delay, (target, _DOWN))
            if (number, target) not in self._receivers:
                raise WaferLimitError(
                    f"stream {number} is not received at {target}; expected a task that does"
                )
            receiver = self._receivers[number, target]
            self._followers[node, number].append((receiver, delay + ramp))
            self._gate(number, self._nodes.get((target, _DOWN)), receiver)

    def _gate(self, number: int, ramp: Node | None, receiver: int) -> None:
        before = self._program.tasks[receiver].after
        if ramp is None or not before:
            return
        self.gates[ramp, number] = receiver
        for task in before:
            self.gated[task].append(ramp)

    def _pass(self, number: int, node: Node, delay: int, server: _ServedPlace) -> tuple[Node, int]:
        """The node whose times count behind ``server``, and the delay from it."""
        shared = self._nodes.get(server)
        if shared is None:
            return node, delay
        self._followers[node, number].append((shared, delay))
        return shared, 0


# An order of a program's nodes: each comes after those that it depends on.
#
# Nodes that depend on each other, such as a link that a PE's later messages share with earlier
# ones, have the same rank.


def ranks(topology: Topology) -> list[int]:
    """The rank of each node, by number."""
    edges = np.array(topology.edges(), dtype=np.int64).reshape(-1, 2)
    shape = (topology.nodes, topology.nodes)
    matrix = csr_matrix((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), shape)
    groups, labels = connected_components(matrix, directed=True, connection="strong")
    between = np.unique(labels[edges], axis=0) if len(edges) else edges
    between = between[between[:, 0] != between[:, 1]]
    order = _topological(groups, between.tolist())
    return [order[label] for label in labels]


def _topological(groups: int, edges: list[list[int]]) -> list[int]:
    """Positions in an order without backward edges."""
    followers: list[list[int]] = [[] for _ in range(groups)]
    waits = [0] * groups
    for first, second in edges:
        followers[first].append(second)
        waits[second] += 1
    ready = deque(group for group in range(groups) if not waits[group])
    positions = [0] * groups
    for position in range(groups):
        group = ready.popleft()
        positions[group] = position
        for follower in followers[group]:
            waits[follower] -= 1
            if not waits[follower]:
                ready.append(follower)
    return positions


# Times of the wavelets of a stream at one point of its way, as an array of cycles.
#
# The recurrences are those of max-plus algebra (F. Baccelli et al., "Synchronization and
# linearity", Wiley 1992, chapter 1): a server that takes one wavelet a cycle starts the i-th at
# max(arrival[i], start[i - 1] + 1), so start[i] - i is a running maximum of arrival[i] - i.


Train: TypeAlias = np.ndarray
"""Shape (words,), int64: when each wavelet is there, growing by 1 or more a wavelet."""


def one_a_cycle(arrivals: np.ndarray, earliest: int = 0) -> Train:
    """Starts of a server that does ``arrivals``, in order and not before ``earliest``."""
    count = np.arange(len(arrivals))
    slack = np.maximum.accumulate(arrivals - count)
    return np.maximum(slack, earliest) + count


def merged(arrivals: Sequence[Train], earliest: int) -> list[Train]:
    """Starts of a server that several trains share: whatever comes first, and of wavelets that
    come in the same cycle the one of the earlier train in the list; none before ``earliest``.
    """
    together = np.concatenate(arrivals)
    order = np.argsort(together, kind="stable")
    starts = np.empty_like(together)
    starts[order] = one_a_cycle(together[order], earliest)
    ends = np.cumsum([len(train) for train in arrivals])[:-1]
    return np.split(starts, ends)


def first_change(old: Train | None, new: Train) -> int | None:
    """The earliest time that differs; None if nothing does. One may have more wavelets."""
    if old is None:
        return int(new[0]) if len(new) else None
    common = min(len(old), len(new))
    different = np.flatnonzero(old[:common] != new[:common])
    if len(different):
        index = different[0]
        return int(min(old[index], new[index]))
    longer = old if len(old) > common else new
    return int(longer[common]) if len(longer) > common else None


def let_in(arrivals: Train, taken_from: int | None, room: int) -> Train:
    """Arrivals at a queue with ``room`` wavelets, which are taken one a cycle from ``taken_from``.

    Without that time, only those that the queue has room for come in.
    """
    if taken_from is None:
        return arrivals[:room]
    late = arrivals[room:]
    taken = np.arange(taken_from, taken_from + len(late))
    return np.concatenate([arrivals[:room], np.maximum(late, taken)])


@dataclass(frozen=True)
class SimulationResult:
    """Times and counts of one program.

    Attributes
    ----------
    task_ends : np.ndarray
        When each task of the program was over; all that can start does so in cycle 0. Shape
        (tasks,), int64.
    colours : int
        The most colours that one router has routes of.
    link_wavelets : np.ndarray
        Wavelets that left each router, shape (rows, columns, 4) in the order north, east, south,
        west; int64.
    busy_cycles : np.ndarray
        Words that the tasks of each PE went through, one a cycle; tasks at the same time count
        each. Shape (rows, columns), int64.
    sent_words, received_words : np.ndarray
        Wavelets over the ramp of each PE, to and from its router; shape (rows, columns), int64.
    """

    task_ends: np.ndarray
    colours: int
    link_wavelets: np.ndarray
    busy_cycles: np.ndarray
    sent_words: np.ndarray
    received_words: np.ndarray

    @property
    def cycles(self) -> int:
        """When the last task was over; 0 for a program without tasks."""
        return int(self.task_ends.max(initial=0))


def simulate(mesh: WaferDescription, program: Program) -> SimulationResult:
    """Runs ``program`` on a mesh.

    Raises
    ------
    WaferLimitError
        The grid is larger than the mesh's rectangle, the routes of a colour contradict each other,
        a stream has no sender or receiver, or tasks wait for each other forever.
    """
    if program.rows > mesh.rows or program.columns > mesh.columns:
        raise WaferLimitError(
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
            raise WaferLimitError(
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
            for number in sorted(numbers, key=lambda item: self._program.streams[item].turn or 0):
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
