"""What may be decided about a convolution on a mesh, and the closed form."""

import math
from collections.abc import Iterator
from dataclasses import replace

from tvm_ext.hardware.mesh_description import MeshDescription
from tvm_ext.tir_schedules.decisions import Decisions
from tvm_ext.tir_schedules.wafer.annotations import COLUMN, ROW
from tvm_ext.tir_schedules.wafer.convolution_mapping import Layout, Mapping
from tvm_ext.tir_schedules.wafer.grid_options import grid_options
from tvm_ext.tir_schedules.wafer.result_tiles import Cut, axis_pairs, longest_loop
from tvm_ext.tir_schedules.wafer.window_sum import WindowSum


def decide_convolution(
    kernel: WindowSum, machine: MeshDescription, decisions: Decisions
) -> Mapping:
    """The decisions of one kernel, each with what the ones before it leave.

    ``axes``: which loops of the result are cut over rows and columns, by number in ``axis_pairs``.
    ``rows`` and ``columns``: pieces. ``third``: pieces of a third loop, over rows as well.
    ``steps`` of input channels, ``overlapped`` with messages or not, ``weights_in_steps`` and
    ``input_in_steps``: see ``Mapping``. ``vector``: the loop of an instruction.

    In closed form, what takes the fewest cycles of those that fit into SRAM, with as many PEs as
    there are results for.
    """
    pairs = axis_pairs(kernel.extents)
    plans = [_widest(kernel, pair, machine) for pair in pairs]
    ranks = [_rank(kernel, plan, machine) for plan in plans]
    number = decisions.pick("axes", range(len(pairs)), ranks.index(min(ranks)))
    row, column = pairs[number]
    row_options = grid_options(kernel.extents[row], machine.rows)
    column_options = grid_options(kernel.extents[column], machine.columns)
    rows = decisions.pick("rows", row_options, row_options[-1])
    columns = decisions.pick("columns", column_options, column_options[-1])
    grid = (Cut(row, ROW, rows), Cut(column, COLUMN, columns))
    loop = _third_loop(kernel, pairs[number])
    cuts: tuple[Cut, ...] = grid
    if loop is not None:
        options = grid_options(kernel.extents[loop], max(1, machine.rows // rows))
        both = [_with_third(kernel, grid, loop, count) for count in (1, options[-1])]
        best = min(both, key=lambda one: _rank(kernel, _fitting(kernel, one, machine), machine))
        default = options[-1] if len(best) > len(grid) else 1
        cuts = _with_third(kernel, grid, loop, decisions.pick("third", options, default))
    mapping = _decide_steps(kernel, Mapping(cuts), machine, decisions)
    lengths = Layout(kernel, mapping, machine).vectors()
    return replace(mapping, vector=decisions.pick("vector", lengths, longest_loop(lengths)))


def _decide_steps(
    kernel: WindowSum, mapping: Mapping, machine: MeshDescription, decisions: Decisions
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


def _widest(kernel: WindowSum, pair: tuple[int, int], machine: MeshDescription) -> Mapping:
    """As many PEs as a pair of loops fills, with or without a third one."""
    rows = grid_options(kernel.extents[pair[0]], machine.rows)[-1]
    columns = grid_options(kernel.extents[pair[1]], machine.columns)[-1]
    grid = (Cut(pair[0], ROW, rows), Cut(pair[1], COLUMN, columns))
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


def _with_third(kernel: WindowSum, grid: tuple[Cut, Cut], loop: int, count: int) -> tuple[Cut, ...]:
    """PEs that need the same of the input are neighbours; other ones are groups of their own."""
    row, column = grid
    third = Cut(loop, ROW, count)
    if count == 1:
        return grid
    return (third, row, column) if kernel.input.is_moved_by(loop) else (row, third, column)


def _ways(kernel: WindowSum, mapping: Mapping, machine: MeshDescription) -> Iterator[Mapping]:
    """The mapping with everything in its place, and with operands that come in its steps."""
    layout = Layout(kernel, mapping, machine)
    weights = (False, True) if layout.has_room(kernel.weights) else (False,)
    # What all PEs need would have to come along rows and columns.
    one_line = sum(layout.shared(kernel.input)) == 1
    inputs = (False, True) if one_line and layout.has_room(kernel.input) else (False,)
    for weights_in_steps in weights:
        for input_in_steps in inputs:
            yield replace(mapping, weights_in_steps=weights_in_steps, input_in_steps=input_in_steps)


def _fitting(
    kernel: WindowSum, cuts: tuple[Cut, ...], machine: MeshDescription, steps: int = 0
) -> Mapping:
    """The mapping with the fewest steps that fits into SRAM; else the one that comes nearest."""
    best, least = Mapping(cuts), math.inf
    for count in (steps,) if steps else _step_options(kernel):
        in_steps = Mapping(cuts, steps=count, overlapped=count > 1)
        for way in _ways(kernel, in_steps, machine):
            needed = Layout(kernel, way, machine).bytes_per_pe()
            if needed <= machine.usable_bytes:
                return way
            if needed < least:
                best, least = way, needed
    return best


def _rank(kernel: WindowSum, mapping: Mapping, machine: MeshDescription) -> tuple[bool, float]:
    """What fits comes first, then what takes the fewest cycles."""
    layout = Layout(kernel, mapping, machine)
    return layout.bytes_per_pe() > machine.usable_bytes, layout.cycles()
