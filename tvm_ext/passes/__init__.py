"""Passes by name: what is registered, in which order they run, and what they did."""

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax

from tvm_ext.passes.attention_fusion import AttentionFusion
from tvm_ext.passes.cuda_graphs import CudaGraphs
from tvm_ext.passes.dispatch_sort_scan import DispatchSortScan
from tvm_ext.passes.registry import Level, PassEntry, add, first_line
from tvm_ext.passes.threads_for_large_runs import ThreadsForLargeRuns
from tvm_ext.passes.vector_math import VectorMath
from tvm_ext.relay_passes import BUILTIN_PASSES
from tvm_ext.relay_passes.legalize_ops import legalize_ops

# Registers the built-in passes and those of TVM that the pipelines name.


# What a pipeline may name of TVM's own. LegalizeOps comes without warnings: what it leaves is
# checked, and named, after the whole pipeline.
_TVM_PASSES: dict[str, Callable[..., tvm.transform.Pass]] = {
    "AnnotateTIROpPattern": relax.transform.AnnotateTIROpPattern,
    "CanonicalizeBindings": relax.transform.CanonicalizeBindings,
    "DeadCodeElimination": relax.transform.DeadCodeElimination,
    "DecomposeOpsForInference": relax.transform.DecomposeOpsForInference,
    "DispatchSampling": relax.backend.DispatchSampling,
    "DispatchSortScan": DispatchSortScan,
    "EliminateCommonSubexpr": relax.transform.EliminateCommonSubexpr,
    "FoldConstant": relax.transform.FoldConstant,
    "FuseTIR": relax.transform.FuseTIR,
    "LegalizeOps": legalize_ops,
    "RewriteDataflowReshape": relax.transform.RewriteDataflowReshape,
}


def _add_ours(factory: Any, level: Level) -> None:
    doc = factory.options_class.__doc__ or ""
    name = factory.options_class.__name__
    add(PassEntry(name, level, factory, "built-in", first_line(doc), doc))


def _register_builtin() -> None:
    for factory in BUILTIN_PASSES:
        _add_ours(factory, "graph")
    _add_ours(AttentionFusion, "graph")
    _add_ours(VectorMath, "tile")
    _add_ours(ThreadsForLargeRuns, "tile")
    _add_ours(CudaGraphs, "memory")
    for name, tvm_factory in _TVM_PASSES.items():
        doc = tvm_factory.__doc__ or ""
        add(PassEntry(name, "graph", tvm_factory, "tvm", first_line(doc), doc))


_register_builtin()
