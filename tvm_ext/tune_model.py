"""``tune``: finds faster schedules for the kernels of a model and writes them down."""

import fnmatch
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
from tvm import tirx

from tvm_ext.api import TargetSource
from tvm_ext.artifact import VersionsRecord
from tvm_ext.compiler.kernel_records import calls_at
from tvm_ext.compiler.kernel_work import kernel_seconds, work_of_call
from tvm_ext.compiler.stages import (
    LoweredModel,
    ModelSource,
    Phases,
    lower_model,
    usual_sizes,
)
from tvm_ext.configs.errors import nearest_hint
from tvm_ext.errors import InputError, TuningError
from tvm_ext.hardware.cost_model import CostModel, cost_model
from tvm_ext.hardware.targets import compiling_for, resolve_target
from tvm_ext.passes.pipeline import Pipeline, PipelineSource, build_pipeline
from tvm_ext.passes.runner import PassRunner
from tvm_ext.tensor_spec import SizeRange
from tvm_ext.tuning.backend import tuning_of
from tvm_ext.tuning.candidate import (
    Finish,
    KernelTask,
    NominalCall,
    distinct_tasks,
    kernel_task,
)
from tvm_ext.tuning.cost_models.choose import model_name
from tvm_ext.tuning.progress import ProgressListener, SessionProgress
from tvm_ext.tuning.runner import RunDeviceAddress
from tvm_ext.tuning.session import TuningSession
from tvm_ext.tuning.session_options import Limits, SessionOptions, load_effort

# Combinations of sizes with which each candidate is measured.
_MOST_SIZES = 8


@dataclass(frozen=True)
class ModelTasks:
    """What there is to tune in a model.

    Attributes
    ----------
    model : str
        Its name.
    tasks : list[KernelTask]
        Its kernels, each once, the most expensive first by the cost model.
    modelled : dict[str, float]
        By kernel hash, seconds that the cost model expects of one call, at the first of its sizes.
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
    sizes: Mapping[str, Sequence[int]] | None = None,
    input_shapes: Mapping[str, Sequence[int | str]] | None = None,
    opt_level: int | str = "O3",
    disabled_passes: Iterable[str] = (),
    pass_config: Mapping[str, Mapping[str, Any]] | None = None,
    pipeline: PipelineSource | None = None,
    listener: ProgressListener | None = None,
) -> SessionProgress:
    """Tunes the kernels of an ONNX model. ``compile(..., records=work_dir)`` uses the records.

    A session that was interrupted continues when ``tune`` is called again with the same arguments.
    It does not repeat trials that were made already.

    Parameters
    ----------
    model, target, input_shapes, opt_level, disabled_passes, pass_config, pipeline
        As for ``compile``. The records fit only compilations with the same values.
    work_dir : path
        Folder for the records. It is made if needed.
    trials : int, optional
        Number of trials of all kernels together, including those of earlier sessions. By default
        the effort decides how many each kernel may take.
    time_budget : float, optional
        The longest time of the session, in seconds.
    effort : str
        How thorough the search is: "quick", "standard" or "thorough" (see ``configs/efforts``).
    only, skip : iterable of str
        Patterns with ``*`` and ``?`` for names of kernels, hashes of kernels, or names of nodes.
        Kernels that match ``only`` are tuned, except those that match ``skip``.
    seed : int
        Seed of all random choices.
    cost_model_name : str, optional
        The cost model that ranks candidates: "xgboost", "predictor", "analytic" or "random". By
        default the effort decides for CPUs, and "analytic" is used for other machines.
    rpc : sequence of RunDeviceAddress
        Addresses of the servers to measure on. Without any, this machine is measured.
    limits : Limits, optional
        The time and memory that one candidate may take.
    l2 : str
        For a GPU: "cold" empties the L2 cache before each timed call, and "warm" leaves in it the
        data of the call before.
    sizes : mapping of dimension name to sizes, optional
        The sizes of dynamic dimensions to tune kernels for, for example ``{"N": [1, 8, 64]}``. All
        combinations of the sizes of several dimensions are measured, and schedules are compared by
        the geometric mean of their times. A dimension that is not named has one usual size: 1 for
        a batch, 224 for others, or a size within its range.
    listener : ProgressListener, optional
        An object that shows the progress.

    Returns
    -------
    SessionProgress

    Raises
    ------
    TvmExtError
        As for ``compile``.
    TuningError, RecordsError
        The session cannot start.
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
        found = model_tasks(model, input_shapes, passes, sizes or {})
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


def model_tasks(
    model: ModelSource,
    input_shapes: Mapping[str, Sequence[int | str]] | None,
    pipeline: Pipeline,
    sizes: Mapping[str, Sequence[int]] | None = None,
) -> ModelTasks:
    """The kernels of a model as ``compile`` schedules them, for the target that TVM has set.

    ``sizes`` are as for ``tune``.
    """
    runner = PassRunner()
    lowered = lower_model(model, input_shapes, pipeline, runner, Phases())
    costs = cost_model(resolve_target(tvm.target.Target.current()))
    tasks = distinct_tasks(_tasks(lowered, _combined(lowered, sizes or {})))
    modelled = {task.hash: _modelled_seconds(task, costs) for task in tasks}
    tasks.sort(key=lambda task: -modelled[task.hash] * task.calls)
    return ModelTasks(lowered.imported.name, tasks, modelled, kernel_finish(pipeline))


def kernel_finish(pipeline: Pipeline) -> Finish:
    """What ``compile`` does to kernels between their schedules and code generation."""

    def finish(mod: tvm.IRModule) -> tvm.IRModule:
        # A new one each time: it keeps a record of every pass that it runs.
        return PassRunner().run(pipeline.tile, mod)

    return finish


def _modelled_seconds(task: KernelTask, costs: CostModel) -> float:
    if not task.nominal:
        return kernel_seconds(task.func, costs)
    work = work_of_call(task.func, task.nominal[0].arguments)
    return costs.seconds(work) if work is not None else 0.0


def _combined(lowered: LoweredModel, given: Mapping[str, Sequence[int]]) -> list[dict[str, int]]:
    """Each of the given sizes of the model's dimensions with each, and usual ones of others."""
    imported = lowered.imported
    usual = usual_sizes(imported)
    for name, sizes in given.items():
        if name not in usual:
            hint = nearest_hint(name, usual) if usual else "the model has none: leave it out"
            raise InputError(f"sizes: '{name}' is not a dynamic dimension; {hint}")
        allowed = imported.ranges.get(name) or SizeRange(1)
        wrong = [size for size in sizes if size not in allowed]
        if wrong or not sizes:
            raise InputError(
                f"sizes: {wrong[0] if wrong else 'none'} for dimension '{name}'; expected "
                f"{allowed}: give allowed sizes"
            )
    options = [given.get(name, [size]) for name, size in usual.items()]
    found = [dict(zip(usual, one, strict=True)) for one in itertools.product(*options)]
    if len(found) > _MOST_SIZES:
        raise InputError(
            f"sizes: {len(found)} combinations; expected {_MOST_SIZES} at most, as each candidate "
            "is measured with all of them: give fewer"
        )
    return found


def _tasks(lowered: LoweredModel, sizes: Sequence[Mapping[str, int]]) -> list[KernelTask]:
    calls: dict[str, list[str]] = {}
    for call in lowered.calls:
        calls.setdefault(call.kernel, []).append(call.where)
    nominal = _nominal_calls(lowered, sizes)
    return [
        kernel_task(name, lowered.kernels[name], len(places), places, nominal.get(name, ()))
        for name, places in calls.items()
        if isinstance(lowered.kernels[name], tirx.PrimFunc)
    ]


def _nominal_calls(
    lowered: LoweredModel, sizes: Sequence[Mapping[str, int]]
) -> dict[str, list[NominalCall]]:
    """By kernel, its first call at each of ``sizes``; none where that is not known for all."""
    found: dict[str, list[NominalCall]] = {}
    for one in sizes if any(sizes) else ():
        first: dict[str, Any] = {}
        for name, arguments in calls_at(lowered.kernels, one):
            first.setdefault(name, arguments)
        for name, arguments in first.items():
            if arguments is not None:
                found.setdefault(name, []).append(NominalCall(one, arguments))
    return {name: calls for name, calls in found.items() if len(calls) == len(sizes)}


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
