"""What kernels ask of a GPU's memories: sectors and bank conflicts, counted in the emulator."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from cuda_emulation import missing, set_seed
from cuda_emulation.accesses import KernelAccesses, counted_accesses
from cuda_emulation.sources import run_source
from cuda_kernels import scheduled
from emulated_kernels import emulated
from lowering import _filled, f32, kernel_of
from machines import GPU
from matmul_kernels import f16, in_instructions, product
from tvm import relax, tirx

from tvm_ext.hardware.targets import compiling_for
from tvm_ext.tir_schedules.analysis.memory_access import MemoryAccess
from tvm_ext.tir_schedules.cuda.elementwise import CudaElementwise
from tvm_ext.tir_schedules.cuda.generic import Generic
from tvm_ext.tir_schedules.cuda.memory_access import memory_accesses
from tvm_ext.tir_schedules.cuda.row_reduction import RowReduction
from tvm_ext.tir_schedules.cuda.transpose import CudaTranspose
from tvm_ext.tir_schedules.lowered_kernel import lowered
from tvm_ext.tir_schedules.template import Template

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

STRIDED = r"""
extern "C" __global__ void strided(float* __restrict__ x, float* __restrict__ y, int stride) {
  __shared__ alignas(16) float tile[2048];
  for (int i = (int)threadIdx.x; i < 2048; i += 64) tile[i] = x[i];
  __syncthreads();
  y[threadIdx.x] = tile[(threadIdx.x * stride) & 2047] + x[(threadIdx.x * stride) & 2047];
}
extern "C" __global__ void wide(float* __restrict__ x, float* __restrict__ y, int stride) {
  __shared__ alignas(16) float tile[2048];
  for (int i = (int)threadIdx.x; i < 2048; i += 64) tile[i] = x[i];
  __syncthreads();
  *(float4*)(y + threadIdx.x * 4) = *(float4*)(tile + ((threadIdx.x * stride) & 2044));
}
"""


@pytest.mark.parametrize(
    ("kernel", "stride", "conflicts", "sectors"),
    [
        ("strided", 1, 1, 4),
        ("strided", 2, 2, 8),
        ("strided", 32, 32, 32),
        ("strided", 33, 1, 32),
        ("wide", 4, 1, 16),
        ("wide", 8, 2, 16),
        ("wide", 36, 1, 16),
    ],
)
def test_strides_cost_sectors_and_wavefronts(
    kernel: str, stride: int, conflicts: int, sectors: int
) -> None:
    set_seed(0)
    x, y = np.zeros(2048, "float32"), np.zeros(256, "float32")
    with counted_accesses() as counted:
        run_source(STRIDED, kernel, [x, y, stride], (64, 1, 1))
    (found,) = counted
    (read,) = found.of("shared", write=False)
    assert read.cost == conflicts * read.ideal
    assert read.requests == 2  # of two warps
    last = max((*found.of("global"),), key=lambda site: (site.line, not site.write))
    assert last.cost == 2 * sectors
    assert STRIDED.splitlines()[read.line - 1].strip().startswith(("y[", "*(float4*)(y"))


def test_nothing_is_counted_unless_asked() -> None:
    x, y = np.zeros(2048, "float32"), np.zeros(256, "float32")
    with counted_accesses(blocks=2) as counted:
        run_source(STRIDED, "strided", [x, y, 1], (64, 1, 1), grid=(8, 1, 1))
    run_source(STRIDED, "strided", [x, y, 1], (64, 1, 1))
    (found,) = counted
    assert (found.counted, found.blocks, found.share) == (2, 8, 0.25)
    assert found.of("global", write=True)[0].requests == 4


def accesses(func: tirx.PrimFunc) -> KernelAccesses:
    """Those of a scheduled kernel's only launch."""
    kernel = emulated({"kernel": func})["kernel"]
    generator = np.random.default_rng(0)
    params = [p for p in func.params if isinstance(p.ty, tirx.BufferType)]
    tensors = [tvm.runtime.tensor(_filled(param, generator)) for param in params]
    set_seed(0)
    with counted_accesses() as found:
        kernel(*tensors)
    (only,) = found
    return only


def test_fragments_are_read_without_conflicts() -> None:
    found = accesses(in_instructions(product(64, 64, 128), tile_rows=32, tile_columns=32))
    rows = found.of("matrix")
    assert rows
    assert all(site.cost == site.ideal for site in rows)
    assert found.multiply_adds == 64 * 64 * 128
    assert found.sectors_over_ideal == 1


@pytest.mark.parametrize(
    ("template", "expression", "specs"),
    [
        (CudaElementwise(), relax.op.add, (f32(13, 64, 16), f32(16))),
        (CudaElementwise(), relax.op.nn.gelu, (f16(40, 264),)),
        (CudaTranspose(), relax.op.permute_dims, (f32(64, 96),)),
        (CudaTranspose(), relax.op.permute_dims, (f16(64, 96),)),
        (RowReduction(), lambda x: relax.op.nn.softmax(x, 1), (f32(9, 256),)),
        (RowReduction(), lambda x: relax.op.nn.softmax(x, 1), (f16(3, 2048),)),
    ],
    ids=["add", "gelu", "transpose", "transpose of half", "softmax", "wide softmax"],
)
def test_memory_is_read_and_written_in_whole_sectors(
    template: Template, expression: Callable[..., Any], specs: tuple
) -> None:
    found = accesses(scheduled(template, kernel_of(expression, *specs)))
    assert found.sectors_over_ideal == 1
    assert found.wavefronts_over_ideal <= 1
    # What is broadcast, such as a bias, is read again, by every warp.
    assert found.moved_bytes <= 1.5 * found.operand_bytes


def predicted(func: tirx.PrimFunc) -> list[MemoryAccess]:
    """What the analysis says of a scheduled kernel's accesses."""
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    with compiling_for(GPU):
        return memory_accesses(lowered(mod, GPU), GPU)


def units(found: list[MemoryAccess], memory: str) -> float:
    """Sectors, or cycles of banks, of all accesses to a memory."""
    return sum(one.runs * one.units for one in found if one.memory == memory)


op = relax.op
# Sizes that leave tails, and accesses that waste sectors and meet in banks.
STRIDED_KERNELS = {
    "broadcast": (CudaElementwise(), op.add, (f32(13, 50, 12), f32(12))),
    "every second": (
        CudaElementwise(),
        lambda x: op.strided_slice(x, [1], [0], [256], [2]),
        (f32(64, 256),),
    ),
    "backwards": (CudaElementwise(), lambda x: op.flip(x, 1), (f32(64, 256),)),
    "columns one by one": (Generic(), op.permute_dims, (f32(64, 96),)),
    "transposed and padded": (
        CudaElementwise(),
        lambda x: op.nn.pad(op.permute_dims(x, [0, 3, 1, 2]), [0, 0, 0, 0, 1, 1, 1, 1]),
        (f32(1, 9, 9, 32),),
    ),
    "staged": (CudaTranspose(), op.permute_dims, (f32(33, 45),)),
    "staged bytes": (CudaTranspose(), op.permute_dims, (((33, 70), "int8"),)),
    "softmax of columns": (RowReduction(), lambda x: op.nn.softmax(x, 0), (f32(37, 30),)),
    "softmax of a row": (RowReduction(), lambda x: op.nn.softmax(x, 1), (f32(2, 2050),)),
    "column sums": (RowReduction(), lambda x: op.sum(x, 0), (f32(300, 130),)),
}


@pytest.mark.parametrize("name", STRIDED_KERNELS)
def test_the_analysis_predicts_what_the_emulator_counts(name: str) -> None:
    template, expression, specs = STRIDED_KERNELS[name]
    func = scheduled(template, kernel_of(expression, *specs))
    counted, found = accesses(func), predicted(func)
    assert units(found, "global") == pytest.approx(counted.sectors, rel=0.1)
    assert units(found, "shared") == pytest.approx(counted.wavefronts, rel=0.1)
    asked = sum(one.runs * one.least_units for one in found if one.memory == "global")
    assert asked == pytest.approx(counted.sectors / counted.sectors_over_ideal, rel=0.1)


def test_the_patterns_of_a_staged_transpose() -> None:
    """Threads are neighbours in both tensors; of the tile one way is along its padded columns."""
    found = predicted(scheduled(CudaTranspose(), kernel_of(relax.op.permute_dims, f32(64, 96))))
    patterns = [(one.memory, one.is_store, one.pattern, one.units) for one in found]
    assert patterns == [
        ("global", False, "contiguous", 4),
        ("shared", True, "contiguous", 1),
        ("shared", False, "strided", 1),
        ("global", True, "contiguous", 4),
    ]


def test_the_stride_of_threads_that_walk_down_a_column() -> None:
    found = predicted(scheduled(Generic(), kernel_of(relax.op.permute_dims, f32(64, 96))))
    load = next(one for one in found if not one.is_store)
    threads = next(stride for stride in load.strides if stride.name == "threadIdx.x")
    assert (load.pattern, load.units, load.least_units) == ("gathered", 32, 4)
    assert threads.elements is None
