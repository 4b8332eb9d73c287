"""Matmuls and convolutions by instructions that add several products to each lane of a vector.

They are of 8-bit integers, four products at a time, or two where they are widened to 16 bits, or of
bfloat16, two; twice as many where Arm's instructions multiply two rows by two columns. Weights are
packed so that these steps of the sum, for as many columns as a vector of sums serves, are one
vector; as many elements of the other operand go to all lanes, or those of two rows into one vector.
How the loops around a tile go is as for symbolic tiles; extents may be known or symbolic.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import s_tir, tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.hardware.matrix_instructions import MatrixInstruction
from tvm_ext.tir_schedules.analysis.buffer_access import (
    LoopAxis,
    among,
    constant_parameter,
    static_extent,
)
from tvm_ext.tir_schedules.cpu.blockwise import schedule_others
from tvm_ext.tir_schedules.cpu.dot_product import DotProduct, vector_bits
from tvm_ext.tir_schedules.cpu.implicit_padding import implicit_padding
from tvm_ext.tir_schedules.cpu.register_blocking import row_limit
from tvm_ext.tir_schedules.cpu.symbolic_contraction import (
    SymbolicContraction,
    require_parameter_of,
    symbolic_contraction,
    with_code,
)
from tvm_ext.tir_schedules.cpu.symbolic_tile import (
    epilogue_block,
    single_sum,
    with_flattened_rows,
    with_joined_rows,
    with_rows,
)
from tvm_ext.tir_schedules.cpu.symbolic_tile_code import symbolic_tile_code
from tvm_ext.tir_schedules.inlining import inlined_schedule
from tvm_ext.tir_schedules.packing import PaddedOperand
from tvm_ext.tir_schedules.template import DEFAULT_DECISIONS, Decisions

# Vectors of sums next to each other in a tile (of three LLVM keeps the sums in memory): the fewest
# sums that no column wants decide, then the fewest vectors that are read for as many products.
_VECTORS = (4, 2, 1)


class DotProductTile:
    """Sums of products of uint8, int8 or int16 and constant int8, or of bfloat16 and constant
    bfloat16, on CPUs with an instruction for several.
    """

    name = "dot product tile"
    machine_type = CpuDescription

    def apply(
        self, func: tirx.PrimFunc, machine: CpuDescription, decisions: Decisions = DEFAULT_DECISIONS
    ) -> s_tir.Schedule:
        """See ``Template.apply``."""
        require_parameter_of(func, ("int8", "bfloat16"))
        sch = inlined_schedule(func)
        anchor = single_sum(sch)
        epilogue = epilogue_block(sch, anchor)
        found = symbolic_contraction(sch, anchor, epilogue)
        operands = _operands(found, sch.mod["main"], machine)
        bits = vector_bits(operands.instruction, machine)
        lanes = bits // tvm.DataType(operands.instruction.accumulator).bits
        vectors = decisions.pick("vectors", set(_VECTORS), _vectors(operands, lanes, machine))
        tile = with_rows(found, operands.columns, (vectors * lanes,), machine)
        found, tile = with_joined_rows(found, replace(tile, padded=True), sch.mod["main"])
        found, tile = with_flattened_rows(found, tile)
        dot, operand, buffer = _packed(found, operands, sch.mod["main"], vectors * lanes, bits)
        wide = machine.vector_lanes(dot.instruction.a)
        padding = implicit_padding(sch, anchor, found, tile.rows, tile.columns, wide)
        if padding is None and _is_in_array_of_bfloat16(dot.data, sch):
            raise NotApplicable("the data are in an array of the kernel's, which holds float32")
        tile = replace(tile, dot_product=dot, implicit_padding=padding)
        pad = padding.block if padding is not None else None
        code = dot.with_definitions(symbolic_tile_code(found, tile, machine.cores > 1))
        done = [block for block in (pad, anchor, epilogue) if block is not None]
        schedule_others(sch, done, machine)
        return with_code(sch, code, done, found.views, (operand, buffer))


@dataclass(frozen=True)
class _Operands:
    """What is multiplied: each iteration adds ``data * weights``, both as wide as the sums.

    Attributes
    ----------
    data, weights : TensorLoad
        Neighbours along ``depth``, and elements of a constant parameter.
    columns, depth : LoopAxis
        The loop over sums that only the weights go along, and the one that ends in the instruction.
    order : tuple[LoopAxis, ...]
        Loops that the axes of the weights belong to, one each; of one iteration where an axis has
        one element.
    """

    data: tvm.ir.TensorLoad
    weights: tvm.ir.TensorLoad
    columns: LoopAxis
    depth: LoopAxis
    order: tuple[LoopAxis, ...]
    instruction: MatrixInstruction


def _operands(
    contraction: SymbolicContraction, func: tirx.PrimFunc, machine: CpuDescription
) -> _Operands:
    data, weights = factors(contraction, func)
    types = str(data.ty), str(weights.source.dtype)
    instructions = [
        row
        for row in machine.instructions(types[0])
        if row.k > 1 and (row.a, row.b, row.accumulator) == (*types, str(contraction.start.ty))
    ]
    if not instructions:
        raise NotApplicable(f"no instruction adds products of {types[0]} and {types[1]}")
    if not isinstance(data, tvm.ir.TensorLoad):
        raise NotApplicable("the data are computed for each product")
    order = tuple(weight_axis(contraction, index) for index in weights.indices)
    spatial = [axis for axis in order if _is_one_of(axis, contraction.spatial)]
    # The first instruction is the fastest.
    depths = [
        (axis, instruction)
        for instruction in instructions
        for axis in order
        if _is_one_of(axis, contraction.reduction)
        and contraction.step(data, axis) == 1
        and (axis.length or 1) % instruction.k == 0
    ]
    if len(spatial) != 1 or not depths:
        raise NotApplicable("no loop of whole instructions goes along both operands")
    if not all(_is_one_of(axis, order) for axis in contraction.reduction):
        raise NotApplicable("a loop of the sum does not move the weights")
    (columns,), (depth, instruction) = spatial, depths[0]
    if contraction.step(data, columns) != 0 or contraction.step(contraction.store, columns) != 1:
        raise NotApplicable("no loop walks the output and the weights alone")
    return _Operands(data, weights, columns, depth, order, instruction)


def factors(contraction: SymbolicContraction, func: tirx.PrimFunc) -> tuple[Any, tvm.ir.TensorLoad]:
    """The element of the data, and that of the weights, which are constant."""
    product = contraction.product
    if not isinstance(product, tirx.Mul):
        raise NotApplicable("it does not add products")
    sides = [side.value if isinstance(side, tirx.Cast) else side for side in (product.a, product.b)]
    for data, weights in (sides, sides[::-1]):
        is_load = isinstance(weights, tvm.ir.TensorLoad)
        if is_load and constant_parameter(func, weights.source) is not None:
            return data, weights
    raise NotApplicable("the weights are computed in the run")


def _is_in_array_of_bfloat16(data: tvm.ir.TensorLoad, sch: s_tir.Schedule) -> bool:
    """Whether ``data`` are in an array that TVM makes one of float32."""
    is_own = among(data.source, sch.mod["main"].body.block.alloc_buffers)
    return is_own and str(data.source.dtype) == "bfloat16"


def weight_axis(contraction: SymbolicContraction, index: tvm.ir.Expr) -> LoopAxis:
    """The loop that an axis of the weights belongs to, of one iteration where it has one element.

    Raises NotApplicable where the index is no loop of known length.
    """
    if static_extent(index) == 0:
        return LoopAxis(tirx.Var("once", str(index.ty)), index + 1)
    for axis in (*contraction.spatial, *contraction.reduction):
        if axis.length is not None and index.same_as(axis.var):
            return axis
    raise NotApplicable("an index of the weights is no loop of known length")


def _is_one_of(axis: LoopAxis, axes: Sequence[LoopAxis]) -> bool:
    return any(axis is one for one in axes)


def _vectors(operands: _Operands, lanes: int, machine: CpuDescription) -> int:
    length = operands.columns.length or 1
    fitting = [n for n in _VECTORS if (n - 1) * lanes < length] or [1]

    def cost(vectors: int) -> tuple[int, float]:
        rows = row_limit(machine, vectors * lanes, lanes, 1)
        return -(-length // (vectors * lanes)) * vectors, 1 / vectors + 1 / rows

    return min(fitting, key=cost)


def _packed(
    contraction: SymbolicContraction,
    operands: _Operands,
    func: tirx.PrimFunc,
    block: int,
    bits: int,
) -> tuple[DotProduct, PaddedOperand, tirx.Buffer]:
    """Weights as ``[columns / block, taps..., depth / k, block * k]``."""
    k, own = operands.instruction.k, operands.weights.source
    columns, depth = operands.columns, operands.depth
    taps = [axis for axis in operands.order if axis is not columns and axis is not depth]
    axes = [columns, *taps, depth]
    order = tuple(next(i for i, o in enumerate(operands.order) if o is axis) for axis in axes)
    # Its own shape: along the columns there may be more than are wanted.
    shape = tuple(static_extent(own.shape[axis]) or 1 for axis in order)
    padded = (-(-shape[0] // block) * block, *shape[1:])
    parameter = int(constant_parameter(func, own) or 0)
    operand = PaddedOperand(parameter, order, shape, padded, (block, *(1 for _ in taps), k))
    buffer = tirx.decl_buffer(operand.packed_shape, str(own.dtype), own.name)
    zero = tirx.const(0, str(columns.var.ty))
    inner = (zero if axis.length == 1 else axis.var for axis in taps)
    places = [tirx.truncdiv(columns.var, block), *inner]
    row = tirx.BufferLoad(buffer, [*places, tirx.truncdiv(depth.var, k), tirx.const(0, "int64")])
    data, _ = factors(contraction, func)
    return DotProduct(operands.instruction, bits, data, row, depth), operand, buffer
