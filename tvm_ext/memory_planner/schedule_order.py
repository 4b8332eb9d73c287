"""The order in which operations run, chosen so that the largest sum of live results is small.

An operation needs its inputs, its result and its workspace at one time; a result is freed after the
last operation that reads it. What is alive depends only on which operations have run, whatever
their order, and so the best order is a shortest path through these sets, where the length of a path
is its peak: Ahn et al., "Ordering Chaos: Memory-Aware Scheduling of Irregularly Wired Neural
Networks for Edge Devices" (Serenity), MLSys 2020. Where there are too many sets, a beam search
keeps the most promising ones.
"""

import heapq
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tvm_ext.configs.errors import PlanError

# How many states the beam search keeps in a step, in turn; one is plain list scheduling.
_BEAM_WIDTHS = (1, 8, 64)
# States that the exact search looks at for each section of the graph.
_MOST_STATES = 20_000


@dataclass(frozen=True)
class Operation:
    """One step of a schedule and its result.

    Attributes
    ----------
    name : str
        How messages speak of it.
    inputs : tuple[int, ...]
        The operations whose results it reads, as positions in the list of operations.
    size : int
        Bytes of the result; 0 if it needs none of the arena.
    workspace : int
        Bytes that it needs only while it runs.
    is_kept : bool
        Whether the result is needed to the end. Results that nothing reads are kept anyway.
    behind : tuple[int, ...]
        Operations that run ahead of it, and whose results it does not read.
    """

    name: str
    inputs: tuple[int, ...]
    size: int
    workspace: int = 0
    is_kept: bool = False
    behind: tuple[int, ...] = ()


@dataclass(frozen=True)
class ScheduleOrder:
    """An order of operations.

    Attributes
    ----------
    order : tuple[int, ...]
        Positions in the list of operations, in the order in which they run.
    peak : int
        The largest sum of bytes that are alive at one time.
    lower_bound : int
        Bytes that any order needs: of one operation with its inputs, or of what is kept.
    method : str
        What found the order: "as given", "list scheduling", "beam search" or "exact search".
    is_optimal : bool
        Whether it is proved that no order has a lower peak.
    """

    order: tuple[int, ...]
    peak: int
    lower_bound: int
    method: str
    is_optimal: bool


def order_for_memory(
    operations: Sequence[Operation], *, peak: int | None = None, seconds: float = 1.0
) -> ScheduleOrder:
    """Finds an order with a peak that is as low as can be found in the time.

    Parameters
    ----------
    operations : Sequence[Operation]
        In any order that could run: each behind those whose results it reads.
    peak : int | None
        Bytes that are low enough; the search ends at the first order that needs no more.
    seconds : float
        How long the searches may take. Where they end before, equal arguments give equal orders.

    Returns
    -------
    ScheduleOrder
        Never one with a higher peak than that of the order that was given.

    Raises
    ------
    PlanError
        If a size is negative or an operation reads one that is not before it.
    """
    _check(operations)
    deadline = time.monotonic() + seconds
    graph = _Graph(operations)
    enough = max(graph.lower_bound, peak or 0)
    parts: list[_PartOrder] = []
    divided = list(_parts(graph))
    for start, part in divided:
        left = len(divided) - len(parts)
        until = time.monotonic() + (deadline - time.monotonic()) / left
        parts.append(_solved(graph, start, part, enough, until))
        # No order of the parts behind can make up for the peak of this one.
        enough = max(enough, parts[-1].peak)
    highest = max(parts, key=lambda part: part.peak, default=None)
    if highest is None:
        return ScheduleOrder((), 0, 0, "as given", True)
    # A part that is proved to need the peak proves it for the whole.
    proved = any(part.peak == highest.peak and part.is_optimal for part in parts)
    order = tuple(itertools.chain.from_iterable(part.order for part in parts))
    is_optimal = proved or highest.peak == graph.lower_bound
    return ScheduleOrder(order, highest.peak, graph.lower_bound, highest.method, is_optimal)


def peak_of(operations: Sequence[Operation], order: Sequence[int]) -> int:
    """The largest sum of bytes that are alive at one time if operations run in this order."""
    graph = _Graph(operations)
    state = graph.state(0, range(len(operations)))
    for index in order:
        state = graph.after(state, index)
    return state.peak


def _check(operations: Sequence[Operation]) -> None:
    for place, operation in enumerate(operations):
        if operation.size < 0 or operation.workspace < 0:
            raise PlanError(
                f"operation '{operation.name}' has a size of {operation.size} and a workspace of "
                f"{operation.workspace} bytes; expected 0 or more: give the bytes that it takes"
            )
        for source in (*operation.inputs, *operation.behind):
            if not 0 <= source < place:
                raise PlanError(
                    f"operation '{operation.name}' at position {place} reads that at position "
                    f"{source}; expected one before it: give operations behind their inputs"
                )


@dataclass(frozen=True)
class _State:
    """What has run, as one bit for each operation, and what follows from it.

    ``live`` are the bytes alive then, ``peak`` those at the highest place of the way here, and
    ``ready`` the operations whose inputs are there. ``before`` is the state before ``index`` ran.
    """

    done: int
    live: int
    peak: int
    ready: tuple[int, ...]
    before: "_State | None" = None
    index: int = -1

    def way(self) -> list[int]:
        """The operations that ran on the way here."""
        order = []
        state = self
        while state.before is not None:
            order.append(state.index)
            state = state.before
        return order[::-1]


@dataclass(frozen=True)
class _PartOrder:
    """The order found for a part of the graph."""

    order: list[int]
    peak: int
    method: str
    is_optimal: bool


class _Graph:
    """Who reads what, as sets of operations that are numbers with one bit for each."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.sizes = [operation.size for operation in operations]
        self.workspaces = [operation.workspace for operation in operations]
        self.inputs = [tuple(dict.fromkeys(operation.inputs)) for operation in operations]
        self.ahead = [
            tuple(dict.fromkeys((*operation.inputs, *operation.behind))) for operation in operations
        ]
        self.needs = [sum(1 << source for source in sources) for sources in self.ahead]
        self.readers = [0] * len(operations)
        self.users: list[list[int]] = [[] for _ in operations]
        for index, sources in enumerate(self.ahead):
            for source in sources:
                self.users[source].append(index)
        for index, sources in enumerate(self.inputs):
            for source in sources:
                self.readers[source] |= 1 << index
        self.is_kept = [
            operation.is_kept or not readers
            for operation, readers in zip(operations, self.readers, strict=True)
        ]
        kept = sum(itertools.compress(self.sizes, self.is_kept))
        self.lower_bound = max(map(self._alone, range(len(operations))), default=0)
        self.lower_bound = max(self.lower_bound, kept)

    def _alone(self, index: int) -> int:
        inputs = sum(self.sizes[source] for source in self.inputs[index])
        return inputs + self.sizes[index] + self.workspaces[index]

    def state(self, done: int, part: Sequence[int]) -> _State:
        """The state in which a part begins, where all that it needs has run."""
        live = 0
        for index, size in enumerate(self.sizes):
            if done >> index & 1 and (self.is_kept[index] or self.readers[index] & ~done):
                live += size
        ready = tuple(index for index in part if not self.needs[index] & ~done)
        return _State(done, live, live, ready)

    def after(self, state: _State, index: int) -> _State:
        """The state after one more operation."""
        done = state.done | 1 << index
        live = state.live + self.sizes[index]
        peak = max(state.peak, live + self.workspaces[index])
        for source in self.inputs[index]:
            if not self.is_kept[source] and not self.readers[source] & ~done:
                live -= self.sizes[source]
        ready = [other for other in state.ready if other != index]
        ready += [user for user in self.users[index] if not self.needs[user] & ~done]
        return _State(done, live, peak, tuple(ready), state, index)

    def next_states(self, state: _State, least: int) -> list[_State]:
        """The states after one more operation.

        It is one state alone if an operation leaves no more bytes alive than there were and needs
        no higher peak than ``least`` or the one so far. Running it first is never worse, for all
        later operations then find as many bytes alive or fewer.
        """
        found = []
        for index in state.ready:
            after = self.after(state, index)
            if after.live <= state.live and after.peak <= max(state.peak, least):
                return [after]
            found.append(after)
        return found


def _parts(graph: _Graph) -> Iterator[tuple[_State, list[int]]]:
    """Divides the operations behind each one that all others come before or after.

    Yields the state before each part and its operations.
    """
    count = len(graph.sizes)
    before = [0] * count
    for index in range(count):
        for source in graph.ahead[index]:
            before[index] |= before[source] | 1 << source
    after = [0] * count
    for index in reversed(range(count)):
        for source in graph.ahead[index]:
            after[source] |= after[index] | 1 << index
    everything = (1 << count) - 1
    done = 0
    for index in range(count):
        if before[index] | after[index] | 1 << index == everything:
            upto = before[index] | 1 << index
            part = [other for other in range(count) if (upto & ~done) >> other & 1]
            yield graph.state(done, part), part
            done = upto
    if done != everything:
        part = [other for other in range(count) if not done >> other & 1]
        yield graph.state(done, part), part


def _solved(
    graph: _Graph, start: _State, part: list[int], enough: int, deadline: float
) -> _PartOrder:
    """The best order of a part, all of whose predecessors have run."""

    def out_of_time() -> bool:
        return time.monotonic() > deadline

    end = start
    for index in part:
        end = graph.after(end, index)
    best = _PartOrder(part, end.peak, "as given", end.peak <= graph.lower_bound)
    for width in _BEAM_WIDTHS:
        if best.peak <= enough or out_of_time():
            return best
        found = _beam(graph, part, start, width, out_of_time)
        if found is not None and found.peak < best.peak:
            method = "list scheduling" if width == 1 else "beam search"
            best = _PartOrder(found.way(), found.peak, method, found.peak <= graph.lower_bound)
    if best.peak <= enough:
        return best
    return _exact(graph, part, start, best, out_of_time)


def _beam(
    graph: _Graph, part: Sequence[int], start: _State, width: int, out_of_time: Callable[[], bool]
) -> _State | None:
    """The best of the states that a search reaches which keeps some in each step."""
    beam = [start]
    for _ in part:
        if out_of_time():
            return None
        reached: dict[int, _State] = {}
        for state in beam:
            for after in graph.next_states(state, graph.lower_bound):
                known = reached.get(after.done)
                if known is None or after.peak < known.peak:
                    reached[after.done] = after
        beam = heapq.nsmallest(width, reached.values(), key=lambda one: (one.peak, one.live))
    return beam[0]


def _exact(
    graph: _Graph,
    part: Sequence[int],
    start: _State,
    best: _PartOrder,
    out_of_time: Callable[[], bool],
) -> _PartOrder:
    """Looks at states by rising peak; the first complete one is optimal.

    Returns ``best`` if there are too many states or no time is left.
    """
    everything = start.done | sum(1 << index for index in part)
    ties = itertools.count()
    # Of equal peaks the state with the most operations, which is nearest to the end.
    heap = [(start.peak, 0, next(ties), start)]
    seen = {start.done: start.peak}
    while heap:
        _, left, _, state = heapq.heappop(heap)
        if state.done == everything:
            return _PartOrder(state.way(), state.peak, "exact search", True)
        if len(seen) > _MOST_STATES or out_of_time():
            return best
        for after in graph.next_states(state, graph.lower_bound):
            if after.peak < min(best.peak, seen.get(after.done, best.peak)):
                seen[after.done] = after.peak
                heapq.heappush(heap, (after.peak, left - 1, next(ties), after))
    # Every order has a state with a peak as high as that of the best.
    return _PartOrder(best.order, best.peak, best.method, True)
