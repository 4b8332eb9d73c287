"""How a convolution is laid over a mesh, and the sizes that follow."""

import math
from dataclasses import dataclass

from tvm_ext.hardware.mesh_description import MeshDescription
from tvm_ext.tir_schedules.wafer.annotations import COLUMN, ROW, Pattern
from tvm_ext.tir_schedules.wafer.broadcasts import broadcast_pattern
from tvm_ext.tir_schedules.wafer.result_tiles import Cut, aligned_count, pe_cycles, tiles_of
from tvm_ext.tir_schedules.wafer.window_operands import Operand
from tvm_ext.tir_schedules.wafer.window_sum import WindowSum

# What one wavelet carries.
_WORD_BYTES = 4


@dataclass(frozen=True)
class Mapping:
    """What was decided.

    Attributes
    ----------
    cuts : tuple[Cut, ...]
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

    cuts: tuple[Cut, ...]
    steps: int = 1
    overlapped: bool = False
    weights_in_steps: bool = False
    input_in_steps: bool = False
    vector: int = 0


class Layout:
    """Sizes and messages that follow from a mapping of a kernel onto a machine."""

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

    def shared(self, operand: Operand) -> tuple[bool, bool]:
        """Whether PEs of a column need the same of an operand, and whether PEs of a row do."""
        alike = [c for c in self._mapping.cuts if c.count > 1 and not operand.is_moved_by(c.loop)]
        axes = {cut.axis for cut in alike}
        return ROW in axes, COLUMN in axes

    def line(self, operand: Operand) -> Cut | None:
        """The longest line of PEs that need the same of an operand, which they can share out."""
        lines = {cut.axis: cut for cut in self._mapping.cuts}
        alike = [cut for cut in lines.values() if not operand.is_moved_by(cut.loop)]
        return max(alike, key=lambda cut: cut.count, default=None)

    def has_room(self, operand: Operand | None) -> bool:
        """Whether such a line has a PE for the part of each step."""
        line = self.line(operand) if operand is not None else None
        return line is not None and 1 < self._mapping.steps <= line.count

    def pattern(self, operand: Operand) -> str | None:
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

    def _in_steps(self, operand: Operand) -> bool:
        if operand is self._kernel.input:
            return self._mapping.input_in_steps
        return self._mapping.weights_in_steps

    def pieces(self, operand: Operand) -> dict[int, tuple[str, int]]:
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

    def shard_bytes(self, operand: Operand) -> int:
        """What one PE holds of an operand between kernels."""
        return math.prod(self._shard(operand)) * operand.element_bytes

    def _shard(self, operand: Operand) -> list[int]:
        pieces = self.pieces(operand)
        return [
            -(-dim.size // pieces[number][1]) if number in pieces else dim.size
            for number, dim in enumerate(operand.dims)
        ]

    def tile_bytes(self, operand: Operand) -> int:
        """What one PE needs of an operand in one step."""
        return math.prod(self._spans(operand)) * operand.element_bytes

    def _spans(self, operand: Operand) -> list[int]:
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

    def _operands(self) -> list[Operand]:
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

    def _moved(self, operand: Operand) -> int:
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
