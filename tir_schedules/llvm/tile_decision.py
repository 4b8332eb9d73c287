"""Which nests are turned in registers: along which axes, and what of them."""

from tvm_ext.hardware.description import CpuDescription
from tvm_ext.tir_schedules.llvm.borders import branch_comparisons
from tvm_ext.tir_schedules.llvm.nest import Nest, load_strides, store_strides
from tvm_ext.tir_schedules.llvm.tile_code import MAX_STRIDE, TileDecision
from tvm_ext.tir_schedules.template import NotMine

# Shorter axes give vectors too short to be worth turning.
_MIN_EXTENT = 4

# An innermost axis of so few elements is slower in vectors of its own than turned.
_SHORT = 4

# Beyond, turning whole squares takes fewer exchanges.
_MAX_INTERLEAVED = 7

Strides = tuple[int | None, ...]


def decide_tile(nest: Nest, machine: CpuDescription) -> TileDecision | NotMine:
    """The closed-form choice: whole vectors both ways, as little as possible turned."""
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
    short = _dense_short_axis(nest, loads, turned)
    if short is not None and nest.axes[write].extent >= size:
        return TileDecision(write, short, size, "deinterleave", tuple(turned))
    read = _read_axis(nest, loads, turned)
    if read is None:
        return NotMine("what is read across the result is not contiguous along one other axis")
    rows, columns = nest.axes[write].extent, nest.axes[read].extent
    if not all(_is_short_step(steps[read]) for steps in loads):
        return TileDecision(write, read, _fitting(size, rows, columns), "square", tuple(turned))
    dense = written[read] == rows <= _MAX_INTERLEAVED and columns >= size
    if dense:
        return TileDecision(write, read, size, "interleave")
    return TileDecision(write, read, _fitting(size, rows, columns))


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


def _dense_short_axis(nest: Nest, loads: list[Strides], turned: list[int]) -> int | None:
    """An axis too short for vectors, all of which is read at once."""
    for axis in range(len(nest.axes) - 1):
        extent = nest.axes[axis].extent
        dense = all(loads[i][axis] == 1 and loads[i][-1] == extent for i in turned)
        if dense and extent <= _MAX_INTERLEAVED:
            return axis
    return None


def _is_short_step(step: int | None) -> bool:
    return step is not None and 0 <= step <= 1


def _fitting(size: int, rows: int, columns: int) -> int:
    """The size of tiles that are not larger than both of their axes."""
    return min(size, 1 << (max(rows, columns) - 1).bit_length())
