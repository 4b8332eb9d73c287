"""Routes over the links of a mesh, as trees: a router copies a wavelet to several links."""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

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
