"""The emulator of CUDA code: what it lets pass, and every fault that it must find."""

import re

import numpy as np
import pytest
from cuda_emulation import CudaEmulationError, set_seed
from cuda_emulation.sources import run_source

HEAD = "#include <cuda_fp16.h>\n#define uchar unsigned char\n"
_REVERSED = """
extern "C" __global__ void __launch_bounds__(64) k(float* __restrict__ x) {{
  __shared__ float s[64];
  s[(int)threadIdx.x] = x[(int)threadIdx.x];
  {barrier}
  x[(int)threadIdx.x] = s[63 - (int)threadIdx.x];
}}
"""
_COPIED = """
extern "C" __global__ void k(float* __restrict__ x, float* __restrict__ y) {{
  extern __shared__ __align__(64) uchar buf[];
  unsigned to = __cvta_generic_to_shared((float*)buf + (int)threadIdx.x * 4);
  asm volatile("cp.async.cg.shared.global [%0], [%1], %2;"
    :: "r"(to), "l"(x + (int)threadIdx.x * 4{shift}), "n"(16));
  asm volatile("cp.async.commit_group;" : : );
  {wait}
  {barrier}
  y[(int)threadIdx.x] = ((float*)buf)[127 - (int)threadIdx.x];
}}
"""
WAIT = 'asm volatile("cp.async.wait_group 0;" :  :  : "memory");'
BARRIER = "__syncthreads();"


def kernel(*statements: str, parameters: str = "float* __restrict__ x") -> str:
    body = "\n  ".join(statements)
    return f'extern "C" __global__ void k({parameters}) {{\n  {body}\n}}'


def floats(count: int = 64) -> np.ndarray:
    return np.arange(count, dtype="float32")


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_barrier_orders_writes_and_reads(seed: int) -> None:
    set_seed(seed)
    x = floats()
    run_source(HEAD + _REVERSED.format(barrier=BARRIER), "k", [x], (64, 1, 1))
    np.testing.assert_array_equal(x, floats()[::-1])


def test_asynchronous_copies_arrive_when_they_were_waited_for() -> None:
    x, y = floats(128), floats(32)
    source = _COPIED.format(shift="", wait=WAIT, barrier=BARRIER)
    run_source(HEAD + source, "k", [x, y], shared_bytes=512)
    np.testing.assert_array_equal(y, 127 - floats(32))


def test_shuffles_and_votes() -> None:
    x = floats(32)
    source = kernel(
        "float v = x[(int)threadIdx.x];",
        "v = v + __shfl_xor_sync(0xffffffff, v, 16, 32);",
        "v = v + __shfl_down_sync(__activemask(), v, 1, 8);",
        "unsigned odd = __ballot_sync(0xffffffff, (int)threadIdx.x % 2);",
        "x[(int)threadIdx.x] = __shfl_sync(0xffffffff, v, 0, 8) + __popc(odd);",
    )
    run_source(HEAD + source, "k", [x])
    pairs = floats(32) + np.roll(floats(32), 16)
    expected = [pairs[i // 8 * 8] + pairs[i // 8 * 8 + 1] + 16 for i in range(32)]
    np.testing.assert_array_equal(x, np.array(expected, "float32"))


INDEX = "int i = (int)threadIdx.x;"
FAULTS = {
    "no barrier": (_REVERSED.format(barrier=""), 64, "race: byte .* in line"),
    "barrier of a warp only": (_REVERSED.format(barrier="__syncwarp();"), 64, "race"),
    "divergent barrier": (kernel(INDEX, "if (i < 40) { __syncthreads(); }", "x[i] = 1;"), 64,
                          r"hangs: thread \(0, 0, 0\) waits at __syncthreads.* has ended"),
    "two barriers": (
        kernel(INDEX, "if (i < 32) {", "  __syncthreads();", "} else {", "__syncthreads();", "}"),
        64, "different barriers"),
    "two writers": (kernel("__shared__ int s[1];", INDEX, "s[0] = i;"), 32, "race: .* written"),
    "written while read": (
        kernel("__shared__ float s[64];", INDEX, "s[i] = 1;", BARRIER, "x[i] = s[63 - i];",
               "s[i] = 2;"), 64, "race"),
    "lane away": (kernel(INDEX, "if (i < 16) {", "x[i] = __shfl_sync(0xffffffff, 1.0f, 0, 32); }"),
                  32, "hangs: .* a shuffle .* has ended"),
    "lane outside of the mask": (
        kernel(INDEX, "if (i < 16) { x[i] = __shfl_sync(0xffff, 1.0f, 20, 32); }"),
        32, "reads lane 20, which takes no part"),
    "read behind the end": (kernel(INDEX, "x[i] = x[i + 33];"), 32, "reads 4 bytes .* byte 256"),
    "write before the start": (kernel(INDEX, "x[i - 1] = 0;"), 32, "writes 4 bytes .* byte -4"),
    "local array": (kernel(INDEX, "float r[4];", "r[i] = 1;", "x[i] = r[i];"), 32, "index 4"),
    "misaligned vector": (kernel(INDEX, "*(float4*)(x + i) = make_float4(0, 0, 0, 0);"), 2,
                          "misaligned"),
    "dynamic shared memory": (
        kernel("extern __shared__ __align__(64) uchar buf[];", "((float*)buf)[128] = 1;"), 1,
        "bytes 512 to 515 of 512"),
    "no wait": (_COPIED.format(shift="", wait="", barrier=BARRIER), 32, "not been waited for"),
    "wait without barrier": (_COPIED.format(shift="", wait=WAIT, barrier=""), 32, "race"),
    "misaligned copy": (_COPIED.format(shift=" + 1", wait=WAIT, barrier=BARRIER), 32, "misaligned"),
    "copy behind the end": (_COPIED.format(shift=" + 4", wait=WAIT, barrier=BARRIER), 32,
                            "reads 16 bytes outside"),
    "too many threads": (kernel("x[0] = 1;"), 1025, "1025 threads"),
    "endless wait": (kernel("while (((volatile float*)x)[0] == 0) {}"), 1, "nobody else"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_faults_end_the_run(name: str) -> None:
    source, threads, message = FAULTS[name]
    arrays = [floats(128), floats(32)] if "__restrict__ y" in source else [floats()]
    set_seed(0)
    with pytest.raises(CudaEmulationError, match=message) as caught:
        run_source(HEAD + source, "k", arrays, (threads, 1, 1), shared_bytes=512)
    assert str(caught.value).startswith("kernel k")


def test_the_line_is_that_of_the_source() -> None:
    source = HEAD + kernel(INDEX, "float4 v = make_float4(1, 2, 3, 4);", "x[i + 64] = v.y;")
    with pytest.raises(CudaEmulationError) as caught:
        run_source(source, "k", [floats()])
    (line,) = re.findall(r"line (\d+)", str(caught.value))
    assert "x[i + 64]" in source.splitlines()[int(line) - 1]
