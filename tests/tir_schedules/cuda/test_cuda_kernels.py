"""The checks of the other tests find what they are to find."""

from pathlib import Path

import pytest
from cuda_kernels import assert_numbers, cuda_source, in_series, needs_nvcc, resources, shared_bytes
from machines import GPU
from tvm.script import tirx as T


@T.prim_func(s_tir=True)
def copied(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32")):
    for i in range(64):
        with T.sblock("copy"):
            v = T.axis.spatial(64, i)
            b[v] = a[v]


@T.prim_func(s_tir=True)
def transposed(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32")):
    with T.sblock("root"):
        held = T.sblock_alloc_buffer((32,), "float32", scope="shared")
        for x in T.thread_binding(2, thread="blockIdx.x"):
            for t in T.thread_binding(32, thread="threadIdx.x"):
                held[31 - t] = a[x * 32 + t]
            for t in T.thread_binding(32, thread="threadIdx.x"):
                b[x * 32 + t] = held[31 - t]


@T.prim_func(s_tir=True)
def outside(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32")):
    with T.sblock("root"):
        for x in T.thread_binding(3, thread="blockIdx.x"):
            for t in T.thread_binding(32, thread="threadIdx.x"):
                b[x * 32 + t] = a[x * 32 + t]


@T.prim_func(s_tir=True)
def other(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32")):
    with T.sblock("root"):
        for t in T.thread_binding(64, thread="threadIdx.x"):
            b[t] = a[63 - t]


def test_threads_in_series_compute_the_same() -> None:
    assert_numbers({"kernel": copied}, {"kernel": transposed})
    assert "thread_binding" not in in_series(transposed).script()
    assert "shared" not in in_series(transposed).script()


def test_wrong_numbers_are_found() -> None:
    with pytest.raises(AssertionError, match="Mismatched elements"):
        assert_numbers({"kernel": copied}, {"kernel": other})


def test_accesses_out_of_bounds_are_found() -> None:
    with pytest.raises(IndexError, match="out of bounds at a store to b"):
        assert_numbers({"kernel": copied}, {"kernel": outside})


def test_shared_memory_is_counted() -> None:
    assert shared_bytes(cuda_source(transposed)) == 32 * 4 <= GPU.shared_memory_bytes


@needs_nvcc
def test_resources(tmp_path: Path) -> None:
    code = """
    extern "C" __global__ void small(float* x) { x[threadIdx.x] = 1.0f; }
    extern "C" __global__ void __launch_bounds__(1024) large(float* x) {
      float a[200];
      for (int i = 0; i < 200; ++i) a[i] = x[i * 7 + threadIdx.x];
      for (int k = 0; k < (int)x[0]; ++k)
        #pragma unroll
        for (int i = 0; i < 200; ++i) a[i] = a[i] * a[(i + 1) % 200];
      for (int i = 0; i < 200; ++i) x[i * 7 + threadIdx.x] = a[i];
    }
    """
    found = resources(code, "sm_80", tmp_path)
    assert len(found) == 2
    assert min(kernel.registers for kernel in found) < 20
    assert any(kernel.spilled or kernel.stack for kernel in found)
