"""How TVM lowers kernels for each target: its own pipeline with passes of ours, and options."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import tvm
from tvm import tirx

from tvm_ext.tir_schedules.check_bounds import InsertBoundsChecks
from tvm_ext.tir_schedules.cpu.integer_divisions import HoistDivisions, TruncateDivisions
from tvm_ext.tir_schedules.cpu.kernel_arguments import NoAliasOfLoneArguments, UnalignedArguments
from tvm_ext.tir_schedules.cpu.narrow_fills import SerialNarrowFills
from tvm_ext.tir_schedules.cuda.empty_launches import LeaveOutEmptyLaunches

_OPTIONS = {
    # Copies that a template marks as asynchronous become cp.async; without it they are plain ones.
    "cuda": {"tirx.use_async_copy": True},
    # LLVM finds what is computed twice itself; TVM gives it names, and fails at some of vectors.
    "llvm": {"tirx.disable_cse_tir": True},
}

_Passes = Sequence[Callable[[], tvm.transform.Pass]]
# What runs ahead of TVM's own pipeline, and behind it.
_OURS: dict[str, tuple[_Passes, _Passes]] = {
    "cuda": ((InsertBoundsChecks,), (LeaveOutEmptyLaunches,)),
    "llvm": (
        (InsertBoundsChecks, SerialNarrowFills, NoAliasOfLoneArguments),
        (UnalignedArguments, TruncateDivisions, HoistDivisions),
    ),
}


def pass_options(target: tvm.target.Target) -> dict[str, bool]:
    """Options of ``tvm.transform.PassContext`` for a build for ``target``."""
    return dict(_OPTIONS.get(target.kind.name, {}))


def lowering_pipeline(target: tvm.target.Target) -> str:
    """The name of the pipeline for the kernels of ``target``: TVM's own with passes of ours."""
    kind = target.kind.name
    return _registered(kind) if kind in _OURS else "default"


@cache
def _registered(kind: str) -> str:
    def pipeline() -> tuple[tvm.transform.Pass, Any, Any]:
        lowered, host_passes, device_passes = tirx.get_tir_pipeline("s_tir")
        before, after = ([make() for make in passes] for passes in _OURS[kind])
        passes = tvm.transform.Sequential([*before, lowered, *after])
        return passes, host_passes, device_passes

    name = f"tvm_ext_{kind}"
    tirx.register_tir_pipeline(name, pipeline)
    return name


def compile_kernels(
    mod: tvm.IRModule | tirx.PrimFunc, target: tvm.target.Target, instruments: Sequence[Any] = ()
) -> Any:
    """``tvm.compile`` of scheduled kernels. Raises what TVM raises."""
    options = pass_options(target)
    with tvm.transform.PassContext(opt_level=3, config=options, instruments=list(instruments)):
        return tvm.compile(mod, target=target, tir_pipeline=lowering_pipeline(target))
