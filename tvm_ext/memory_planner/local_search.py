"""Local search over the order of placement, for problems that a search tree is too large for.

Joslin and Clements, "Squeaky Wheel Optimization", JAIR 10 (1999): buffers are placed in an order;
the one that does not fit below the height that is aimed at is moved forward, to before a buffer
that is in its way, and placement goes on from there. The allocator "HillClimb" of Arm's compiler
Vela changes the order of the buffers at the peak in the same spirit.
"""

from collections.abc import Callable

import numpy as np

from tvm_ext.memory_planner.greedy import Placement, Placer
from tvm_ext.memory_planner.sections import Problem

METHOD = "local search"


def local_search(
    problem: Problem,
    order: list[int],
    aim: int,
    steps: int,
    seed: int,
    out_of_time: Callable[[], bool],
) -> Placement | None:
    """Changes an order of placement until the height is at most ``aim``, in units.

    Parameters
    ----------
    problem : Problem
        What is placed.
    order : list[int]
        Where the search begins, such as one of ``greedy.orders``.
    aim : int
        The height that must be reached.
    steps : int
        How many buffers are placed at most.
    seed : int
        Of the random choices; equal seeds give equal results.
    out_of_time : Callable[[], bool]
        Asked before each placement; None is returned when it says so.
    """
    random = np.random.default_rng(seed)
    order = list(order)
    placer = Placer(problem)
    place = 0
    for _ in range(steps):
        if place == len(order):
            return Placement(placer.offsets.copy(), problem.height(placer.offsets), METHOD)
        if out_of_time():
            return None
        index = order[place]
        if placer.place(index, best_fit=False) <= aim:
            place += 1
            continue
        placer.placed[index] = False
        earlier = _target(placer, order, place, random)
        placer.placed[order[earlier:place]] = False
        order.insert(earlier, order.pop(place))
        place = earlier
    return None


def _target(placer: Placer, order: list[int], place: int, random: np.random.Generator) -> int:
    """Before which place of the order the buffer at ``place`` is moved.

    Mostly one of the buffers placed last that it meets; those far ahead are large and seldom wrong.
    """
    met = set(placer.neighbours(order[place]).tolist())
    places = [other for other in range(place - 1, -1, -1) if order[other] in met]
    if not places:
        return 0
    return places[min(int(random.geometric(0.3)) - 1, len(places) - 1)]
