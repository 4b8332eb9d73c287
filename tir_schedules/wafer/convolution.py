"""Convolutions and pooling on a mesh: tiles of the result stay, edges of the input's tiles move."""

from collections.abc import Sequence

from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV

from tvm_ext.hardware.mesh_description import MeshDescription
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions
from tvm_ext.tir_schedules.template import Machine, NotMine
from tvm_ext.tir_schedules.wafer.annotations import COLUMN, COMMUNICATION, PIPELINE, Pattern
from tvm_ext.tir_schedules.wafer.convolution_mapping import Layout, Mapping, decide
from tvm_ext.tir_schedules.wafer.mesh_cut import (
    CutResult,
    copy_tile,
    cut_result,
    innermost_vector,
    longest_loop,
    state_home,
)
from tvm_ext.tir_schedules.wafer.window_sum import Operand, WindowSum, window_sum_of


class MeshConvolution:
    """Kernels that sum, or take the maximum of, windows of one input, weighted or not.

    Two of the result's loops (height, width, output channels, images) are cut over rows and columns
    of PEs, and a third one over groups of rows. A PE has the tile of the input under its tile of
    the result, and takes the edges from its neighbours. Weights lie where they are used; where they
    are too large for that, or where PEs of a line share the input, the input channels come in steps
    by multicast along the line, as the operands of a SUMMA product do.
    """

    name = "mesh convolution"

    def apply(
        self, func: tirx.PrimFunc, machine: Machine, decisions: Decisions = CLOSED_FORM
    ) -> s_tir.Schedule | NotMine:
        """See ``Template.apply``.

        Decisions: ``axes``, which loops are cut, by number in ``axis_pairs``; ``rows``, ``columns``
        and ``groups``, the pieces; ``steps`` of input channels, ``overlapped`` with messages,
        ``weights_in_steps`` and ``input_in_steps``; ``vector``, the loop of an instruction.
        """
        if not isinstance(machine, MeshDescription):
            return NotMine("the target is not a mesh")
        sch = s_tir.Schedule(func)
        kernel = window_sum_of(sch)
        if isinstance(kernel, NotMine):
            return kernel
        if len(kernel.extents) < 2:
            return NotMine("its result has one dimension")
        mapping = decide(kernel, machine, decisions)
        _schedule(sch, kernel, mapping, Layout(kernel, mapping, machine))
        return sch


def _schedule(sch: s_tir.Schedule, kernel: WindowSum, mapping: Mapping, layout: Layout) -> None:
    cut = cut_result(sch, kernel.result, mapping.cuts, layout.tiles)
    count = len(kernel.follows)
    place = cut.mesh[-1]
    loops = cut.tile
    if not sch.get(kernel.result).same_as(sch.get(kernel.block)):
        for block in (*reversed(kernel.between), kernel.block):
            sch.compute_at(block, place, preserve_unit_loops=True)
        loops = tuple(sch.get_loops(kernel.block))[len(cut.mesh) :]
        _finish(sch, cut, mapping, layout)
    spatial, summed = list(loops[:count]), list(loops[count:])
    first = _order(sch, kernel, mapping, spatial, summed)
    _bring_operands(sch, kernel, mapping, layout, first if mapping.steps > 1 else place)
    sch.decompose_reduction(kernel.block, first)


def _finish(sch: s_tir.Schedule, cut: CutResult, mapping: Mapping, layout: Layout) -> None:
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
    if mapping.steps > 1 and channels is not None:
        size = -(-kernel.sums[channels] // mapping.steps)
        step, summed[channels] = sch.split(summed[channels], factors=[mapping.steps, size])
        sch.annotate(step, PIPELINE, 1 + mapping.overlapped)
    else:
        step = None
    if channels is not None and mapping.vector == len(kernel.extents):
        loops = [*spatial, summed.pop(channels)]
        vector = len(spatial)
    else:
        loops = list(spatial)
        vector = kernel.follows.index(mapping.vector)
    outer = summed if step is None else [step, *summed]
    sch.reorder(*outer, *loops)
    innermost_vector(sch, loops, vector)
    return outer[0]


def _bring_operands(
    sch: s_tir.Schedule, kernel: WindowSum, mapping: Mapping, layout: Layout, under: LoopRV
) -> None:
    """Copies what a PE does not hold, and states what it holds."""
    if layout.copies_input:
        pattern = _multicast(layout, kernel.input) if mapping.input_in_steps else Pattern.HALO
        _bring_input(sch, kernel, under, pattern)
    _state(sch, layout, kernel.input, mapping.input_in_steps)
    if mapping.weights_in_steps and kernel.weights is not None:
        read = kernel.weights.buffer
        copy_tile(sch, kernel.block, read, under, _multicast(layout, kernel.weights))
        _state(sch, layout, kernel.weights, True)


def _bring_input(sch: s_tir.Schedule, kernel: WindowSum, under: LoopRV, pattern: str) -> None:
    padding = kernel.input.padding
    if padding is None:
        copy_tile(sch, kernel.block, kernel.input.buffer, under, pattern)
    else:
        sch.compute_at(padding, under, preserve_unit_loops=True)
        sch.annotate(padding, COMMUNICATION, pattern)


def _state(sch: s_tir.Schedule, layout: Layout, operand: Operand, in_steps: bool) -> None:
    state_home(sch, operand.buffer, layout.pieces(operand, in_steps), len(operand.dims))


def _multicast(layout: Layout, operand: Operand) -> str:
    """Along a row of PEs if the parts lie in different columns of it."""
    cut = layout.free_cut(operand)
    across = cut is not None and cut.axis == COLUMN
    return Pattern.MULTICAST_ROW if across else Pattern.MULTICAST_COLUMN
