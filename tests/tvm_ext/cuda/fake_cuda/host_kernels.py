"""Compiles the CUDA code of elementwise kernels for the fake CUDA: the threads in series."""

import re
import subprocess
import tempfile
from pathlib import Path

_HEAD = """
#include <cmath>
#include <cstdint>
using std::max; using std::min;
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__
struct fake_place { unsigned x, y, z; };
static fake_place blockIdx, threadIdx;
struct float4 { float x, y, z, w; };
struct float2 { float x, y; };
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static float2 make_float2(float x, float y) { return {x, y}; }
"""
_KERNEL = re.compile(
    r'extern "C" __global__ void (?:__launch_bounds__\(\d+\) )?(\w+)\(([^)]*)\) \{'
)


class HostCompiler:
    """A ``CudaCompiler`` whose device code is a library of the host; kernels without barriers."""

    name = "g++"

    def form(self, arch: str) -> str:
        return "cubin"

    def compile(self, code: str, arch: str) -> bytes:
        body = code[code.index('extern "C"') :]
        glue = [_launcher(name, arguments) for name, arguments in _KERNEL.findall(body)]
        with tempfile.TemporaryDirectory() as folder:
            source, result = Path(folder, "k.cpp"), Path(folder, "k.so")
            source.write_text(_HEAD + body + "\n".join(glue))
            command = ["g++", "-O1", "-w", "-fPIC", "-shared", "-o", str(result), str(source)]
            subprocess.run(command, check=True)
            return result.read_bytes()


def _launcher(name: str, arguments: str) -> str:
    types = [
        argument.rsplit(" ", 1)[0].replace("__restrict__", "") for argument in arguments.split(", ")
    ]
    values = ", ".join(f"*({kind}*)arguments[{i}]" for i, kind in enumerate(types))
    return f"""
extern "C" int count_{name} = {len(types)};
extern "C" void launch_{name}(const unsigned* grid, const unsigned* block, void** arguments) {{
  for (blockIdx.z = 0; blockIdx.z < grid[2]; blockIdx.z++)
  for (blockIdx.y = 0; blockIdx.y < grid[1]; blockIdx.y++)
  for (blockIdx.x = 0; blockIdx.x < grid[0]; blockIdx.x++)
  for (threadIdx.z = 0; threadIdx.z < block[2]; threadIdx.z++)
  for (threadIdx.y = 0; threadIdx.y < block[1]; threadIdx.y++)
  for (threadIdx.x = 0; threadIdx.x < block[0]; threadIdx.x++)
    {name}({values});
}}"""
