"""Code for one scheduled kernel, generated in a worker's process."""

from dataclasses import dataclass
from typing import Any

import tvm

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
    if job.check is None:
        built = _built(mod, target, [])
    else:
        # nvcc and NVRTC are told the architecture of the current target.
        with checked_build(job.check) as instruments, target:
            built = _built(mod, target, instruments)
    built.export_library(job.library)


def _built(mod: tvm.IRModule, target: tvm.target.Target, instruments: list[Any]) -> Any:
    options = pass_options(target)
    with tvm.transform.PassContext(opt_level=3, config=options, instruments=instruments):
        return tvm.compile(mod, target=target)
