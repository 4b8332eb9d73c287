"""A model's kernels, before they are scheduled and after, and its legalised graph, for MLIR."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tvm
from tvm import tirx

from tvm_ext.api import TargetSource
from tvm_ext.compiler.compile_context import compiling
from tvm_ext.compiler.graph_analysis import KernelCall, kernel_calls
from tvm_ext.compiler.kernel_records import first_arguments
from tvm_ext.compiler.stages import (
    ModelSource,
    Phases,
    lower_model,
    schedule_module,
    usual_sizes,
)
from tvm_ext.errors import InputError, TargetError
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.hardware.targets import program_target
from tvm_ext.mlir.random_arguments import Arguments, assumed_arguments
from tvm_ext.passes.pipeline import Pipeline, PipelineSource, build_pipeline
from tvm_ext.passes.runner import PassRunner
from tvm_ext.tir_schedules.packing import Packed

# It gives kernels one parameter more, for memory that they otherwise allocate themselves.
_ADDS_PARAMETERS = "PlanWorkspaces"


@dataclass(frozen=True)
class ModelKernel:
    """One kernel of a model.

    Attributes
    ----------
    name : str
        Its name.
    func : tirx.PrimFunc
        As it is before it is scheduled.
    origins : tuple[str, ...]
        The ONNX nodes that it computes.
    scheduled : tirx.PrimFunc or None
        With its final loops; None where no schedules were asked for, or a pass took it out.
    code : str
        The kernel whose code it has in the program: that of one with the same loops serves all.
    packed : PackedOperand, PaddedOperand or None
        The parameter that the scheduled kernel takes in another order.
    arguments : sequence or None
        What a call gives it at usual sizes. For a kernel that branches or loops call, and where
        the data of a run decide the sizes, they are some that fit together; None: none were found.
    """

    name: str
    func: tirx.PrimFunc
    origins: tuple[str, ...] = ()
    scheduled: tirx.PrimFunc | None = None
    code: str = ""
    packed: Packed | None = None
    arguments: Arguments | None = None


@dataclass(frozen=True)
class ModelKernels:
    """The kernels of a model.

    Attributes
    ----------
    model, opt_level : str
        Its name, and which passes ran.
    machine : MachineDescription
        What it was compiled for.
    kernels : tuple[ModelKernel, ...]
        Each once, in the order of a run.
    """

    model: str
    opt_level: str
    machine: MachineDescription
    kernels: tuple[ModelKernel, ...]

    def matching(self, wanted: str) -> "ModelKernels":
        """Only the kernels with this in their name, or in that of an ONNX node.

        Raises InputError where there is none.
        """
        found = [
            one for one in self.kernels if any(wanted in name for name in (one.name, *one.origins))
        ]
        if not found:
            raise InputError(
                f"no kernel or ONNX node of {self.model} has '{wanted}' in its name; expected a "
                "part of one: leave --kernel out to see the kernels"
            )
        return replace(self, kernels=tuple(found))


@dataclass(frozen=True)
class KernelsRequest:
    """How a model is compiled; the terms are those of ``tvm_ext.compile``."""

    target: TargetSource = "cpu"
    input_shapes: Mapping[str, Sequence[int | str]] | None = None
    opt_level: int | str = "O3"
    disabled_passes: Iterable[str] = ()
    pass_config: Mapping[str, Mapping[str, Any]] | None = None
    pipeline: PipelineSource | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelGraph:
    """The graph of a model, whose operators are kernels that are not fused.

    Attributes
    ----------
    model, opt_level : str
        Its name, and which passes ran.
    mod : tvm.IRModule
        The graph and the kernels.
    """

    model: str
    opt_level: str
    mod: tvm.IRModule


# The first pass of the stage that is about fused kernels.
_FUSION = "FuseOperators"


def model_graph(model: ModelSource, request: KernelsRequest) -> ModelGraph:
    """Compiles a model up to its legalised graph; raises as ``model_kernels``."""
    machine = _cpu(request)
    passes = _pipeline(request)
    runner, phases = PassRunner(), Phases()
    names = [step.entry.name for step in passes.lower]
    ahead = passes.lower[: names.index(_FUSION)] if _FUSION in names else passes.lower
    unfused = replace(passes, lower=ahead, schedule=passes.schedules)
    with compiling(machine):
        lowered = lower_model(model, request.input_shapes, unfused, runner, phases)
    return ModelGraph(lowered.imported.name, passes.opt_level, lowered.kernels)


def model_kernels(
    model: ModelSource, request: KernelsRequest, *, with_schedules: bool
) -> ModelKernels:
    """Compiles a model up to its kernels.

    Raises
    ------
    TargetError
        The target is no CPU.
    TvmExtError
        As ``tvm_ext.compile``.
    """
    machine = _cpu(request)
    passes = _pipeline(request)
    runner, phases = PassRunner(), Phases()
    with compiling(machine) as context:
        lowered = lower_model(model, request.input_shapes, passes, runner, phases)
        context.ranges = lowered.imported.ranges
        scheduled, codes = dict[str, tirx.PrimFunc](), dict[str, str]()
        if with_schedules:
            done = schedule_module(lowered, passes, runner, phases, context)
            scheduled = {str(var.name_hint): func for var, func in done.functions_items()}
            codes = _codes(lowered.calls, kernel_calls(done))
        sizes = {**usual_sizes(lowered.imported), **request.sizes}
    arguments = first_arguments(lowered.kernels, sizes)
    origins = {call.kernel: tuple(call.origins) for call in reversed(lowered.calls)}
    names = dict.fromkeys(call.kernel for call in lowered.calls)
    kernels = []
    for name in names:
        choice, code = context.choices.get(name), codes.get(name, name)
        kernels.append(
            ModelKernel(
                name,
                lowered.kernels[name],
                origins.get(name, ()),
                scheduled.get(code),
                code,
                None if choice is None else choice.packed,
                arguments.get(name) or assumed_arguments(lowered.kernels[name], sizes),
            )
        )
    return ModelKernels(lowered.imported.name, passes.opt_level, machine, tuple(kernels))


def _codes(before: Sequence[KernelCall], after: Sequence[KernelCall]) -> dict[str, str]:
    """The kernels that are called in the end in the places of those before; none if unknown."""
    if len(before) != len(after):
        return {}
    return {one.kernel: other.kernel for one, other in zip(before, after, strict=True)}


def _cpu(request: KernelsRequest) -> CpuDescription:
    machine = program_target(request.target)
    if not isinstance(machine, CpuDescription):
        raise TargetError(
            f"MLIR was asked for with target '{machine.name}'; expected a CPU: leave --target out"
        )
    return machine


def _pipeline(request: KernelsRequest) -> Pipeline:
    disabled = {*request.disabled_passes, _ADDS_PARAMETERS}
    return build_pipeline(request.opt_level, disabled, request.pass_config, request.pipeline)
