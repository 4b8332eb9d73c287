"""Kernels of symbolic sizes, run in the emulator at some sizes, compared with plain loops."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tvm
from cuda_emulation import set_seed
from cuda_kernels import SERIAL_TARGET, scheduled
from emulated_kernels import emulated
from lowering import _filled, assert_same
from tvm import tirx
from tvm.sym import Analyzer
from tvm_ffi import structural_map
from unoptimised import linked

from tvm_ext.tir_schedules.template import Template

N, M = tirx.Var("n", "int64"), tirx.Var("m", "int64")


def check_symbolic(
    template: Template, plain: Mapping[str, tirx.PrimFunc], *sizes: Mapping[str, int]
) -> None:
    """The CUDA code of all kernels computes what their loops do, for each of the ``sizes``.

    ``sizes`` give the numbers for ``N`` and ``M`` by their names.
    """
    kernels = emulated({name: scheduled(template, func) for name, func in plain.items()})
    symbols = {f"f{number}": name for number, name in enumerate(plain)}
    named = {s: plain[name].with_attr("global_symbol", s) for s, name in symbols.items()}
    library = linked(tirx.build(tvm.IRModule(named), target=SERIAL_TARGET))
    for symbol, name in symbols.items():
        for known in sizes:
            arrays = _arrays(plain[name], known)
            expected = _run(library[symbol], arrays)
            set_seed(1)
            assert_same(expected, _run(kernels[name], arrays), f"{name}: {known}")


def _arrays(func: tirx.PrimFunc, sizes: Mapping[str, int]) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    params = [param for param in func.params if isinstance(param.ty, tirx.BufferType)]
    buffers = [
        tirx.decl_buffer([_number(size, sizes) for size in p.shape], str(p.dtype)) for p in params
    ]
    return [_filled(buffer, generator) for buffer in buffers]


def _number(size: tvm.ir.Expr, sizes: Mapping[str, int]) -> tvm.ir.Expr:
    def value(var: tvm.ir.Var) -> tvm.ir.Expr:
        return tirx.const(sizes[var.name], "int64")

    return Analyzer().simplify(structural_map(size, (tvm.ir.Var, value)))


def _run(kernel: Callable, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    kernel(*tensors)
    return [tensor.numpy() for tensor in tensors]
