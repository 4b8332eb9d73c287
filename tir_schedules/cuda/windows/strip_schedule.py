"""The schedule of a kernel whose threads slide a window along strips of results."""

import tvm
from tvm import s_tir, tirx

from tvm_ext.hardware.description import GpuDescription
from tvm_ext.tir_schedules.block_access import element_bytes
from tvm_ext.tir_schedules.cuda.elementwise import flat_code, with_arrays
from tvm_ext.tir_schedules.cuda.flat_decision import decide_flat
from tvm_ext.tir_schedules.cuda.launch import Arrays
from tvm_ext.tir_schedules.cuda.windows.strip_code import StripCode
from tvm_ext.tir_schedules.cuda.windows.strip_decision import StripShape, decide_strips
from tvm_ext.tir_schedules.cuda.windows.strip_loads import StripLoads, strip_loads
from tvm_ext.tir_schedules.cuda.windows.strip_window import StripWindow
from tvm_ext.tir_schedules.decisions import Decisions, Numbered
from tvm_ext.tir_schedules.nest import (
    Axis,
    Nest,
    in_order_of_writing,
    joined,
    with_own_variables,
)
from tvm_ext.tir_schedules.template import NotMine

_REGISTER_BITS = 32


def schedule_strips(
    window: StripWindow, func: tirx.PrimFunc, machine: GpuDescription, decisions: Decisions
) -> s_tir.Schedule | NotMine:
    """``func`` with threads for the window, and for the blocks after it grids of their own.

    Decisions: ``vector``, those of ``decide_strips``, and numbered those of the later blocks.
    """
    kernel = window.kernel
    later = kernel.later_nests()
    if isinstance(later, NotMine):
        return later
    dtype = str(window.columns.output.var.ty)
    possible = {loads.width: loads for loads in strip_loads(window, machine, dtype)}
    width = decisions.pick("vector", possible, max(possible))
    loads = possible[width]
    shape = strip_shape(loads)
    arrays = Arrays(dtype)
    code = [StripCode(loads, shape, decide_strips(shape, machine, decisions), arrays).grid()]
    nests: list[Nest] = [with_own_variables(joined(in_order_of_writing(n))) for n in later]
    for number, nest in enumerate(nests):
        asked = Numbered(decisions, number + 1)
        code.append(flat_code(decide_flat(nest, machine, asked), arrays))
    return s_tir.Schedule(with_arrays(func, kernel.views, code, arrays))


def strip_shape(loads: StripLoads) -> StripShape:
    """The numbers of a window for vectors as wide as those of ``loads``."""
    window, width = loads.window, loads.width
    axes = window.axes()
    rows, columns = window.rows, window.columns
    store = window.kernel.store.buffer
    return StripShape(
        extents=tuple(axis.extent for axis in axes),
        column_axis=_position(axes, columns.output),
        row_axis=-1 if rows is None else _position(axes, rows.output),
        lane_axis=window.lanes is not None,
        width=width,
        steps=(1 if rows is None else rows.step, columns.step),
        spreads=(1 if rows is None else rows.spread, columns.spread),
        taps=(1 if rows is None else rows.position.extent, columns.position.extent),
        data_words=_words(loads.data_kind, _converted_dtype(window), width),
        weight_words=0
        if window.weight is None
        else _words(loads.weight_kind, str(window.weight_load.ty), width),
        sum_words=_words("each", window.sum_dtype, width),
        element_bytes=element_bytes(store),
    )


def _converted_dtype(window: StripWindow) -> str:
    """What a loaded element becomes before it is added: nvcc does that for whole rows at once."""
    if window.plain is None or window.weight is not None:
        return window.sum_dtype
    return str(window.plain.ty)


def _position(axes: list[Axis], axis: Axis) -> int:
    return next(number for number, other in enumerate(axes) if other is axis)


def _words(kind: str, dtype: str, width: int) -> int:
    """Registers of a vector."""
    bits = tvm.DataType(dtype).bits * (1 if kind == "same" else width)
    return -(-bits // _REGISTER_BITS)
