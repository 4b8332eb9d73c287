"""MLIR as a way to compile a kernel that the tuner tries and records name."""

import os
from typing import Any

import tvm
from tvm import s_tir, tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.apply_template import (
    ScheduledKernel,
    apply_template,
    finished_schedule,
)
from tvm_ext.tir_schedules.backend import scheduling_of
from tvm_ext.tir_schedules.template import DEFAULT_DECISIONS, Decisions

# Whether the tuner tries it: each kernel then takes two conversions more.
COMPETES = "TVM_EXT_TUNE_MLIR"


class MlirCode:
    """Kernels that are linalg in MLIR, fused and tiled there, whose code MLIR generates.

    Before: ``C[i, j] += A[i, k] * B[k, j]; D[i, j] = exp(C[i, j])``
    After:  the same loops, with a module of MLIR that takes their place in the end

    It runs on one thread. Only records use it, and the tuner where TVM_EXT_TUNE_MLIR is set.

    Leaves alone: kernels that are loops in MLIR, and all of them without torch-mlir.
    """

    name = "MLIR"
    machine_type = CpuDescription

    def apply(self, func: tirx.PrimFunc, machine: Any, decisions: Decisions) -> s_tir.Schedule:
        """See ``Template.apply``."""
        _require_asked_for(decisions)
        from tvm_ext.mlir.kept_modules import with_optimized_module

        fuses = decisions.pick("fuses", (0, 1), 1)
        shares = decisions.pick("shares_memory", (0, 1), 1)
        kept = with_optimized_module(func, machine, fuses=bool(fuses), shares=bool(shares))
        return s_tir.Schedule(tvm.IRModule({"main": kept}), enable_check=False)


class MlirLoops:
    """Kernels whose code MLIR generates from the loops of our own template for them.

    Before: ``for i in T.parallel(n): for j in T.vectorized(8): ...``, with the template's decisions
    After:  the same loops, with a module of MLIR made of them that takes their place in the end

    It runs on one thread. Only records use it, and the tuner where TVM_EXT_TUNE_MLIR is set.

    Leaves alone: kernels that no template takes, and all of them without torch-mlir.
    """

    name = "MLIR loops"
    machine_type = CpuDescription

    def apply(self, func: tirx.PrimFunc, machine: Any, decisions: Decisions) -> s_tir.Schedule:
        """See ``Template.apply``."""
        _require_asked_for(decisions)
        from tvm_ext.mlir.kept_modules import with_module_of_loops

        scheduling = scheduling_of(machine)
        for template in (*scheduling.templates, *scheduling.fallbacks):
            if isinstance(apply_template(template, func, machine), ScheduledKernel):
                break
        else:
            raise NotApplicable("no template of ours schedules its loops")
        scheduled = template.apply(func, machine, decisions)
        finished = finished_schedule(scheduled, func, machine)
        kept = with_module_of_loops(scheduled.mod["main"], finished, machine)
        return s_tir.Schedule(tvm.IRModule({"main": kept}), enable_check=False)


def _require_asked_for(decisions: Decisions) -> None:
    """Raises NotApplicable where nobody asked for MLIR, or it is not installed."""
    if decisions is DEFAULT_DECISIONS and not os.environ.get(COMPETES):
        raise NotApplicable(f"only records use it, or a tuner with {COMPETES}=1")
    # Only what is asked for imports MLIR.
    from tvm_ext.mlir import has_mlir

    if not has_mlir():
        raise NotApplicable("torch-mlir is not installed")
