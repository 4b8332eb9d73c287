"""Runs the CUDA code that TVM generates, on the CPU, and checks it while it runs.

Within ``emulated_builds()`` everything that TVM builds for CUDA runs here instead: the module has
the same functions, for tensors on the CPU. For single kernels see ``emulated_kernels.py`` in
tests/tir_schedules/cuda, for whole models ``emulated_models.py`` in tests/tvm_ext, for CUDA code
written by hand ``sources.run_source``.

    with emulated_builds():
        library = tvm.compile(scheduled, target="cuda")
    library["kernel"](x, y)

How it works: g++ compiles the CUDA code as C++ with a small header (include/), inline assembly
rewritten as calls (assembly.py, instructions.py). The threads of a block are fibres, which run in
turn until they wait for others; blocks run one after the other (runtime/fibres.cpp). Each access
to memory is seen through the hooks of -fsanitize=thread (runtime/memory.cpp). A run ends with
``CudaEmulationError``, which names kernel, block, thread and line of the CUDA code, for

- a race on shared memory: two accesses, one of them a write, with no barrier, ``__syncwarp`` or
  other ordering operation between;
- a barrier or an operation of a warp that not all reach, a shuffle from a lane that takes no part;
- an access outside of all arrays or of shared memory, an index outside of a local array;
- a misaligned access, ``cp.async`` or ``ldmatrix``;
- shared memory that is read or written while a ``cp.async`` or a TMA copy to it has not been
  waited for, or that ``wgmma`` reads without a ``fence.proxy.async`` after it was written;
- an ``mbarrier`` that others do not know to be initialised, or with too many arrivals; products of
  a warpgroup without ``wgmma.fence``, or whose results are not waited for;
- blocks that read what another one wrote in the same launch, or write other values to its place,
  unless the launch uses atomic operations or fences of the GPU;
- more threads or shared memory than a block can have, an empty grid or a larger one than can be.

Shared memory is filled with NaN before each block. ``set_seed`` changes the order in which threads
and blocks run. Not seen: races on global memory within a block, speed, and what only the compiler
of device code does. Sectors, bank conflicts and instructions are counted on demand (accesses.py).
Sums of matrix instructions are rounded once, not at every step. With CUDA_EMULATION_TRACE set in
the environment, each kernel's time is printed; CUDA_EMULATION_CACHE names the folder where compiled
code is kept.
"""

from cuda_emulation.building import CudaEmulationError, emulated_builds
from cuda_emulation.libraries import missing, set_seed

__all__ = ["CudaEmulationError", "emulated_builds", "missing", "set_seed"]
