"""What depends on what in a program: the way of each stream through links that it shares."""

from collections import Counter, defaultdict
from typing import TypeAlias

import numpy as np

from tvm_ext.hardware.mesh_description import MeshDescription
from tvm_ext.hardware.wafer.errors import MeshLimitError
from tvm_ext.hardware.wafer.simulator.program import Program, Stream
from tvm_ext.hardware.wafer.simulator.routes import Place

Node: TypeAlias = int
"""A task, by its number, or a ramp or link that several streams share."""

# What takes one wavelet a cycle: a PE's ramp to its router, a link, a router's ramp to its PE.
_Server: TypeAlias = tuple[Place, int]
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

    def __init__(self, mesh: MeshDescription, program: Program) -> None:
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
            raise MeshLimitError(f"stream {stream} is {what} by two tasks; expected one")

    def _shared_servers(self) -> dict[_Server, Node]:
        uses: Counter[_Server] = Counter()
        for stream in self._program.streams:
            uses[stream.source, _UP] += 1
            for branch in stream.route.branches:
                uses[branch.place, branch.direction] += 1
                self.link_wavelets[branch.place][branch.direction] += stream.words
            for target, _ in stream.route.targets:
                uses[target, _DOWN] += 1
        shared = (server for server, count in uses.items() if count > 1)
        return {server: self._tasks + index for index, server in enumerate(shared)}

    def _connect(self, number: int, stream: Stream) -> None:
        """Notes the ways between the tasks of a stream and the servers that it shares."""
        if number not in self._senders:
            raise MeshLimitError(f"stream {number} is never sent; expected a task that does")
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
                raise MeshLimitError(
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

    def _pass(self, number: int, node: Node, delay: int, server: _Server) -> tuple[Node, int]:
        """The node whose times count behind ``server``, and the delay from it."""
        shared = self._nodes.get(server)
        if shared is None:
            return node, delay
        self._followers[node, number].append((shared, delay))
        return shared, 0
