"""What a mesh program costs, in cycles, and what its processing elements do meanwhile.

The time of a program is the sum of its items. In steps whose messages are under way while the step
before computes,

    cycles = m + (n - 1) max(m, c) + c

with n steps of m cycles of messages and c of work; without, n (m + c). Work counts for the PE that
has the most of it. A vector instruction of n elements takes a + b n cycles, a to issue it and for
the loop around it, b by the type of the elements; twice b where it reads two arrays, whose banks
nobody keeps apart (published GEMM tiles take 2.07 cycles an element).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tvm_ext.hardware.wafer import reduces
from tvm_ext.hardware.wafer.communication import NOTHING, Communication, at_once, message, multicast
from tvm_ext.hardware.wafer.description import WaferDescription, limit_refusal
from tvm_ext.hardware.wafer.program import BlockWork, Item, Steps, Transfer, WaferProgram
from tvm_ext.hardware.wafer.reduces import k_tree

# The cost of one transfer of a mesh program: which closed form its pattern has.


_REDUCES: dict[str, Callable[[WaferDescription, float, int], Communication]] = {
    "chain": reduces.chain,
    "tree": reduces.tree,
    "star": reduces.star,
}


def transfer_cost(transfer: Transfer, mesh: WaferDescription, steps: int = 1) -> Communication:
    """One execution of ``transfer``; ``steps`` is how often it happens, each time from another PE.

    Raises WaferLimitError for a pattern whose numbers make no sense (a group larger than the line).
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


def first_place_cost(transfer: Transfer, mesh: WaferDescription) -> Communication:
    """What it takes to bring tiles to where the first step needs them."""
    if not transfer.first_distance or not transfer.words:
        return NOTHING
    return message(mesh, transfer.words, transfer.first_distance, transfer.first_load)


def _relayed(
    communication: Communication, mesh: WaferDescription, transfer: Transfer, steps: int
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
            communication,
            cycles=communication.cycles + turns * mesh.relay_cycles,
            depth=communication.depth + turns,
            colours=max(1, senders),
        )
    return replace(
        communication,
        cycles=communication.cycles + (relays + turns) * mesh.relay_cycles,
        depth=communication.depth + relays + turns,
        colours=routes,
    )


@dataclass(frozen=True)
class WaferCost:
    """Modelled cost of one kernel on a mesh.

    Attributes
    ----------
    cycles : float
        From the start to the last PE's end.
    seconds : float
        The same by the mesh's clock.
    compute_cycles : float
        Of these, those of the busiest PE's vector and scalar instructions.
    memory_cycles : float
        Of the busiest PE, what its memory takes longer than its instructions.
    communication_cycles : float
        All cycles in which messages of the kernel are under way.
    exposed_cycles : float
        Those of them in which PEs wait.
    launch_cycles : float
        Of the start.
    mean_busy_cycles : float
        Of all PEs of the grid on average, idle ones included.
    flops : float
        Useful operations of all PEs.
    efficiency : float
        Share of the grid's peak for the kernel's type, from 0 to 1.
    imbalance : float
        Work of the busiest PE by the mean of all of the grid.
    rows, columns : int
        PEs that are used.
    bytes_per_pe : int
        SRAM for data.
    colours : int
        Routes of one router.
    hops : float
        The longest way of a message.
    word_hops : float
        Links crossed by words, added up: a proxy for the energy of communication.
    joules : float
        Idle power for the time, and the difference to active power for the PEs that are busy.
    refusal : str
        The hard limit that the mapping breaks; empty if it fits.
    """

    cycles: float
    seconds: float
    compute_cycles: float
    memory_cycles: float
    communication_cycles: float
    exposed_cycles: float
    launch_cycles: float
    mean_busy_cycles: float
    flops: float
    efficiency: float
    imbalance: float
    rows: int
    columns: int
    bytes_per_pe: int
    colours: int
    hops: float
    word_hops: float
    joules: float
    refusal: str = ""

    @property
    def shares(self) -> dict[str, float]:
        """Parts of the time by what the busiest PE does; they add up to 1."""
        parts = {
            "compute": self.compute_cycles,
            "memory": self.memory_cycles,
            "communication": self.exposed_cycles,
            "launch": self.launch_cycles,
        }
        rest = max(0.0, self.cycles - sum(parts.values()))
        return {name: value / self.cycles for name, value in {**parts, "idle": rest}.items()}


@dataclass
class _Sum:
    """Cycles of some items of a program."""

    cycles: float = 0.0
    compute: float = 0.0
    memory: float = 0.0
    messages: float = 0.0
    exposed: float = 0.0
    patterns: list[tuple[Communication, float]] = field(default_factory=list)
    """With how often each happens, all lines of PEs counted."""

    def add(self, other: "_Sum", times: int = 1) -> None:
        """Another sum, behind this one, ``times`` over."""
        self.cycles += other.cycles * times
        self.compute += other.compute * times
        self.memory += other.memory * times
        self.messages += other.messages * times
        self.exposed += other.exposed * times
        self.patterns += [(pattern, count * times) for pattern, count in other.patterns]


def program_cost(program: WaferProgram, mesh: WaferDescription) -> WaferCost:
    """The cost of ``program`` on ``mesh``; the module's docstring has the formulas."""
    costs = _Costs(program, mesh)
    total = costs.items(program.items)
    cycles = total.cycles + mesh.launch_cycles
    busy = busy_cycles_mean(program, mesh)
    flops = sum(
        leaf.flops * times * float(leaf.row_share.sum()) * float(leaf.column_share.sum())
        for leaf, times in program.leaves()
        if isinstance(leaf, BlockWork)
    )
    used = program.rows * program.columns
    dtype = _main_dtype(program)
    peak = mesh.peak_flops(dtype) / mesh.processing_elements * used
    seconds = mesh.seconds(cycles)
    colours = max(costs.phase_colours)
    dynamic = (mesh.active_watts - mesh.idle_watts) * busy / cycles
    return WaferCost(
        cycles=cycles,
        seconds=seconds,
        compute_cycles=total.compute,
        memory_cycles=total.memory,
        communication_cycles=total.messages,
        exposed_cycles=total.exposed,
        launch_cycles=float(mesh.launch_cycles),
        mean_busy_cycles=busy,
        flops=flops,
        efficiency=min(1.0, flops / (peak * seconds)) if flops else 0.0,
        imbalance=(total.compute + total.memory) / busy if busy else 1.0,
        rows=program.rows,
        columns=program.columns,
        bytes_per_pe=program.bytes_per_pe,
        colours=colours,
        hops=max((pattern.distance_hops for pattern, _ in total.patterns), default=0.0),
        word_hops=math.fsum(p.energy_word_hops * times for p, times in total.patterns),
        joules=seconds * (mesh.idle_watts + dynamic * used / mesh.processing_elements),
        refusal=limit_refusal(mesh, program.rows, program.columns, program.bytes_per_pe, colours)
        or "",
    )


def work_cycles(work: BlockWork, mesh: WaferDescription) -> tuple[float, float]:
    """Cycles of a full tile's instructions, and how many more its memory takes."""
    start = (mesh.issue_cycles + mesh.loop_cycles) * work.instructions
    conflict = mesh.conflict_factor if len(work.operands) > 1 else 1.0
    each = mesh.element_cycles(work.dtype) * conflict
    compute = start + each * work.elements + mesh.scalar_cycles * work.scalar_operations
    loads = work.load_bytes / mesh.load_bytes_per_cycle
    stores = work.store_bytes / mesh.store_bytes_per_cycle
    return compute, max(0.0, max(loads, stores) - compute)


def busy_map(program: WaferProgram, mesh: WaferDescription) -> np.ndarray:
    """Busy cycles of each PE, [rows, columns], float64."""
    busy = np.zeros((program.rows, program.columns))
    for leaf, times in program.leaves():
        if isinstance(leaf, BlockWork):
            cycles = sum(work_cycles(leaf, mesh)) * times
            busy += cycles * np.outer(leaf.row_share, leaf.column_share)
    return busy


def busy_cycles_mean(program: WaferProgram, mesh: WaferDescription) -> float:
    """Busy cycles of the PEs of the grid on average."""
    return sum(
        sum(work_cycles(leaf, mesh))
        * times
        * float(leaf.row_share.mean())
        * float(leaf.column_share.mean())
        for leaf, times in program.leaves()
        if isinstance(leaf, BlockWork)
    )


class _Costs:
    """Adds up items; remembers which of them have routes at the same time."""

    def __init__(self, program: WaferProgram, mesh: WaferDescription) -> None:
        self._mesh = mesh
        self._processing_elements = program.rows * program.columns
        self.phase_colours = [0]

    def items(self, items: Sequence[Item]) -> _Sum:
        """Items in a row."""
        total = _Sum()
        waiting: list[Transfer] = []
        for item in items:
            if isinstance(item, Transfer):
                waiting.append(item)
                continue
            total.add(self._messages(waiting))
            waiting = []
            total.add(self._steps(item) if isinstance(item, Steps) else self._work(item))
        total.add(self._messages(waiting))
        return total

    def _work(self, work: BlockWork) -> _Sum:
        compute, memory = work_cycles(work, self._mesh)
        share = float(work.row_share.max(initial=0)) * float(work.column_share.max(initial=0))
        compute, memory = compute * share, memory * share
        return _Sum(compute + memory, compute, memory)

    def _messages(self, transfers: Sequence[Transfer], steps: int = 1) -> _Sum:
        """Messages of several blocks in a row: all PEs send them at the same time."""
        mesh = self._mesh
        pairs = [(one, transfer_cost(one, mesh, steps)) for one in transfers]
        pairs = [(one, cost) for one, cost in pairs if cost != NOTHING]
        if not pairs:
            return _Sum()
        together = at_once([cost for _, cost in pairs])
        self.phase_colours.append(together.colours)
        cycles = together.cycles + mesh.transfer_cycles * len(pairs)
        return _Sum(cycles, 0.0, 0.0, cycles, cycles, [self._counted(*pair) for pair in pairs])

    def _counted(self, transfer: Transfer, cost: Communication) -> tuple[Communication, float]:
        return cost, self._processing_elements / max(1, transfer.extent)

    def _steps(self, steps: Steps) -> _Sum:
        total = _Sum()
        transfers = [item for item in steps.items if isinstance(item, Transfer)]
        for one in transfers:
            first = first_place_cost(one, self._mesh)
            if first != NOTHING:
                counted = [self._counted(one, first)]
                total.add(_Sum(first.cycles, 0.0, 0.0, first.cycles, first.cycles, counted))
        work = self.items([item for item in steps.items if not isinstance(item, Transfer)])
        messages = self._messages(transfers, steps.times)
        body = _Sum()
        body.add(messages, steps.times)
        body.add(work, steps.times)
        if steps.overlapped and transfers:
            longer = max(messages.cycles, work.cycles)
            body.cycles = messages.cycles + (steps.times - 1) * longer + work.cycles
            body.exposed = body.cycles - steps.times * (work.cycles - work.exposed)
        total.add(body)
        return total


def _main_dtype(program: WaferProgram) -> str:
    works = [leaf for leaf, _ in program.leaves() if isinstance(leaf, BlockWork)]
    return max(works, key=lambda item: item.flops).dtype if works else "float32"
