"""Builds modules for CUDA whose kernels run in the emulator and whose hosts run on the CPU.

Everything is TVM's own lowering and code generation for the CUDA target, but for two places: after
host and device code are separated, host functions are given the CPU as their device and tell the
emulator the size of every array; and the CUDA code becomes a library of the emulator.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import tvm
import tvm_ffi
from tvm import tirx
from tvm_ffi import structural_map

import cuda_emulation.tensor_maps  # noqa: F401, the function that hosts call
from cuda_emulation.errors import CudaEmulationError
from cuda_emulation.libraries import kernel_library, missing, runtime_library

__all__ = ["CudaEmulationError", "emulated_builds", "emulated_module"]


@contextmanager
def emulated_builds() -> Iterator[None]:
    """Within, whatever TVM builds for CUDA is built for the emulator instead.

    A test that calls it on a machine that cannot emulate is skipped.
    """
    if missing():
        pytest.skip(missing())
    runtime_library()
    packed_api, codegen = tirx.transform.MakePackedAPI, tvm.get_global_func("target.build.cuda")
    build = __import__("tvm.tirx.build", fromlist=["codegen_build"])
    original = build.codegen_build

    def host_on_cpu() -> Any:
        return tvm.transform.Sequential([_hosts_on_cpu, packed_api()])

    def codegen_build(mod: tvm.IRModule, target: tvm.target.Target) -> Any:
        if target.kind.name != "cuda":
            return original(mod, target)
        return emulated_module(mod, codegen(mod, target).inspect_source())

    with (
        mock.patch.object(tirx.transform, "MakePackedAPI", host_on_cpu),
        mock.patch.object(build, "codegen_build", codegen_build),
    ):
        yield


def emulated_module(device_functions: tvm.IRModule, source: str) -> tvm_ffi.Module:
    """The module of the emulator for CUDA code and the functions that it was generated from."""
    tags = {}
    for function in device_functions.functions.values():
        launch = function.attrs.get("tirx.kernel_launch_params")
        if launch is not None:
            tags[str(function.attrs["global_symbol"])] = [str(tag) for tag in launch]
    return tvm_ffi.load_module(str(kernel_library(source, tags)))


@tvm.transform.module_pass(opt_level=0, name="HostsOnCpu")
def _hosts_on_cpu(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
    changed = {}
    for variable, function in mod.functions.items():
        target = function.attrs.get("target")
        if "tirx.kernel_launch_params" in function.attrs or target is None or target.host is None:
            continue
        if target.kind.name == "cuda":
            host = target.host.with_host(target.host)
            changed[variable] = _announcing(function).with_attr("target", host)
    for variable, function in changed.items():
        mod.update_func(variable, function)
    return mod


def _announcing(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The host function, which tells the emulator of its arrays before it calls kernels."""
    buffers = [p for p in function.params if isinstance(p.ty, tirx.BufferType)]
    body = structural_map(function.body, (tirx.AllocBuffer, _announced_allocation))
    body = structural_map(body, (tvm.ir.Call, _own_tensor_map))
    return function.with_body(tirx.SeqStmt([*map(_announcement, buffers), body]))


def _own_tensor_map(call: Any) -> Any:
    """The call that fills a tensor map: the driver's function is not there without a GPU."""
    if str(getattr(call.op, "name", "")) != "tirx.tensormap_encode_tiled":
        return call
    attrs, (place, base, *sizes) = call.attrs, call.args
    options = (attrs.interleave, attrs.swizzle, attrs.l2_promotion, attrs.oob_fill)
    options = (*options, attrs.force_cu_dtype)
    return tirx.call_packed(
        "cuda_emulation.tensor_map",
        *(place, str(attrs.descriptor_dtype), int(attrs.rank), base),
        *sizes,
        *map(int, options),
    )


def _announced_allocation(allocation: tirx.AllocBuffer) -> tirx.Stmt:
    return tirx.SeqStmt([allocation, _announcement(allocation.buffer)])


def _announcement(buffer: Any) -> tirx.Stmt:
    dtype = tvm.DataType(str(buffer.dtype))
    # TVM makes arrays of vectors of those that are only used in vectors.
    size: Any = tirx.const((dtype.bits * dtype.lanes + 7) // 8, "int64")
    for extent in buffer.shape:
        size = size * tirx.Cast("int64", extent)
    return tirx.Evaluate(tirx.call_packed("cuda_emulation.array", buffer.data, size))
