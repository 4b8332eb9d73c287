"""Code for one scheduled kernel, generated in a worker's process."""

from dataclasses import dataclass
from typing import Any

import tvm

from tvm_ext.tir_schedules.cuda.pass_options import pass_options


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
    """

    mod_json: str
    target: dict[str, Any]
    library: str


def build_job(mod: tvm.IRModule, target: dict[str, Any], library: str) -> BuildJob:
    """The job to build ``mod``, whose kernel is named "main"."""
    return BuildJob(tvm.ir.save_json(mod), target, library)


def build(job: BuildJob) -> None:
    """Builds and writes the library."""
    mod = tvm.ir.load_json(job.mod_json)
    target = tvm.target.Target(job.target)
    with tvm.transform.PassContext(opt_level=3, config=pass_options(target)):
        built = tvm.compile(mod, target=target)
    built.export_library(job.library)
