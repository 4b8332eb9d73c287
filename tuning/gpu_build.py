"""A build for a GPU that ends before the device's code is made where a block could not run it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm.ir.instrument import pass_instrument

from tvm_ext.hardware.cuda_resources import (
    AssemblyError,
    Launch,
    ResourceLimitError,
    check_launch,
    check_resources,
    launches,
    resource_report,
)
from tvm_ext.hardware.description import Description, GpuDescription

# TVM calls it with the CUDA code of a module before it has that compiled for the device.
_HOOK = "tvm_callback_cuda_postproc"


@dataclass(frozen=True)
class GpuCheck:
    """What a kernel is held against.

    Attributes
    ----------
    machine : GpuDescription
        Whose limits count.
    may_spill : bool
        Whether a kernel without registers enough is built all the same.
    reports : str
        Folder that keeps resource reports; empty for none.
    seconds : float
        How long nvcc may take for one.
    """

    machine: GpuDescription
    may_spill: bool = False
    reports: str = ""
    seconds: float = 60.0


def gpu_check(
    machine: Description, may_spill: bool, seconds: float, reports: Path | None = None
) -> GpuCheck | None:
    """What a kernel for ``machine`` is held against; None where that is no GPU."""
    if not isinstance(machine, GpuDescription):
        return None
    return GpuCheck(machine, may_spill, str(reports or ""), seconds)


@contextmanager
def checked_build(check: GpuCheck) -> Iterator[list[Any]]:
    """Builds in the block end when a kernel breaks a limit; yields instruments for their context.

    Raises
    ------
    ResourceLimitError
        It needs more threads, shared memory or registers than a block has.
    AssemblyError
        nvcc refuses its code.
    """
    found: list[Launch] = []
    refusals: list[ResourceLimitError | AssemblyError] = []

    @pass_instrument
    class SplitFunctions:
        """Reads device functions where their shared memory is laid out and their threads known."""

        def run_after_pass(self, mod: tvm.IRModule, info: Any) -> None:
            """See TVM."""
            if str(info.name) == "tirx.SplitHostDevice":
                found.extend(launches(mod))

    earlier = tvm.get_global_func(_HOOK, allow_missing=True)

    def before_compiling(code: str, target: tvm.target.Target) -> str:
        # First: what else is hooked in may compile the code.
        try:
            _check(str(code), found, check)
        except (ResourceLimitError, AssemblyError) as error:
            refusals.append(error)
            raise
        return str(earlier(code, target)) if earlier is not None else code

    tvm_ffi.register_global_func(_HOOK, before_compiling, override=True)
    try:
        yield [SplitFunctions()]
    except Exception as error:
        # Through TVM only the text of an error comes back.
        if refusals:
            raise refusals[0] from error
        raise
    finally:
        if earlier is None:
            tvm_ffi.registry.remove_global_func(_HOOK)
        else:
            tvm_ffi.register_global_func(_HOOK, earlier, override=True)


def _check(code: str, found: list[Launch], check: GpuCheck) -> None:
    for launch in found:
        check_launch(launch, check.machine)
    folder = Path(check.reports) if check.reports else None
    report = resource_report(code, check.machine.arch, check.seconds, folder)
    threads = max((launch.threads for launch in found), default=1)
    for kernel in report or ():
        check_resources(kernel, threads, check.machine, check.may_spill)
