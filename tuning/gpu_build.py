"""A build for a GPU that ends where a block of threads could not run the kernel."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tvm
from tvm.ir.instrument import pass_instrument

from tvm_ext.hardware.cuda.architecture import CodeForm
from tvm_ext.hardware.cuda.device_code import making_device_code
from tvm_ext.hardware.cuda.nvcc import Nvcc
from tvm_ext.hardware.cuda.resources import (
    Launch,
    ResourceLimitError,
    check_launch,
    check_resources,
    launches,
    parse_report,
)
from tvm_ext.hardware.description import Description, GpuDescription


@dataclass(frozen=True)
class GpuCheck:
    """What a kernel is held against.

    Attributes
    ----------
    machine : GpuDescription
        Whose limits count.
    may_spill : bool
        Whether a kernel without registers enough is built all the same.
    """

    machine: GpuDescription
    may_spill: bool = False


def gpu_check(machine: Description, may_spill: bool) -> GpuCheck | None:
    """What a kernel for ``machine`` is held against; None where that is no GPU."""
    return GpuCheck(machine, may_spill) if isinstance(machine, GpuDescription) else None


@contextmanager
def checked_build(check: GpuCheck) -> Iterator[list[Any]]:
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

    def __init__(self, check: GpuCheck) -> None:
        self._check = check
        self._threads: dict[str, int] = {}
        self.refusals: list[ResourceLimitError] = []

    def look_at(self, found: list[Launch]) -> None:
        """Raises ResourceLimitError, and keeps it, for what a block cannot declare."""
        with self._kept():
            for launch in found:
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
