"""Kernels by TVM's code and by MLIR's, on the same arguments."""

from collections.abc import Mapping

from tvm import tirx
from unoptimised import HOST, built

from tvm_ext.mlir.compare_kernels import KernelComparison, compare_kernel
from tvm_ext.mlir.from_tensorir import is_buffer
from tvm_ext.mlir.model_kernels import ModelKernel
from tvm_ext.mlir.random_arguments import Arguments
from tvm_ext.tir_schedules.analysis.buffer_access import static_extent


def compared(
    kernels: Mapping[str, tirx.PrimFunc], arguments: Mapping[str, Arguments] | None = None
) -> dict[str, KernelComparison]:
    """Each kernel by both, by its name; kernels of symbolic sizes need ``arguments``."""
    symbols = {f"k{number}": name for number, name in enumerate(kernels)}
    library = built({symbol: kernels[name] for symbol, name in symbols.items()})
    given = arguments or {}
    found = {}
    for symbol, name in symbols.items():
        func = kernels[name]
        sizes = given.get(name) or _known(func)
        one = ModelKernel(symbol, func, scheduled=func, arguments=sizes)
        found[name] = compare_kernel(one, library, HOST)
    return found


def _known(func: tirx.PrimFunc) -> Arguments:
    return [
        tuple(static_extent(size) or 0 for size in param.shape)
        for param in func.params
        if is_buffer(param)
    ]


def agree(found: Mapping[str, KernelComparison]) -> None:
    """Asserts that every kernel was run by both and came out alike."""
    others = {
        name: f"{one.outcome}: {one.reason} {one.difference}"
        for name, one in found.items()
        if one.outcome != "agrees"
    }
    assert not others, others
