"""A model's kernels on the wafer: what they cost in their places, and what moves between them.

A placement is a row of stages, each some consecutive kernel calls in a rectangle of their own. With
one stage, the kernels take turns on all of the wafer. Activations lie where their producers leave
them; a consumer that expects them elsewhere gets a copy, which later consumers can use as well.
Weights lie where their kernels expect them. Kernels of a stage begin at the corner of its
rectangle; if their weights do not fit there together, those with weights lie side by side, as far
as there is room. Weights that do not fit either way come over the host link in every run.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tvm_ext.hardware.wafer.description import WaferDescription, limit_refusal
from tvm_ext.hardware.wafer.layout_change import LayoutChange, layout_change
from tvm_ext.wafer.dataflow import Dataflow
from tvm_ext.wafer.kernel_cost import KernelCost, KernelCosts
from tvm_ext.wafer.stage_memory import (
    Copy,
    PeGrid,
    PlacedCall,
    Region,
    cut_region,
    groups_within,
    side_by_side,
    stage_memory,
)


@dataclass(frozen=True)
class Move:
    """An activation that a call gets from elsewhere.

    Attributes
    ----------
    call : int
        The position of the call that needs it.
    operand : int
        Which of its parameters.
    change : LayoutChange
        What it costs.
    """

    call: int
    operand: int
    change: LayoutChange


@dataclass(frozen=True)
class StageCost:
    """Consecutive kernel calls in their rectangle. All numbers are modelled.

    Attributes
    ----------
    region : Region
        The rectangle.
    calls : tuple[int, ...]
        Positions of the calls.
    kernel_cycles, move_cycles, stream_cycles : float
        Of the kernels, of activations on their way to them, and of weights over the host link.
    moves : tuple[Move, ...]
        The activations that move.
    weight_bytes : int
        Of one PE, for weights that stay.
    streamed_bytes : int
        Of all PEs, for weights that come in every run.
    bytes_per_pe : int
        The most at any time.
    is_spread : bool
        Whether calls with weights lie side by side.
    refusal : str
        The hard limit that the stage breaks, or a kernel in it; empty if it fits.
    """

    region: Region
    calls: tuple[int, ...]
    kernel_cycles: float
    move_cycles: float
    stream_cycles: float
    moves: tuple[Move, ...]
    weight_bytes: int
    streamed_bytes: int
    bytes_per_pe: int
    is_spread: bool = False
    refusal: str = ""

    @property
    def cycles(self) -> float:
        """From the first operand's arrival to the end of the last kernel."""
        return self.kernel_cycles + self.move_cycles + self.stream_cycles


@dataclass(frozen=True)
class Placement:
    """Where the kernels of a model run, and how long it takes.

    Attributes
    ----------
    name : str
        "whole wafer in turn" or "pipelined regions".
    stages : tuple[StageCost, ...]
        In the order of a run.
    """

    name: str
    stages: tuple[StageCost, ...]

    @property
    def title(self) -> str:
        """The name, and whether the kernels of a single stage lie side by side."""
        spread = len(self.stages) == 1 and self.stages[0].is_spread
        return f"{self.name}, side by side" if spread else self.name

    @property
    def cycles(self) -> float:
        """Of one run, from its inputs to its outputs."""
        return sum(stage.cycles for stage in self.stages)

    @property
    def interval_cycles(self) -> float:
        """From one result to the next, with a run in each stage: those of the slowest stage, or of
        the host link, which all stages share.
        """
        slowest = max((stage.cycles for stage in self.stages), default=0.0)
        return max(slowest, sum(stage.stream_cycles for stage in self.stages))

    @property
    def refusal(self) -> str:
        """Of the first stage that does not fit; empty if all do."""
        return next((stage.refusal for stage in self.stages if stage.refusal), "")

    @property
    def moves(self) -> tuple[Move, ...]:
        """Of all stages."""
        return tuple(move for stage in self.stages for move in stage.moves)


IN_TURN = "whole wafer in turn"
PIPELINED = "pipelined regions"


def in_turn(flow: Dataflow, costs: KernelCosts, mesh: WaferDescription) -> Placement:
    """Kernels one after the other, each on as much of the wafer as it uses."""
    whole = Region(0, 0, mesh.rows, mesh.columns)
    calls = tuple(range(len(flow.calls)))
    return Placement(IN_TURN, staged(flow, costs, mesh, [(whole, calls)]))


def staged(
    flow: Dataflow,
    costs: KernelCosts,
    mesh: WaferDescription,
    stages: Sequence[tuple[Region, tuple[int, ...]]],
) -> tuple[StageCost, ...]:
    """The cost of each of ``stages``: rectangles, with the positions of their calls."""
    walk = _PlacementWalk(flow, mesh)
    return tuple(
        walk.stage(number, region, calls, costs) for number, (region, calls) in enumerate(stages)
    )


class _PlacementWalk:
    """Goes through the calls in order and remembers where activations lie."""

    def __init__(self, flow: Dataflow, mesh: WaferDescription) -> None:
        self._flow = flow
        self._mesh = mesh
        self._copies: dict[int, list[Copy]] = {}
        self._outputs = {tensor.key for tensor in flow.outputs}

    def stage(
        self, number: int, region: Region, positions: tuple[int, ...], costs: KernelCosts
    ) -> StageCost:
        """The stage behind those that were asked for before."""
        calls = [self._flow.calls[position] for position in positions]
        kernels = [costs.in_region(call.kernel, region.rows, region.columns) for call in calls]
        before = self._copies
        placed = [
            PlacedCall(call, kernel, (region.row, region.column))
            for call, kernel in zip(calls, kernels, strict=True)
        ]
        found, after = self._cost(number, region, placed, before, is_spread=False)
        if found.streamed_bytes or found.refusal:
            placed = _spread(region, placed)
            other, others = self._cost(number, region, placed, before, is_spread=True)
            if (bool(other.refusal), other.cycles) < (bool(found.refusal), found.cycles):
                found, after = other, others
        self._copies = after
        return found

    def _cost(
        self,
        number: int,
        region: Region,
        calls: Sequence[PlacedCall],
        before: Mapping[int, Sequence[Copy]],
        is_spread: bool,
    ) -> tuple[StageCost, dict[int, list[Copy]]]:
        """The cost, and where activations lie after the stage."""
        copies = {key: list(found) for key, found in before.items()}
        moves = [move for call in calls for move in self._bring(number, call, copies)]
        here = {
            key: [copy for copy in found if copy.stage == number] for key, found in copies.items()
        }
        memory = stage_memory(region, calls, here, self._outputs, self._mesh.usable_bytes)
        words = memory.streamed_bytes / self._mesh.word_bytes
        kernels = [call.kernel for call in calls]
        cost = StageCost(
            region=region,
            calls=tuple(call.call.position for call in calls),
            kernel_cycles=sum(one.cost.cycles for one in kernels if one.cost is not None),
            move_cycles=sum(move.change.cycles for move in moves),
            stream_cycles=words / self._mesh.io_words_per_cycle,
            moves=tuple(moves),
            weight_bytes=memory.weight_bytes,
            streamed_bytes=memory.streamed_bytes,
            bytes_per_pe=memory.bytes_per_pe,
            is_spread=is_spread,
            refusal=self._refusal(kernels, region, memory.bytes_per_pe),
        )
        return cost, copies

    def _bring(
        self, stage: int, placed: PlacedCall, copies: dict[int, list[Copy]]
    ) -> Iterator[Move]:
        """What has to move for a call; notes where its operands and results lie from then on.

        What no kernel has made yet, such as an input of the model, comes as it is wanted.
        """
        call, at, homes = placed.call, placed.at, placed.homes
        for number, tensor in enumerate((*call.operands, *call.results)):
            if tensor.is_constant or number not in homes:
                continue
            layout = homes[number]
            found = copies.setdefault(tensor.key, [])
            if number >= len(call.operands) or not found:
                found.append(Copy(stage, call.position, at, layout))
                continue
            changes = [layout_change(one.layout, layout, self._mesh, one.at, at) for one in found]
            best = min(range(len(found)), key=lambda number: changes[number].cycles)
            if changes[best].cycles:
                waits = stage - found[best].stage
                found.append(Copy(stage, call.position, at, layout, waits))
                yield Move(call.position, number, changes[best])

    def _refusal(self, kernels: Sequence[KernelCost], region: Region, total: int) -> str:
        for kernel in kernels:
            if kernel.refusal:
                return f"{kernel.name}: {kernel.refusal}"
        return limit_refusal(self._mesh, region.rows, region.columns, total, 0) or ""


def _spread(region: Region, calls: Sequence[PlacedCall]) -> list[PlacedCall]:
    """Calls with weights side by side, the others where the call before them is."""
    grids = [_grid(call) for call in calls]
    heavy = [number for number, grid in enumerate(grids) if grid.resident_bytes]
    places = dict(
        zip(heavy, side_by_side(region, [grids[number] for number in heavy]), strict=True)
    )
    found: list[PlacedCall] = []
    last = (region.row, region.column)
    for number, call in enumerate(calls):
        # Not over the edge.
        near = (
            min(last[0], region.row + region.rows - grids[number].rows),
            min(last[1], region.column + region.columns - grids[number].columns),
        )
        last = places.get(number, near)
        found.append(replace(call, at=last))
    return found


def _grid(call: PlacedCall) -> PeGrid:
    program = call.kernel.program
    if program is None:
        return PeGrid(1, 1, 0, 0)
    weights = sum(layout.shard_bytes for _, layout in call.weights)
    return PeGrid(program.rows, program.columns, weights, program.bytes_per_pe - weights)


# A pipeline over the wafer: a rectangle for each group of consecutive kernels.


# Of the most expensive kernel's cycles: how much a group of kernels may cost.
_BOUNDS = (1.0, 2.0, 4.0)

# PEs that a stage has on average at least.
_LEAST_PROCESSING_ELEMENTS = 4


def pipelined(
    flow: Dataflow, costs: KernelCosts, mesh: WaferDescription, one_by_one: Placement
) -> Placement | None:
    """The pipeline with the most runs a second among a few; None if there is nothing to cut.

    One stage for each call, and fewer, in which no group of calls costs more than a few times the
    most expensive call, with what has to move for it when the kernels run ``one_by_one``.
    """
    kernels = [costs.on_mesh(call.kernel) for call in flow.calls]
    found = [
        Placement(PIPELINED, staged(flow, costs, mesh, _stages(groups, kernels, mesh)))
        for groups in _groupings(kernels, mesh, one_by_one)
    ]
    return min(
        found,
        key=lambda item: (bool(item.refusal), item.interval_cycles, item.cycles),
        default=None,
    )


def _groupings(
    kernels: Sequence[KernelCost], mesh: WaferDescription, one_by_one: Placement
) -> Iterator[list[tuple[int, ...]]]:
    """Ways to group the calls into stages, each once."""
    cycles = [one.cost.cycles if one.cost is not None else 0.0 for one in kernels]
    for move in one_by_one.moves:
        cycles[move.call] += move.change.cycles
    most = max(1, mesh.processing_elements // _LEAST_PROCESSING_ELEMENTS)
    seen = set()
    for bound in (0.0, *_BOUNDS):
        groups = groups_within(cycles, bound * max(cycles, default=0.0))
        if 1 < len(groups) <= most and len(groups) not in seen:
            seen.add(len(groups))
            yield groups


def _stages(
    groups: Sequence[tuple[int, ...]], kernels: Sequence[KernelCost], mesh: WaferDescription
) -> list[tuple[Region, tuple[int, ...]]]:
    works = [sum(_work(kernels[position]) for position in group) for group in groups]
    regions = cut_region(Region(0, 0, mesh.rows, mesh.columns), works)
    return list(zip(regions, groups, strict=True))


def _work(kernel: KernelCost) -> float:
    """Busy cycles of all PEs."""
    cost = kernel.cost
    return cost.mean_busy_cycles * cost.rows * cost.columns if cost is not None else 0.0
