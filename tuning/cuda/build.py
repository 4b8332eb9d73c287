"""Builds candidates for a GPU, and makes a process ready to run them.

A build ends where a block of threads could not run the kernel.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import tvm
from tvm.ir.instrument import pass_instrument

from tvm_ext.hardware.cuda.compilers import CodeForm, Nvcc
from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.hardware.cuda.device_code import making_device_code
from tvm_ext.hardware.cuda.resources import (
    Launch,
    ResourceLimitError,
    check_launch,
    check_resources,
    launches,
    parse_report,
)
from tvm_ext.hardware.cuda.runtime_library import keep_for_ever, runtime_problem


@dataclass(frozen=True)
class CudaBuildCheck:
    """What a kernel is held against.

    Attributes
    ----------
    machine : CudaDescription
        Whose limits count.
    may_spill : bool
        Whether a kernel without registers enough is built all the same.
    """

    machine: CudaDescription
    may_spill: bool = False


@contextmanager
def checked_build(check: CudaBuildCheck) -> Iterator[list[Any]]:
    """Builds in the block end when a kernel breaks a limit; yields instruments for their context.

    Threads and shared memory are looked at before there is any code. Registers are in the report of
    nvcc, where that is the compiler: what it says ends the build before there is a library.

    Raises
    ------
    ResourceLimitError
        The kernel needs more threads, shared memory or registers than a block has.
    """
    building = _Building(check)

    @pass_instrument
    class SplitFunctions:
        """Reads device functions where their shared memory is laid out and their threads known."""

        def run_after_pass(self, mod: tvm.IRModule, info: Any) -> None:
            """See TVM."""
            if str(info.name) == "tirx.SplitHostDevice":
                building.look_at(launches(mod))

    with making_device_code(check.machine.arch) as job:
        if isinstance(job.compiler, Nvcc):
            job.compiler = _CheckedNvcc(job.compiler, building)
        try:
            yield [SplitFunctions()]
        except Exception as error:
            # Through TVM only the text of an error comes back.
            if building.refusals:
                raise building.refusals[0] from error
            raise


class _Building:
    """What is known of the kernel that is being built."""

    def __init__(self, check: CudaBuildCheck) -> None:
        self._check = check
        self._threads: dict[str, int] = {}
        self.refusals: list[ResourceLimitError] = []

    def look_at(self, launches: list[Launch]) -> None:
        """Raises ResourceLimitError, and keeps it, for what a block cannot declare."""
        with self._kept():
            for launch in launches:
                self._threads[launch.name] = launch.threads
                check_launch(launch, self._check.machine)

    def read(self, report: str) -> None:
        """Raises ResourceLimitError, and keeps it, for too many registers."""
        with self._kept():
            for kernel in parse_report(report):
                threads = self._threads.get(kernel.name, 1)
                check_resources(kernel, threads, self._check.machine, self._check.may_spill)

    @contextmanager
    def _kept(self) -> Iterator[None]:
        try:
            yield
        except ResourceLimitError as error:
            self.refusals.append(error)
            raise


@dataclass(frozen=True)
class _CheckedNvcc:
    """nvcc, whose report is read."""

    nvcc: Nvcc
    building: _Building

    @property
    def name(self) -> str:
        """See ``CudaCompiler``."""
        return self.nvcc.name

    def form(self, arch: str) -> CodeForm:
        """See ``CudaCompiler``."""
        return self.nvcc.form(arch)

    def compile(self, code: str, arch: str) -> bytes:
        """See ``CudaCompiler``; raises ResourceLimitError too."""
        binary, report = self.nvcc.compile_with_report(code, arch)
        self.building.read(report)
        return binary


# A process made ready to run kernels on a GPU: here, or in a server's session.


BEGIN_GPU = "tvm_ext.begin_gpu"
"""Name of ``begin_gpu`` for clients of a server."""

# Entered for the rest of the process.
_begun: dict[str, AbstractContextManager[Any]] = {}


class CudaUnavailable(RuntimeError):
    """A GPU cannot be used; the text says why, and what to do."""


def begin_gpu(arch: str) -> str:
    """Loads CUDA, and has code that comes as source compiled for ``arch`` from now on.

    Returns why that is not possible, in one line; empty where it is. The process must not fork
    after it.
    """
    problem = runtime_problem()
    if not problem and arch and arch not in _begun:
        _begun[arch] = making_device_code(arch)
        _begun[arch].__enter__()
        # It cannot be left at the end of the process, when its thread is gone.
        keep_for_ever(_begun[arch])
    return problem


def offer_begin_gpu() -> None:
    """Lets clients of a server call ``begin_gpu`` in the process of their session."""
    tvm.register_global_func(BEGIN_GPU, begin_gpu, override=True)
