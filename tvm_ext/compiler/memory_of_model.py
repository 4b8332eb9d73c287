"""Where the values of a model's program lie in memory, without generating code for it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tvm_ext.api import TargetSource
from tvm_ext.compiler.backend import limit_bytes, require_memory, threads_of
from tvm_ext.compiler.compile_context import compiling
from tvm_ext.compiler.kernel_arrays import (
    largest_kernel_arrays,
    with_arrays_of_calls,
    with_kernel_arrays,
)
from tvm_ext.compiler.kernel_records import largest_result
from tvm_ext.compiler.stages import (
    ModelSource,
    Phases,
    lower_model,
    require_schedules,
    schedule_module,
    usual_sizes,
)
from tvm_ext.compiler.tuned_kernels import RecordsSource
from tvm_ext.hardware.targets import program_target
from tvm_ext.passes.pipeline import PipelineSource, build_pipeline, with_memory_limit
from tvm_ext.passes.runner import PassRunner
from tvm_ext.passes.share_storage import bytes_by_tvm
from tvm_ext.report.memory_plan import ModelMemory


def model_memory(
    model: ModelSource,
    target: TargetSource = "cpu",
    records: RecordsSource = (),
    *,
    input_shapes: Mapping[str, Sequence[int | str]] | None = None,
    opt_level: int | str = "O3",
    disabled_passes: Iterable[str] = (),
    pass_config: Mapping[str, Mapping[str, Any]] | None = None,
    pipeline: PipelineSource | None = None,
    memory_limit: int | str | None = None,
) -> ModelMemory:
    """Plans the memory of a model's program as ``compile`` does; no code is generated.

    Parameters
    ----------
    model, target, records, input_shapes, opt_level, disabled_passes, pass_config, pipeline, \
memory_limit
        As for ``compile``.

    Raises
    ------
    TvmExtError
        As ``compile``.
    """
    machine = program_target(target)
    options = with_memory_limit(pass_config, memory_limit)
    passes = build_pipeline(opt_level, disabled_passes, options, pipeline)
    require_schedules(passes, machine)
    runner, phases = PassRunner(), Phases()
    limit = limit_bytes(machine, passes.memory_limit)
    with compiling(machine) as context:
        lowered = lower_model(model, input_shapes, passes, runner, phases)
        context.ranges, context.kernels = lowered.imported.ranges, lowered.kernels
        scheduled = schedule_module(lowered, passes, runner, phases, context, records)
        names = [step.entry.name for step in passes.memory]
        at = names.index("ShareStorage")
        with phases.timed("memory"):
            ahead = runner.run(passes.memory[:at], scheduled)
            runner.run(passes.memory[at : at + 1], ahead)
            tvm_bytes = bytes_by_tvm(ahead)
            plan = context.storage_plan()
        sizes = usual_sizes(lowered.imported)
        context.memory = with_kernel_arrays(context, lowered.kernels, scheduled, sizes)
        arrays = largest_kernel_arrays(context, lowered.kernels, scheduled)
        plan = with_arrays_of_calls(plan, arrays, threads_of(context.machine))
        require_memory(
            context.memory,
            lowered.imported.name,
            limit,
            lambda: largest_result(lowered.kernels, lowered.calls),
        )
    memory = context.memory.without_bounds()
    if tvm_bytes is not None:
        tvm_bytes += memory.workspace_bytes or 0
    return ModelMemory(
        lowered.imported.name, passes.opt_level, machine.name, memory, tvm_bytes, plan
    )
