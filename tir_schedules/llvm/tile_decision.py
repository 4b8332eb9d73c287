"""Which nests are turned in registers: along which axes, and what of them."""

from collections.abc import Sequence
from dataclasses import replace

import tvm

from tvm_ext.hardware.description import CpuDescription
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions
from tvm_ext.tir_schedules.llvm.borders import branch_comparisons
from tvm_ext.tir_schedules.llvm.knobs import distinct
from tvm_ext.tir_schedules.llvm.tile_code import MAX_STRIDE, TileDecision
from tvm_ext.tir_schedules.nest import Nest, load_strides, store_strides
from tvm_ext.tir_schedules.template import NotMine

# Shorter axes give vectors too short to be worth turning.
_MIN_EXTENT = 4

# An innermost axis of so few elements is slower in vectors of its own than turned.
_SHORT = 4

# Sizes of tiles that are worth trying; smaller ones move single elements.
_SIZES = (4, 8, 16, 32)

# Beyond, turning whole squares takes fewer exchanges.
_MAX_INTERLEAVED = 7

Strides = tuple[int | None, ...]


def decide_tile(nest: Nest, machine: CpuDescription, dense: bool = True) -> TileDecision | NotMine:
    """The closed-form choice: whole vectors both ways, as little as possible turned.

    ``dense``: rows or columns too short for vectors are interleaved as they lie in memory.
    """
    write = len(nest.axes) - 1
    written = store_strides(nest)
    if write < 1 or written[write] != 1:
        return NotMine("the result is not contiguous along an axis")
    loads = load_strides(nest)
    turned = _turned(nest, loads)
    if not turned:
        return NotMine("every buffer is read along the axis along which the result is written")
    dtypes = [str(nest.store.buffer.dtype), *(str(load.source.dtype) for load in nest.loads())]
    if "bool" in dtypes:
        return NotMine("bits are not turned")
    size = min(machine.vector_lanes("float32"), *(machine.vector_lanes(d) for d in dtypes))
    most = min(size, _MAX_INTERLEAVED)
    short = _dense_short_axis(nest, loads, turned, most) if dense else None
    if short is not None and nest.axes[write].extent >= size:
        return TileDecision(write, short, size, "deinterleave", tuple(turned))
    read = _read_axis(nest, loads, turned)
    if read is None:
        return NotMine("what is read across the result is not contiguous along one other axis")
    rows, columns = nest.axes[write].extent, nest.axes[read].extent
    if not all(_is_short_step(steps[read]) for steps in loads):
        return TileDecision(write, read, _fitting(size, rows, columns), "square", tuple(turned))
    if dense and written[read] == rows <= most and columns >= size:
        return TileDecision(write, read, size, "interleave")
    return TileDecision(write, read, _fitting(size, rows, columns))


def decide_tiles(
    nests: Sequence[Nest],
    machine: CpuDescription,
    once: bool = False,
    decisions: Decisions = CLOSED_FORM,
) -> dict[int, TileDecision]:
    """For those nests of a block (by position) that are turned in registers, how.

    With ``once``, no element may be computed twice: no tile laps over another one.

    Asks for ``square`` tiles where the closed form interleaves short rows, for loads that are
    turned instead of values (``turn_loads``), for the size of a ``tile``, and for the order of
    tiles (``swapped``): all that for all nests at once.
    """
    found: dict[int, TileDecision] = {}
    for i, nest in enumerate(nests):
        tile = decide_tile(nest, machine)
        if isinstance(tile, TileDecision) and not (once and _laps_over(nest, tile)):
            found[i] = tile
    # Which way a branch goes must be known in each row: those tiles stay as they are.
    free = [i for i in found if not once and not branch_comparisons(nests[i].store.value)]
    squares = {i: other for i in free if (other := _as_square(nests[i], found[i], machine))}
    if squares and decisions.pick("square", (0, 1), 0):
        found |= squares
    turning = {i: other for i in free if (other := _turning_loads(nests[i], found[i]))}
    if turning and decisions.pick("turn_loads", (0, 1), 0):
        found |= turning
    found |= _of_one_size({i: (nests[i], found[i]) for i in free}, decisions)
    crossing = [i for i, tile in found.items() if _has_rows_and_columns(nests[i], tile)]
    if crossing and decisions.pick("swapped", (0, 1), 0):
        found |= {i: replace(found[i], swapped=True) for i in crossing}
    return found


def _as_square(nest: Nest, tile: TileDecision, machine: CpuDescription) -> TileDecision | None:
    """Another tile in the place of one of short rows that are interleaved; None for a square."""
    if tile.shape == "square":
        return None
    other = decide_tile(nest, machine, dense=False)
    return other if isinstance(other, TileDecision) else None


def _turning_loads(nest: Nest, tile: TileDecision) -> TileDecision | None:
    """The same tile with values computed in the order of writing; None where that is the same."""
    if tile.turned or tile.shape != "square" or isinstance(nest.store.value, tvm.ir.TensorLoad):
        return None
    return replace(tile, turned=tuple(_turned(nest, load_strides(nest))))


def _of_one_size(
    tiles: dict[int, tuple[Nest, TileDecision]], decisions: Decisions
) -> dict[int, TileDecision]:
    """The tiles no larger than a ``tile`` that is asked for, as far as their shapes allow."""

    def size(option: int, nest: Nest, tile: TileDecision) -> int:
        return min(tile.size, max(option, _least_size(nest, tile)))

    def sizes(option: int) -> tuple[int, ...]:
        return tuple(size(option, *pair) for pair in tiles.values())

    if not tiles:
        return {}
    largest = max(tile.size for _, tile in tiles.values())
    smallest = min(_least_size(*pair) for pair in tiles.values())
    options = [size for size in _SIZES if smallest <= size <= largest]
    option = decisions.pick("tile", distinct(options, largest, sizes), largest)
    return {i: replace(tile, size=size(option, nest, tile)) for i, (nest, tile) in tiles.items()}


def _least_size(nest: Nest, tile: TileDecision) -> int:
    """Lanes that a tile must have at least: all of a short row, and never a few."""
    short = {
        "square": 1,
        "interleave": nest.axes[tile.write_axis].extent,
        "deinterleave": nest.axes[tile.read_axis].extent,
    }
    return max(_SIZES[0], 1 << (short[tile.shape] - 1).bit_length())


def _laps_over(nest: Nest, tile: TileDecision) -> bool:
    """Whether the last tiles of rows or columns repeat what others have done."""
    extents = [nest.axes[axis].extent for axis in (tile.write_axis, tile.read_axis)]
    return any(extent > tile.size and extent % tile.size for extent in extents)


def _has_rows_and_columns(nest: Nest, tile: TileDecision) -> bool:
    """Whether tiles follow each other along both of their axes."""
    return all(nest.axes[axis].extent > tile.size for axis in (tile.write_axis, tile.read_axis))


def keeps_whole(nest: Nest, axis: int, machine: CpuDescription) -> bool:
    """Whether branches along an axis are left to the rows of a tile, each of which goes one way."""
    if axis != len(nest.axes) - 1:
        return False
    decision = decide_tile(nest, machine)
    fits = isinstance(decision, TileDecision) and nest.axes[axis].extent <= decision.size
    return fits and isinstance(decision, TileDecision) and not decision.turned


def _turned(nest: Nest, loads: list[Strides]) -> list[int]:
    """Loads that are not read as the result is written."""
    across = [i for i, steps in enumerate(loads) if steps[-1] not in (0, 1)]
    if across:
        return across
    if branch_comparisons(nest.store.value):
        # Pieces too short for vectors: each is read along another axis, and they are woven.
        return [i for i, steps in enumerate(loads) if any(steps)]
    if nest.axes[-1].extent <= _SHORT:
        return [i for i, steps in enumerate(loads) if steps[-1] == 0 and any(steps)]
    return []


def _read_axis(nest: Nest, loads: list[Strides], turned: list[int]) -> int | None:
    fitting = [
        axis
        for axis in range(len(nest.axes) - 1)
        if nest.axes[axis].extent >= _MIN_EXTENT
        and all(_is_short_step(loads[i][axis]) for i in turned)
        and any(loads[i][axis] == 1 for i in turned)
    ]
    if fitting:
        return max(fitting, key=lambda axis: nest.axes[axis].extent)
    fitting = [
        axis
        for axis in range(len(nest.axes) - 1)
        if nest.axes[axis].extent >= _MIN_EXTENT
        and all(loads[i][axis] in range(2, MAX_STRIDE + 1) for i in turned)
    ]
    return max(fitting, key=lambda axis: nest.axes[axis].extent, default=None)


def _dense_short_axis(nest: Nest, loads: list[Strides], turned: list[int], most: int) -> int | None:
    """An axis of ``most`` elements or fewer, all of which is read at once."""
    for axis in range(len(nest.axes) - 1):
        extent = nest.axes[axis].extent
        dense = all(loads[i][axis] == 1 and loads[i][-1] == extent for i in turned)
        if dense and extent <= most:
            return axis
    return None


def _is_short_step(step: int | None) -> bool:
    return step is not None and 0 <= step <= 1


def _fitting(size: int, rows: int, columns: int) -> int:
    """The size of tiles that are not larger than both of their axes."""
    return min(size, 1 << (max(rows, columns) - 1).bit_length())
