"""Kernels in CUDA code that break a rule each, and some that do not: one file, compiled once."""

from dataclasses import dataclass

REVERSED = """
extern "C" __global__ void __launch_bounds__(64) {name}(float* __restrict__ x) {{
  __shared__ float s[64];
  s[(int)threadIdx.x] = x[(int)threadIdx.x];
  {barrier}
  x[(int)threadIdx.x] = s[63 - (int)threadIdx.x];
}}
"""
_COPIED = """
extern "C" __global__ void {name}(float* __restrict__ x, float* __restrict__ y) {{
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
# Thread 0 brings 128 floats by a TMA copy, which the others wait for at a barrier in memory.
_BULK = """
extern "C" __global__ void {name}(float* __restrict__ x, float* __restrict__ y) {{
  extern __shared__ __align__(128) uchar buf[];
  unsigned data = __cvta_generic_to_shared(buf);
  unsigned bar = data + 512;
  if ((int)threadIdx.x == 0) {{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(bar), "r"(1) : "memory");
  }}
  {initialised}
  if ((int)threadIdx.x == 0) {{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
      :: "r"(bar), "r"({bytes}) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1], %2, [%3];" :: "r"(data), "l"(x), "r"(512), "r"(bar) : "memory");
  }}
  {wait}
  y[(int)threadIdx.x] = ((float*)buf)[(int)threadIdx.x] + ((float*)buf)[(int)threadIdx.x + 64];
}}
"""
_WAIT = 'asm volatile("cp.async.wait_group 0;" :  :  : "memory");'
_BARRIER = "__syncthreads();"
_BULK_WAIT = """unsigned done = 0;
  do {
    asm volatile("{ .reg .pred p; "
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
      : "=r"(done) : "r"(bar), "r"(0) : "memory");
  } while (!done);"""


@dataclass(frozen=True)
class Fault:
    """A kernel that breaks a rule: how it is run, and what must be said of it."""

    kernel: str
    threads: int
    message: str
    arrays: int
    shared_bytes: int


_SOURCES: list[str] = []
FAULTS: dict[str, Fault] = {}


def _fault(what: str, source: str, threads: int, message: str) -> None:
    name = f"k{len(FAULTS)}"
    _SOURCES.append(source.replace("{name}", name))
    arrays = 2 if "__restrict__ y" in source else 1
    FAULTS[what] = Fault(name, threads, message, arrays, 1024 if "mbarrier" in source else 512)


def _kernel(*statements: str) -> str:
    body = "\n  ".join(["int i = (int)threadIdx.x;", *statements])
    return f'extern "C" __global__ void {{name}}(float* __restrict__ x) {{\n  {body}\n}}\n'


def _reversed(barrier: str) -> str:
    return REVERSED.format(name="{name}", barrier=barrier)


def _copied(shift: str = "", wait: str = _WAIT, barrier: str = _BARRIER) -> str:
    return _COPIED.format(name="{name}", shift=shift, wait=wait, barrier=barrier)


def _bulk(initialised: str = _BARRIER, size: int = 512, wait: str = _BULK_WAIT) -> str:
    return _BULK.format(name="{name}", initialised=initialised, bytes=size, wait=wait)


_fault("no barrier", _reversed(""), 64, "race: byte .* in line")
_fault("barrier of a warp only", _reversed("__syncwarp();"), 64, "race")
_fault(
    "divergent barrier",
    _kernel("if (i < 40) { __syncthreads(); }", "x[i] = 1;"),
    64,
    r"hangs: thread \(0, 0, 0\) waits at __syncthreads.* has ended",
)
_fault(
    "two barriers",
    _kernel("if (i < 32) {", "  __syncthreads();", "} else {", "__syncthreads();", "}"),
    64,
    "different barriers",
)
_fault("two writers", _kernel("__shared__ int s[1];", "s[0] = i;"), 32, "race: .* written")
_fault(
    "written while read",
    _kernel("__shared__ float s[64];", "s[i] = 1;", _BARRIER, "x[i] = s[63 - i];", "s[i] = 2;"),
    64,
    "race",
)
_fault(
    "lane away",
    _kernel("if (i < 16) {", "x[i] = __shfl_sync(0xffffffff, 1.0f, 0, 32); }"),
    32,
    "hangs: .* a shuffle .* has ended",
)
_fault(
    "lane outside of the mask",
    _kernel("if (i < 16) { x[i] = __shfl_sync(0xffff, 1.0f, 20, 32); }"),
    32,
    "reads lane 20, which takes no part",
)
_fault("read behind the end", _kernel("x[i] = x[i + 33];"), 32, "reads 4 bytes .* byte 256")
_fault("write before the start", _kernel("x[i - 1] = 0;"), 32, "writes 4 bytes .* byte -4")
_fault("local array", _kernel("float r[4];", "r[i] = 1;", "x[i] = r[i];"), 32, "index 4")
_fault(
    "misaligned vector",
    _kernel("*(float4*)(x + i) = make_float4(0, 0, 0, 0);"),
    2,
    "misaligned",
)
_fault(
    "dynamic shared memory",
    _kernel("extern __shared__ __align__(64) uchar buf[];", "((float*)buf)[128] = 1;"),
    1,
    "bytes 512 to 515 of 512",
)
_fault("no wait", _copied(wait=""), 32, "not been waited for")
_fault("wait without barrier", _copied(barrier=""), 32, "race")
_fault("misaligned copy", _copied(shift=" + 1"), 32, "misaligned")
_fault("copy behind the end", _copied(shift=" + 4"), 32, "reads 16 bytes outside")
_fault("too many threads", _kernel("x[0] = 1;"), 1025, "1025 threads")
_fault("endless wait", _kernel("while (((volatile float*)x)[0] == 0) {}"), 1, "nobody else")
_fault("TMA copy not waited for", _bulk(wait=""), 64, "not been waited for")
_fault("barrier not initialised for all", _bulk(initialised=""), 64, "initialised")
_fault("fewer bytes expected", _bulk(size=256), 64, "hangs: .* mbarrier.try_wait")

_fault("blocks write a place", _kernel("x[i] = (int)blockIdx.x;"), 32, "race: writes other values")
_fault(
    "blocks read of each other",
    _kernel("x[i + 32 * (int)blockIdx.x] = x[i + 32 - 32 * (int)blockIdx.x];"),
    32,
    r"race: reads what block \(0, 0, 0\) wrote",
)

_SHUFFLED = _kernel(
    "float v = x[i];",
    "v = v + __shfl_xor_sync(0xffffffff, v, 16, 32);",
    "v = v + __shfl_down_sync(__activemask(), v, 1, 8);",
    "unsigned odd = __ballot_sync(0xffffffff, i % 2);",
    "x[i] = __shfl_sync(0xffffffff, v, 0, 8) + __popc(odd);",
)

SOURCE = "\n".join(
    [
        "#include <cuda_fp16.h>\n#define uchar unsigned char",
        _reversed(_BARRIER).replace("{name}", "reversed"),
        _copied().replace("{name}", "copied"),
        _bulk().replace("{name}", "bulk"),
        _SHUFFLED.replace("{name}", "shuffled"),
        *_SOURCES,
    ]
)
"""Rightful kernels "reversed", "copied", "bulk" and "shuffled", and those of ``FAULTS``."""
