"""PolyBench's kernels: each is what its reference computes, as it is written and as scheduled."""

import numpy as np
import pytest
import tvm
from polybench_kernels import KERNELS
from polybench_kernels.further import FURTHER

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.polyhedral.cpu_loop_nest import CpuLoopNest
from tvm_ext.polyhedral.dependences import dependences_of
from tvm_ext.polyhedral.generate_loops import CodeOptions, generated_kernel
from tvm_ext.polyhedral.kernel_domain import kernel_domain
from tvm_ext.polyhedral.loop_scheduler import SchedulerOptions, schedule_loops
from tvm_ext.tir_schedules.lowering_pipeline import compile_kernels

# The rest are as long again, and run every night.
QUICK = ("gemm", "trisolv", "jacobi-1d", "floyd-warshall", "smith-waterman", "banded-lu")


def check(name):
    kernel = (KERNELS | FURTHER)[name]
    func = kernel.build(*kernel.small)
    expected = kernel.arguments(func)
    kernel.reference(*expected)
    scheduled = rescheduled(func)
    for one in (func, scheduled):
        arrays = [tvm.runtime.tensor(array) for array in kernel.arguments(func)]
        named = one.with_attr("global_symbol", "kernel")
        target = tvm.target.Target("llvm")
        compile_kernels(tvm.IRModule({"kernel": named}), target)["kernel"](*arrays)
        for found, wanted in zip(arrays, expected, strict=True):
            np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-9, atol=1e-9)


def rescheduled(func):
    """The kernel in isl's order, whether or not that is worth anything at sizes this small."""
    domain = kernel_domain(func)
    found = schedule_loops(domain, dependences_of(domain), SchedulerOptions(tile=8, lanes=4))
    return generated_kernel(domain, found.tree, CodeOptions(threads=2, lanes=4))


def test_a_kernel_without_parallel_loops_or_tiles_stays_as_it_is():
    kernel = KERNELS["floyd-warshall"]
    with pytest.raises(NotApplicable, match="may be tiled"):
        CpuLoopNest().scheduled(kernel.build(*kernel.large), host_description())


def test_there_are_thirty():
    assert len(KERNELS) == 30


@pytest.mark.parametrize("name", QUICK)
def test_kernel(name):
    check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in KERNELS | FURTHER if name not in QUICK])
def test_every_kernel(name):
    check(name)
