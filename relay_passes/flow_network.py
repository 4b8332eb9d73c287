"""The least cut of a network, by maximum flow.

Written out, because the nearest library for it, scipy's ``csgraph``, takes longer to import than
all cuts of a model take.
"""

from collections import deque


class FlowNetwork:
    """Nodes, by number, and edges with whole capacities between them.

    The flow is Dinic's: "Algorithm for solution of a problem of maximum flow in networks with power
    estimation", Soviet Math. Doklady 11, 1970.
    """

    def __init__(self) -> None:
        # An edge and the one that takes its flow back have numbers 2n and 2n + 1.
        self._heads: list[int] = []
        self._left: list[int] = []
        self._edges_of: dict[int, list[int]] = {}

    def add_edge(self, tail: int, head: int, capacity: int) -> None:
        """Lets at most ``capacity`` flow from ``tail`` to ``head``."""
        for start, end, left in ((tail, head, capacity), (head, tail, 0)):
            self._edges_of.setdefault(start, []).append(len(self._heads))
            self._heads.append(end)
            self._left.append(left)

    def sink_side(self, source: int, sink: int) -> set[int]:
        """The nodes beyond a least cut: the fewest that any least cut has on the sink's side."""
        while levels := self._levels(source, sink):
            self._fill(source, sink, levels)
        # From the sink backwards, along whatever still takes flow.
        beyond, waiting = {sink}, [sink]
        while waiting:
            for edge in self._edges_of.get(waiting.pop(), ()):
                tail = self._heads[edge]
                if self._left[edge ^ 1] and tail not in beyond:
                    beyond.add(tail)
                    waiting.append(tail)
        return beyond

    def _levels(self, source: int, sink: int) -> dict[int, int]:
        """How many edges each node is behind the source; empty where the sink is not reached."""
        levels, waiting = {source: 0}, deque([source])
        while waiting:
            node = waiting.popleft()
            for edge in self._edges_of.get(node, ()):
                head = self._heads[edge]
                if self._left[edge] and head not in levels:
                    levels[head] = levels[node] + 1
                    if head == sink:
                        return levels
                    waiting.append(head)
        return {}

    def _fill(self, source: int, sink: int, levels: dict[int, int]) -> None:
        """Sends flow along shortest paths until each of them has a full edge."""
        untried = {node: list(self._edges_of.get(node, ())) for node in levels}
        path: list[int] = []
        while path or untried[source]:
            node = self._heads[path[-1]] if path else source
            if node == sink:
                flow = min(self._left[edge] for edge in path)
                for edge in path:
                    self._left[edge] -= flow
                    self._left[edge ^ 1] += flow
                del path[next(n for n, edge in enumerate(path) if not self._left[edge]) :]
            elif not untried[node]:
                # Nothing more reaches the sink from here.
                untried[self._heads[path.pop() ^ 1]].pop()
            else:
                edge = untried[node][-1]
                if self._left[edge] and levels.get(self._heads[edge]) == levels[node] + 1:
                    path.append(edge)
                else:
                    untried[node].pop()
