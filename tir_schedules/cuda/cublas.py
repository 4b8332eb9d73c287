"""Matmuls that cuBLAS computes, with bias and ReLU: a candidate of tuning sessions.

Only where TVM was built with cuBLAS. No kernel gets it without a record that says it was
fastest.
"""

import json
import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

import tvm
from tvm import relax, s_tir, tirx
from tvm.relax.backend.pattern_registry import get_patterns_with_prefix
from tvm.s_tir.schedule import SBlockRV
from tvm.sym import Analyzer
from tvm.tirx.buffer import buffer_data

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.hardware.cuda.runtime_library import CODE_GENERATORS, vendor_libraries
from tvm_ext.tir_schedules.analysis.buffer_access import (
    access_of_reduction,
    among,
    is_compact,
    is_load,
    kernel_blocks,
    nodes,
    operands_of,
    schedule_of,
)
from tvm_ext.tir_schedules.analysis.contraction import factors_of
from tvm_ext.tir_schedules.cuda.matmul.matmul_form import MatmulAxes, matmul_axes
from tvm_ext.tir_schedules.cuda.matmul.shared_tile import inline_consumers
from tvm_ext.tir_schedules.statements import FlatViews, flattened, in_root_block, sequence
from tvm_ext.tir_schedules.template import Decisions

# What a library is to compute in the place of a kernel, as an attribute of the kernel.


LIBRARY_CALL = "tvm_ext.library_call"
"""Attribute of a kernel that calls a library; its value is ``LibraryMatmul.to_json``."""

Epilogue = Literal["", "bias", "bias_relu"]
"""The epilogue: nothing, a bias of each column, and max(x, 0) of that."""


@dataclass(frozen=True)
class LibraryMatmul:
    """``C[b, i, j] = epilogue(sum over l of A[b, i, l] * B[b, l, j])``, row by row in memory.

    Attributes
    ----------
    dtype, result : str
        Types of the operands, and of the result and the bias.
    batch, m, n, k : int
        Extents of b, i, j and l. A batch of 1 stands for matrices.
    transposed : bool
        Whether B lies in memory as [b, j, l].
    epilogue : Epilogue
        See there.
    """

    dtype: str
    result: str
    batch: int
    m: int
    n: int
    k: int
    transposed: bool = False
    epilogue: Epilogue = ""

    @property
    def symbol(self) -> str:
        """The function that computes it, equal for equal products."""
        sizes = [str(size) for size in (self.batch, self.m, self.n, self.k)]
        notes = ["transposed"] * self.transposed + [self.epilogue] * bool(self.epilogue)
        return "_".join(("tvm_ext_cublas", self.dtype, self.result, *sizes, *notes))

    @property
    def pattern(self) -> str:
        """What TVM's patterns for cuBLAS call it."""
        notes = ["transposed"] * self.transposed + [self.epilogue] * bool(self.epilogue)
        return "_".join(("cublas.matmul", *notes))

    @property
    def shapes(self) -> list[list[int]]:
        """Of A, B and, if there is one, the bias; then of the result."""
        lead = [self.batch] if self.batch > 1 else []
        b = (self.n, self.k) if self.transposed else (self.k, self.n)
        bias = [[self.n]] if self.epilogue else []
        return [
            [*lead, self.m, self.k],
            [*lead, *b],
            *bias,
            [*lead, self.m, self.n],
        ]

    @property
    def dtypes(self) -> list[str]:
        """The same for the types."""
        return [self.dtype, self.dtype, *[self.result] * bool(self.epilogue), self.result]

    def to_json(self) -> str:
        """See ``LIBRARY_CALL``."""
        return json.dumps(asdict(self), sort_keys=True)


def library_matmuls(mod: tvm.IRModule) -> list[LibraryMatmul]:
    """What the kernels of a module leave to a library, each once."""
    found = {
        str(func.attrs[LIBRARY_CALL])
        for func in mod.functions.values()
        if isinstance(func, tirx.PrimFunc) and func.attrs and LIBRARY_CALL in func.attrs
    }
    return [LibraryMatmul(**json.loads(text)) for text in sorted(found)]


# The code of what kernels leave to a library, by TVM's code generator for it.


def library_modules(mod: tvm.IRModule) -> list[tvm.runtime.Module]:
    """Modules to import into that of the kernels; none where these call no library.

    Raises RuntimeError where TVM has no code generator, or that does not take a matmul.
    """
    return [module for product in library_matmuls(mod) for module in _modules(product)]


def argument_order(product: LibraryMatmul) -> list[int]:
    """Which of A (0), B (1) and the bias (2) the library's function takes first, and so on."""
    return _partitioned(product)[1]


def _modules(product: LibraryMatmul) -> list[tvm.runtime.Module]:
    name = CODE_GENERATORS["cuBLAS"]
    generate = tvm.get_global_func(name, allow_missing=True)
    if generate is None:
        raise RuntimeError(f"{name} is missing: this TVM was built without cuBLAS")
    return list(generate([_partitioned(product)[0]], {}, {}))


def _partitioned(product: LibraryMatmul) -> tuple[relax.Function, list[int]]:
    """The function for the code generator, and which operands its parameters are."""
    # Registers the patterns.
    from tvm.relax.backend.cuda import cublas  # noqa: F401

    mod = _graph(product)
    partition = relax.transform.FuseOpsByPattern(
        get_patterns_with_prefix("cublas"), bind_constants=False, annotate_codegen=True
    )
    cut = partition(mod)
    (binding, *rest) = cut["main"].body.blocks[0].bindings
    call = binding.value
    if not isinstance(call, relax.Call) or not isinstance(call.op, tvm.ir.GlobalVar):
        raise RuntimeError(f"TVM's patterns for cuBLAS do not take {product.symbol}")
    if any(isinstance(one.value, relax.Call) for one in rest):
        raise RuntimeError(f"TVM's patterns for cuBLAS take a part of {product.symbol} only")
    params = list(cut["main"].params)
    order = [next(i for i, p in enumerate(params) if p.same_as(arg)) for arg in call.args]
    return cut[call.op].with_attr("global_symbol", product.symbol), order


def _graph(product: LibraryMatmul) -> tvm.IRModule:
    """The matmul as a program of Relax."""
    *shapes, _ = product.shapes
    *dtypes, _ = product.dtypes
    names = ("a", "b", "bias")
    types = [relax.TensorType(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    params = [relax.Var(name, ty) for name, ty in zip(names, types, strict=False)]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            output = builder.emit_output(_emitted(builder, product, params))
        builder.emit_func_output(output)
    return builder.get()


def _emitted(
    builder: relax.BlockBuilder, product: LibraryMatmul, params: list[relax.Var]
) -> relax.Expr:
    """The result of the operators that TVM's patterns look for."""
    left, right, *bias = params
    if product.transposed:
        last = len(product.shapes[1]) - 1
        axes = [*range(last - 1), last, last - 1]
        right = builder.emit(relax.op.permute_dims(right, axes))
    result = relax.op.matmul(left, right, out_dtype=product.result)
    if bias:
        result = relax.op.add(builder.emit(result), bias[0])
    if product.epilogue == "bias_relu":
        result = relax.op.nn.relu(builder.emit(result))
    return result


# Not bfloat16: on the host TVM calls it uint16, and the library would take it for something else.
DTYPES = ("float16", "float32")


class CublasMatmul:
    """Kernels that are one matmul of matrices that lie in memory row by row, or a batch of them.

    What may follow is a bias of each column, with max(x, 0) or without.
    """

    name = "cublas"
    machine_type = CudaDescription

    def apply(
        self, func: tirx.PrimFunc, machine: CudaDescription, decisions: Decisions
    ) -> s_tir.Schedule:
        """See ``Template.apply``. There are no decisions."""
        if "cuBLAS" not in vendor_libraries():
            raise NotApplicable("this TVM was built without cuBLAS")
        sch = schedule_of(func)
        access = access_of_reduction(sch)
        main = access.block
        axes = matmul_axes(access, sch.get(main))
        operands = _operands(func, sch.get(main), axes)
        following = _following(func, sch, main, axes.size(axes.n))
        product = LibraryMatmul(
            str(operands.first.dtype),
            str(following.result.dtype),
            axes.size(axes.batch),
            axes.size(axes.m),
            axes.size(axes.n),
            axes.size(axes.k),
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
    """What is done with the result, the bias or None, and the parameter that it is written to."""

    epilogue: Epilogue
    bias: Any
    result: Any


def _operands(func: tirx.PrimFunc, block: s_tir.SBlock, axes: MatmulAxes) -> _Operands:
    """The operands of products that are added up as a library adds them."""
    loads = factors_of(block)
    plain = flattened(block.body, FlatViews())
    if not loads or plain is None:
        raise NotApplicable("it adds up something other than products of two operands")
    dtypes = {str(load.source.dtype) for load in loads}
    if len(dtypes) != 1 or not dtypes <= set(DTYPES):
        raise NotApplicable(f"operands are of {', '.join(sorted(dtypes))}; known are {DTYPES}")
    if str(block.writes[0].source.dtype) not in ("float32", *dtypes):
        raise NotApplicable(f"it adds up in {block.writes[0].source.dtype}")
    reads = [region.source for region in operands_of(block)]
    first, second = (reads[operand] for operand in axes.operands)
    if not all(among(buffer, func.params) for buffer in (first, second)):
        raise NotApplicable("an operand is computed in the kernel")
    batch, row, column, step = (
        _fused(block, group) for group in (axes.batch, axes.m, axes.n, axes.k)
    )
    rows, columns, steps = (axes.size(g) for g in (axes.m, axes.n, axes.k))
    written = (batch * rows + row) * columns + column
    left = (batch * rows + row) * steps + step
    if not (_is_at(plain.indices[0], written, block) and _is_read_at(block, loads, first, left)):
        raise NotApplicable("the result or the first operand does not lie in memory row by row")
    if _is_read_at(block, loads, second, (batch * steps + step) * columns + column):
        return _Operands(first, second, False)
    if _is_read_at(block, loads, second, (batch * columns + column) * steps + step):
        return _Operands(first, second, True)
    raise NotApplicable("the second operand does not lie in memory row by row")


def _fused(block: s_tir.SBlock, positions: tuple[int, ...]) -> Any:
    """Some loops of a block as one."""
    fused: Any = tirx.const(0, str(block.iter_vars[0].var.ty))
    for position in positions:
        loop = block.iter_vars[position]
        fused = fused * loop.dom.extent + loop.var
    return fused


def _is_read_at(
    block: s_tir.SBlock, loads: list[tvm.ir.TensorLoad], buffer: tirx.Buffer, place: Any
) -> bool:
    """Whether an operand's element is at an address, counted in elements."""
    load = next(one for one in loads if one.source.same_as(buffer))
    alone = flattened(tirx.BufferStore(buffer, load, load.indices), FlatViews())
    return alone is not None and _is_at(alone.indices[0], place, block)


def _following(
    func: tirx.PrimFunc, sch: s_tir.Schedule, main: SBlockRV, columns: int
) -> _Following:
    """The epilogue, in one assignment."""
    copy = sch.cache_write(main, 0, "local")
    inline_consumers(sch, copy)
    last, product = sch.get(copy), sch.get(main).writes[0].source
    plain = flattened(last.body, FlatViews()) if isinstance(last.body, tirx.BufferStore) else None
    if len(kernel_blocks(sch)) != 2 or plain is None:
        raise NotApplicable("what follows is not one assignment")
    store, result = last.body, last.body.buffer
    if not among(result, func.params):
        raise NotApplicable("the result is needed inside of the kernel")
    own = [load for load in _loads(store) if load.source.same_as(product)]
    same = [flattened(tirx.BufferStore(product, one, one.indices), FlatViews()) for one in own]
    if not all(one is not None and _is_at(one.indices[0], plain.indices[0], last) for one in same):
        raise NotApplicable("the result is written in another order")
    value = _uncast(store.value)
    name: Epilogue = "bias"
    if isinstance(value, tirx.Max):
        sides = [side for side in (value.a, value.b) if not _is_zero(side)]
        name, value = "bias_relu", _uncast(sides[0])
    if name == "bias" and is_load(value, product):
        return _Following("", None, result)
    pairs = ((value.a, value.b), (value.b, value.a)) if isinstance(value, tirx.Add) else ()
    for summand, other in pairs:
        load = _uncast(other)
        if is_load(_uncast(summand), product) and _is_bias(func, load, columns, plain, last):
            return _Following(name, load.source, result)
    raise NotApplicable("what follows is no epilogue of cuBLAS")


def _is_bias(
    func: tirx.PrimFunc, load: tvm.ir.TensorLoad, columns: int, plain: Any, block: s_tir.SBlock
) -> bool:
    """Whether a parameter has one element for each column, of the type of the result."""
    if not isinstance(load, tvm.ir.TensorLoad) or not is_compact(load.source):
        return False
    buffer = load.source
    sizes = [int(size) for size in buffer.shape]
    row = sizes[-1:] == [columns] and math.prod(sizes) == columns
    typed = str(buffer.dtype) == str(block.body.buffer.dtype)
    column = tirx.floormod(plain.indices[0], columns)
    return row and typed and among(buffer, func.params) and _is_at(load.indices[-1], column, block)


def _is_at(address: Any, other: Any, block: s_tir.SBlock) -> bool:
    """Whether two addresses are the same for all iterations of a block."""
    analyzer = Analyzer()
    for loop in block.iter_vars:
        analyzer.bind(loop.var, loop.dom)
    return bool(analyzer.can_prove_equal(address, other))


def _loads(store: tirx.BufferStore) -> list[Any]:
    return nodes(store.value, tvm.ir.TensorLoad)


def _uncast(value: Any) -> Any:
    while isinstance(value, tirx.Cast) and "float" in str(value.value.ty):
        value = value.value
    return value


def _is_zero(value: Any) -> bool:
    return isinstance(value, tirx.FloatImm) and float(value.value) == 0


def _with_call(
    func: tirx.PrimFunc, product: LibraryMatmul, buffers: list[tirx.Buffer]
) -> tirx.PrimFunc:
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
    realized = in_root_block(sequence([*views, call]))
    return func.with_body(realized).with_attr(LIBRARY_CALL, product.to_json())
