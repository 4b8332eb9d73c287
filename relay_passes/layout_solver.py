"""Chooses one of two layouts for every operator of a graph at the least total cost, exactly.

The cost of a choice is the operators' own costs, plus for every tensor that some consumer wants in
the other layout than its producer makes one conversion, however many such consumers there are.
With two layouts this is a minimum s-t cut, which is exact in polynomial time for a whole graph, so
neither dynamic programming over chains nor a greedy rule for large graphs is needed:
D. Greig, B. Porteous, A. Seheult, "Exact maximum a posteriori estimation for binary images",
J. R. Stat. Soc. B 51(2), 1989; which costs can be written as a cut: V. Kolmogorov, R. Zabih,
"What energy functions can be minimized via graph cuts?", IEEE TPAMI 26(2), 2004.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

# The two nodes whose layout is given. They are the source and the sink of the cut.
FIRST_NODE = 0
LAST_NODE = 1

# scipy's maximum flow counts in 32 bits: all finite capacities together stay below _SCALE, so
# that a cut through an edge of _FORBIDDEN is never the least one.
_SCALE = 2**29
_FORBIDDEN = 2**30


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor made by node ``producer``; ``conversion`` is what its other layout costs."""

    producer: int
    consumers: frozenset[int]
    conversion: float


@dataclass
class LayoutProblem:
    """Operators, by number from 2, with their costs in seconds, and the tensors between them.

    Attributes
    ----------
    costs : list of (float, float)
        Cost of node i with channels first and with channels last. The entries of ``FIRST_NODE``
        and ``LAST_NODE`` are (0, 0); their layout is fixed.
    tensors : list of PlannedTensor
        What flows between the nodes.
    """

    costs: list[tuple[float, float]] = field(default_factory=lambda: [(0.0, 0.0), (0.0, 0.0)])
    tensors: list[PlannedTensor] = field(default_factory=list)

    def add_node(self, first: float = 0.0, last: float = 0.0) -> int:
        """A new operator that costs ``first`` or ``last`` seconds; returns its number."""
        self.costs.append((first, last))
        return len(self.costs) - 1

    def total(self, channels_last: list[bool]) -> float:
        """Cost in seconds of the choice ``channels_last``, one entry for each node."""
        operators = sum(costs[last] for costs, last in zip(self.costs, channels_last, strict=True))
        return operators + sum(
            tensor.conversion for tensor in self.tensors if is_converted(tensor, channels_last)
        )


def is_converted(tensor: PlannedTensor, channels_last: list[bool]) -> bool:
    """Whether some consumer wants ``tensor`` in the other layout than its producer makes."""
    made = channels_last[tensor.producer]
    return any(channels_last[consumer] != made for consumer in tensor.consumers)


def least_cost_layouts(problem: LayoutProblem) -> list[bool]:
    """Whether each node has channels last in a choice of the least cost.

    Among several such choices it is the one with the fewest nodes in channels last. Costs are
    resolved to a part in 5e8 of the sum of the conversions and of what the operators can save.
    """
    edges = [edge for edge in _edges(problem) if edge[0] != LAST_NODE and edge[1] != FIRST_NODE]
    total = sum(capacity for _, _, capacity in edges if capacity is not None)
    if total <= 0:
        return [node == LAST_NODE for node in range(len(problem.costs))]
    # Here, because every process of the command line would wait for it: a quarter of a second.
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    tails, heads, capacities = zip(*edges, strict=True)
    integers = [
        _FORBIDDEN if capacity is None else _resolved(capacity * _SCALE / total)
        for capacity in capacities
    ]
    size = max(*tails, *heads, len(problem.costs) - 1, LAST_NODE) + 1
    network = csr_matrix(
        (np.array(integers, dtype=np.int32), (tails, heads)), shape=(size, size), dtype=np.int32
    )
    residual = network - maximum_flow(network, FIRST_NODE, LAST_NODE).flow
    residual.eliminate_zeros()
    reaching = breadth_first_order(residual.T.tocsr(), LAST_NODE, return_predecessors=False)
    chosen = set(reaching.tolist())
    return [node in chosen for node in range(len(problem.costs))]


def _resolved(capacity: float) -> int:
    """A whole number that is 0 only for 0, so that no conversion looks free."""
    return max(1, round(capacity)) if capacity > 0 else 0


def _edges(problem: LayoutProblem) -> Iterator[tuple[int, int, float | None]]:
    """Edges (tail, head, capacity) of the cut network; None is a capacity that may not be cut.

    An edge is paid for when its tail has channels first and its head channels last.
    """
    # A node that saves more than all conversions cost gets its way, however much more it is.
    most = 2 * sum(tensor.conversion for tensor in problem.tensors) or math.inf
    for node, (first, last) in enumerate(problem.costs):
        if node not in (FIRST_NODE, LAST_NODE):
            yield FIRST_NODE, node, min(max(0.0, last - first), most)
            yield node, LAST_NODE, min(max(0.0, first - last), most)
    helper = len(problem.costs)
    for tensor in problem.tensors:
        consumers = tensor.consumers - {tensor.producer}
        if len(consumers) == 1:
            (consumer,) = consumers
            yield tensor.producer, consumer, tensor.conversion
            yield consumer, tensor.producer, tensor.conversion
        elif consumers:
            # helper: does anyone want channels last; helper + 1: does anyone want them first.
            yield tensor.producer, helper, tensor.conversion
            yield helper + 1, tensor.producer, tensor.conversion
            for consumer in sorted(consumers):
                yield helper, consumer, None
                yield consumer, helper + 1, None
            helper += 2
