"""Kernels for a GPU, run as the CUDA code that TVM generates: threads, barriers, instructions.

``tests/shared/cuda_emulation`` compiles the code for the CPU; see there for what it checks.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from cuda_emulation import emulated_builds, set_seed
from cuda_kernels import SERIAL_TARGET
from lowering import _filled, assert_same
from machines import GPU
from tvm import tirx
from unoptimised import linked

from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.tir_schedules.lowering_pipeline import compile_kernels


def emulated(
    functions: Mapping[str, tirx.PrimFunc], machine: CudaDescription = GPU
) -> dict[str, Callable[..., Any]]:
    """Scheduled kernels by name, as functions of tensors on the CPU that run in the emulator."""
    symbols = {f"k{number}": name for number, name in enumerate(functions)}
    named = {s: functions[name].with_attr("global_symbol", s) for s, name in symbols.items()}
    target = tvm.target.Target(machine.tvm_target(), host="llvm")
    with emulated_builds():
        library = compile_kernels(tvm.IRModule(named), target)
    return {name: library[symbol] for symbol, name in symbols.items()}


def run_emulated(
    func: tirx.PrimFunc, *arrays: np.ndarray, machine: CudaDescription = GPU, seed: int = 0
) -> list[np.ndarray]:
    """All arrays of a scheduled kernel after a run in the emulator.

    Raises
    ------
    CudaEmulationError
        A race, a hang, an access out of bounds or misaligned: kernel, thread and line.
    """
    kernel = emulated({"kernel": func}, machine)["kernel"]
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    set_seed(seed)
    kernel(*tensors)
    return [tensor.numpy() for tensor in tensors]


def assert_emulated(
    plain: Mapping[str, tirx.PrimFunc],
    functions: Mapping[str, tirx.PrimFunc],
    machine: CudaDescription = GPU,
    seeds: Sequence[int] = (0, 1),
    rtol: float = 0.0,
) -> None:
    """The CUDA code of every kernel computes what its unscheduled loops do, in several orders.

    Both start with the same values in what they write. ``rtol``: of sums in a narrower type than
    the loops'; by default they are equal but for the order of sums.
    """
    symbols = {f"f{number}": name for number, name in enumerate(plain)}
    named = {s: plain[name].with_attr("global_symbol", s) for s, name in symbols.items()}
    library = linked(tirx.build(tvm.IRModule(named), target=SERIAL_TARGET))
    kernels = emulated(functions, machine)
    for symbol, name in symbols.items():
        params = [p for p in plain[name].params if isinstance(p.ty, tirx.BufferType)]

        def run(kernel: Callable[..., Any], params: Sequence = params) -> list[np.ndarray]:
            generator = np.random.default_rng(0)
            tensors = [tvm.runtime.tensor(_filled(param, generator)) for param in params]
            kernel(*tensors)
            return [tensor.numpy() for tensor in tensors]

        expected = run(library[symbol])
        for seed in seeds:
            set_seed(seed)
            found, message = run(kernels[name]), f"{name}, order {seed}"
            if rtol:
                for wanted, array in zip(expected, found, strict=True):
                    np.testing.assert_allclose(array, wanted, rtol=rtol, err_msg=message)
            else:
                assert_same(expected, found, message)
