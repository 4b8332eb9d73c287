"""``tune``: finds faster schedules for the kernels of a model and writes them down."""

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
from tvm import tirx

from tvm_ext.api import TargetSource
from tvm_ext.artifact import VersionsRecord
from tvm_ext.compiler.kernel_records import kernel_seconds
from tvm_ext.compiler.stages import LoweredModel, ModelSource, Phases, lower_model
from tvm_ext.errors import TuningError
from tvm_ext.hardware.cost_model import cost_model
from tvm_ext.hardware.targets import compiling_for, resolve_target
from tvm_ext.passes.pipeline import Pipeline, PipelineSource, build_pipeline
from tvm_ext.passes.runner import PassRunner
from tvm_ext.tuning.backend import tuning_of
from tvm_ext.tuning.candidate import Finish, KernelTask, distinct_tasks, kernel_task
from tvm_ext.tuning.cost_models.choose import model_name
from tvm_ext.tuning.progress import ProgressListener, SessionProgress
from tvm_ext.tuning.runner import RunDeviceAddress
from tvm_ext.tuning.session import TuningSession
from tvm_ext.tuning.session_options import Limits, SessionOptions, load_effort


@dataclass(frozen=True)
class ModelKernels:
    """What there is to tune in a model.

    Attributes
    ----------
    model : str
        Its name.
    tasks : list[KernelTask]
        Its kernels, each once, the most expensive first by the cost model.
    modelled : dict[str, float]
        By kernel hash, seconds that the cost model expects of one call.
    finish : Finish
        The passes that come behind the schedules.
    """

    model: str
    tasks: list[KernelTask]
    modelled: dict[str, float]
    finish: Finish


def tune(
    model: ModelSource,
    target: TargetSource = "cpu",
    *,
    work_dir: str | Path,
    trials: int | None = None,
    time_budget: float | None = None,
    effort: str = "standard",
    only: Iterable[str] = (),
    skip: Iterable[str] = (),
    seed: int = 0,
    cost_model_name: str | None = None,
    rpc: Sequence[RunDeviceAddress] = (),
    limits: Limits | None = None,
    l2: str = "cold",
    input_shapes: Mapping[str, Sequence[int | str]] | None = None,
    opt_level: int | str = "O3",
    disabled_passes: Iterable[str] = (),
    pass_config: Mapping[str, Mapping[str, Any]] | None = None,
    pipeline: PipelineSource | None = None,
    listener: ProgressListener | None = None,
) -> SessionProgress:
    """Tunes the kernels of an ONNX model; ``compile(..., records=work_dir)`` uses what it finds.

    A session that was interrupted, in whatever way, goes on when it is called again with the same
    arguments: what was tried is not tried again.

    Parameters
    ----------
    model, target, input_shapes, opt_level, disabled_passes, pass_config, pipeline
        As for ``compile``, which has to be given the same ones for the records to fit.
    work_dir : path
        Folder of the records; made if needed.
    trials : int, optional
        Trials of all kernels together, those of earlier sessions included; without it the effort
        says how many each kernel may take.
    time_budget : float, optional
        Seconds that the session may take.
    effort : str
        "quick", "standard" or "thorough": see ``configs/efforts``.
    only, skip : iterable of str
        Patterns (``*`` and ``?``) of kernel names, hashes or names of the model's nodes: kernels
        to tune, and to leave out.
    seed : int
        Of all random draws.
    cost_model_name : str, optional
        What ranks candidates: "xgboost", "predictor", "analytic" or "random"; by default the
        effort's own for CPUs, and "analytic" for others.
    rpc : sequence of RunDeviceAddress
        Servers to measure on, one address for each; this machine without any.
    limits : Limits, optional
        Time and memory of one candidate.
    l2 : str
        Of a GPU: "cold" empties its L2 cache before each call that is timed, "warm" leaves in it
        what the call before has left.
    listener : ProgressListener, optional
        Shows the progress.

    Returns
    -------
    SessionProgress

    Raises
    ------
    TvmExtError
        As ``compile``; TuningError or RecordsError when the session cannot start.
    """
    machine = resolve_target(target)
    _check_numbers(trials, time_budget, l2)
    tuning = tuning_of(machine)
    device = tuning.check_machine(machine, rpc)
    options = SessionOptions(
        effort=load_effort(effort),
        trials=trials,
        time_budget=time_budget,
        seed=seed,
        limits=limits or Limits(),
        devices=tuple(rpc),
        versions={**VersionsRecord.installed().model_dump(), **device},
        l2="warm" if l2 == "warm" else "cold",
    )
    ranking = model_name(cost_model_name or tuning.usual_model or options.effort.cost_model)
    passes = build_pipeline(opt_level, disabled_passes, pass_config, pipeline)
    folder = Path(work_dir)
    with compiling_for(machine):
        found = model_kernels(model, input_shapes, passes)
        session = TuningSession(
            found.model,
            _selected(found.tasks, list(only), list(skip)),
            machine,
            folder,
            found.finish,
            ranking,
            options,
            found.modelled,
            listener,
        )
        return session.run()


def model_kernels(
    model: ModelSource,
    input_shapes: Mapping[str, Sequence[int | str]] | None,
    pipeline: Pipeline,
) -> ModelKernels:
    """The kernels of a model as ``compile`` schedules them, for the target that TVM has set."""
    runner = PassRunner()
    lowered = lower_model(model, input_shapes, pipeline, runner, Phases())
    costs = cost_model(resolve_target(tvm.target.Target.current()))
    tasks = distinct_tasks(_tasks(lowered))
    modelled = {task.hash: kernel_seconds(task.func, costs) for task in tasks}
    tasks.sort(key=lambda task: -modelled[task.hash] * task.calls)
    return ModelKernels(lowered.imported.name, tasks, modelled, kernel_finish(pipeline))


def kernel_finish(pipeline: Pipeline) -> Finish:
    """What ``compile`` does to kernels between their schedules and code generation."""

    def finish(mod: tvm.IRModule) -> tvm.IRModule:
        # A new one each time: it keeps a record of every pass that it runs.
        return PassRunner().run(pipeline.tile, mod)

    return finish


def _tasks(lowered: LoweredModel) -> list[KernelTask]:
    calls: dict[str, list[str]] = {}
    for call in lowered.calls:
        calls.setdefault(call.kernel, []).append(call.where)
    return [
        kernel_task(name, lowered.kernels[name], len(places), places)
        for name, places in calls.items()
        if isinstance(lowered.kernels[name], tirx.PrimFunc)
    ]


def _selected(tasks: list[KernelTask], only: list[str], skip: list[str]) -> list[KernelTask]:
    for pattern in (*only, *skip):
        if not any(_matches(task, pattern) for task in tasks):
            raise TuningError(
                f"no kernel or node matches '{pattern}'; expected a name or a pattern with * and "
                "?: see the kernels with 'tvm-ext compile MODEL'"
            )
    chosen = [task for task in tasks if not only or any(_matches(task, p) for p in only)]
    return [task for task in chosen if not any(_matches(task, p) for p in skip)]


def _matches(task: KernelTask, pattern: str) -> bool:
    names = [task.name, task.hash]
    for origin in task.origins:
        names += [origin, *origin.split(" + ")]
    return any(fnmatch.fnmatchcase(name, pattern) for name in names)


def _check_numbers(trials: int | None, time_budget: float | None, l2: str) -> None:
    if l2 not in ("cold", "warm"):
        raise TuningError(f"l2 is '{l2}'; expected 'cold' or 'warm'")
    if trials is not None and trials < 1:
        raise TuningError(f"trials is {trials}; expected 1 or more")
    if time_budget is not None and not time_budget > 0:
        raise TuningError(f"time_budget is {time_budget}; expected seconds above 0")
