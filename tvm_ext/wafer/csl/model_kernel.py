"""One kernel of an ONNX model, scheduled so that there is code for it."""

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tvm import tirx

from tvm_ext.compiler.stages import ModelSource
from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.targets import compiling_for
from tvm_ext.hardware.wafer.description import WaferDescription
from tvm_ext.passes.pipeline import Pipeline
from tvm_ext.tir_schedules.apply_template import apply_template
from tvm_ext.tir_schedules.schedule_kernels import schedule_kernel
from tvm_ext.tir_schedules.template import FixedDecisions
from tvm_ext.tir_schedules.wafer.matmul import ON_RIGHT, ON_SUMMED, SUMMA, WaferMatmul
from tvm_ext.tune_model import model_tasks
from tvm_ext.tuning.candidate import KernelTask
from tvm_ext.wafer.csl import CslError

# Matmuls scheduled as there is code for them.


class SummaDecisions:
    """The template's own decisions, but SUMMA with as many steps as there are pieces to send.

    In fewer steps, what one step needs lies in several PEs. Instructions go along the result: there
    is none that sums up a vector.

    Parameters
    ----------
    given : mapping of str to int
        Decisions to take instead, where they are among the options.
    """

    def __init__(self, given: Mapping[str, int] | None = None) -> None:
        self._given = FixedDecisions({"algorithm": SUMMA, **(given or {})}, lenient=True)

    def pick(self, name: str, options: Iterable[int], default: int) -> int:
        """See ``Decisions.pick``."""
        known = list(options)
        if name == "steps":
            default = max(known)
        if name == "vector" and default == ON_SUMMED:
            default = ON_RIGHT
        return self._given.pick(name, known, default)


def scheduled_as_summa(
    func: tirx.PrimFunc, mesh: WaferDescription, given: Mapping[str, int] | None = None
) -> tirx.PrimFunc | NotApplicable:
    """A matmul for ``mesh``, or why it is none; ``given`` as for SummaDecisions."""
    scheduled = apply_template(WaferMatmul(), func, mesh, SummaDecisions(given))
    return scheduled if isinstance(scheduled, NotApplicable) else scheduled.func


# Names in a message.
_MOST_NAMES = 12


@dataclass(frozen=True)
class ModelKernel:
    """A kernel.

    Attributes
    ----------
    name : str
        In the program.
    func : tirx.PrimFunc
        As it is scheduled.
    schedule : str
        What scheduled it.
    """

    name: str
    func: tirx.PrimFunc
    schedule: str


def model_kernel(
    model: ModelSource,
    wanted: str,
    mesh: WaferDescription,
    input_shapes: Mapping[str, Sequence[int | str]] | None,
    pipeline: Pipeline,
) -> ModelKernel:
    """The kernel of a model that ``wanted`` names.

    A product of two matrices is scheduled as SUMMA, for which there is code, whatever the templates
    would choose; any other kernel as they do.

    Parameters
    ----------
    model, input_shapes
        As for ``compile``.
    wanted : str
        Name or hash of a kernel; or a pattern (``*`` and ``?``) that only one name matches.
    mesh : WaferDescription
        The target.
    pipeline : Pipeline
        The passes.

    Raises
    ------
    CslError
        No kernel, or more than one, has the name.
    TvmExtError
        As ``compile``.
    """
    with compiling_for(mesh):
        tasks = model_tasks(model, input_shapes, pipeline).tasks
        task = _chosen(tasks, wanted)
        summa = scheduled_as_summa(task.func, mesh)
        if not isinstance(summa, NotApplicable):
            return ModelKernel(task.name, summa, "SUMMA")
        func, choice = schedule_kernel(task.func, mesh)
    return ModelKernel(task.name, func, choice.schedule)


def _chosen(tasks: Iterable[KernelTask], wanted: str) -> KernelTask:
    known = list(tasks)
    exact = [task for task in known if wanted in (task.name, task.hash)]
    found = exact or [task for task in known if fnmatch.fnmatchcase(task.name, wanted)]
    if len(found) == 1:
        return found[0]
    names = [task.name for task in found or known]
    listed = ", ".join(names[:_MOST_NAMES])
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    what = f"{len(found)} kernels match '{wanted}'" if found else f"no kernel matches '{wanted}'"
    raise CslError(f"{what}; expected one of {listed}{more}")
