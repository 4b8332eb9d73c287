"""Matmuls whose weights are widened in registers: a tile of sums each.

They are integers of a few bits, in words with the scale of each block before its integers, bytes,
or floats of 16 bits. They are packed while compiling, so that a tile reads one stretch of memory
from beginning to end. How the loops around a tile go is as for symbolic tiles; extents may be known
or symbolic.
"""

import math
from dataclasses import replace

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.analysis.buffer_access import (
    LoopAxis,
    constant_parameter,
    depends,
    nodes,
    static_extent,
)
from tvm_ext.tir_schedules.cpu.blockwise import schedule_others
from tvm_ext.tir_schedules.cpu.register_blocking import vector_registers
from tvm_ext.tir_schedules.cpu.symbolic_contraction import (
    SymbolicContraction,
    require_parameter_of,
    symbolic_contraction,
    with_code,
)
from tvm_ext.tir_schedules.cpu.symbolic_tile import (
    epilogue_block,
    single_sum,
    with_joined_rows,
    with_rows,
)
from tvm_ext.tir_schedules.cpu.symbolic_tile_code import symbolic_tile_code
from tvm_ext.tir_schedules.cpu.symbolic_tile_cut import CommonFactor, Panel, SymbolicTile
from tvm_ext.tir_schedules.inlining import inlined_schedule
from tvm_ext.tir_schedules.packing import PaddedOperand
from tvm_ext.tir_schedules.template import DEFAULT_DECISIONS, Decisions

# Vectors of sums next to each other in a tile.
_VECTORS = (1, 2, 4)

# Rows of further tiles where the number is not known, and rows at least for which what is widened
# goes to a panel.
_FEW_ROWS, _ROWS_OF_A_PANEL = (4, 2, 1), 16

# Vectors of sums that are added to in turn: what an addition takes, in additions of one vector.
_SUMS_IN_TURN = 4

_FLOAT_BYTES = 4

_WORDS, _NUMBERS = "uint32", ("int8", "float16", "bfloat16")

# Of the columns of tiles, that part at most may be beyond the weights' own.
_MOST_PADDING = 1 / 8

# At least: the data pass once for each.
_PANELS_A_THREAD = 4


class DequantizeMatmul:
    """Sums of products of float32 and numbers that are widened from what is constant."""

    name = "dequantize matmul"
    machine_type = CpuDescription

    def apply(
        self, func: tirx.PrimFunc, machine: CpuDescription, decisions: Decisions = DEFAULT_DECISIONS
    ) -> s_tir.Schedule:
        """See ``Template.apply``."""
        require_parameter_of(func, (_WORDS, *_NUMBERS))
        sch = inlined_schedule(func)
        anchor = single_sum(sch)
        epilogue = epilogue_block(sch, anchor)
        found = symbolic_contraction(sch, anchor, epilogue)
        weights = _narrow_weights(found, sch.mod["main"])
        columns = _columns(found, weights)
        lanes = machine.vector_lanes("float32")
        usual = _usual_vectors(found, weights, columns, machine)
        vectors = decisions.pick("vectors", set(_VECTORS), usual)
        tile = with_rows(found, columns, (vectors * lanes,), machine)
        found, operand, buffer = _packed(found, weights, columns, vectors * lanes, sch.mod["main"])
        found, tile = with_joined_rows(found, replace(tile, padded=True), sch.mod["main"])
        tile = _with_row_versions(tile)
        panel = _panel(found, buffer, tile, machine)
        tile = replace(tile, stream=_stream(found, buffer), panel=panel)
        tile = replace(tile, common_factor=_common_factor(found, buffer, machine))
        code = symbolic_tile_code(found, tile, machine.cores > 1)
        done = [block for block in (anchor, epilogue) if block is not None]
        schedule_others(sch, done, machine)
        return with_code(sch, code, done, found.views, (operand, buffer))


def _narrow_weights(contraction: SymbolicContraction, func: tirx.PrimFunc) -> tirx.Buffer:
    """The constant parameter that weights are taken from, integers with their scales."""
    loads = nodes(contraction.product, tvm.ir.TensorLoad)
    found = [load.source for load in loads if constant_parameter(func, load.source) is not None]
    if not found or any(not one.same_as(found[0]) for one in found):
        raise NotApplicable("the weights are no constant, or several")
    if len(found[0].shape) != 2:
        raise NotApplicable("the weights are no matrix")
    kind = str(found[0].dtype)
    if kind not in (_WORDS, *_NUMBERS) or str(contraction.start.ty) != "float32":
        raise NotApplicable("the weights are no words of integers, bytes or floats of 16 bits")
    others = (str(load.source.dtype) for load in loads if not load.source.same_as(found[0]))
    if kind in _NUMBERS and any(other != "float32" for other in others):
        raise NotApplicable("the other operand is not of float32")
    return found[0]


def _columns(contraction: SymbolicContraction, weights: tirx.Buffer) -> LoopAxis:
    """The loop along which weights are neighbours, and the other operand stays."""
    loads = nodes(contraction.product, tvm.ir.TensorLoad)
    for axis in contraction.spatial:
        steps = [contraction.step(load, axis) for load in loads]
        wanted = [int(load.source.same_as(weights)) for load in loads]
        if axis.length and steps == wanted and contraction.step(contraction.store, axis) == 1:
            return axis
    raise NotApplicable("no loop walks the output and the weights alone")


def _usual_vectors(
    contraction: SymbolicContraction,
    weights: tirx.Buffer,
    columns: LoopAxis,
    machine: CpuDescription,
) -> int:
    """Vectors of a tile where nothing was measured.

    Of numbers as many as leave each core a tile, are not much wider than the columns and whose
    panel L2 holds where there may be many rows: what is widened serves a few of them.
    """
    rows = [axis for axis in contraction.spatial if axis is not columns]
    if str(weights.dtype) == _WORDS:
        return 2 if rows else max(_VECTORS)
    length, lanes = columns.length or 0, machine.vector_lanes("float32")
    # A number that is not known may be large.
    many = math.prod(axis.length or _ROWS_OF_A_PANEL for axis in rows) >= _ROWS_OF_A_PANEL

    def fits(vectors: int) -> bool:
        size = vectors * lanes
        tiles = -(-length // size)
        if tiles < machine.cores or tiles * size - length > _MOST_PADDING * length:
            return False
        return not many or _fitting_tiles(contraction, size, machine) > 0

    return max((vectors for vectors in _VECTORS if fits(vectors)), default=min(_VECTORS))


def _fitting_tiles(contraction: SymbolicContraction, columns: int, machine: CpuDescription) -> int:
    """Tiles whose widened numbers take half of L2."""
    steps = math.prod(axis.length or 1 for axis in contraction.reduction)
    return machine.l2_bytes // 2 // (steps * columns * _FLOAT_BYTES)


def _packed(
    contraction: SymbolicContraction,
    weights: tirx.Buffer,
    columns: LoopAxis,
    block: int,
    func: tirx.PrimFunc,
) -> tuple[SymbolicContraction, PaddedOperand, tirx.Buffer]:
    """The contraction that reads weights as ``[columns / block, elements of a column, block]``."""
    count, across = (static_extent(size) or 0 for size in weights.shape)
    padded = (-(-across // block) * block, count)
    parameter = int(constant_parameter(func, weights) or 0)
    operand = PaddedOperand(parameter, (1, 0), (across, count), padded, (block, 1))
    buffer = tirx.decl_buffer(operand.packed_shape, str(weights.dtype), weights.name)

    def load(node: tvm.ir.TensorLoad) -> tvm.ir.Expr:
        if not node.source.same_as(weights):
            return node
        word, column = node.indices
        places = [tirx.truncdiv(column, block), word, tirx.truncmod(column, block)]
        return tirx.BufferLoad(buffer, places)

    product = tvm_ffi.structural_map(contraction.product, (tvm.ir.TensorLoad, load))
    return replace(contraction, product=product), operand, buffer


def _with_row_versions(tile: SymbolicTile) -> SymbolicTile:
    """With a tile of a few rows as well where their number is not known: weights are widened once
    for all rows of a tile.
    """
    if tile.rows is None or tile.rows.length is not None:
        return tile
    most = tile.row_sizes[0]
    return replace(tile, row_sizes=(most, *(size for size in _FEW_ROWS if size < most)))


def _panel(
    contraction: SymbolicContraction,
    weights: tirx.Buffer,
    tile: SymbolicTile,
    machine: CpuDescription,
) -> Panel | None:
    """The numbers that weights stand for, widened once for all rows where those are many."""
    rows, (columns,) = tile.rows, tile.column_sizes
    if rows is None or (rows.length is not None and rows.length < _ROWS_OF_A_PANEL):
        return None
    fitting = _fitting_tiles(contraction, columns, machine)
    shared = (tile.columns.length or 1) // (columns * machine.cores * _PANELS_A_THREAD)
    if not fitting:
        return None
    product = contraction.product
    weight = next(
        side
        for side in (product.a, product.b)
        if any(load.source.same_as(weights) for load in nodes(side, tvm.ir.TensorLoad))
    )
    least = 1 if rows.length else _ROWS_OF_A_PANEL
    return Panel(weight, rows, max(1, min(fitting, shared)), least)


def _common_factor(
    contraction: SymbolicContraction, weights: tirx.Buffer, machine: CpuDescription
) -> CommonFactor | None:
    """The scale of a block, where weights are integers times it; None for numbers."""
    product, place = contraction.product, contraction.reduction[-1].var
    for data, weight in ((product.a, product.b), (product.b, product.a)):
        is_scaled = isinstance(weight, tirx.Mul) and str(weights.dtype) == _WORDS
        if not is_scaled or depends(weight.b, place) or not depends(weight.a, place):
            continue
        lanes = machine.vector_lanes("float32")
        most = vector_registers(machine) // 2 * lanes
        return CommonFactor(weight.b, data * weight.a, most, _SUMS_IN_TURN * lanes)
    return None


def _stream(contraction: SymbolicContraction, weights: tirx.Buffer) -> tvm.ir.TensorLoad:
    """What moves with most loops of the sum: numbers, or the word of integers."""
    loads = [n for n in nodes(contraction.product, tvm.ir.TensorLoad) if n.source.same_as(weights)]

    def moving(load: tvm.ir.TensorLoad) -> int:
        return sum(depends(load, axis.var) for axis in contraction.reduction)

    return max(loads, key=moving)
