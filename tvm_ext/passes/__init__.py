"""Passes by name: what is registered, in which order they run, and what they did."""

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax

from tvm_ext.passes.async_all_reduce import AsyncAllReduce
from tvm_ext.passes.attention_fusion import AttentionFusion
from tvm_ext.passes.check_bounds import CheckBounds
from tvm_ext.passes.coalesce_accesses import CoalesceAccesses
from tvm_ext.passes.direct_kernel_calls import DirectKernelCalls
from tvm_ext.passes.dispatch_sort_scan import DispatchSortScan
from tvm_ext.passes.donate_params import DonateParams
from tvm_ext.passes.drop_result_checks import DropResultChecks
from tvm_ext.passes.fuse_block_integer_matmul import FuseBlockIntegerMatmul
from tvm_ext.passes.fuse_heads_into_attention import FuseHeadsIntoAttention
from tvm_ext.passes.keep_state_in_place import KeepStateInPlace
from tvm_ext.passes.limit_memory import LimitMemory
from tvm_ext.passes.mlir_code_generation import MlirCodeGeneration
from tvm_ext.passes.mlir_optimizations import MlirLinalgFusion, MlirMemoryOptimization
from tvm_ext.passes.multi_output_fusion import MultiOutputFusion
from tvm_ext.passes.pack_weights import MarkConstantParameters, PackWeights
from tvm_ext.passes.plan_workspaces import PlanWorkspaces
from tvm_ext.passes.propagate_nan import PropagateNan
from tvm_ext.passes.registry import Level, PassEntry, add, first_line
from tvm_ext.passes.results_to_out_params import ResultsToOutParams
from tvm_ext.passes.round_storage import RoundStorage
from tvm_ext.passes.schedule_kernels import ScheduleKernels
from tvm_ext.passes.share_storage import ShareStorage
from tvm_ext.passes.threads_for_large_runs import ThreadsForLargeRuns
from tvm_ext.passes.vector_math import VectorMath
from tvm_ext.relay_passes import BUILTIN_PASSES
from tvm_ext.relay_passes.common_subexpressions import eliminate_common_subexpr
from tvm_ext.relay_passes.cuda_graphs import CudaGraphs
from tvm_ext.relay_passes.legalize_ops import legalize_ops
from tvm_ext.relay_passes.rewrite_dataflow_reshape import rewrite_dataflow_reshape

# What a pipeline may name of TVM's own. LegalizeOps comes without warnings: what it leaves is
# checked, and named, after the whole pipeline.
_TVM_PASSES: dict[str, Callable[..., tvm.transform.Pass]] = {
    "AnnotateTIROpPattern": relax.transform.AnnotateTIROpPattern,
    "CanonicalizeBindings": relax.transform.CanonicalizeBindings,
    "DeadCodeElimination": relax.transform.DeadCodeElimination,
    "DecomposeOpsForInference": relax.transform.DecomposeOpsForInference,
    "DispatchSampling": relax.backend.DispatchSampling,
    "DispatchSortScan": DispatchSortScan,
    "EliminateCommonSubexpr": eliminate_common_subexpr,
    "FoldConstant": relax.transform.FoldConstant,
    "FuseTIR": relax.transform.FuseTIR,
    "LegalizeOps": legalize_ops,
    "RewriteDataflowReshape": rewrite_dataflow_reshape,
}


# The same of the steps that give a program its storage and turn it into calls of the machine.
_TVM_MEMORY_PASSES: dict[str, Callable[..., tvm.transform.Pass]] = {
    name: getattr(relax.transform, name)
    for name in (
        *("AttachGlobalSymbol", "CallTIRRewrite", "ComputePrimValue", "KillAfterLastUse"),
        *("LowerAllocTensor", "LowerRuntimeBuiltin", "RemovePurityChecking", "ToNonDataflow"),
        "VMShapeLower",
    )
}

_OURS: dict[Level, tuple[Any, ...]] = {
    "graph": (
        *BUILTIN_PASSES,
        *(AttentionFusion, FuseBlockIntegerMatmul, FuseHeadsIntoAttention, KeepStateInPlace),
        MultiOutputFusion,
    ),
    "schedule": (
        *(MarkConstantParameters, CheckBounds, MlirLinalgFusion, MlirMemoryOptimization),
        *(ScheduleKernels, PackWeights, PlanWorkspaces),
    ),
    "tile": (CoalesceAccesses, VectorMath, ThreadsForLargeRuns, PropagateNan),
    "memory": (
        *(LimitMemory, DonateParams, ShareStorage, ResultsToOutParams, CudaGraphs, RoundStorage),
        *(DirectKernelCalls, DropResultChecks, AsyncAllReduce),
    ),
    "target": (MlirCodeGeneration,),
}

# Without these no program can be built; they can be moved around, not left out.
_REQUIRED = (
    *("DispatchSampling", "DispatchSortScan", "LegalizeOps", "NameSymbolicSizes", "PackWeights"),
    "ToNonDataflow",
    *("RemovePurityChecking", "CallTIRRewrite", "ShareStorage", "LowerAllocTensor"),
    *("LowerRuntimeBuiltin", "ComputePrimValue", "VMShapeLower", "AttachGlobalSymbol"),
)

# What has to stand before a pass, wherever both are in a pipeline.
_BEHIND: dict[str, tuple[str, ...]] = {
    "LegalizeOps": ("DispatchSampling", "DispatchSortScan"),
    "AnnotateTIROpPattern": ("LegalizeOps",),
    "FuseOperators": ("LegalizeOps",),
    "FuseTIR": ("FuseOperators",),
    "NameSymbolicSizes": ("LegalizeOps", "FuseTIR"),
    "RewriteDataflowReshape": ("NameSymbolicSizes",),
    "MultiOutputFusion": ("LegalizeOps", "FuseTIR"),
    "FreshOutputs": ("LegalizeOps", "FuseTIR"),
    "EmptyConstants": ("LegalizeOps", "FuseTIR"),
    "CheckBounds": ("LegalizeOps", "FuseTIR"),
    "MlirMemoryOptimization": ("MlirLinalgFusion",),
    "ScheduleKernels": (
        *("MarkConstantParameters", "CheckBounds", "MlirLinalgFusion", "MlirMemoryOptimization"),
    ),
    "PackWeights": ("ScheduleKernels",),
    "PlanWorkspaces": ("ScheduleKernels", "PackWeights"),
    "LimitMemory": ("ToNonDataflow", "RemovePurityChecking"),
    "CallTIRRewrite": ("ToNonDataflow", "RemovePurityChecking", "LimitMemory"),
    "DonateParams": ("CallTIRRewrite",),
    "AsyncAllReduce": ("CallTIRRewrite",),
    "ShareStorage": ("CallTIRRewrite", "AsyncAllReduce", "DonateParams"),
    "CudaGraphs": ("ShareStorage",),
    "ResultsToOutParams": ("ShareStorage",),
    "DirectKernelCalls": ("ShareStorage", "ResultsToOutParams"),
    "LowerAllocTensor": ("ShareStorage", "ResultsToOutParams", "DirectKernelCalls", "CudaGraphs"),
    "KillAfterLastUse": ("LowerAllocTensor",),
    "LowerRuntimeBuiltin": ("LowerAllocTensor", "KillAfterLastUse"),
    "ComputePrimValue": ("LowerRuntimeBuiltin",),
    "RoundStorage": ("LowerRuntimeBuiltin", "ComputePrimValue"),
    "VMShapeLower": ("ComputePrimValue", "RoundStorage"),
    "DropResultChecks": ("VMShapeLower",),
    "AttachGlobalSymbol": ("VMShapeLower",),
}
# What has to be in a pipeline, ahead of a pass, for it to do its work.
_NEEDS: dict[str, tuple[str, ...]] = {
    "FuseOperators": ("AnnotateTIROpPattern",),
    "FuseTIR": ("FuseOperators",),
}


def _add(name: str, level: Level, factory: Any, source: str, doc: str) -> None:
    rules = (_BEHIND.get(name, ()), _NEEDS.get(name, ()), name in _REQUIRED)
    add(PassEntry(name, level, factory, source, first_line(doc), doc, *rules))


def _register_builtin() -> None:
    for level, factories in _OURS.items():
        for factory in factories:
            options = factory.options_class
            _add(options.__name__, level, factory, "built-in", options.__doc__ or "")
    for name, tvm_factory in _TVM_PASSES.items():
        _add(name, "graph", tvm_factory, "tvm", tvm_factory.__doc__ or "")
    for name, tvm_factory in _TVM_MEMORY_PASSES.items():
        _add(name, "memory", tvm_factory, "tvm", tvm_factory.__doc__ or "")


_register_builtin()
