"""The road from a model to what code is generated for, stage by stage, and the time that each phase
takes.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import onnx
import tvm
from tvm import tirx

from tvm_ext.compiler.compile_context import CompileContext, compiling
from tvm_ext.compiler.graph_analysis import (
    FusionObserver,
    KernelCall,
    has_few_kernels,
    independent_items,
    kernel_calls,
    require_lowered,
)
from tvm_ext.compiler.tuned_kernels import RecordsSource, find_records
from tvm_ext.configs.progress import part_of
from tvm_ext.configs.sharding_record import ShardingRecord
from tvm_ext.errors import REPORT_IT, BuildError, InputError, PassError, TvmExtError
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.hardware.targets import current_description, program_target
from tvm_ext.onnx_frontend import ImportedModel, PreparedModel, import_model
from tvm_ext.passes.keep_state_in_place import CAPACITY, HELD, StateInPlace
from tvm_ext.passes.pipeline import PassStep, Pipeline, build_pipeline, with_states
from tvm_ext.passes.plan_workspaces import may_get_workspaces
from tvm_ext.passes.runner import BUILDER_LOCK, PassRunner, freezing_advice
from tvm_ext.relax_frontend import import_relax, normalized
from tvm_ext.relay_passes.expressions import deciding_for, nominal_sizes
from tvm_ext.relay_passes.graph_pass import raised_in_pass, recording
from tvm_ext.relay_passes.last_position_only import last_positions
from tvm_ext.relay_passes.spmd_partition import sharding_of
from tvm_ext.report.records import PhaseRecord, StateRecord, TensorRecord
from tvm_ext.session.decoder_model import session_places
from tvm_ext.tensor_spec import InputShapes, TensorSpec, resized, shapes_of
from tvm_ext.tir_schedules.backend import scheduling_of


class Phases:
    """Wall time of the phases, in order; an error that is not ours gets the name of its phase.

    Attributes
    ----------
    model : str
        The model's name, once it is known.
    inputs : InputShapes
        The sizes of its inputs, once they are known.
    """

    def __init__(self) -> None:
        self.records: list[PhaseRecord] = []
        self.model = "the model"
        self.inputs: InputShapes = {}

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Times the block, which may be one of several of its phase, one after the other.

        Raises BuildError for an error in it that no step expects.
        """
        begun = time.perf_counter()
        try:
            with part_of(name):
                yield
        except TvmExtError:
            raise
        except MemoryError as error:
            raise BuildError(
                f"there is no memory left in phase '{name}' of {self.model}; expected more: give "
                "smaller input shapes, or end other programs"
            ) from error
        except Exception as error:
            raise BuildError(
                f"bug in tvm-ext: phase '{name}' failed on {self.model}; expected a program: "
                f"{freezing_advice(self.inputs)}try --opt-level 0, and {REPORT_IT}",
                defect=True,
            ) from error
        seconds = time.perf_counter() - begun
        if self.records and self.records[-1].name == name:
            seconds += self.records.pop().seconds
        self.records.append(PhaseRecord(name, seconds))


ModelSource: TypeAlias = "str | Path | onnx.ModelProto | PreparedModel | tvm.IRModule"


@dataclass(frozen=True)
class LoweredModule:
    """A Relax module as kernels and their calls.

    Attributes
    ----------
    graph : tvm.IRModule
        After the graph passes.
    kernels : tvm.IRModule
        Right before ScheduleKernels; each kernel notes which of its parameters are constants.
    calls : list[KernelCall]
        In the order of a run.
    kernels_before_fusion : int
        Kernel calls that there would be without it.
    """

    graph: tvm.IRModule
    kernels: tvm.IRModule
    calls: list[KernelCall]
    kernels_before_fusion: int


@dataclass(frozen=True)
class LoweredModel(LoweredModule):
    """A model as kernels and their calls.

    Attributes
    ----------
    imported : ImportedModel
        The model as it was read, with the inputs and outputs that a session's program has.
    state : StateRecord or None
        The state that the program keeps in its inputs' own memory.
    sharding : ShardingRecord or None
        How the program is split over devices, of which it is that of one.
    """

    imported: ImportedModel
    state: StateRecord | None = None
    sharding: ShardingRecord | None = None


def lower_model(
    model: ModelSource,
    input_shapes: Mapping[str, Sequence[int | str]] | None,
    pipeline: Pipeline,
    runner: PassRunner,
    phases: Phases,
) -> LoweredModel:
    """Imports the model, runs the graph passes, lowers and fuses; raises as ``compile``."""
    with phases.timed("import"), BUILDER_LOCK:
        from_relax = isinstance(model, tvm.IRModule)
        imported = (import_relax if from_relax else import_model)(model, input_shapes)
    phases.model, phases.inputs = imported.name, shapes_of(imported.inputs)
    runner.inputs = phases.inputs
    ranges = {name: allowed.ends for name, allowed in imported.ranges.items()}
    if pipeline.names_states:
        pipeline = with_states(pipeline, *session_places(imported.inputs, imported.outputs))
    with deciding_for(imported.mod, ranges):
        lowered = lower_module(imported.mod, pipeline, runner, phases)
    sharding = sharding_of(lowered.graph)
    if sharding is not None:
        # A module may come as that of one device.
        is_split = sharding_of(imported.mod) is not None
        own = imported if is_split else _of_one_device(imported, sharding, lowered)
        return LoweredModel(**vars(lowered), imported=own, sharding=sharding)
    state, last = StateInPlace.of(lowered.graph), last_positions(lowered.graph)
    if state is None and not last:
        return LoweredModel(**vars(lowered), imported=imported)
    record = _state_record(imported, state, last)
    narrow = _with_last_positions(imported, last)
    own = narrow if state is None else _with_buffers(narrow, state)
    return LoweredModel(**vars(lowered), imported=own, state=record)


def _of_one_device(
    imported: ImportedModel, sharding: ShardingRecord, lowered: LoweredModule
) -> ImportedModel:
    """The model with the inputs and outputs of a device; raises InputError for no such program."""
    problem, batch = sharding.problem, sharding.open_batch
    if batch and independent_items(lowered.kernels) != batch:
        problem = f"items of the batch '{batch}' are not computed one by one"
    elif batch and (allowed := imported.ranges.get(batch)) is not None and allowed.low > 1:
        problem = f"the batch '{batch}' is at least {allowed.low}, and a device takes a part of it"
    if problem:
        raise InputError(
            f"{imported.name}: {problem}; expected a model whose values "
            f"{sharding.devices} devices can share: choose another shard, or other input shapes"
        )
    if batch:
        return imported

    def part(size: int) -> int:
        return size // sharding.devices

    return replace(
        imported,
        inputs=resized(imported.inputs, sharding.inputs, part),
        outputs=resized(imported.outputs, sharding.outputs, part),
    )


def _state_record(
    imported: ImportedModel, state: StateInPlace | None, last: Sequence[tuple[int, int]]
) -> StateRecord:
    names = [spec.name for spec in imported.inputs]
    ends = [
        [TensorRecord(spec.name, spec.dtype, list(spec.shape)) for spec in specs]
        for specs in (imported.inputs, imported.outputs)
    ]
    return StateRecord(
        [names[place] for place, _ in state.inputs] if state is not None else [],
        [names[place] for place in state.copied] if state is not None else [],
        [imported.outputs[output].name for output, _ in last],
        *ends,
    )


def _with_last_positions(imported: ImportedModel, last: Sequence[tuple[int, int]]) -> ImportedModel:
    """The model with one element along the axis of each output of which the last is computed."""
    outputs = list(imported.outputs)
    for output, axis in last:
        shape = list(outputs[output].shape)
        shape[axis] = 1
        outputs[output] = replace(outputs[output], shape=tuple(shape), ranges=())
    return replace(imported, outputs=tuple(outputs))


def _with_buffers(imported: ImportedModel, state: StateInPlace) -> ImportedModel:
    """The model with the inputs and outputs that it has with a state in place."""
    inputs = list(imported.inputs)
    for place, axis in state.inputs:
        shape = list(inputs[place].shape)
        held, shape[axis] = shape[axis], CAPACITY
        inputs[place] = replace(inputs[place], shape=tuple(shape), ranges=())
    outputs = [spec for n, spec in enumerate(imported.outputs) if n not in state.outputs]
    inputs.append(TensorSpec(HELD, "int8", (held, 0)))
    return replace(imported, inputs=tuple(inputs), outputs=tuple(outputs))


def require_schedules(pipeline: Pipeline, machine: MachineDescription) -> None:
    """Raises PassError where kernels would stay without the threads that the machine needs."""
    if not pipeline.schedules_kernels and scheduling_of(machine).is_bound is not None:
        raise PassError(
            f"pass 'ScheduleKernels' is left out and target '{machine.name}' runs only "
            "kernels that are bound to threads; expected it to run: do not leave it out"
        )


def lower_module(
    mod: tvm.IRModule, pipeline: Pipeline, runner: PassRunner, phases: Phases
) -> LoweredModule:
    """Runs the graph passes, lowers and fuses.

    Raises
    ------
    PassError, ModelError
        A pass fails, or there is no kernel for an operator.
    """
    with phases.timed("graph passes"):
        graph = runner.run(pipeline.graph, mod)
    with phases.timed("lower and fuse"):
        fusion = FusionObserver()
        kernels = runner.run(pipeline.lower, graph, extra=[fusion])
        require_lowered(kernels, phases.model, phases.inputs)
        kernels = runner.run(pipeline.ahead_of_schedules, kernels)
    calls = kernel_calls(kernels)
    return LoweredModule(graph, kernels, calls, fusion.kernel_calls or len(calls))


def schedule_module(
    lowered: LoweredModule,
    pipeline: Pipeline,
    runner: PassRunner,
    phases: Phases,
    context: CompileContext,
    records: RecordsSource = (),
) -> tvm.IRModule:
    """Gives every kernel its final loops, by the records that are found for it or by a template.

    Raises
    ------
    RecordsError, PassError
        A folder holds no records, or a pass fails.
    """
    with phases.timed("schedule"):
        context.records = find_records(records, context.machine, lowered.calls)
        context.begin_code = _code_ahead(lowered.kernels, pipeline.tile, context)
        return runner.run(pipeline.tile, runner.run(pipeline.schedules, lowered.kernels))


def _code_ahead(
    kernels: tvm.IRModule, steps: Sequence[PassStep], context: CompileContext
) -> Callable[[tvm.ir.GlobalVar, tirx.PrimFunc], None] | None:
    """Begins the code of a scheduled kernel, once ``steps`` went over that alone.

    They go over the module behind all schedules, where they find again what they made of a kernel;
    where a kernel is another one then, its code is made again. Those that may get workspaces are
    likely to be, and wait for the build. None where there is nothing to gain, and where a step is a
    user's, who expects a whole module.
    """
    are_ours = all(step.entry.source == "built-in" for step in steps)
    code = context.code
    if code is None or not are_ours or has_few_kernels(kernels):
        return None
    passes = [step.make() for step in steps if not step.skipped]

    def begin(var: tvm.ir.GlobalVar, func: tirx.PrimFunc) -> None:
        if may_get_workspaces(func):
            return
        alone = tvm.IRModule({var: func})
        try:
            with tvm.transform.PassContext(opt_level=3), recording():
                for each in passes:
                    alone = each(alone)
                code.begin(alone[var], str(var.name_hint))
        except Exception as error:  # noqa: BLE001  (it fails on the whole module again)
            raised_in_pass()
            if not str(error):
                # An interrupt, as TVM hands it on.
                raise KeyboardInterrupt from None

    return begin


def plan_module(
    mod: tvm.IRModule, pipeline: Pipeline, runner: PassRunner, phases: Phases
) -> tvm.IRModule:
    """Plans storage, and turns the program into calls of the virtual machine."""
    with phases.timed("memory"):
        return runner.run(pipeline.target, runner.run(pipeline.memory, mod))


# The pipeline for users of plain TVM: ``relax.get_pipeline("tvm_ext")``.


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


def usual_sizes(imported: ImportedModel) -> dict[str, int]:
    """By name, sizes for figures: a batch of one, and usual ones within the given ranges."""
    ends = {name: allowed.ends for name, allowed in imported.ranges.items()}
    shapes = shapes_of(imported.inputs).values()
    inner = {size for shape in shapes for size in shape[1:]}
    sizes = nominal_sizes(imported.mod, ends)
    return {n: s if n in inner else max(1, ends.get(n, (1, 1))[0]) for n, s in sizes.items()}
