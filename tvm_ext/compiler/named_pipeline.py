"""The pipeline for users of plain TVM: ``relax.get_pipeline("tvm_ext")``."""

from typing import Any

import tvm

from tvm_ext.compiler.compile_context import compiling
from tvm_ext.compiler.graph_analysis import kernel_calls
from tvm_ext.compiler.tuned_kernels import RecordsSource, find_records
from tvm_ext.hardware.targets import current_description, resolve_processor
from tvm_ext.passes.pipeline import STAGES, build_pipeline
from tvm_ext.passes.runner import PassRunner


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
        runner = PassRunner()
        machine = resolve_processor(current_description())
        with compiling(machine) as context:
            for stage in STAGES:
                if stage == "schedule":
                    mod = runner.run(pipeline.ahead_of_schedules, mod)
                    calls = kernel_calls(mod)
                    context.records = find_records(records, machine, calls)
                    mod = runner.run(pipeline.schedules, mod)
                else:
                    mod = runner.run(getattr(pipeline, stage), mod)
        return mod

    return run
