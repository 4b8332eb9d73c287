"""The cost of one transfer of a mesh program: which closed form its pattern has."""

import math
from collections.abc import Callable
from dataclasses import replace

from tvm_ext.hardware.mesh_description import MeshDescription
from tvm_ext.hardware.wafer import reduces
from tvm_ext.hardware.wafer.allreduce import k_tree
from tvm_ext.hardware.wafer.communication import NOTHING, Communication
from tvm_ext.hardware.wafer.messages import message, multicast
from tvm_ext.hardware.wafer.program import Transfer

_REDUCES: dict[str, Callable[[MeshDescription, float, int], Communication]] = {
    "chain": reduces.chain,
    "tree": reduces.tree,
    "star": reduces.star,
}


def transfer_cost(transfer: Transfer, mesh: MeshDescription, steps: int = 1) -> Communication:
    """One execution of ``transfer``; ``steps`` is how often it happens, each time from another PE.

    Raises MeshLimitError for a pattern whose numbers make no sense (a group larger than the line).
    """
    pattern, words, extent = transfer.pattern, transfer.words, transfer.extent
    if not words or extent < 2:
        return NOTHING
    if pattern in _REDUCES:
        return _REDUCES[pattern](mesh, words, extent)
    if pattern == "two_phase":
        group = transfer.group or reduces.best_group(extent)
        return reduces.two_phase(mesh, words, extent, min(group, extent))
    if pattern == "k_tree":
        return k_tree(mesh, words, extent, max(1, transfer.group or 2))
    if pattern.startswith("multicast"):
        return _relayed(multicast(mesh, words, extent), mesh, transfer, steps)
    return message(mesh, words, transfer.distance, transfer.load)


def first_place_cost(transfer: Transfer, mesh: MeshDescription) -> Communication:
    """What it takes to bring tiles to where the first step needs them."""
    if not transfer.first_distance or not transfer.words:
        return NOTHING
    return message(mesh, transfer.words, transfer.first_distance, transfer.first_load)


def _relayed(
    found: Communication, mesh: MeshDescription, transfer: Transfer, steps: int
) -> Communication:
    """A multicast with a sender that changes from step to step, or within a step.

    Each sender needs a route of its own; where a line has more of them than there are colours, for
    rows and columns together, messages are passed on in software from one stretch of the line to
    the next: the term beta r of WaferLLM's model (C. He et al., OSDI 2025, section 3). So is the
    word, once for each, from a sender to the one that follows it within a step.
    """
    routes = max(1, mesh.usable_colours // 2)
    senders = min(steps * transfer.senders, transfer.extent)
    relays = max(0, math.ceil(senders / routes) - 1)
    turns = transfer.senders - 1
    if not relays:
        return replace(
            found,
            cycles=found.cycles + turns * mesh.relay_cycles,
            depth=found.depth + turns,
            colours=max(1, senders),
        )
    return replace(
        found,
        cycles=found.cycles + (relays + turns) * mesh.relay_cycles,
        depth=found.depth + relays + turns,
        colours=routes,
    )
