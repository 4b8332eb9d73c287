"""Matrix products that cuBLAS computes, with bias and ReLU: a candidate of tuning sessions.

Only where TVM was built with cuBLAS. No kernel gets it without a record that says it was fastest.
"""

import math
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV
from tvm.sym import Analyzer
from tvm.tirx.buffer import buffer_data

from tvm_ext.hardware.cuda.vendor_libraries import vendor_libraries
from tvm_ext.hardware.description import GpuDescription
from tvm_ext.tir_schedules.cuda.library.library_call import (
    LIBRARY_CALL,
    Epilogue,
    LibraryProduct,
)
from tvm_ext.tir_schedules.cuda.library.library_code import argument_order
from tvm_ext.tir_schedules.cuda.products.product_axes import ProductAxes, loads_of, product_axes
from tvm_ext.tir_schedules.cuda.products.product_form import access_of_reduction, only_reduction
from tvm_ext.tir_schedules.cuda.products.shared_tile import inline_consumers
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions
from tvm_ext.tir_schedules.flat_views import FlatViews, among, flattened, is_compact, nodes
from tvm_ext.tir_schedules.inlining import kernel_blocks
from tvm_ext.tir_schedules.statements import sequence
from tvm_ext.tir_schedules.template import Machine, NotMine

# Not bfloat16: on the host TVM calls it uint16, and the library would take it for something else.
DTYPES = ("float16", "float32")


class CublasProduct:
    """Kernels that are one product of matrices that lie in memory row by row, or a batch of them.

    What may follow is a bias of each column, with max(x, 0) or without.
    """

    name = "cublas"

    def apply(
        self, func: tirx.PrimFunc, machine: Machine, decisions: Decisions = CLOSED_FORM
    ) -> s_tir.Schedule | NotMine:
        """See ``Template.apply``. There are no decisions."""
        if not isinstance(machine, GpuDescription):
            return NotMine("the target is not a GPU")
        if "cuBLAS" not in vendor_libraries():
            return NotMine("this TVM was built without cuBLAS")
        sch = s_tir.Schedule(func)
        main = only_reduction(sch)
        if isinstance(main, NotMine):
            return main
        access = access_of_reduction(sch, main)
        if isinstance(access, NotMine):
            return access
        axes = product_axes(access, sch.get(main))
        if isinstance(axes, NotMine):
            return axes
        operands = _operands(func, sch.get(main), axes)
        if isinstance(operands, NotMine):
            return operands
        following = _following(func, sch, main, axes.size(axes.columns))
        if isinstance(following, NotMine):
            return following
        product = LibraryProduct(
            str(operands.first.dtype),
            str(following.result.dtype),
            axes.size(axes.batch),
            axes.size(axes.rows),
            axes.size(axes.columns),
            axes.size(axes.steps),
            operands.transposed,
            following.epilogue,
        )
        bias = [] if following.bias is None else [following.bias]
        buffers = [operands.first, operands.second, *bias, following.result]
        return s_tir.Schedule(_with_call(func, product, buffers))


@dataclass(frozen=True)
class _Operands:
    """A and B, parameters of the kernel, and whether B has a column's elements side by side."""

    first: Any
    second: Any
    transposed: bool


@dataclass(frozen=True)
class _Following:
    """What is done with the product, the bias or None, and the parameter that it is written to."""

    epilogue: Epilogue
    bias: Any
    result: Any


def _operands(func: tirx.PrimFunc, block: s_tir.SBlock, axes: ProductAxes) -> _Operands | NotMine:
    """The operands of products that are added up as a library adds them."""
    loads = loads_of(block)
    plain = flattened(block.body, FlatViews())
    if len(loads or ()) != len(axes.operands) or plain is None:
        return NotMine("it adds up something other than products of two operands")
    dtypes = {str(load.source.dtype) for load in loads}
    if len(dtypes) != 1 or not dtypes <= set(DTYPES):
        return NotMine(f"operands are of {', '.join(sorted(dtypes))}; known are {DTYPES}")
    if str(block.writes[0].source.dtype) not in ("float32", *dtypes):
        return NotMine(f"it adds up in {block.writes[0].source.dtype}")
    reads = [r.source for r in block.reads if not r.source.same_as(block.writes[0].source)]
    first, second = (reads[operand] for operand in axes.operands)
    if not all(among(buffer, func.params) for buffer in (first, second)):
        return NotMine("an operand is computed in the kernel")
    batch, row, column, step = (
        _fused(block, group) for group in (axes.batch, axes.rows, axes.columns, axes.steps)
    )
    rows, columns, steps = (axes.size(g) for g in (axes.rows, axes.columns, axes.steps))
    written = (batch * rows + row) * columns + column
    left = (batch * rows + row) * steps + step
    if not (_is_at(plain.indices[0], written, block) and _is_read_at(block, loads, first, left)):
        return NotMine("the result or the first operand does not lie in memory row by row")
    if _is_read_at(block, loads, second, (batch * steps + step) * columns + column):
        return _Operands(first, second, False)
    if _is_read_at(block, loads, second, (batch * columns + column) * steps + step):
        return _Operands(first, second, True)
    return NotMine("the second operand does not lie in memory row by row")


def _fused(block: s_tir.SBlock, positions: tuple[int, ...]) -> Any:
    """Some loops of a block as one."""
    fused: Any = tirx.const(0, str(block.iter_vars[0].var.ty))
    for position in positions:
        loop = block.iter_vars[position]
        fused = fused * loop.dom.extent + loop.var
    return fused


def _is_read_at(block: s_tir.SBlock, loads: list[Any], buffer: Any, place: Any) -> bool:
    """Whether an operand's element is at an address, counted in elements."""
    load = next(one for one in loads if one.source.same_as(buffer))
    alone = flattened(tirx.BufferStore(buffer, load, load.indices), FlatViews())
    return alone is not None and _is_at(alone.indices[0], place, block)


def _following(
    func: tirx.PrimFunc, sch: s_tir.Schedule, main: SBlockRV, columns: int
) -> _Following | NotMine:
    """What follows the product, in one assignment."""
    copy = sch.cache_write(main, 0, "local")
    inline_consumers(sch, copy)
    last, product = sch.get(copy), sch.get(main).writes[0].source
    plain = flattened(last.body, FlatViews()) if isinstance(last.body, tirx.BufferStore) else None
    if len(kernel_blocks(sch)) != 2 or plain is None:
        return NotMine("what follows is not one assignment")
    store, result = last.body, last.body.buffer
    if not among(result, func.params):
        return NotMine("the result is needed inside of the kernel")
    own = [load for load in _loads(store) if load.source.same_as(product)]
    same = [flattened(tirx.BufferStore(product, one, one.indices), FlatViews()) for one in own]
    if not all(one is not None and _is_at(one.indices[0], plain.indices[0], last) for one in same):
        return NotMine("the result is written in another order")
    value = _uncast(store.value)
    name: Epilogue = "bias"
    if isinstance(value, tirx.Max):
        sides = [side for side in (value.a, value.b) if not _is_zero(side)]
        name, value = "bias_relu", _uncast(sides[0])
    if name == "bias" and _is_load(value, product):
        return _Following("", None, result)
    pairs = ((value.a, value.b), (value.b, value.a)) if isinstance(value, tirx.Add) else ()
    for summand, other in pairs:
        load = _uncast(other)
        if _is_load(_uncast(summand), product) and _is_bias(func, load, columns, plain, last):
            return _Following(name, load.source, result)
    return NotMine("what follows is no epilogue of cuBLAS")


def _is_bias(func: tirx.PrimFunc, load: Any, columns: int, plain: Any, block: Any) -> bool:
    """Whether a parameter has one element for each column, of the type of the result."""
    if not isinstance(load, tvm.ir.TensorLoad) or not is_compact(load.source):
        return False
    buffer = load.source
    sizes = [int(size) for size in buffer.shape]
    row = sizes[-1:] == [columns] and math.prod(sizes) == columns
    typed = str(buffer.dtype) == str(block.body.buffer.dtype)
    column = tirx.floormod(plain.indices[0], columns)
    return row and typed and among(buffer, func.params) and _is_at(load.indices[-1], column, block)


def _is_at(one: Any, other: Any, block: s_tir.SBlock) -> bool:
    """Whether two addresses are the same for all iterations of a block."""
    analyzer = Analyzer()
    for loop in block.iter_vars:
        analyzer.bind(loop.var, loop.dom)
    return bool(analyzer.can_prove_equal(one, other))


def _loads(store: tirx.BufferStore) -> list[Any]:
    return nodes(store.value, tvm.ir.TensorLoad)


def _uncast(value: Any) -> Any:
    while isinstance(value, tirx.Cast) and "float" in str(value.value.ty):
        value = value.value
    return value


def _is_zero(value: Any) -> bool:
    return isinstance(value, tirx.FloatImm) and float(value.value) == 0


def _is_load(value: Any, buffer: Any) -> bool:
    return isinstance(value, tvm.ir.TensorLoad) and bool(value.source.same_as(buffer))


def _with_call(func: tirx.PrimFunc, product: LibraryProduct, buffers: list[Any]) -> tirx.PrimFunc:
    """``func`` calling the library on its parameters, which it sees as matrices."""
    matrices = [
        tirx.decl_buffer(shape, dtype, f"{buffer.name}_matrix")
        for buffer, shape, dtype in zip(buffers, product.shapes, product.dtypes, strict=True)
    ]
    views = [
        tirx.DeclBuffer(matrix, data=buffer_data(buffer))
        for matrix, buffer in zip(matrices, buffers, strict=True)
    ]
    order = argument_order(product)
    arguments = [*(matrices[position] for position in order), matrices[-1]]
    call = tirx.Evaluate(tirx.call_packed(product.symbol, *arguments))
    root = s_tir.SBlock([], [], [], "root", sequence([*views, call]), None, [])
    realized = s_tir.SBlockRealize([], tirx.const(True, "bool"), root)
    return func.with_body(realized).with_attr(LIBRARY_CALL, product.to_json())
