"""How TVM lowers kernels for each target: its own pipeline with a pass of ours, and options."""

from collections.abc import Sequence
from typing import Any

import tvm

from tvm_ext.tir_schedules.cpu import narrow_fills
from tvm_ext.tir_schedules.cuda import empty_launches

_OPTIONS = {
    # Copies that a template marks as asynchronous become cp.async; without it they are plain ones.
    "cuda": {"tirx.use_async_copy": True},
    # LLVM finds what is computed twice itself; TVM gives it names, and fails at some of vectors.
    "llvm": {"tirx.disable_cse_tir": True},
}


def pass_options(target: tvm.target.Target) -> dict[str, bool]:
    """Options of ``tvm.transform.PassContext`` for a build for ``target``."""
    return dict(_OPTIONS.get(target.kind.name, {}))


def lowering_pipeline(target: tvm.target.Target) -> str:
    """The name of the pipeline for the kernels of ``target``: TVM's own with a pass of ours."""
    ours = {"cuda": empty_launches, "llvm": narrow_fills}.get(target.kind.name)
    return "default" if ours is None else ours.register_pipeline()


def compile_kernels(
    mod: tvm.IRModule | tvm.tirx.PrimFunc,
    target: tvm.target.Target,
    instruments: Sequence[Any] = (),
) -> Any:
    """``tvm.compile`` of scheduled kernels. Raises what TVM raises."""
    options = pass_options(target)
    with tvm.transform.PassContext(opt_level=3, config=options, instruments=list(instruments)):
        return tvm.compile(mod, target=target, tir_pipeline=lowering_pipeline(target))
