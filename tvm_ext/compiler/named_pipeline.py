"""The pipeline for users of plain TVM: ``relax.get_pipeline("tvm_ext")``."""

from typing import Any

import tvm

from tvm_ext.compiler.compile_context import compiling
from tvm_ext.compiler.stages import (
    Phases,
    lower_module,
    plan_module,
    require_schedules,
    schedule_module,
)
from tvm_ext.compiler.tuned_kernels import RecordsSource
from tvm_ext.hardware.targets import current_description, program_target
from tvm_ext.passes.pipeline import build_pipeline
from tvm_ext.passes.runner import PassRunner
from tvm_ext.relax_frontend import normalized


def tvm_ext_pipeline(records: RecordsSource = (), **options: Any) -> tvm.transform.Pass:
    """All passes from Relax to what ``relax.build`` generates code for, for the current target.

    Parameters
    ----------
    records
        As for ``tvm_ext.compile``.
    **options
        As for ``build_pipeline``: ``opt_level``, ``disabled_passes``, ``pass_config``, ``own``.
    """
    pipeline = build_pipeline(**options)

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext")
    def run(mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        runner, phases = PassRunner(), Phases()
        machine = program_target(current_description())
        require_schedules(pipeline, machine)
        with compiling(machine) as context:
            lowered = lower_module(normalized(mod), pipeline, runner, phases)
            scheduled = schedule_module(lowered, pipeline, runner, phases, context, records)
            return plan_module(scheduled, pipeline, runner, phases)

    return run
