"""Convolutions and pooling on a mesh: tiles of the result stay, edges of the input's tiles move."""

from collections.abc import Sequence

from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV

from tvm_ext.hardware.mesh_description import MeshDescription
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions
from tvm_ext.tir_schedules.template import Machine, NotMine
from tvm_ext.tir_schedules.wafer.annotations import COMMUNICATION, PIPELINE
from tvm_ext.tir_schedules.wafer.convolution_decision import decide_convolution
from tvm_ext.tir_schedules.wafer.convolution_mapping import Layout, Mapping
from tvm_ext.tir_schedules.wafer.result_tiles import (
    CutResult,
    copy_tile,
    cut_result,
    innermost_vector,
    longest_loop,
    send_shared,
    state_home,
)
from tvm_ext.tir_schedules.wafer.window_sum import WindowSum, window_sum_of


class MeshConvolution:
    """Kernels that sum, or take the maximum of, windows of one input, weighted or not.

    Two of the result's loops (height, width, output channels, images) are cut over rows and columns
    of PEs, and perhaps a third one. A PE has the tile of the input under its tile of the result,
    and takes the edges from its neighbours. PEs of a line that need the same of the input get it by
    multicast. Weights lie where they are used; where they are too large for that, the input
    channels come in steps, by multicast along a line that shares them, as the operands of a SUMMA
    product do.
    """

    name = "mesh convolution"

    def apply(
        self, func: tirx.PrimFunc, machine: Machine, decisions: Decisions = CLOSED_FORM
    ) -> s_tir.Schedule | NotMine:
        """See ``Template.apply``; the decisions are those of ``decide_convolution``."""
        if not isinstance(machine, MeshDescription):
            return NotMine("the target is not a mesh")
        sch = s_tir.Schedule(func)
        kernel = window_sum_of(sch)
        if isinstance(kernel, NotMine):
            return kernel
        if len(kernel.extents) < 2:
            return NotMine("its result has one dimension")
        mapping = decide_convolution(kernel, machine, decisions)
        _schedule(sch, kernel, mapping, Layout(kernel, mapping, machine))
        return sch


def _schedule(sch: s_tir.Schedule, kernel: WindowSum, mapping: Mapping, layout: Layout) -> None:
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


def _bring_operands(sch: s_tir.Schedule, kernel: WindowSum, layout: Layout, under: LoopRV) -> None:
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
        state_home(sch, operand.buffer, layout.pieces(operand), len(operand.dims))
