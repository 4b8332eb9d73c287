"""An order of a program's nodes: each comes after those that it depends on.

Nodes that depend on each other, such as a link that a PE's later messages share with earlier ones,
have the same rank.
"""

from collections import deque

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

from tvm_ext.hardware.wafer.simulator.topology import Topology


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
