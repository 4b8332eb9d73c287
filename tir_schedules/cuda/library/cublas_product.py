"""Matrix products that cuBLAS computes, with bias and ReLU: a candidate of tuning sessions.

Only where TVM was built with cuBLAS. No kernel gets it without a record that says it was fastest.
"""

import math
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.sym import Analyzer
from tvm.tirx.buffer import buffer_data

from tvm_ext.hardware.cuda.vendor_libraries import vendor_libraries
from tvm_ext.hardware.description import GpuDescription
from tvm_ext.tir_schedules.block_access import access_of
from tvm_ext.tir_schedules.cuda.library.library_call import (
    LIBRARY_CALL,
    Epilogue,
    LibraryProduct,
)
from tvm_ext.tir_schedules.cuda.library.library_code import argument_order
from tvm_ext.tir_schedules.cuda.products.product_axes import ProductAxes, product_axes
from tvm_ext.tir_schedules.cuda.products.product_form import only_reduction
from tvm_ext.tir_schedules.cuda.warp_groups.tensor_map import Dimension, OperandTensor
from tvm_ext.tir_schedules.cuda.warp_groups.warp_group_contraction import (
    inline_copies,
    product_operands,
    written_at_once,
)
from tvm_ext.tir_schedules.cuda.warp_groups.warp_group_epilogue import Written
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions
from tvm_ext.tir_schedules.flat_views import FlatViews, flattened, is_compact
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
        inline_copies(sch, main)
        access = access_of(sch, main)
        if access is None or any(access_of(sch, block) is None for block in kernel_blocks(sch)):
            return NotMine("a loop has a symbolic extent, scans, or writes several buffers")
        axes = product_axes(access, sch.get(main))
        if isinstance(axes, NotMine):
            return axes
        operands = product_operands(func, sch.get(main), axes, DTYPES)
        if isinstance(operands, NotMine):
            return operands
        written = written_at_once(sch, main, axes)
        if isinstance(written, NotMine):
            return written
        return _called(func, axes, operands, written)


def _called(
    func: tirx.PrimFunc,
    axes: ProductAxes,
    operands: tuple[OperandTensor, OperandTensor],
    written: Written,
) -> s_tir.Schedule | NotMine:
    """The kernel as one call of the library."""
    groups = (axes.batch, axes.rows, axes.columns, axes.steps)
    batch, rows, columns, steps = (axes.size(group) for group in groups)
    first, second = operands
    transposed = second.steps.stride == 1
    right = (second.selecting, second.steps) if transposed else (second.steps, second.selecting)
    if not (
        _are_matrices(first, first.selecting, first.steps, batch)
        and _are_matrices(second, *right, batch)
    ):
        return NotMine("an operand does not lie in memory row by row")
    epilogue = _epilogue(func, written, rows, columns)
    if isinstance(epilogue, NotMine):
        return epilogue
    name, bias = epilogue
    result = written.store.buffer
    if not any(result.same_as(param) for param in func.params):
        return NotMine("the result is needed inside of the kernel")
    product = LibraryProduct(
        str(first.buffer.dtype), str(result.dtype), batch, rows, columns, steps, transposed, name
    )
    buffers = [first.buffer, second.buffer, *([bias] if bias is not None else []), result]
    return s_tir.Schedule(_with_call(func, product, buffers))


def _are_matrices(operand: OperandTensor, slow: Dimension, fast: Dimension, batch: int) -> bool:
    """Whether rows follow each other without gaps, and so do the matrices of a batch."""
    matrices = [Dimension(batch, slow.extent * fast.extent)] if batch > 1 else []
    return fast.stride == 1 and slow.stride == fast.extent and list(operand.batch) == matrices


def _epilogue(
    func: tirx.PrimFunc, written: Written, rows: int, columns: int
) -> tuple[Epilogue, Any] | NotMine:
    """What follows the product, and the bias."""
    batch, row, column = written.variables
    plain = flattened(written.store, FlatViews())
    place = (batch * rows + row) * columns + column
    if plain is None or not _equal(plain.indices[0], place, written):
        return NotMine("the result is not written row by row")
    value = _uncast(written.store.value)
    name: Epilogue = "bias"
    if isinstance(value, tirx.Max):
        sides = [side for side in (value.a, value.b) if not _is_zero(side)]
        if len(sides) != 1:
            return NotMine("what follows is no epilogue of cuBLAS")
        name, value = "bias_relu", _uncast(sides[0])
    if name == "bias" and _is_load(value, written.product):
        return "", None
    if not isinstance(value, tirx.Add):
        return NotMine("what follows is no epilogue of cuBLAS")
    for product, other in ((value.a, value.b), (value.b, value.a)):
        load = _uncast(other)
        if _is_load(_uncast(product), written.product) and _is_bias(func, load, columns, written):
            return name, load.source
    return NotMine("what follows is no epilogue of cuBLAS")


def _is_bias(func: tirx.PrimFunc, load: Any, columns: int, written: Written) -> bool:
    """Whether a parameter has one element for each column, of the type of the result."""
    if not isinstance(load, tvm.ir.TensorLoad) or not is_compact(load.source):
        return False
    buffer = load.source
    sizes = [int(size) for size in buffer.shape]
    row = sizes[-1:] == [columns] and math.prod(sizes) == columns
    typed = str(buffer.dtype) == str(written.store.buffer.dtype)
    given = any(buffer.same_as(param) for param in func.params)
    return row and typed and given and _equal(load.indices[-1], written.variables[2], written)


def _equal(one: Any, other: Any, written: Written) -> bool:
    analyzer = Analyzer()
    for variable, extent in zip(written.variables, written.product.shape, strict=True):
        analyzer.bind(variable, tvm.ir.Range(0, extent))
    return bool(analyzer.can_prove_equal(one, other))


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
