"""Scheduled kernels on a real GPU, with the numbers of kernels as TVM wrote them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from cuda_kernels import SERIAL_TARGET
from lowering import _filled, assert_same
from tvm import tirx
from unoptimised import linked

from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.hardware.cuda.device_code import making_device_code
from tvm_ext.hardware.targets import program_target
from tvm_ext.tir_schedules.lowering_pipeline import compile_kernels


def assert_on_device(plain: tirx.PrimFunc, func: tirx.PrimFunc, machine: CudaDescription) -> None:
    """The scheduled kernel computes on the device what the plain one does on the CPU."""
    generator = np.random.default_rng(0)
    params = [p for p in plain.params if isinstance(p.ty, tirx.BufferType)]
    arrays = [_filled(param, generator) for param in params]
    host, device = ([tvm.runtime.tensor(array) for array in arrays] for _ in range(2))
    library = tirx.build(plain.with_attr("global_symbol", "kernel"), target=SERIAL_TARGET)
    linked(library)["kernel"](*host)
    built(func, machine)(*device)
    assert_same([one.numpy() for one in host], [one.numpy() for one in device], "kernel")


def built(func: tirx.PrimFunc, machine: CudaDescription) -> Callable[..., None]:
    """The scheduled kernel as a function of tensors on the host, copied to the device and back."""
    target = tvm.target.Target(machine.tvm_target(), host="llvm")
    named = {"kernel": func.with_attr("global_symbol", "kernel")}
    with making_device_code(machine.arch):
        library = compile_kernels(tvm.IRModule(named), target)

    def run(*host: Any) -> None:
        device = [tvm.runtime.tensor(one.numpy(), tvm.cuda()) for one in host]
        library["kernel"](*device)
        for one, other in zip(host, device, strict=True):
            one.copyfrom(other.numpy())

    return run


def machine() -> CudaDescription:
    """This machine's GPU."""
    found = program_target("cuda")
    assert isinstance(found, CudaDescription)
    return found
