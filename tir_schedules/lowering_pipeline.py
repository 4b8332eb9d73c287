"""How TVM lowers kernels for each target: its own pipeline with passes of ours, and options."""

import pkgutil
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm_ffi import structural_map

from tvm_ext.hardware.cpu.description import code_target
from tvm_ext.tir_schedules.analysis.buffer_access import nodes
from tvm_ext.tir_schedules.analysis.in_place import keeps_module
from tvm_ext.tir_schedules.check_bounds import InsertBoundsChecks
from tvm_ext.tir_schedules.cpu.integer_divisions import HoistDivisions, TruncateDivisions
from tvm_ext.tir_schedules.cpu.llvm_preparation import (
    ArraysOnStack,
    BoolArraysAsBytes,
    FlattenFewAccesses,
    JoinArgumentChecks,
    LookUpInRegisters,
    NibblesByPermutation,
    NoAliasOfLoneArguments,
    RoundToIntegers,
    SerialFills,
    UnalignedArguments,
    has_flat_arrays,
)
from tvm_ext.tir_schedules.cpu.store_bound_floats import StoreBoundFloats
from tvm_ext.tir_schedules.cpu.thread_choice import OutlineThreadChoices
from tvm_ext.tir_schedules.loops_from_zero import StartLoopsAtZero
from tvm_ext.tir_schedules.parameter_sizes import FactorParameterSizes
from tvm_ext.tir_schedules.statements import has_exact_arrays

# Launches that turn out to be empty in a run: a driver refuses them, so the host leaves them out.
#
# Sizes that are known in the run only may be zero. The condition goes around the launch after TVM
# has lowered the kernel and cut it from its host code: before that, TVM takes every condition
# around a kernel for one within it, and allows no barrier there.


_GRID = ("blockIdx.x", "blockIdx.y", "blockIdx.z")


@tirx.transform.prim_func_pass(opt_level=0, name="LeaveOutEmptyLaunches")
class LeaveOutEmptyLaunches:
    """Host code that launches a kernel only if its grid has blocks.

    Before: ``call_ffi_kernel("kernel", x, (n + 31) // 32, 128)``
    After:  ``if (n + 31) // 32 > 0: call_ffi_kernel("kernel", x, (n + 31) // 32, 128)``

    Run after: SplitHostDevice, MakePackedAPI.
    """

    def transform_function(
        self, func: tirx.PrimFunc, _mod: tvm.IRModule, _ctx: tvm.transform.PassContext
    ) -> tirx.PrimFunc:
        """Launches of known size stay as they are."""
        return func.with_body(structural_map(func.body, (tirx.Evaluate, _guarded)))


def _guarded(stmt: tirx.Evaluate) -> tirx.Stmt:
    call = stmt.value
    if not isinstance(call, tvm.ir.Call) or not call.op.same_as(_launch()):
        return stmt
    tags = [str(tag) for tag in call.attrs["launch_params"]]
    sizes = dict(zip(tags, call.args[-len(tags) :], strict=True))
    for tag in _GRID:
        size = sizes.get(tag)
        if size is not None and not isinstance(size, tirx.IntImm):
            stmt = tirx.IfThenElse(size > tirx.const(0, str(size.ty)), stmt, None)
    return stmt


@cache
def _launch() -> tvm.ir.Op:
    return tvm.ir.Op.get("tirx.call_ffi_kernel")


# Pipelines.


_OPTIONS = {
    # Copies that a template marks as asynchronous become cp.async; without it they are plain ones.
    "cuda": {"tirx.use_async_copy": True},
    # LLVM finds what is computed twice itself; TVM gives it names, and fails at some of vectors.
    "llvm": {"tirx.disable_cse_tir": True},
}

# Makes arrays as small as what is accessed of them.
_COMPACTION = "s_tir.CompactBufferAllocation"
# Makes arrays of one dimension.
_FLATTENING = "tirx.FlattenBuffer"
_NO_OPS = "tirx.RemoveNoOp"
# Writes divisions of remainders the other way round, for the addresses of what the threads of a GPU
# copy together. LLVM finds the shorter form of either.
_SPLIT_PATTERNS = "s_tir.RenormalizeSplitPattern"

# What changes no kernel without bound threads, and walks through each: these look for threads,
# shared memory and tensor cores of a GPU, or for conditions that LLVM takes out of loops as well. A
# fifth of the time of all passes.
_WITHOUT_WORK = (
    "s_tir.HoistIfThenElse",
    "s_tir.InferFragment",
    "s_tir.InjectPermutedLayout",
    "s_tir.InjectVirtualThread",
    "s_tir.InsertHoistIfThenElse",
    "s_tir.LiftThreadBinding",
    "s_tir.LowerAutoCopy",
    "s_tir.LowerThreadAllreduce",
    "s_tir.LowerVtcmAlloc",
    "s_tir.ManifestSharedMemoryLocalStage",
    "s_tir.MergeSharedMemoryAllocations",
    "s_tir.ThreadSync",
    "s_tir.TransformMmaBufferLayout",
    "s_tir.UnifyThreadBinding",
    "s_tir.VerifyVTCMLimit",
    "tirx.VerifyMemory",
)

_Passes = Sequence[Callable[[], tvm.transform.Pass]]
# What runs ahead of TVM's own pipeline, and behind it.
_OURS: dict[str, tuple[_Passes, _Passes]] = {
    "cuda": ((InsertBoundsChecks, FactorParameterSizes), (LeaveOutEmptyLaunches,)),
    "llvm": (
        (
            StartLoopsAtZero,
            InsertBoundsChecks,
            FactorParameterSizes,
            BoolArraysAsBytes,
            FlattenFewAccesses,
            SerialFills,
            NoAliasOfLoneArguments,
        ),
        (
            LookUpInRegisters,
            NibblesByPermutation,
            RoundToIntegers,
            UnalignedArguments,
            JoinArgumentChecks,
            TruncateDivisions,
            HoistDivisions,
            OutlineThreadChoices,
            ArraysOnStack,
            StoreBoundFloats,
        ),
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
        if kind == "llvm":
            lowered = _lowered_for_cpu(lowered)
        passes = tvm.transform.Sequential([*before, lowered, *after])
        return passes, host_passes, device_passes

    name = f"tvm_ext_{kind}"
    tirx.register_tir_pipeline(name, pipeline)
    return name


def _lowered_for_cpu(lowered: tvm.transform.Pass) -> tvm.transform.Pass:
    """``lowered`` without the passes that have nothing to do for a kernel; see ``_idle_passes``."""

    @tvm.transform.module_pass(opt_level=0, name="LowerKernels")
    def lower(mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        groups: dict[tuple[str, ...], dict[tvm.ir.GlobalVar, tirx.PrimFunc]] = {}
        for var, func in mod.functions_items():
            groups.setdefault(_idle_passes(func), {})[var] = func
        lowered_functions = tvm.IRModule({}, attrs=mod.attrs)
        for idle, functions in groups.items():
            part = tvm.IRModule(functions, attrs=mod.attrs)
            with _context_without(ctx, (*idle, _NO_OPS, _SPLIT_PATTERNS)):
                lowered_functions.update(lowered(part))
        return _without_no_ops(lowered_functions)

    return lower


def _idle_passes(func: tirx.PrimFunc) -> tuple[str, ...]:
    """Names of TVM's passes that would leave a kernel for a CPU as it is.

    Those that look for what only GPUs have, unless a template of a user's binds loops to (virtual)
    threads or marks them for a pipeline, which TVM knows for CPUs as well. And, where no array can
    be smaller, CompactBufferAllocation: it works out the region of each access whether there is
    such an array or not, and with symbolic sizes that is more than all other passes take. And,
    where all are flat, FlattenBuffer: it looks for a simpler form of every index all the same.
    """
    idle: tuple[str, ...] = (_COMPACTION,) if has_exact_arrays(func) else ()
    if has_flat_arrays(func):
        idle += (_FLATTENING,)
    if any(_is_for_threads_or_pipelines(node) for node in nodes(func.body, tirx.For, s_tir.SBlock)):
        return idle
    return (*_WITHOUT_WORK, *idle)


def _is_for_threads_or_pipelines(node: tirx.For | s_tir.SBlock) -> bool:
    """Pipelines count because InjectVirtualThread gives what they double names of its own."""
    if isinstance(node, tirx.For) and node.kind == tirx.ForKind.THREAD_BINDING:
        return True
    return any(
        str(key).startswith(("software_pipeline", "double_buffer")) for key in node.annotations
    )


def _without_no_ops(mod: tvm.IRModule) -> tvm.IRModule:
    """``mod`` after RemoveNoOp, for the kernels in which there may be something to remove.

    The pass works out for each statement whether it changes anything, which takes as long as all
    other passes of a small kernel together. What LLVM does not remove is a loop over threads around
    nothing, which is left where a tail turns out to be empty.
    """
    found = {var: func for var, func in mod.functions_items() if _has_no_ops(func)}
    if found:
        mod.update(tirx.transform.RemoveNoOp()(tvm.IRModule(found, attrs=mod.attrs)))
    return mod


def _has_no_ops(func: tirx.PrimFunc) -> bool:
    """Whether there is a loop without iterations or a value that nobody reads."""
    return any(
        not isinstance(node.value, tvm.ir.Call)
        if isinstance(node, tirx.Evaluate)
        else isinstance(node.extent, tirx.IntImm) and int(node.extent) <= 0
        for node in nodes(func.body, tirx.Evaluate, tirx.For)
    )


def _context_without(
    ctx: tvm.transform.PassContext, passes: Sequence[str]
) -> tvm.transform.PassContext:
    """``ctx`` with these passes disabled.

    And without its instruments: TVM starts and ends them with each context, and one that is at work
    in the context around this one loses what it has noted there.
    """
    return tvm.transform.PassContext(
        opt_level=ctx.opt_level,
        required_pass=list(ctx.required_pass),
        disabled_pass=[*ctx.disabled_pass, *passes],
        config=dict(ctx.config),
    )


# Named, as schedules know nothing of MLIR, which only kernels that keep a module of it import.
_KEPT_CODE = "tvm_ext.mlir.code_generation:with_all_kept_code"


def compile_kernels(
    mod: tvm.IRModule | tirx.PrimFunc, target: tvm.target.Target, instruments: Sequence[Any] = ()
) -> Any:
    """``tvm.compile`` of scheduled kernels. Raises what TVM raises.

    A kernel that keeps a module of MLIR is compiled from that. Raises NotApplicable where no code
    comes of it.
    """
    options = pass_options(target)
    if isinstance(mod, tvm.IRModule) and any(map(_keeps_code, mod.functions.values())):
        mod = pkgutil.resolve_name(_KEPT_CODE)(mod)
    target = code_target(target)
    with tvm.transform.PassContext(opt_level=3, config=options, instruments=list(instruments)):
        return tvm.compile(mod, target=target, tir_pipeline=lowering_pipeline(target))


def _keeps_code(func: tvm.ir.BaseFunc) -> bool:
    return isinstance(func, tirx.PrimFunc) and keeps_module(func)
