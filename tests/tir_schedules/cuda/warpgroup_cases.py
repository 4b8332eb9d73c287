"""Products by warpgroups: run in the emulator, generated, assembled."""

import re
import subprocess
from pathlib import Path
from typing import Any

from cuda_kernels import scheduled, whole_source
from emulated_kernels import assert_emulated
from lowering import kernel_of
from tvm import relax, te, tirx

from tvm_ext.hardware.cuda.compilers import find_nvcc
from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.hardware.targets import resolve_target
from tvm_ext.tir_schedules.cuda.warpgroup.warpgroup_contraction import WarpgroupContraction
from tvm_ext.tir_schedules.template import FixedDecisions

H200 = resolve_target("nvidia-h200")
assert isinstance(H200, CudaDescription)


def small_gpu(sms: int = 1, arithmetic: int = 1) -> CudaDescription:
    """A GPU of few multiprocessors, whose blocks have several tiles each.

    A second kernel costs nothing there. With ``arithmetic`` multiply-adds take so many times as
    long as on an H200, which is when tiles that are not full are worth their while.
    """
    machine = H200.with_cores(sms)
    free = {"kernel_overhead_us": 1e-6, "l2_gbs": 1e9, "memory_gbs": 1e9}
    rates = {dtype: rate / arithmetic for dtype, rate in machine.tensor_tflops.items()}
    return machine.model_copy(update={**free, "tensor_tflops": rates})


def check_numbers(kernel: tirx.PrimFunc, sms: int = 1, arithmetic: int = 1, **decided: int) -> None:
    """The kernel on a ``small_gpu``."""
    machine = small_gpu(sms, arithmetic)
    func = scheduled(WarpgroupContraction(), kernel, machine, FixedDecisions(decided))
    assert_emulated({"kernel": kernel}, {"kernel": func}, machine)


def code_of(kernel: tirx.PrimFunc, **decided: int) -> str:
    func = scheduled(WarpgroupContraction(), kernel, H200, FixedDecisions(decided))
    return whole_source(func, machine=H200)


def assert_no_spills(source: str, folder: Path, registers: list[int]) -> None:
    """nvcc keeps everything in registers, as many a thread as given for each kernel.

    168 is what launch bounds of 384 threads leave for each; warpgroups then share them anew.
    """
    path = folder / "kernel.cu"
    path.write_text(source)
    nvcc = find_nvcc()
    assert nvcc is not None
    command = [nvcc.program, "-cubin", "-arch=sm_90a", "-O3", "-Xptxas", "-v", "-o"]
    command += [str(folder / "kernel.cubin"), str(path)]
    report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    kernels = report.count("bytes stack frame")
    assert kernels == len(registers)
    clean = "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"
    assert report.count(clean) == kernels
    assert sorted(map(int, re.findall(r"Used (\d+) registers", report))) == sorted(registers)
    # ptxas says so where it waits after each product, or cannot move registers between warps.
    assert "serialized" not in report
    assert "setmaxnreg" not in report


def residual(x: relax.Expr, w: relax.Expr, b: relax.Expr, r: relax.Expr) -> relax.Expr:
    return relax.op.nn.relu(relax.op.matmul(x, w) + b) + r


Shape = tuple[int, ...]


SLOW = 16


def convolved(image: Shape, filters: Shape, dtype: str = "float16", **options: Any) -> Any:
    """A convolution with bias, ReLU and residual; sums are float32, as the kernel's are."""
    layouts = {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_layout": "NHWC", **options}

    def summed(x: relax.Expr, w: relax.Expr) -> relax.Expr:
        return relax.op.nn.conv2d(x, w, out_dtype="float32", **layouts)

    (plain,) = [p for p in kernel_of(summed, (image, dtype), (filters, dtype)).params][2:]
    written = tuple(int(size) for size in plain.shape)

    def block(x: relax.Expr, w: relax.Expr, b: relax.Expr, r: relax.Expr) -> relax.Expr:
        return relax.op.nn.relu(summed(x, w) + b) + r

    bias, residual = ((written[-1],), "float32"), (written, "float32")
    return kernel_of(block, (image, dtype), (filters, dtype), bias, residual)


WINDOWS: list[tuple[Shape, Shape, dict]] = [
    ((2, 32, 32, 64), (64, 1, 1, 64), {"strides": 2}),
    ((1, 17, 33, 64), (64, 3, 3, 64), {}),
    ((1, 16, 16, 64), (128, 5, 3, 64), {"padding": (2, 1)}),
    ((1, 16, 16, 64), (64, 3, 3, 64), {"padding": 2, "dilation": 2}),
    ((2, 31, 31, 64), (61, 3, 3, 64), {"padding": (0, 1, 2, 1), "strides": 2}),
    ((1, 16, 16, 120), (3, 3, 120, 63), {"padding": 1, "kernel_layout": "HWIO"}),
    ((1, 16, 16, 192), (128, 3, 3, 192), {"padding": 1, "dtype": "bfloat16"}),
    ((1, 16, 16, 128), (64, 3, 3, 128), {"padding": 1, "strides": (1, 2)}),
    ((2, 16, 16, 32), (64, 3, 3, 32), {"padding": 1}),
    ((2, 16, 16, 16), (64, 3, 3, 16), {"padding": 1}),
    ((1, 16, 16, 80), (3, 3, 80, 128), {"padding": 1, "kernel_layout": "HWIO"}),
]


def of_integers(rows: int, columns: int, steps: int, first: str, second: str) -> tirx.PrimFunc:
    a, b = te.placeholder((rows, steps), first, "a"), te.placeholder((columns, steps), second, "b")
    k = te.reduce_axis((0, steps), "k")

    def element(i: tirx.Var, j: tirx.Var) -> tirx.Expr:
        return te.sum(a[i, k].astype("int32") * b[j, k].astype("int32"), axis=k)

    return te.create_prim_func([a, b, te.compute((rows, columns), element)])
