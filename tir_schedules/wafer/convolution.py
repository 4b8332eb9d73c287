"""Convolutions and pooling on a mesh: tiles of the result stay, edges of the input's tiles move."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.wafer.description import WaferDescription
from tvm_ext.tir_schedules.analysis.buffer_access import schedule_of
from tvm_ext.tir_schedules.analysis.window_sum import WindowOperand, WindowSum, window_sum_of
from tvm_ext.tir_schedules.template import Decisions
from tvm_ext.tir_schedules.wafer.annotations import COLUMN, COMMUNICATION, PIPELINE, ROW, Pattern
from tvm_ext.tir_schedules.wafer.mesh_partition import broadcast_pattern, grid_options, state_home
from tvm_ext.tir_schedules.wafer.result_tiles import (
    PartitionedLoop,
    PartitionedResult,
    aligned_count,
    copy_tile,
    cut_result,
    decide_grid,
    home_words,
    innermost_vector,
    longest_loop,
    pe_cycles,
    send_shared,
    tiles_of,
    widest_grid,
)

# How a convolution is laid over a mesh, and the sizes that follow.


# What one wavelet carries.
_WORD_BYTES = 4


@dataclass(frozen=True)
class Mapping:
    """What was decided.

    Attributes
    ----------
    cuts : tuple[PartitionedLoop, ...]
        Of the result's loops, the outermost loop of the mesh first.
    steps : int
        Parts in which the input channels come.
    overlapped : bool
        Whether messages are under way while PEs compute.
    weights_in_steps : bool
        Whether the weights lie cut along input channels as well, and come by multicast.
    input_in_steps : bool
        Whether the input lies cut along its channels as well, and comes by multicast.
    vector : int
        The result's loop that an instruction goes along; the number of such loops for an inner
        product, which goes along the input channels.
    """

    cuts: tuple[PartitionedLoop, ...]
    steps: int = 1
    overlapped: bool = False
    weights_in_steps: bool = False
    input_in_steps: bool = False
    vector: int = 0


class ConvolutionLayout:
    """Sizes and messages that follow from a mapping of a kernel onto a machine."""

    def __init__(self, kernel: WindowSum, mapping: Mapping, machine: WaferDescription) -> None:
        self._kernel = kernel
        self._mapping = mapping
        self._machine = machine
        self.tiles = tiles_of(kernel.extents, mapping.cuts)
        """Iterations of the result's loops in one PE."""

    @property
    def step_sums(self) -> tuple[int, ...]:
        """Iterations of the summed loops in one step."""
        channels = self._kernel.channels
        return tuple(
            -(-extent // self._mapping.steps) if loop == channels else extent
            for loop, extent in enumerate(self._kernel.sums)
        )

    def shared(self, operand: WindowOperand) -> tuple[bool, bool]:
        """Whether PEs of a column need the same of an operand, and whether PEs of a row do."""
        alike = [c for c in self._mapping.cuts if c.count > 1 and not operand.is_moved_by(c.loop)]
        axes = {cut.axis for cut in alike}
        return ROW in axes, COLUMN in axes

    def line(self, operand: WindowOperand) -> PartitionedLoop | None:
        """The longest line of PEs that need the same of an operand, which they can share out."""
        lines = {cut.axis: cut for cut in self._mapping.cuts}
        alike = [cut for cut in lines.values() if not operand.is_moved_by(cut.loop)]
        return max(alike, key=lambda cut: cut.count, default=None)

    def has_room(self, operand: WindowOperand | None) -> bool:
        """Whether such a line has a PE for the part of each step."""
        line = self.line(operand) if operand is not None else None
        return line is not None and 1 < self._mapping.steps <= line.count

    def pattern(self, operand: WindowOperand) -> str | None:
        """How an operand comes; None where it is read from where it lies.

        Constants lie wherever they are needed, before the kernel starts.
        """
        if self._in_steps(operand):
            line = self.line(operand)
            across = line is not None and line.axis == COLUMN
            return Pattern.MULTICAST_ROW if across else Pattern.MULTICAST_COLUMN
        sent = None if operand.is_constant else broadcast_pattern(*self.shared(operand))
        if sent is not None or operand is not self._kernel.input:
            return sent
        return Pattern.HALO if operand.padding is not None or self.halo_bytes() else None

    def _in_steps(self, operand: WindowOperand) -> bool:
        if operand is self._kernel.input:
            return self._mapping.input_in_steps
        return self._mapping.weights_in_steps

    def pieces(self, operand: WindowOperand) -> dict[int, tuple[str, int]]:
        """By dimension that an operand is cut in, the axis and the number of pieces."""
        found: dict[int, tuple[str, int]] = {}
        line = self.line(operand) if self._in_steps(operand) else None
        for number, dim in enumerate(operand.dims):
            for cut in self._mapping.cuts:
                if cut.loop in dim.results and cut.count > 1:
                    advance = dim.advance(cut.loop, self.tiles[cut.loop])
                    count = aligned_count(dim.size, advance, cut)
                    found[number] = (cut.axis, count)
            if line is not None and self._kernel.channels in dim.sums:
                found[number] = (line.axis, self._mapping.steps)
        return found

    def shard_bytes(self, operand: WindowOperand) -> int:
        """What one PE holds of an operand between kernels."""
        return math.prod(self._shard(operand)) * operand.element_bytes

    def _shard(self, operand: WindowOperand) -> list[int]:
        pieces = self.pieces(operand)
        return [
            -(-dim.size // pieces[number][1]) if number in pieces else dim.size
            for number, dim in enumerate(operand.dims)
        ]

    def tile_bytes(self, operand: WindowOperand) -> int:
        """What one PE needs of an operand in one step."""
        return math.prod(self._spans(operand)) * operand.element_bytes

    def _spans(self, operand: WindowOperand) -> list[int]:
        return [dim.span(self.tiles, self.step_sums) for dim in operand.dims]

    def halo_bytes(self) -> int:
        """What one PE needs of the input in one step beyond its own shard."""
        operand = self._kernel.input
        spans = self._spans(operand)
        own = [min(pair) for pair in zip(spans, self._shard(operand), strict=True)]
        return (math.prod(spans) - math.prod(own)) * operand.element_bytes

    def bytes_per_pe(self) -> int:
        """SRAM of one PE: shards, tiles under way, sums and the result."""
        total, buffers = 0, 0
        for operand in self._operands():
            total += self.shard_bytes(operand)
            buffers += self.tile_bytes(operand) if self.pattern(operand) else 0
        results = math.prod(self.tiles) * self._kernel.input.element_bytes
        return total + buffers * (2 if self._mapping.overlapped else 1) + 2 * results

    def _operands(self) -> list[WindowOperand]:
        found = (self._kernel.input, self._kernel.weights)
        return [operand for operand in found if operand is not None]

    def cycles(self) -> float:
        """A PE with a full tile: its instructions, and the words that come over its ramp."""
        dtype = str(self._kernel.input.buffer.dtype)
        elements = math.prod(self.sum_tiles().values()) * math.prod(self._kernel.sums)
        instructions = elements / max(self.vectors().values())
        results = math.prod(self.tiles)
        compute = pe_cycles(self._machine, dtype, instructions, elements)
        compute += pe_cycles(self._machine, dtype, results / max(self.tiles), results)
        steps = self._mapping.steps
        messages = sum(self._moved(operand) for operand in self._operands()) * steps / _WORD_BYTES
        if self._mapping.overlapped:
            return max(compute, messages) + min(compute, messages) / steps
        return compute + messages

    def _moved(self, operand: WindowOperand) -> int:
        pattern = self.pattern(operand)
        if pattern is None:
            return 0
        return self.halo_bytes() if pattern == Pattern.HALO else self.tile_bytes(operand)

    def sum_tiles(self) -> dict[int, int]:
        """Iterations in one PE of the loops that the sum follows."""
        return {loop: self.tiles[loop] for loop in self._kernel.follows if loop is not None}

    def vectors(self) -> dict[int, int]:
        """Lengths of the instructions that a PE may do its sums with, by ``Mapping.vector``.

        An inner product is one instruction of the vector unit as well: K. Rocki et al., "Fast
        stencil-code computation on a wafer-scale processor", SC20.
        """
        lengths = self.sum_tiles()
        channels = self._kernel.channels
        if channels is not None:
            lengths[len(self.tiles)] = self.step_sums[channels]
        return {loop: length for loop, length in lengths.items() if length > 1} or lengths


# What may be decided about a convolution on a mesh, and the default heuristic.


def decide_convolution(
    kernel: WindowSum, machine: WaferDescription, decisions: Decisions
) -> Mapping:
    """The decisions of one kernel, each with what the ones before it leave.

    ``axes``: which loops of the result are cut over rows and columns, by number in ``axis_pairs``.
    ``rows`` and ``columns``: pieces. ``third``: pieces of a third loop, over rows as well.
    ``steps`` of input channels, ``overlapped`` with messages or not, ``weights_in_steps`` and
    ``input_in_steps``: see ``Mapping``. ``vector``: the loop of an instruction.

    By default, what takes the fewest cycles of those that fit into SRAM, with as many PEs as
    there are results for.
    """

    def rank(pair: tuple[int, int]) -> tuple[bool, float]:
        return _rank(kernel, _widest(kernel, pair, machine), machine)

    grid = decide_grid(kernel.extents, rank, machine, decisions)
    row, column = grid
    loop = _third_loop(kernel, (row.loop, column.loop))
    cuts: tuple[PartitionedLoop, ...] = grid
    if loop is not None:
        options = grid_options(kernel.extents[loop], max(1, machine.rows // row.count))
        both = [_with_third(kernel, grid, loop, count) for count in (1, options[-1])]
        best = min(both, key=lambda item: _rank(kernel, _fitting(kernel, item, machine), machine))
        default = options[-1] if len(best) > len(grid) else 1
        cuts = _with_third(kernel, grid, loop, decisions.pick("third", options, default))
    mapping = _decide_steps(kernel, Mapping(cuts), machine, decisions)
    lengths = ConvolutionLayout(kernel, mapping, machine).vectors()
    return replace(mapping, vector=decisions.pick("vector", lengths, longest_loop(lengths)))


def _decide_steps(
    kernel: WindowSum, mapping: Mapping, machine: WaferDescription, decisions: Decisions
) -> Mapping:
    best = _fitting(kernel, mapping.cuts, machine)
    steps = decisions.pick("steps", _step_options(kernel), best.steps)
    if steps == 1:
        return mapping
    best = _fitting(kernel, mapping.cuts, machine, steps)
    ways = list(_ways(kernel, replace(mapping, steps=steps), machine))
    weights = {int(way.weights_in_steps) for way in ways}
    inputs = {int(way.input_in_steps) for way in ways}
    return replace(
        mapping,
        steps=steps,
        overlapped=bool(decisions.pick("overlapped", (0, 1), int(best.overlapped))),
        weights_in_steps=bool(
            decisions.pick("weights_in_steps", weights, int(best.weights_in_steps))
        ),
        input_in_steps=bool(decisions.pick("input_in_steps", inputs, int(best.input_in_steps))),
    )


def _step_options(kernel: WindowSum) -> list[int]:
    channels = kernel.channels
    return [1] if channels is None else grid_options(kernel.sums[channels], kernel.sums[channels])


def _widest(kernel: WindowSum, pair: tuple[int, int], machine: WaferDescription) -> Mapping:
    """As many PEs as a pair of loops fills, with or without a third one."""
    grid = widest_grid(kernel.extents, pair, machine)
    rows = grid[0].count
    plans = [_fitting(kernel, grid, machine)]
    loop = _third_loop(kernel, pair)
    if loop is not None and rows * 2 <= machine.rows:
        count = grid_options(kernel.extents[loop], machine.rows // rows)[-1]
        plans.append(_fitting(kernel, _with_third(kernel, grid, loop, count), machine))
    return min(plans, key=lambda plan: _rank(kernel, plan, machine))


def _third_loop(kernel: WindowSum, pair: tuple[int, int]) -> int | None:
    """The longest loop that is left, of those along which tiles have no halo."""
    left = {
        loop: extent
        for loop, extent in enumerate(kernel.extents)
        if loop not in pair and extent > 1 and not _has_halo(kernel, loop)
    }
    return longest_loop(left) if left else None


def _has_halo(kernel: WindowSum, loop: int) -> bool:
    return any(
        loop in dim.results and any(kernel.sums[s] > 1 for s in dim.sums)
        for dim in kernel.input.dims
    )


def _with_third(
    kernel: WindowSum, grid: tuple[PartitionedLoop, PartitionedLoop], loop: int, count: int
) -> tuple[PartitionedLoop, ...]:
    """PEs that need the same of the input are neighbours; other ones are groups of their own."""
    row, column = grid
    third = PartitionedLoop(loop, ROW, count)
    if count == 1:
        return grid
    return (third, row, column) if kernel.input.is_moved_by(loop) else (row, third, column)


def _ways(kernel: WindowSum, mapping: Mapping, machine: WaferDescription) -> Iterator[Mapping]:
    """The mapping with everything in its place, and with operands that come in its steps."""
    layout = ConvolutionLayout(kernel, mapping, machine)
    weights = (False, True) if layout.has_room(kernel.weights) else (False,)
    # What all PEs need would have to come along rows and columns.
    one_line = sum(layout.shared(kernel.input)) == 1
    inputs = (False, True) if one_line and layout.has_room(kernel.input) else (False,)
    for weights_in_steps in weights:
        for input_in_steps in inputs:
            yield replace(mapping, weights_in_steps=weights_in_steps, input_in_steps=input_in_steps)


def _fitting(
    kernel: WindowSum, cuts: tuple[PartitionedLoop, ...], machine: WaferDescription, steps: int = 0
) -> Mapping:
    """The mapping with the fewest steps that fits into SRAM; else the one that comes nearest."""
    best, least = Mapping(cuts), math.inf
    for count in (steps,) if steps else _step_options(kernel):
        in_steps = Mapping(cuts, steps=count, overlapped=count > 1)
        for way in _ways(kernel, in_steps, machine):
            needed = ConvolutionLayout(kernel, way, machine).bytes_per_pe()
            if needed <= machine.usable_bytes:
                return way
            if needed < least:
                best, least = way, needed
    return best


def _rank(kernel: WindowSum, mapping: Mapping, machine: WaferDescription) -> tuple[bool, float]:
    """What fits comes first, then what takes the fewest cycles."""
    layout = ConvolutionLayout(kernel, mapping, machine)
    return layout.bytes_per_pe() > machine.usable_bytes, layout.cycles()


class WaferConvolution:
    """Kernels that sum, or take the maximum of, windows of one input, weighted or not.

    Two of the result's loops (height, width, output channels, images) are cut over rows and columns
    of PEs, and perhaps a third one. A PE has the tile of the input under its tile of the result,
    and takes the edges from its neighbours. PEs of a line that need the same of the input get it by
    multicast. Weights lie where they are used; where they are too large for that, the input
    channels come in steps, by multicast along a line that shares them, as the operands of a SUMMA
    product do.
    """

    name = "wafer convolution"
    machine_type = WaferDescription

    def apply(
        self, func: tirx.PrimFunc, machine: WaferDescription, decisions: Decisions
    ) -> s_tir.Schedule:
        """See ``Template.apply``; the decisions are those of ``decide_convolution``."""
        sch = schedule_of(func)
        kernel = window_sum_of(sch)
        if len(kernel.extents) < 2:
            raise NotApplicable("its result has one dimension")
        mapping = decide_convolution(kernel, machine, decisions)
        _schedule(sch, kernel, mapping, ConvolutionLayout(kernel, mapping, machine))
        return sch


def _schedule(
    sch: s_tir.Schedule, kernel: WindowSum, mapping: Mapping, layout: ConvolutionLayout
) -> None:
    cut = cut_result(sch, kernel.result, mapping.cuts, layout.tiles)
    place = cut.mesh[-1]
    loops = cut.tile
    if not kernel.ends_in_sum:
        for block in (*reversed(kernel.between), kernel.block):
            sch.compute_at(block, place, preserve_unit_loops=True)
        loops = tuple(sch.get_loops(kernel.block))[len(cut.mesh) :]
        _finish(sch, cut, mapping, layout)
        send_shared(sch, kernel.result, mapping.cuts, place)
    count = len(kernel.follows)
    first = _order(sch, kernel, mapping, loops[:count], list(loops[count:]))
    _bring_operands(sch, kernel, layout, first if mapping.steps > 1 else place)
    for block in reversed(kernel.before):
        sch.compute_at(block, place, preserve_unit_loops=True)
    sch.decompose_reduction(kernel.block, first)


def _finish(
    sch: s_tir.Schedule, cut: PartitionedResult, mapping: Mapping, layout: ConvolutionLayout
) -> None:
    """The block that makes the result of the sums, in vectors of its own tile."""
    tiles = dict(enumerate(layout.tiles))
    vector = longest_loop(tiles)
    if tiles.get(mapping.vector, 1) > 1:
        vector = mapping.vector
    innermost_vector(sch, cut.tile, vector)


def _order(
    sch: s_tir.Schedule,
    kernel: WindowSum,
    mapping: Mapping,
    spatial: Sequence[LoopRV],
    summed: list[LoopRV],
) -> LoopRV:
    """Sums outside, tiles inside, and the vector innermost; the first of the loops."""
    channels = kernel.channels
    outer: list[LoopRV] = []
    if mapping.steps > 1 and channels is not None:
        size = -(-kernel.sums[channels] // mapping.steps)
        step, summed[channels] = sch.split(summed[channels], factors=[mapping.steps, size])
        sch.annotate(step, PIPELINE, 1 + mapping.overlapped)
        outer.append(step)
    loops = list(spatial)
    if channels is not None and mapping.vector == len(kernel.extents):
        vector = len(loops)
        loops.append(summed.pop(channels))
    else:
        vector = kernel.follows.index(mapping.vector)
    outer += summed
    sch.reorder(*outer, *loops)
    innermost_vector(sch, loops, vector)
    return outer[0]


def _bring_operands(
    sch: s_tir.Schedule, kernel: WindowSum, layout: ConvolutionLayout, under: LoopRV
) -> None:
    """Copies what a PE does not hold, and states what it holds."""
    for operand in (kernel.input, kernel.weights):
        if operand is None:
            continue
        pattern = layout.pattern(operand)
        if operand.padding is not None:
            sch.compute_at(operand.padding, under, preserve_unit_loops=True)
            if pattern is not None:
                sch.annotate(operand.padding, COMMUNICATION, pattern)
        elif pattern is not None:
            copy_tile(sch, kernel.block, operand.buffer, under, pattern)
        words = home_words(layout.pieces(operand), len(operand.dims))
        state_home(sch, operand.buffer, words)
