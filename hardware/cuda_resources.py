"""What a kernel takes of a GPU's multiprocessor, and which of its limits that breaks.

Threads and shared memory are in the kernel's lowered form. Registers, and what is spilled to memory
for want of them, only the assembler knows: ``ptxas -v``, run by nvcc, which needs no GPU.
"""

import hashlib
import json
import math
import re
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import tvm
from tvm import tirx
from tvm_ffi import structural_walk

from tvm_ext.cuda.nvcc import FLAGS, find_nvcc
from tvm_ext.hardware.description import GpuDescription

# As a model's code is compiled: other options give other registers.
_OPTIONS = (*FLAGS, "--ptxas-options=-v")

# A warp gets its registers in blocks of 256, eight for each of its threads. CUDA C++ Programming
# Guide, table "Technical Specifications per Compute Capability".
_REGISTER_STEP = 8

# tvm::CallingConv::kDeviceKernelLaunch.
_DEVICE_KERNEL_LAUNCH = 2


class ResourceLimitError(ValueError):
    """A kernel takes more than a block of threads can have; the text says of what."""


class AssemblyError(ValueError):
    """nvcc refuses CUDA code, or takes too long; the text is its first error."""


@dataclass(frozen=True)
class KernelResources:
    """What ptxas says of one kernel.

    Attributes
    ----------
    registers : int
        Of a thread.
    spilled : int
        Bytes that a thread stores because it has too few registers.
    stack : int
        Bytes of a thread's stack, spilled ones included.
    """

    registers: int
    spilled: int
    stack: int


@dataclass(frozen=True)
class Launch:
    """What a block of threads of one kernel declares.

    Attributes
    ----------
    threads : int
        Threads of a block.
    static_shared, dynamic_shared : int
        Bytes of shared memory: fixed in the code, and asked for at launch.
    """

    threads: int
    static_shared: int
    dynamic_shared: int


def launches(mod: tvm.IRModule) -> list[Launch]:
    """What each device function declares, once TVM has split them from the host's code.

    A size that is known only at launch counts as 1.
    """
    functions = [func for func in mod.functions.values() if isinstance(func, tirx.PrimFunc)]
    return [_launch(func) for func in functions if _is_device_function(func)]


def check_launch(launch: Launch, machine: GpuDescription) -> None:
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
    if shared > machine.dynamic_shared_memory_bytes:
        raise ResourceLimitError(
            f"{shared} bytes of shared memory; at most {machine.dynamic_shared_memory_bytes}"
        )


def check_resources(
    found: KernelResources, threads: int, machine: GpuDescription, may_spill: bool = False
) -> None:
    """Raises ResourceLimitError if ``threads`` threads of a kernel lack registers.

    With ``may_spill``, spilling is no reason: such a kernel runs, if slowly.
    """
    if found.spilled and not may_spill:
        raise ResourceLimitError(
            f"{found.spilled} bytes spilled: {found.registers} registers of a thread are too few"
        )
    taken = _rounded(found.registers, _REGISTER_STEP) * _rounded(threads, machine.warp_size)
    if taken > machine.registers_per_block:
        raise ResourceLimitError(
            f"{found.registers} registers in each of {threads} threads; a block has "
            f"{machine.registers_per_block}"
        )


def resource_report(
    source: str, arch: str, seconds: float = 60.0, folder: Path | None = None
) -> list[KernelResources] | None:
    """What the kernels of some CUDA code take, in the order of ptxas.

    Parameters
    ----------
    source : str
        The code.
    arch : str
        What it is assembled for, such as "sm_90a".
    seconds : float
        How long nvcc may take.
    folder : Path, optional
        Keeps reports; one that is there already is read instead of made again.

    Returns
    -------
    list[KernelResources] or None
        None where there is no nvcc, or it does not know ``arch``.

    Raises
    ------
    AssemblyError
        nvcc refuses the code, or needs more time.
    """
    nvcc = nvcc_path()
    if nvcc is None:
        return None
    kept = folder / f"{_digest(source, arch)}.resources" if folder is not None else None
    if kept is not None and kept.is_file():
        return [KernelResources(**one) for one in json.loads(kept.read_text())]
    report = _ptxas_report(nvcc, source, arch, seconds)
    if report is None:
        return None
    found = parse_report(report)
    if kept is not None:
        # Another process may write the same report: a rename is all or nothing.
        part = kept.with_suffix(f".{id(found)}.part")
        part.write_text(json.dumps([asdict(one) for one in found]))
        part.replace(kept)
    return found


@cache
def nvcc_path() -> str | None:
    """The CUDA compiler, if it is installed."""
    found = find_nvcc()
    return found.program if found is not None else None


def parse_report(report: str) -> list[KernelResources]:
    """The kernels in what ``ptxas -v`` prints.

    A function that a kernel calls has a paragraph of its own, and adds to what the kernel spills.
    """
    found = []
    for part in re.split(r"Compiling entry function", report)[1:]:
        registers = [int(n) for n in re.findall(r"Used (\d+) registers", part)]
        spilled = [int(n) for n in re.findall(r"(\d+) bytes spill stores", part)]
        stack = [int(n) for n in re.findall(r"(\d+) bytes stack frame", part)]
        found.append(KernelResources(max(registers, default=0), sum(spilled), sum(stack)))
    return found


def _ptxas_report(nvcc: str, source: str, arch: str, seconds: float) -> str | None:
    with tempfile.TemporaryDirectory(prefix="resources-") as folder:
        path = Path(folder) / "kernels.cu"
        path.write_text(source)
        command = [nvcc, "-cubin", f"-arch={arch}", *_OPTIONS]
        command += ["-o", str(path.with_suffix(".cubin")), str(path)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=seconds
            )
        except subprocess.TimeoutExpired as error:
            raise AssemblyError(f"nvcc took longer than {seconds:g} s") from error
        except OSError:
            return None
    if done.returncode == 0:
        return done.stderr + done.stdout
    lines = (done.stderr + done.stdout).splitlines()
    refused = next((line for line in lines if "error" in line), "")
    # "fatal" is about nvcc itself: an architecture it does not know, no C++ compiler beside it.
    if "nvcc fatal" in done.stderr or not refused:
        return None
    raise AssemblyError(refused.replace(str(path), "the code")[:300])


def _is_device_function(func: tirx.PrimFunc) -> bool:
    convention = func.attrs.get("calling_conv", 0) if func.attrs is not None else 0
    return int(convention) == _DEVICE_KERNEL_LAUNCH


def _launch(func: tirx.PrimFunc) -> Launch:
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
    return Launch(math.prod(threads.values()), shared["shared"], shared["shared.dyn"])


def _number(value: object) -> int:
    if isinstance(value, tirx.IntImm):
        return int(value.value)
    return value if isinstance(value, int) else 1


def _rounded(number: int, step: int) -> int:
    return -(-number // step) * step


def _digest(source: str, arch: str) -> str:
    text = "\0".join((arch, *_OPTIONS, source))
    return hashlib.sha256(text.encode()).hexdigest()[:24]
