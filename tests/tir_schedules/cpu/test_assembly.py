"""Code for CPUs that the tests do not run on: vectors as wide as theirs, multiply-add fused."""

import re

import pytest
import tvm
from kernel_cases import nhwc
from lowering import f32, kernel_of
from machines import _cpu
from tvm import relax

from tvm_ext.tir_schedules.lowering_pipeline import compile_kernels
from tvm_ext.tir_schedules.schedule_kernels import schedule_kernel

INSTRUCTIONS = {
    "avx512": r"vfmadd\w+\s.*zmm",
    "avx2": r"vfmadd\w+\s.*ymm",
    "aarch64-neon": r"fmla\s+v\d+\.4s",
}


@pytest.mark.parametrize("mcpu", ["znver3", "alderlake"])
def test_sums_of_twelve_rows_of_a_vector_stay_in_sixteen_registers(mcpu: str) -> None:
    machine = _cpu("avx2").model_copy(update={"mcpu": mcpu})
    func = kernel_of(nhwc, f32(1, 12, 26, 8), f32(3, 3, 8, 8), f32(8))
    scheduled, choice = schedule_kernel(func, machine)
    assert choice.schedule == "register tile"
    mod = tvm.IRModule({"main": scheduled.with_attr("global_symbol", "main")})
    assembly = compile_kernels(mod, machine.tvm_target()).mod.inspect_source("asm")
    assert len(re.findall(INSTRUCTIONS["avx2"], assembly)) >= 12
    assert not re.search(r"vfmadd\w+\s.*\(%r[sb]p\).*ymm", assembly)


@pytest.mark.slow
@pytest.mark.parametrize("target", INSTRUCTIONS)
@pytest.mark.parametrize("kernel", ["convolution", "matmul"])
def test_multiply_add_on_whole_registers(target: str, kernel: str) -> None:
    func = (
        kernel_of(nhwc, f32(1, 16, 16, 32), f32(3, 3, 32, 64), f32(64))
        if kernel == "convolution"
        else kernel_of(relax.op.matmul, f32(28, 64), f32(64, 96))
    )
    machine = _cpu(target)
    scheduled, _ = schedule_kernel(func, machine)
    mod = tvm.IRModule({"main": scheduled.with_attr("global_symbol", "main")})
    assembly = tvm.compile(mod, target=machine.tvm_target()).mod.inspect_source("asm")
    assert len(re.findall(INSTRUCTIONS[target], assembly)) >= 8
    # No call for each element.
    assert not re.search(r"\b(call|bl)\s+_?(expf|tanhf|erff)", assembly)
