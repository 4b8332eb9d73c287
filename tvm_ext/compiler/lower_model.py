"""The first half of the road, from a model to kernels without schedules."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import onnx
import tvm

from tvm_ext.compiler.empty_constants import without_empty_constants
from tvm_ext.compiler.fresh_outputs import with_fresh_outputs
from tvm_ext.compiler.graph_facts import require_lowered
from tvm_ext.compiler.kernel_calls import FusionObserver, KernelCall, kernel_calls
from tvm_ext.compiler.packed_weights import mark_constant_parameters
from tvm_ext.compiler.phases import Phases
from tvm_ext.hardware.targets import current_cpu
from tvm_ext.onnx_frontend import ImportedModel, PreparedModel, import_model
from tvm_ext.open_dimensions import shapes_of
from tvm_ext.passes.pipeline import Pipeline
from tvm_ext.passes.runner import PassRunner

ModelSource: TypeAlias = "str | Path | onnx.ModelProto | PreparedModel"


@dataclass(frozen=True)
class LoweredModel:
    """A model as kernels and their calls.

    Attributes
    ----------
    imported : ImportedModel
        The model as it was read.
    graph : tvm.IRModule
        After the graph passes.
    kernels : tvm.IRModule
        After lowering and fusion; each kernel notes which of its parameters are constants.
    calls : list[KernelCall]
        In the order of a run.
    kernels_before_fusion : int
        Kernel calls that there would be without it.
    """

    imported: ImportedModel
    graph: tvm.IRModule
    kernels: tvm.IRModule
    calls: list[KernelCall]
    kernels_before_fusion: int


def lower_model(
    model: ModelSource,
    input_shapes: Mapping[str, Sequence[int | str]] | None,
    pipeline: Pipeline,
    runner: PassRunner,
    phases: Phases,
) -> LoweredModel:
    """Imports the model, runs the graph passes, lowers and fuses; raises as ``compile``."""
    with phases.timed("import"):
        imported = import_model(model, input_shapes)
    phases.model, phases.inputs = imported.name, shapes_of(imported.inputs)
    runner.inputs = phases.inputs
    with phases.timed("graph passes"):
        graph = runner.run(pipeline.graph, imported.mod)
    with phases.timed("lower and fuse"):
        fusion = FusionObserver()
        kernels = runner.run(pipeline.lower, graph, extra=[fusion])
        require_lowered(kernels, imported.name, phases.inputs)
        if current_cpu() is None:
            kernels = with_fresh_outputs(kernels)
        kernels = without_empty_constants(kernels)
        kernels = mark_constant_parameters(runner.run(pipeline.schedule, kernels))
    calls = kernel_calls(kernels)
    return LoweredModel(imported, graph, kernels, calls, fusion.kernel_calls or len(calls))
