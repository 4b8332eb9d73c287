"""How a convolution is laid over a mesh: what may be decided, and the closed form."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tvm_ext.hardware.mesh_description import MeshDescription
from tvm_ext.tir_schedules.decisions import Decisions
from tvm_ext.tir_schedules.wafer.annotations import COLUMN, ROW
from tvm_ext.tir_schedules.wafer.grid_options import grid_options
from tvm_ext.tir_schedules.wafer.mesh_cut import (
    Cut,
    aligned_count,
    axis_pairs,
    longest_loop,
    pe_cycles,
    tiles_of,
)
from tvm_ext.tir_schedules.wafer.window_sum import Operand, WindowSum

# What one wavelet carries.
_WORD_BYTES = 4


@dataclass(frozen=True)
class Mapping:
    """What was decided.

    Attributes
    ----------
    cuts : tuple[Cut, ...]
        Of the result's loops, the outermost first: groups of rows if there are any, rows, columns.
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

    cuts: tuple[Cut, ...]
    steps: int = 1
    overlapped: bool = False
    weights_in_steps: bool = False
    input_in_steps: bool = False
    vector: int = 0


class Layout:
    """Sizes that follow from a mapping of a kernel onto a machine."""

    def __init__(self, kernel: WindowSum, mapping: Mapping, machine: MeshDescription) -> None:
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

    def free_cut(self, operand: Operand) -> Cut | None:
        """The line of PEs that all need the same of an operand, which can share it out."""
        lines = self._mapping.cuts[-2:]
        return next((cut for cut in lines if not operand.is_moved_by(cut.loop)), None)

    def pieces(self, operand: Operand, in_steps: bool) -> dict[int, tuple[str, int]]:
        """By dimension that an operand is cut in, the axis and the number of pieces."""
        found: dict[int, tuple[str, int]] = {}
        for number, dim in enumerate(operand.dims):
            for cut in self._mapping.cuts:
                if cut.loop in dim.results and cut.count > 1:
                    advance = dim.advance(cut.loop, self.tiles[cut.loop])
                    count = aligned_count(dim.size, advance, cut, self._machine)
                    found[number] = (cut.axis, count)
            free = self.free_cut(operand)
            if in_steps and free is not None and self._kernel.channels in dim.sums:
                found[number] = (free.axis, self._mapping.steps)
        return found

    def shard_bytes(self, operand: Operand, in_steps: bool) -> int:
        """What one PE holds of an operand between kernels."""
        pieces = self.pieces(operand, in_steps)
        sizes = [
            -(-dim.size // pieces[number][1]) if number in pieces else dim.size
            for number, dim in enumerate(operand.dims)
        ]
        return math.prod(sizes) * operand.element_bytes

    def tile_bytes(self, operand: Operand) -> int:
        """What one PE needs of an operand in one step."""
        spans = [dim.span(self.tiles, self.step_sums) for dim in operand.dims]
        return math.prod(spans) * operand.element_bytes

    def halo_bytes(self) -> int:
        """What one PE needs of the input in one step beyond its own shard."""
        pieces = self.pieces(self._kernel.input, False)
        whole, own = 1, 1
        for number, dim in enumerate(self._kernel.input.dims):
            span = dim.span(self.tiles, self.step_sums)
            whole *= span
            own *= min(span, -(-dim.size // pieces[number][1]) if number in pieces else span)
        return (whole - own) * self._kernel.input.element_bytes

    @property
    def copies_input(self) -> bool:
        """Whether what the sum reads of the input is not just the PE's own shard."""
        padded = self._kernel.input.padding is not None
        return padded or self._mapping.input_in_steps or self.halo_bytes() > 0

    def bytes_per_pe(self) -> int:
        """SRAM of one PE: shards, tiles under way, sums and the result."""
        mapping, kernel = self._mapping, self._kernel
        buffers = self.tile_bytes(kernel.input) if self.copies_input else 0
        total = self.shard_bytes(kernel.input, mapping.input_in_steps)
        if kernel.weights is not None:
            total += self.shard_bytes(kernel.weights, mapping.weights_in_steps)
            buffers += self.tile_bytes(kernel.weights) if mapping.weights_in_steps else 0
        results = math.prod(self.tiles) * kernel.input.element_bytes
        return total + buffers * (2 if mapping.overlapped else 1) + 2 * results

    def cycles(self) -> float:
        """A PE with a full tile: its instructions, and the words that come over its ramp."""
        kernel, mapping = self._kernel, self._mapping
        dtype = str(kernel.input.buffer.dtype)
        elements = math.prod(self.sum_tiles().values()) * math.prod(kernel.sums)
        instructions = elements / max(self.vectors().values())
        compute = pe_cycles(self._machine, dtype, instructions, elements)
        results = math.prod(self.tiles)
        behind = pe_cycles(self._machine, dtype, results / max(self.tiles), results)
        moved = self.tile_bytes(kernel.input) if mapping.input_in_steps else self.halo_bytes()
        if mapping.weights_in_steps and kernel.weights is not None:
            moved += self.tile_bytes(kernel.weights)
        messages = moved * mapping.steps / _WORD_BYTES
        if mapping.overlapped:
            return max(compute, messages) + messages / mapping.steps + behind
        return compute + messages + behind

    def sum_tiles(self) -> dict[int, int]:
        """Iterations in one PE of the loops that the sum follows."""
        return {loop: self.tiles[loop] for loop in self._kernel.follows if loop is not None}

    def vectors(self) -> dict[int, int]:
        """Lengths of the instructions that a PE may do its sums with, by ``Mapping.vector``."""
        lengths = self.sum_tiles()
        channels = self._kernel.channels
        if channels is not None:
            lengths[len(self.tiles)] = self.step_sums[channels]
        return {loop: length for loop, length in lengths.items() if length > 1} or lengths


def decide(kernel: WindowSum, machine: MeshDescription, decisions: Decisions) -> Mapping:
    """The decisions of one kernel, each with what the ones before it leave."""
    pairs = axis_pairs(kernel.extents)
    plans = [_fitting(kernel, _widest(kernel, pair, machine), machine) for pair in pairs]
    ranks = [_rank(kernel, plan, machine) for plan in plans]
    number = decisions.pick("axes", range(len(pairs)), ranks.index(min(ranks)))
    row, column = pairs[number]
    row_options = grid_options(kernel.extents[row], machine.rows)
    column_options = grid_options(kernel.extents[column], machine.columns)
    rows = decisions.pick("rows", row_options, row_options[-1])
    columns = decisions.pick("columns", column_options, column_options[-1])
    cuts: tuple[Cut, ...] = (Cut(row, ROW, rows), Cut(column, COLUMN, columns))
    grouped = _grouped_loop(kernel, pairs[number])
    if grouped is not None:
        options = grid_options(kernel.extents[grouped], max(1, machine.rows // rows))
        groups = decisions.pick("groups", options, options[-1])
        cuts = (Cut(grouped, ROW, groups), *cuts) if groups > 1 else cuts
    mapping = _decide_steps(kernel, Mapping(cuts), machine, decisions)
    lengths = Layout(kernel, mapping, machine).vectors()
    vector = decisions.pick("vector", lengths, longest_loop(lengths))
    return replace(mapping, vector=vector)


def _decide_steps(
    kernel: WindowSum, mapping: Mapping, machine: MeshDescription, decisions: Decisions
) -> Mapping:
    fitting = _fitting(kernel, mapping, machine)
    options = _step_options(kernel)
    steps = decisions.pick("steps", options, fitting.steps)
    if steps == 1:
        return mapping
    best = _fitting(kernel, mapping, machine, steps)
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


def _widest(kernel: WindowSum, pair: tuple[int, int], machine: MeshDescription) -> Mapping:
    """As many PEs as a pair of loops fills, with groups of them."""
    rows = grid_options(kernel.extents[pair[0]], machine.rows)[-1]
    columns = grid_options(kernel.extents[pair[1]], machine.columns)[-1]
    cuts: tuple[Cut, ...] = (Cut(pair[0], ROW, rows), Cut(pair[1], COLUMN, columns))
    grouped = _grouped_loop(kernel, pair)
    if grouped is not None and rows * 2 <= machine.rows:
        groups = grid_options(kernel.extents[grouped], machine.rows // rows)[-1]
        cuts = (Cut(grouped, ROW, groups), *cuts)
    return Mapping(cuts)


def _grouped_loop(kernel: WindowSum, pair: tuple[int, int]) -> int | None:
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


def _ways(kernel: WindowSum, mapping: Mapping, machine: MeshDescription) -> Iterator[Mapping]:
    """The mapping with everything in its place, and with operands that come in its steps."""
    layout = Layout(kernel, mapping, machine)
    for weights_in_steps in (False, True):
        for input_in_steps in (False, True):
            chosen = ((kernel.weights, weights_in_steps), (kernel.input, input_in_steps))
            if all(_has_room(layout, one, mapping) for one, in_steps in chosen if in_steps):
                yield replace(
                    mapping, weights_in_steps=weights_in_steps, input_in_steps=input_in_steps
                )


def _has_room(layout: Layout, operand: Operand | None, mapping: Mapping) -> bool:
    """Whether a line of PEs that needs the same of an operand has a PE for each step's part."""
    if operand is None or mapping.steps == 1:
        return False
    cut = layout.free_cut(operand)
    return cut is not None and mapping.steps <= cut.count


def _fitting(
    kernel: WindowSum, mapping: Mapping, machine: MeshDescription, steps: int = 0
) -> Mapping:
    """The mapping with the fewest steps that fits into SRAM; else the one that comes nearest."""
    best, least = mapping, math.inf
    for count in (steps,) if steps else _step_options(kernel):
        overlapped = replace(mapping, steps=count, overlapped=count > 1)
        for way in _ways(kernel, overlapped, machine):
            needed = Layout(kernel, way, machine).bytes_per_pe()
            if needed <= machine.usable_bytes:
                return way
            if needed < least:
                best, least = way, needed
    return best


def _rank(
    kernel: WindowSum, mapping: Mapping, machine: MeshDescription
) -> tuple[bool, float]:
    """What fits comes first, then what takes the fewest cycles."""
    layout = Layout(kernel, mapping, machine)
    return layout.bytes_per_pe() > machine.usable_bytes, layout.cycles()
