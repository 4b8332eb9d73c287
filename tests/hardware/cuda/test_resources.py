"""What kernels take of a GPU, as TVM and nvcc say, and what is refused for it."""

import pytest
import tvm
from cuda_kernels import resources
from tvm import te

from tvm_ext.errors import BuildError
from tvm_ext.hardware.cuda.compilers import find_nvcc
from tvm_ext.hardware.cuda.resources import (
    KernelResources,
    Launch,
    ResourceLimitError,
    check_launch,
    check_resources,
    launches,
    parse_report,
)
from tvm_ext.hardware.targets import resolve_target

GPU = resolve_target("nvidia-a100")

needs_nvcc = pytest.mark.skipif(find_nvcc() is None, reason="nvcc is not installed")

CODE = 'extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }\n'

# A kernel that spills and calls a function, and one that does not, as ptxas 13.0 prints them.
REPORT = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'a' for 'sm_80'
ptxas info    : Function properties for a
    96 bytes stack frame, 120 bytes spill stores, 88 bytes spill loads
ptxas info    : Function properties for called
    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 96 bytes cumulative stack size, 8 bytes smem
ptxas info    : Compiling entry function 'b' for 'sm_80'
ptxas info    : Function properties for b
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers, 360 bytes cmem[0]
"""


def test_report_of_two_kernels():
    assert parse_report(REPORT) == [
        KernelResources("a", 255, 124, 104),
        KernelResources("b", 8, 0, 0),
    ]


@pytest.mark.parametrize(
    ("launch", "words"),
    [
        (Launch("k", 2048, 0, 0), "a block of 2048 threads; at most 1024"),
        (Launch("k", 128, 49_153, 0), "49153 bytes of static shared memory; at most 49152"),
        (Launch("k", 128, 100, 166_900), "167000 bytes of shared memory; at most 166912"),
        (Launch("k", 128, 20_000, 40_000), "60000 bytes of shared memory, 40000 of them dynamic"),
    ],
)
def test_too_much_for_a_block(launch, words):
    with pytest.raises(ResourceLimitError, match=words):
        check_launch(launch, GPU)


def test_what_a_block_can_have():
    check_launch(Launch("k", 1024, 49_152, 0), GPU)
    check_launch(Launch("k", 128, 0, 166_912), GPU)
    check_launch(Launch("k", 128, 9_000, 49_152), GPU)
    check_resources(KernelResources("k", 64, 0, 0), 1024, GPU)
    check_resources(KernelResources("k", 255, 8, 8), 128, GPU, may_spill=True)


def test_registers():
    with pytest.raises(ResourceLimitError, match="8 bytes spilled: 255 registers"):
        check_resources(KernelResources("k", 255, 8, 8), 128, GPU)
    # A warp gets 72 for each thread: 65 are rounded up.
    with pytest.raises(ResourceLimitError, match="65 registers in each of 1000 threads"):
        check_resources(KernelResources("k", 65, 0, 0), 1000, GPU)


def test_launches_of_a_module():
    """Threads of both dimensions, and shared memory of both kinds, of the device's function."""
    x = te.placeholder((64, 32), name="x")
    sch = tvm.s_tir.Schedule(te.create_prim_func([x, te.compute(x.shape, lambda i, j: x[i, j])]))
    (block,) = sch.get_child_blocks(sch.get_sblock("root"))
    outer, inner = sch.get_loops(block)
    copy = sch.cache_read(block, 0, "shared")
    sch.bind(outer, "threadIdx.y")
    sch.compute_at(copy, outer)
    sch.bind(sch.get_loops(copy)[-1], "threadIdx.x")
    sch.bind(inner, "threadIdx.x")
    found = []

    @tvm.ir.instrument.pass_instrument
    class Split:
        def run_after_pass(self, mod, info):
            if str(info.name) == "tirx.SplitHostDevice":
                found.extend(launches(mod))

    with tvm.transform.PassContext(instruments=[Split()]):
        tvm.tirx.build(sch.mod, target=GPU.tvm_target())
    assert found == [Launch("main_kernel", 2048, 64 * 32 * 4, 0)]


@pytest.mark.extended
@needs_nvcc
def test_report_of_nvcc():
    (found,) = resources(CODE, "sm_80")
    assert (found.spilled, found.stack) == (0, 0)
    assert 0 < found.registers < 32
    with pytest.raises(BuildError, match=r"error.*nothing"):
        resources(CODE.replace("*=", "= nothing *"), "sm_80")
