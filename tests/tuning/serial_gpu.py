"""A GPU that this CPU stands in for: its kernels run with one thread after the other."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tvm
from cuda_kernels import SERIAL_TARGET, in_series
from lowering import kernel_of
from tvm import relax, tirx

from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.hardware.targets import compiling_for, resolve_target
from tvm_ext.tir_schedules.analysis.buffer_access import nodes
from tvm_ext.tir_schedules.cuda.cublas import LIBRARY_CALL
from tvm_ext.tuning import measurer, references
from tvm_ext.tuning.candidate import KernelTask, kernel_task, plain_json
from tvm_ext.tuning.cuda.build import CudaBuildCheck
from tvm_ext.tuning.jobs import BuildJob, build_job
from tvm_ext.tuning.progress import SessionProgress
from tvm_ext.tuning.session import TuningSession
from tvm_ext.tuning.session_options import Effort, Limits, SessionOptions

_SERIAL = plain_json(dict(SERIAL_TARGET.export()))

Chooses = Callable[[tvm.IRModule], bool]


def gpu(name: str = "nvidia-a100", **changed: Any) -> CudaDescription:
    """A preset, with some of its numbers changed."""
    found = resolve_target(name)
    assert isinstance(found, CudaDescription)
    return found.model_copy(update=changed)


def threads_of(func: tirx.PrimFunc) -> int:
    """The longest loop that is bound to threads of a block."""
    loops = [loop for loop in nodes(func.body, tirx.For) if loop.thread_binding is not None]
    tags = [(str(loop.thread_binding.thread_tag), int(loop.extent)) for loop in loops]
    return max(extent for tag, extent in tags if tag.startswith("threadIdx"))


def softmax_task(rows: int = 16, columns: int = 96, dtype: str = "float32") -> KernelTask:
    """A kernel that blocks of threads reduce."""
    func = kernel_of(lambda x: relax.op.nn.softmax(x, -1), ((rows, columns), dtype))
    return kernel_task(f"softmax{rows}x{columns}", func, 1, ["Softmax.0"])


@contextmanager
def serial_gpu(is_too_large: Chooses = lambda mod: False) -> Iterator[None]:
    """Measurers in the block build kernels for a GPU as loops for this CPU, and run them here.

    ``is_too_large`` says which are built for a GPU all the same, for one with smaller blocks.
    """

    def job(
        mod: tvm.IRModule, target: dict[str, Any], library: str, check: CudaBuildCheck | None = None
    ) -> BuildJob:
        if target["kind"] != "cuda":
            return build_job(mod, target, library, check)
        if check is not None and is_too_large(mod):
            small = check.machine.model_copy(update={"max_threads_per_block": 32})
            return build_job(mod, target, library, replace(check, machine=small))
        if LIBRARY_CALL in mod["main"].attrs:
            return build_job(mod, _SERIAL, library)
        return build_job(tvm.IRModule({"main": in_series(mod["main"])}), _SERIAL, library)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measurer, "build_job", job)
        patch.setattr(references, "build_job", job)
        patch.setattr(measurer, "device_kind", lambda machine: "cpu")
        yield


def run_cuda_session(
    folder: Path,
    tasks: list[KernelTask],
    effort: Effort,
    machine: CudaDescription,
    cost_model: str = "analytic",
    **options: Any,
) -> SessionProgress:
    """Runs a session for a GPU to its end; ``options`` are those of ``SessionOptions``."""
    options = {"l2": "warm", "limits": Limits(300, 300, 300, 2 << 30), **options}
    with compiling_for(machine):
        session = TuningSession(
            "small",
            tasks,
            machine,
            folder,
            lambda mod: mod,
            cost_model,
            SessionOptions(effort, **options),
            {task.hash: 1e-6 for task in tasks},
        )
        return session.run()
