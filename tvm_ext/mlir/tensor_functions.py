"""A kernel as a function of MLIR that takes its buffers as tensors and returns what it writes.

A graph calls such functions. A kernel whose statements are no perfect nests is a function on
memrefs, and the one on tensors calls it with memory of its own for the results.
"""

from collections.abc import Sequence
from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import bufferization, func, memref, tensor
from tvm import tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.mlir.element_types import dtype_of, shape_of, tensor_of, value_type
from tvm_ext.mlir.from_tensorir import (
    ON_MEMREFS,
    ON_TENSORS,
    ConvertedKernel,
    convert_kernel,
    is_buffer,
    symbolic_sizes,
    verified,
    write_statements_on_tensors,
    written_parameters,
)
from tvm_ext.mlir.operations import index_constant
from tvm_ext.mlir.storage import TensorStorage


def convert_to_tensors(kernel: tirx.PrimFunc, name: str, context: ir.Context) -> ConvertedKernel:
    """Writes a kernel as a private function from all its parameters to those that it writes.

    Parameters
    ----------
    kernel : tirx.PrimFunc
        As it is before it is scheduled.
    name : str
        The name of the function.
    context : ir.Context
        What the module lives in.

    Raises
    ------
    NotApplicable
        A statement or value has no operation in the dialects that are used.
    """
    with context, ir.Location.name(name):
        try:
            return ConvertedKernel(name, _module(kernel, name), ON_TENSORS)
        except NotApplicable as refused:
            reason = refused.reason
        inner = convert_kernel(kernel, f"{name}_loops", context)
        module = _around(kernel, name, inner)
    return ConvertedKernel(name, module, ON_MEMREFS, inner.loops_because or reason)


def _begin(kernel: tirx.PrimFunc, name: str) -> tuple[ir.Module, ir.Block]:
    """A module with the function, and the block to write its statements into."""
    types = [parameter_type(param) for param in kernel.params]
    results = [types[place] for place in written_parameters(kernel)]
    module = ir.Module.create()
    with ir.InsertionPoint(module.body):
        function = func.FuncOp(name, (types, results), visibility="private")
        return module, function.add_entry_block()


def parameter_type(param: Any) -> ir.Type:
    """The type of a kernel's parameter: a tensor, or a number."""
    return (
        tensor_of(shape_of(param), dtype_of(param))
        if is_buffer(param)
        else value_type(dtype_of(param))
    )


def _module(kernel: tirx.PrimFunc, name: str) -> ir.Module:
    module, block = _begin(kernel, name)
    with ir.InsertionPoint(block):
        storage = TensorStorage()
        for param, argument in zip(kernel.params, block.arguments, strict=True):
            if is_buffer(param):
                storage.current[hash(param)] = argument
        write_statements_on_tensors(kernel, storage, symbolic_sizes(kernel, block.arguments))
        written = [kernel.params[place] for place in written_parameters(kernel)]
        func.return_([storage.current[hash(param)] for param in written])
    return verified(module)


def _around(kernel: tirx.PrimFunc, name: str, inner: ConvertedKernel) -> ir.Module:
    """A function on tensors that calls one on memrefs."""
    module, block = _begin(kernel, name)
    written = set(written_parameters(kernel))
    with ir.InsertionPoint(block):
        given = [
            _in_memory(argument, is_result=place in written)
            for place, argument in enumerate(block.arguments)
        ]
        func.call([], inner.name, given)
        results = [
            bufferization.to_tensor(
                block.arguments[place].type, given[place], restrict=True, writable=True
            )
            for place in sorted(written)
        ]
        func.return_(results)
    for op in list(inner.module.body.operations):
        op.attributes["sym_visibility"] = ir.StringAttr.get("private")
        op.operation.detach_from_parent()
        module.body.append(op)
    return verified(module)


def _in_memory(value: ir.Value, *, is_result: bool) -> ir.Value:
    """A value as a memref: that of an operand, or new memory for a result."""
    if not isinstance(value.type, ir.RankedTensorType):
        return value
    kind = ir.MemRefType.get(value.type.shape, value.type.element_type)
    if not is_result:
        return bufferization.to_buffer(kind, value, read_only=True)
    return memref.alloc(kind, _dynamic_sizes(value), [])


def _dynamic_sizes(value: ir.Value) -> Sequence[ir.Value]:
    """The sizes of a tensor that its type does not say."""
    any_size = ir.ShapedType.get_dynamic_size()
    return [
        tensor.dim(value, index_constant(axis))
        for axis, size in enumerate(value.type.shape)
        if size == any_size
    ]
