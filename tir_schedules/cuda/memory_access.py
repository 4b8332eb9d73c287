"""How the accesses of a scheduled kernel for a GPU walk through memory, warp by warp."""

from collections.abc import Sequence

from tvm import tirx

from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.tir_schedules.analysis.addresses import Address, Scope, address_of
from tvm_ext.tir_schedules.analysis.buffer_access import element_bytes
from tvm_ext.tir_schedules.analysis.memory_access import (
    GATHERED,
    LoopStride,
    MemoryAccess,
    pattern_of,
    stride_of,
)
from tvm_ext.tir_schedules.cuda.warp_reader import (
    BANK_BYTES,
    BANKS,
    SECTOR_BYTES,
    CudaKernel,
    WarpAccess,
    WarpLoop,
    read_kernel,
)

# Blocks of threads that are looked at, each in other iterations of the loops within.
_SAMPLES = 128


def memory_accesses(func: tirx.PrimFunc, _machine: CudaDescription) -> list[MemoryAccess]:
    """The loads and stores of a kernel that ``lowered`` returned, in program order.

    Those of global memory are counted in sectors, those of shared memory in cycles of its banks, as
    one warp makes them at a time.
    """
    kernel = read_kernel(func, _SAMPLES)
    found: dict[object, list[tuple[WarpAccess, tuple[LoopStride, ...]]]] = {}
    for access in kernel.accesses:
        strides = _strides(access, kernel)
        key = access.buffer, access.is_store, access.lanes, access.loops, strides
        found.setdefault(key, []).append((access, strides))
    return [
        _described([access for access, _ in alike], alike[0][1], kernel) for alike in found.values()
    ]


def _strides(access: WarpAccess, kernel: CudaKernel) -> tuple[LoopStride, ...]:
    size = element_bytes(access.buffer)
    address = _address(access, kernel)
    found = []
    for number, loop in enumerate(access.loops):
        step = stride_of(address, 1 << number)
        nbytes = None if step is None else step * size
        found.append(LoopStride(loop.name, _kind(loop), loop.extent, step, nbytes))
    if address.lanes > 1:
        lane = address.lane_step
        nbytes = None if lane is None else float(lane * size)
        found.append(LoopStride("lanes", "vector", address.lanes, lane, nbytes))
    return tuple(found)


def _address(access: WarpAccess, kernel: CudaKernel) -> Address:
    loops = {loop.var: (number, loop.extent) for number, loop in enumerate(access.loops)}
    return address_of(access.index, Scope(loops, kernel.bound))


def _kind(loop: WarpLoop) -> str:
    kinds = {"blockIdx": "block", "threadIdx": "thread"}
    return kinds.get(loop.name.partition(".")[0], "serial")


def _described(
    accesses: Sequence[WarpAccess], strides: tuple[LoopStride, ...], kernel: CudaKernel
) -> MemoryAccess:
    first = accesses[0]
    warps = kernel.warps * kernel.blocks
    requests = sum(access.requests for access in accesses)
    cost = sum(access.cost for access in accesses)
    least = sum(access.least for access in accesses)
    unit_bytes = BANKS * BANK_BYTES if first.is_shared else SECTOR_BYTES
    return MemoryAccess(
        tensor=str(first.buffer.name),
        memory="shared" if first.is_shared else "global",
        is_store=first.is_store,
        element_bytes=element_bytes(first.buffer),
        lanes=first.lanes,
        pattern=_pattern(strides, first.lanes),
        strides=strides,
        places=len(accesses),
        runs=requests * warps,
        unit="cycles" if first.is_shared else "sectors",
        units=cost / requests if requests else 0.0,
        least_units=least / requests if requests else 0.0,
        fetched_bytes=cost * warps * unit_bytes,
        least_bytes=least * warps * unit_bytes,
    )


def _pattern(strides: Sequence[LoopStride], lanes: int) -> str:
    """The pattern of neighbouring threads, each of which takes ``lanes`` elements."""
    for stride in reversed(strides):
        if stride.kind == "vector" and stride.elements not in (0, 1):
            return GATHERED if stride.elements is None else pattern_of(stride.elements)
    threads = [one for one in strides if one.kind == "thread" and one.extent > 1]
    # Threads are numbered along x first.
    nearest = min(threads, key=lambda one: one.name, default=None)
    return pattern_of(0 if nearest is None else nearest.elements, lanes)
