"""What a kernel takes of a GPU's multiprocessor, and which of its limits that breaks.

Threads and shared memory are in the kernel's lowered form. Registers, and what is spilled to memory
for want of them, only the assembler knows: ``ptxas -v``, which nvcc runs, and which needs no GPU.
"""

import math
import re
from dataclasses import dataclass

import tvm
from tvm import tirx
from tvm_ffi import structural_walk

from tvm_ext.hardware.cuda.description import CudaDescription

# A warp gets its registers in blocks of 256, eight for each of its threads. CUDA C++ Programming
# Guide, table "Technical Specifications per Compute Capability".
_REGISTER_STEP = 8

# What ptxas says of one kernel, up to the next.
_PARAGRAPH = re.compile(r"Compiling entry function '(\w+)'(.*?)(?=Compiling entry|\Z)", re.DOTALL)

# tvm::CallingConv::kDeviceKernelLaunch.
_DEVICE_KERNEL_LAUNCH = 2


class ResourceLimitError(ValueError):
    """A kernel takes more than a block of threads can have; the text says of what."""


@dataclass(frozen=True)
class KernelResources:
    """What ptxas says of one kernel.

    Attributes
    ----------
    name : str
        Of the kernel in the code.
    registers : int
        Of a thread.
    spilled : int
        Bytes that a thread stores because it has too few registers.
    stack : int
        Bytes of a thread's stack, spilled ones included.
    """

    name: str
    registers: int
    spilled: int
    stack: int


@dataclass(frozen=True)
class Launch:
    """What a block of threads of one kernel declares.

    Attributes
    ----------
    name : str
        Of the kernel in the code.
    threads : int
        Threads of a block.
    static_shared, dynamic_shared : int
        Bytes of shared memory: fixed in the code, and asked for at launch.
    """

    name: str
    threads: int
    static_shared: int
    dynamic_shared: int


def launches(mod: tvm.IRModule) -> list[Launch]:
    """What each device function declares, once TVM has split them from the host's code.

    A size that is known only at launch counts as 1.
    """
    return [
        _launch(str(variable.name_hint), func)
        for variable, func in mod.functions.items()
        if isinstance(func, tirx.PrimFunc) and _is_device_function(func)
    ]


def check_launch(launch: Launch, machine: CudaDescription) -> None:
    """Raises ResourceLimitError if a block of threads cannot have what a kernel declares."""
    if launch.threads > machine.max_threads_per_block:
        raise ResourceLimitError(
            f"a block of {launch.threads} threads; at most {machine.max_threads_per_block}"
        )
    if launch.static_shared > machine.shared_memory_bytes:
        raise ResourceLimitError(
            f"{launch.static_shared} bytes of static shared memory; at most "
            f"{machine.shared_memory_bytes}"
        )
    shared = launch.static_shared + launch.dynamic_shared
    if launch.dynamic_shared < machine.shared_memory_bytes < shared:
        # TVM's runtime asks for more than the usual only by the dynamic part.
        raise ResourceLimitError(
            f"{shared} bytes of shared memory, {launch.dynamic_shared} of them dynamic; at most "
            f"{machine.shared_memory_bytes} unless the dynamic part alone is that much"
        )
    if shared > machine.dynamic_shared_memory_bytes:
        raise ResourceLimitError(
            f"{shared} bytes of shared memory; at most {machine.dynamic_shared_memory_bytes}"
        )


def check_resources(
    resources: KernelResources, threads: int, machine: CudaDescription, may_spill: bool = False
) -> None:
    """Raises ResourceLimitError if ``threads`` threads of a kernel lack registers.

    With ``may_spill``, spilling is no reason: such a kernel runs, if slowly.
    """
    if resources.spilled and not may_spill:
        raise ResourceLimitError(
            f"{resources.spilled} bytes spilled: {resources.registers} registers of a thread are "
            "too few"
        )
    taken = _rounded(resources.registers, _REGISTER_STEP) * _rounded(threads, machine.warp_size)
    if taken > machine.registers_per_block:
        raise ResourceLimitError(
            f"{resources.registers} registers in each of {threads} threads; a block has "
            f"{machine.registers_per_block}"
        )


def parse_report(report: str) -> list[KernelResources]:
    """The kernels in what ``ptxas -v`` prints.

    A function that a kernel calls has a paragraph of its own, and adds to what the kernel spills.
    """
    found = []
    for name, part in _PARAGRAPH.findall(report):
        registers = [int(n) for n in re.findall(r"Used (\d+) registers", part)]
        spilled = [int(n) for n in re.findall(r"(\d+) bytes spill stores", part)]
        stack = [int(n) for n in re.findall(r"(\d+) bytes stack frame", part)]
        found.append(KernelResources(name, max(registers, default=0), sum(spilled), sum(stack)))
    return found


def _is_device_function(func: tirx.PrimFunc) -> bool:
    convention = func.attrs.get("calling_conv", 0) if func.attrs is not None else 0
    return int(convention) == _DEVICE_KERNEL_LAUNCH


def _launch(name: str, func: tirx.PrimFunc) -> Launch:
    threads: dict[str, int] = {}
    shared = {"shared": 0, "shared.dyn": 0}

    def thread(stmt: tirx.AttrStmt) -> None:
        if stmt.attr_key == "thread_extent":
            tag = str(stmt.node.thread_tag)
            if tag.startswith("threadIdx"):
                threads[tag] = _number(stmt.value)

    def allocation(stmt: tirx.AllocBuffer) -> None:
        scope = stmt.buffer.scope()
        if scope in shared:
            width = tvm.DataType(str(stmt.buffer.dtype))
            elements = math.prod(_number(size) for size in stmt.buffer.shape)
            shared[scope] += elements * width.bits * width.lanes // 8

    structural_walk(func.body, (tirx.AttrStmt, thread), order="pre")
    structural_walk(func.body, (tirx.AllocBuffer, allocation), order="pre")
    return Launch(name, math.prod(threads.values()), shared["shared"], shared["shared.dyn"])


def _number(value: object) -> int:
    if isinstance(value, tirx.IntImm):
        return int(value.value)
    return value if isinstance(value, int) else 1


def _rounded(number: int, step: int) -> int:
    return -(-number // step) * step
