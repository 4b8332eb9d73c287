"""Products by warpgroups: run in the emulator, generated, assembled."""

import re
import subprocess
from pathlib import Path

from cuda_kernels import scheduled, whole_source
from emulated_kernels import assert_emulated
from tvm import relax, tirx

from tvm_ext.hardware.cuda.compilers import find_nvcc
from tvm_ext.hardware.description import CudaDescription
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
