"""Code for one scheduled kernel, generated in a worker's process."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import tvm

from tvm_ext.cuda.device_code import making_device_code
from tvm_ext.tir_schedules.cuda.pass_options import pass_options
from tvm_ext.tuning.gpu_build import GpuCheck, checked_build


@dataclass(frozen=True)
class BuildJob:
    """What to build.

    Attributes
    ----------
    mod_json : str
        The module, as ``tvm.ir.save_json`` writes it.
    target : dict
        The target's attributes.
    library : str
        Path of the shared library to write.
    check : GpuCheck or None
        What the kernel may take of a GPU; None for a CPU.
    """

    mod_json: str
    target: dict[str, Any]
    library: str
    check: GpuCheck | None = None


def build_job(
    mod: tvm.IRModule, target: dict[str, Any], library: str, check: GpuCheck | None = None
) -> BuildJob:
    """The job to build ``mod``, whose kernel is named "main"."""
    return BuildJob(tvm.ir.save_json(mod), target, library, check)


def build(job: BuildJob) -> None:
    """Builds and writes the library.

    Raises ResourceLimitError, before there is code for the device, if a GPU cannot run the kernel.
    """
    mod = tvm.ir.load_json(job.mod_json)
    target = tvm.target.Target(job.target)
    # In this order: the check looks at the code before what makes device code of it.
    with _device_code(target), _checked(job.check) as instruments:
        options = pass_options(target)
        with tvm.transform.PassContext(opt_level=3, config=options, instruments=instruments):
            built = tvm.compile(mod, target=target)
    built.export_library(job.library)


def _device_code(target: tvm.target.Target) -> AbstractContextManager[Any]:
    """Has code for a GPU made as ``compile`` makes that of a model."""
    if target.kind.name != "cuda":
        return nullcontext()
    return making_device_code(str(target.attrs["arch"]))


def _checked(check: GpuCheck | None) -> AbstractContextManager[list[Any]]:
    return checked_build(check) if check is not None else nullcontext([])
