"""PolyBench's kernels: each is what its reference computes, as it is written and as scheduled."""

import numpy as np
import pytest
import tvm
from polybench_kernels import KERNELS

from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.polyhedral.cpu_loop_nest import CpuLoopNest
from tvm_ext.tir_schedules.lowering_pipeline import compile_kernels

# The rest are as long again, and run every night.
QUICK = ("gemm", "trisolv", "jacobi-1d", "floyd-warshall")


def check(name):
    kernel = KERNELS[name]
    func = kernel.build(*kernel.small)
    expected = kernel.arguments(func)
    kernel.reference(*expected)
    scheduled, _ = CpuLoopNest().scheduled(func, host_description().with_cores(2))
    for one in (func, scheduled):
        arrays = [tvm.runtime.tensor(array) for array in kernel.arguments(func)]
        named = one.with_attr("global_symbol", "kernel")
        target = tvm.target.Target("llvm")
        compile_kernels(tvm.IRModule({"kernel": named}), target)["kernel"](*arrays)
        for found, wanted in zip(arrays, expected, strict=True):
            np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-9, atol=1e-9)


def test_there_are_thirty():
    assert len(KERNELS) == 30


@pytest.mark.parametrize("name", QUICK)
def test_kernel(name):
    check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in KERNELS if name not in QUICK])
def test_every_kernel(name):
    check(name)
