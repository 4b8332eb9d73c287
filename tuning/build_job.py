"""Code for one scheduled kernel, generated in a worker's process."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tvm

from tvm_ext.hardware.cuda.device_code import making_device_code
from tvm_ext.tir_schedules.cuda.pass_options import compile_kernels
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

    Raises ResourceLimitError, before there is a library, if a GPU cannot run the kernel.
    """
    mod = tvm.ir.load_json(job.mod_json)
    target = tvm.target.Target(job.target)
    with _making_code(target, job.check) as instruments:
        built = compile_kernels(mod, target, instruments)
    built.export_library(job.library)


@contextmanager
def _making_code(target: tvm.target.Target, check: GpuCheck | None) -> Iterator[list[Any]]:
    """Has code for a GPU made as ``compile`` makes that of a model; yields instruments."""
    if check is not None:
        with checked_build(check) as instruments:
            yield instruments
    elif target.kind.name == "cuda":
        with making_device_code(str(target.attrs["arch"])):
            yield []
    else:
        yield []
