"""A kernel as a function of MLIR: its buffers are memrefs, its statements linalg on tensors.

Where every statement is a perfect nest, the function takes its buffers as tensors, computes on
tensors, and puts the results into the buffers that the kernel writes. Where one is none, all are
loops and linalg operations on memrefs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from torch_mlir import ir
from torch_mlir.dialects import bufferization, func, memref, tensor
from tvm import s_tir, tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.mlir.block_nest import block_nest
from tvm_ext.mlir.element_types import dtype_of, memref_of, tensor_of, value_type
from tvm_ext.mlir.expressions import ExpressionWriter
from tvm_ext.mlir.linalg_generic import write_generic
from tvm_ext.mlir.loops import LoopWriter
from tvm_ext.mlir.operations import index_constant
from tvm_ext.mlir.storage import MemrefStorage, TensorStorage
from tvm_ext.tir_schedules.analysis.buffer_access import nodes
from tvm_ext.tir_schedules.lowered_kernel import lowered


@dataclass(frozen=True)
class ConvertedKernel:
    """A kernel as a module of MLIR with one function.

    Attributes
    ----------
    name : str
        The function's name.
    module : ir.Module
        The module, as it was written.
    form : str
        "linalg on tensors", or "loops on memrefs".
    loops_because : str
        Why it is loops; empty where it is not.
    stage : str
        The stage that it is at; empty as it was written.
    """

    name: str
    module: ir.Module
    form: str
    loops_because: str = ""
    stage: str = ""


ON_TENSORS = "linalg on tensors"
ON_MEMREFS = "loops on memrefs"


def convert_kernel(
    kernel: tirx.PrimFunc, name: str, context: ir.Context | None = None
) -> ConvertedKernel:
    """Writes a kernel as MLIR.

    Parameters
    ----------
    kernel : tirx.PrimFunc
        As it is before it is scheduled, or scheduled for a CPU.
    name : str
        The name of the function.
    context : ir.Context, optional
        What the module lives in. Modules that are to be put together share one.

    Raises
    ------
    NotApplicable
        A statement or value has no operation in the dialects that are used.
    """
    with context or ir.Context(), ir.Location.name(name):
        try:
            return ConvertedKernel(name, _module(kernel, name, _write_on_tensors), ON_TENSORS)
        except NotApplicable as refused:
            module = _module(kernel, name, _write_on_memrefs)
            return ConvertedKernel(name, module, ON_MEMREFS, refused.reason)


def convert_scheduled(
    kernel: tirx.PrimFunc,
    name: str,
    machine: MachineDescription,
    context: ir.Context | None = None,
) -> ConvertedKernel:
    """Writes a scheduled kernel with the loops, vectors and local arrays that it has.

    Raises NotApplicable as ``convert_kernel``, and where TVM does not lower the kernel by itself.
    """
    mod = tvm.IRModule({"main": kernel.with_attr("global_symbol", "main")})
    plain = lowered(mod, machine)
    with context or ir.Context(), ir.Location.name(name):
        return ConvertedKernel(name, _module(plain, name, _write_on_memrefs), ON_MEMREFS)


def _module(kernel: tirx.PrimFunc, name: str, write: Any) -> ir.Module:
    module = ir.Module.create()
    types = [_parameter_type(param) for param in kernel.params]
    with ir.InsertionPoint(module.body):
        function = func.FuncOp(name, (types, []))
        # ExecutionEngine calls functions by pointers to their arguments.
        function.attributes["llvm.emit_c_interface"] = ir.UnitAttr.get()
        block = function.add_entry_block()
    with ir.InsertionPoint(block):
        values = symbolic_sizes(kernel, block.arguments)
        write(kernel, list(block.arguments), values)
        func.return_([])
    return verified(module)


def verified(module: ir.Module) -> ir.Module:
    """The module; raises NotApplicable where MLIR's verifier finds a fault in it."""
    try:
        module.operation.verify()
    except ir.MLIRError as error:
        cause = "; ".join(str(one.message) for one in error.error_diagnostics)
        raise NotApplicable(f"what was written of it is not valid in MLIR: {cause}") from error
    return module


def is_buffer(param: Any) -> bool:
    """Whether a parameter of a kernel is an array."""
    return isinstance(param.ty, tirx.BufferType)


def written_parameters(kernel: tirx.PrimFunc) -> list[int]:
    """The positions of the parameters that a kernel writes."""
    written = {hash(store.buffer) for store in nodes(kernel.body, tirx.BufferStore)}
    return [n for n, param in enumerate(kernel.params) if hash(param) in written]


def _parameter_type(param: Any) -> ir.Type:
    return memref_of(param) if is_buffer(param) else value_type(dtype_of(param))


def symbolic_sizes(kernel: tirx.PrimFunc, arguments: Sequence[ir.Value]) -> dict[int, ir.Value]:
    """What variables stand for that are parameters, or the size of an axis of one."""
    values: dict[int, ir.Value] = {}
    for param, argument in zip(kernel.params, arguments, strict=True):
        if not is_buffer(param):
            values[hash(param)] = argument
    for param, argument in zip(kernel.params, arguments, strict=True):
        if not is_buffer(param):
            continue
        for axis, size in enumerate(param.shape):
            if isinstance(size, tvm.ir.Var) and hash(size) not in values:
                values[hash(size)] = _dim(argument, axis)
    return values


def _dim(argument: ir.Value, axis: int) -> ir.Value:
    is_tensor = isinstance(argument.type, ir.RankedTensorType)
    return (tensor if is_tensor else memref).dim(argument, index_constant(axis))


def _root_statements(kernel: tirx.PrimFunc) -> tuple[list[Any], list[Any]]:
    """The statements of a kernel's outermost block, and the buffers that it allocates."""
    body = kernel.body
    if isinstance(body, s_tir.SBlockRealize) and not body.block.iter_vars:
        if body.block.init is not None or body.block.match_buffers:
            raise NotApplicable("its outermost block has views or first values")
        return list(_sequence(body.block.body)), list(body.block.alloc_buffers)
    return list(_sequence(body)), []


def _sequence(stmt: Any) -> Iterator[Any]:
    if isinstance(stmt, tirx.SeqStmt):
        for each in stmt.seq:
            yield from _sequence(each)
    else:
        yield stmt


def _write_on_tensors(
    kernel: tirx.PrimFunc, arguments: list[ir.Value], values: dict[int, ir.Value]
) -> None:
    storage, written = TensorStorage(), set(written_parameters(kernel))
    for place, (param, argument) in enumerate(zip(kernel.params, arguments, strict=True)):
        if is_buffer(param):
            kind = tensor_of(argument.type.shape, dtype_of(param))
            storage.current[hash(param)] = bufferization.to_tensor(
                kind, argument, restrict=True, writable=place in written
            )
    write_statements_on_tensors(kernel, storage, values)
    for place in sorted(written):
        bufferization.materialize_in_destination(
            None,
            storage.current[hash(kernel.params[place])],
            arguments[place],
            restrict=True,
            writable=True,
        )


def write_statements_on_tensors(
    kernel: tirx.PrimFunc, storage: TensorStorage, values: dict[int, ir.Value]
) -> None:
    """Writes a kernel's statements; raises NotApplicable where one is no perfect nest.

    Parameters
    ----------
    kernel : tirx.PrimFunc
        The kernel.
    storage : TensorStorage
        Has the tensors of its parameters, and those that it writes afterwards.
    values : dict of int to ir.Value
        What its symbolic sizes and numbers stand for, by the hash of the variable.
    """
    sizes = ExpressionWriter(values, _no_load)
    for stmt in _root_statements(kernel)[0]:
        write_generic(block_nest(stmt), storage, sizes)


def _no_load(load: Any) -> ir.Value:
    raise NotApplicable("a size is loaded from memory")


def _write_on_memrefs(
    kernel: tirx.PrimFunc, arguments: list[ir.Value], values: dict[int, ir.Value]
) -> None:
    statements, allocated = _root_statements(kernel)
    storage = MemrefStorage()
    for param, argument in zip(kernel.params, arguments, strict=True):
        if is_buffer(param):
            storage.memory[hash(param)] = argument
    loops = LoopWriter(storage, values)
    for buffer in allocated:
        loops.allocate(buffer)
    for stmt in statements:
        try:
            write_generic(block_nest(stmt), storage, loops.writer)
        except NotApplicable:
            loops.write(stmt)
