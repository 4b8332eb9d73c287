"""``compile``: the road that a model takes, from ONNX to a program."""

import math
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import tvm

import tvm_ext
from tvm_ext.artifact import VersionsRecord
from tvm_ext.compiled_model import CompiledModel
from tvm_ext.compiler.backend import (
    limit_bytes,
    programs_of,
    require_memory,
    target_record,
    threads_of,
)
from tvm_ext.compiler.build import build_program
from tvm_ext.compiler.compile_context import CompileContext, compiling
from tvm_ext.compiler.graph_analysis import (
    independent_items,
    may_divide_by_zero,
    operator_counts,
    sizes_from_data,
)
from tvm_ext.compiler.kernel_arrays import with_kernel_arrays
from tvm_ext.compiler.kernel_code import KernelCode, kernel_code
from tvm_ext.compiler.kernel_records import (
    kernel_records,
    largest_result,
    micro_batch,
    nominal_figures,
)
from tvm_ext.compiler.program_cache import is_all_ours, program_cache, program_key
from tvm_ext.compiler.specialize import (
    FrequentSizes,
    Specialization,
    specialized_kernels,
    specialized_shapes,
    with_specialized,
)
from tvm_ext.compiler.stages import (
    LoweredModel,
    ModelSource,
    Phases,
    lower_model,
    plan_module,
    require_schedules,
    schedule_module,
    usual_sizes,
)
from tvm_ext.compiler.tuned_kernels import RecordsSource, record_folders, require_hits
from tvm_ext.compiler.weights_read import weights_read
from tvm_ext.configs.errors import FAILED
from tvm_ext.distributed.compile_sharded import (
    ShardingRequest,
    ShardSource,
    compile_sharded,
    threads_of_device,
)
from tvm_ext.errors import REPORT_IT, DefectWarning, InputError
from tvm_ext.hardware.cost_model import cost_model
from tvm_ext.hardware.cpu.description import current_cpu
from tvm_ext.hardware.machine import AUTOMATIC_PRECISION, MODEL_PRECISION, MachineDescription
from tvm_ext.hardware.targets import program_target
from tvm_ext.hosted_model import with_host_steps
from tvm_ext.onnx_frontend import PreparedModel, part_of, prepare_model
from tvm_ext.onnx_frontend.host.partition import partition_graph
from tvm_ext.passes.pipeline import (
    Pipeline,
    PipelineSource,
    build_pipeline,
    with_fast_math,
    with_memory_limit,
    with_states,
)
from tvm_ext.passes.results_to_out_params import out_params
from tvm_ext.passes.runner import PassRunner
from tvm_ext.relay_passes.fresh_outputs import shared_outputs, writes_to_inputs
from tvm_ext.report.compile_report import CompileReport
from tvm_ext.report.records import (
    CODE,
    FROM_CACHE,
    SET_UP,
    DeviceRecord,
    GraphRecord,
    KernelCall,
    MicroBatchRecord,
    PhaseRecord,
    SizesRecord,
)
from tvm_ext.session.decoder_model import DecoderModel, LastPositions, States
from tvm_ext.tensor_spec import TensorSpec
from tvm_ext.tir_schedules.schedule_kernels import ScheduleChoice

SamplesSource: TypeAlias = "Mapping[str, Any] | Sequence[Mapping[str, Any]] | str | Path | None"
TargetSource: TypeAlias = "str | Path | tvm.target.Target | MachineDescription"


@tvm_ext.without_garbage_collection()
def compile(
    model: ModelSource,
    target: TargetSource = "cpu",
    *,
    input_shapes: Mapping[str, Sequence[int | str]] | None = None,
    opt_level: int | str = "O3",
    disabled_passes: Iterable[str] = (),
    pass_config: Mapping[str, Mapping[str, Any]] | None = None,
    dump_ir: str | Path | None = None,
    records: RecordsSource = (),
    require_records: bool = False,
    tf32: bool = False,
    fast_math: bool = False,
    precision: str = MODEL_PRECISION,
    max_error: float | None = None,
    samples: SamplesSource = None,
    pipeline: PipelineSource | None = None,
    threads: int | None = None,
    memory_limit: int | str | None = None,
    specialize: 'Sequence[Specialization] | Literal["auto"]' = (),
    specialize_limit: int = 4,
    devices: int = 1,
    shard: ShardSource = "auto",
) -> CompiledModel:
    """Compiles an ONNX model, or a Relax module of TVM.

    Parameters
    ----------
    model : str, Path, onnx.ModelProto or tvm.IRModule
        The ONNX model, the path of its file, or a Relax module. Of a Relax module the function
        ``main`` is compiled (see docs/reference/passes.md).
    target : str, Path, tvm.target.Target or description
        The machine to compile for: ``"cpu"`` for this machine, the name of a preset (``tvm-ext
        targets list`` prints them), the path of a TOML file, or a target of TVM.
    input_shapes : mapping of input name to sizes, optional
        One size for each dimension of an input. A number fixes the dimension. ``"N"`` names a
        dimension whose size each run decides. ``"224:640"`` and ``"N:1:8"`` give the smallest and
        the largest size of such a dimension, so that memory can be planned ahead.
    opt_level : int or str
        0 to 3, or "O0" to "O3". The level decides which passes run (``tvm-ext passes list`` prints
        them).
    disabled_passes : iterable of str
        Names of passes that do not run.
    pass_config : mapping of pass name to options, optional
        The options of each pass, by the name of the option.
    dump_ir : path, optional
        Folder to which the module is written after each pass.
    records : path or sequence of paths, optional
        Folders that ``tune`` wrote. A kernel that they know on this target is scheduled as
        recorded, and the report says of every kernel whether it was found. Records that ship with
        the package are used for kernels that these folders do not know.
    require_records : bool
        Whether a kernel without a record is an error.
    tf32 : bool
        For a GPU: whether tensor cores multiply float32 values with 10 bits of mantissa instead
        of 23, as ``allow_tf32`` of PyTorch does. The sums stay float32.
    fast_math : bool
        Whether rewrites are allowed that hold only without NaN, infinities and negative zeros, such
        as 0 for ``x * 0``. It is short for the option ``fast_math`` of the pass
        ``AlgebraicSimplification``.
    precision : str
        How products of float32 are computed.
        "model": in float32, as the model has them.
        "float16": on CPUs, the weights of float32 matmuls are rounded to 11 bits and stored as
        float16, in memory and in saved models. Products and sums stay float32.
        "bfloat16": float32 matmuls and convolutions round both operands to 8 bits and sum in
        float32. This needs a CPU that multiplies bfloat16 (amx-bf16, avx512bf16, bf16), and is
        done where it takes less time.
        "auto": bfloat16 for as many products as keep the outputs within ``max_error``.
        ``CompileReport.precision`` lists them.
    max_error : float, optional
        With "auto": the largest difference of each output from its float32 value, relative to the
        largest magnitude of that output. The default is 0.01. The bound assumes that rounding
        errors are independent of each other, and has a margin for other inputs. It can be expected
        of inputs that are like the samples, but it is not proved.
    samples : mapping of input name to array, several of them, or path of a file, optional
        With "auto": the inputs on which errors are measured. A file has the form that
        ``tvm-ext run --inputs`` takes. By default the inputs are random.
    pipeline : PassPipeline, or path of its TOML file, optional
        The passes that you choose, with their order and options. They are checked before anything
        runs. A stage that the pipeline does not name runs the passes of ``opt_level``.
    threads : int, optional
        For a CPU: the number of threads to plan for and to run with. The default is one for each
        core of the target. Fewer threads run where the process may use fewer cores, because of its
        affinity, the CPU quota of its container, ``TVM_NUM_THREADS`` or ``OMP_NUM_THREADS``.
    memory_limit : int or str, optional
        Bytes, or a text such as "64MiB", that the values of a run may take: the arena, the results
        and what kernels allocate for themselves, without weights and inputs. Where the plan needs
        more, kernel calls run in another order and cheap values are computed again, and the report
        states the predicted price in time. A limit that cannot be met is refused with the least
        that was found. The default is ``TVM_EXT_MEMORY_LIMIT`` in GiB, and without it 3 GiB on a
        CPU. It is short for the option ``limit`` of the pass ``LimitMemory``.
    specialize : sequence of mappings, or "auto", optional
        For a CPU: sizes of dynamic dimensions that get a program of their own, which is as fast as
        that of a model with fixed sizes. ``[{"N": 1}, {"x": [8, 3, 224, 224]}]`` names dimensions
        or inputs. A run takes the first program that fits its inputs, and else the program for any
        size. Equal weights are stored once. Each of the sizes takes about one more compilation.
        With "auto", sizes that had 50 runs get a program. It is built in another process while
        runs go on, and is saved with the model.
    specialize_limit : int, optional
        With "auto": the largest number of sizes that get a program.
    devices : int
        For a CPU: the number of processes that run the model together, each with its share of the
        cores. The model that is returned starts them at its first run.
    shard : str, or mapping of pattern to axis
        With several devices, what these share.
        "data": each runs a part of the batch.
        "tensor": each has a slice of the weights of matmuls and convolutions, and of attention
        heads and channels with them.
        "auto": what takes less modelled time.
        ``{"pixels": 0, "*/fc1/*": 1}`` names inputs, or nodes with weights, and the axis of the
        input, or of the weights as rows and columns, that is split.

    Returns
    -------
    CompiledModel

    Raises
    ------
    TvmExtError
        The model cannot be compiled. The subclass says why: ModelError, UnsupportedOperatorError,
        InputError, TargetError, ConfigError, PassError, BuildError, RecordsError or PrecisionError.
    """
    pass_config = with_fast_math(pass_config) if fast_math else pass_config
    pass_config = with_memory_limit(pass_config, memory_limit)
    if precision == AUTOMATIC_PRECISION:
        arguments = dict(locals())
        from tvm_ext.check.automatic_mixed_precision import compile_within_error

        return compile_within_error(compile, arguments)
    if max_error is not None or samples is not None:
        raise InputError(
            f"max_error or samples were given with precision '{precision}'; expected "
            f"'{AUTOMATIC_PRECISION}': leave them out, or use that precision"
        )
    begun = time.perf_counter() - tvm_ext.import_seconds.pop("compile", 0.0)
    sharding = ShardingRequest(devices, shard)
    if threads is None and devices != 1:
        threads = threads_of_device(program_target(target), devices)
    machine = _machine(target, precision, threads, tf32)
    passes = build_pipeline(opt_level, disabled_passes, pass_config, pipeline)
    require_schedules(passes, machine)
    _check_specialize(specialize, specialize_limit, machine, passes)
    set_up = PhaseRecord(SET_UP, time.perf_counter() - begun)
    request = _Request(
        machine,
        passes,
        Path(dump_ir) if dump_ir is not None else None,
        records,
        require_records,
        () if isinstance(specialize, str) else tuple(specialize),
    )
    if devices != 1:
        _require_no(specialize, "specialize", devices)
        sharded = _compiled_sharded(model, request, input_shapes, sharding)
        sharded.report.phases = [set_up, *sharded.report.phases]
        return sharded
    compiled = _from_cache(model, request, input_shapes)
    compiled.report.phases = [set_up, *compiled.report.phases]
    if isinstance(specialize, str) and compiled.report.symbolic_sizes:
        arguments = {
            "target": machine,
            "input_shapes": input_shapes,
            "opt_level": opt_level,
            "disabled_passes": tuple(disabled_passes),
            "pass_config": pass_config,
            "records": records,
            "require_records": require_records,
            "pipeline": pipeline,
        }
        _require_one_program(compiled.report.model, type(compiled) is CompiledModel)
        compiled.frequent_sizes = FrequentSizes(compiled, model, arguments, specialize_limit)
    return compiled


def _compiled_sharded(
    model: ModelSource,
    request: "_Request",
    input_shapes: Mapping[str, Sequence[int | str]] | None,
    sharding: ShardingRequest,
) -> CompiledModel:
    """The model for several devices."""
    sharding.check(request.machine)
    return compile_sharded(
        sharding,
        request.machine,
        request.pipeline,
        lambda passes: _from_cache(model, replace(request, pipeline=passes), input_shapes),
    )


def _require_no(given: Any, option: str, devices: int) -> None:
    if given:
        raise InputError(
            f"{option} was given with {devices} devices; expected one of the two: leave {option} "
            "or devices out"
        )


@tvm_ext.without_garbage_collection()
def compile_decoder(
    model: ModelSource,
    target: TargetSource = "cpu",
    *,
    input_shapes: Mapping[str, Sequence[int | str]] | None = None,
    opt_level: int | str = "O3",
    disabled_passes: Iterable[str] = (),
    pass_config: Mapping[str, Mapping[str, Any]] | None = None,
    records: RecordsSource = (),
    precision: str = MODEL_PRECISION,
    pipeline: PipelineSource | None = None,
    threads: int | None = None,
) -> CompiledModel | DecoderModel:
    """Compiles a decoder for sessions that want the logits of the last position, as ``generate``.

    That is one program, where ``compile`` and ``CompiledModel.session`` make two. The parameters
    are those of ``compile``.

    Returns
    -------
    DecoderModel or CompiledModel
        A CompiledModel where a session runs the model's own program: on a GPU, with steps on the
        host, and where no state can be kept in place.

    Raises
    ------
    TvmExtError
        As for ``compile``.
    """
    whole = partial(
        compile,
        model,
        target,
        input_shapes=input_shapes,
        opt_level=opt_level,
        disabled_passes=tuple(disabled_passes),
        pass_config=pass_config,
        records=records,
        precision=precision,
        pipeline=pipeline,
        threads=threads,
    )
    begun = time.perf_counter() - tvm_ext.import_seconds.pop("compile", 0.0)
    is_automatic = precision == AUTOMATIC_PRECISION
    if is_automatic or programs_of(program_target(target)).device != "cpu":
        return whole()
    machine = _machine(target, precision, threads)
    passes = build_pipeline(opt_level, disabled_passes, pass_config, pipeline)
    require_schedules(passes, machine)
    request = _Request(machine, replace(passes, names_states=True), None, records, False)
    set_up = PhaseRecord(SET_UP, time.perf_counter() - begun)
    compiled = _from_cache(model, request, input_shapes)
    compiled.report.phases = [set_up, *compiled.report.phases]
    if compiled.report.state is not None:
        return DecoderModel(compiled, whole)
    # A session of it has no program of its own.
    compiled.compile_session = None
    return compiled


def _machine(
    target: TargetSource, precision: str, threads: int | None, tf32: bool = False
) -> MachineDescription:
    """The target as these options of ``compile`` have it."""
    machine = program_target(target)
    machine = machine.with_tf32() if tf32 else machine
    machine = machine.with_precision(precision)
    return machine if threads is None else machine.with_threads(threads)


def _check_specialize(
    specialize: Sequence[Specialization] | str,
    limit: int,
    machine: MachineDescription,
    passes: Pipeline,
) -> None:
    if specialize and programs_of(machine).device != "cpu":
        raise InputError(
            f"specialize: target '{machine.name}' is not a CPU; expected a CPU: leave specialize "
            f"out, "
            "or compile the model for each of the sizes"
        )
    if not isinstance(specialize, str):
        return
    if specialize != "auto":
        raise InputError(
            f"specialize: {specialize!r} is not a list of sizes; expected 'auto', or for "
            "example [{'N': 8}]"
        )
    if limit < 1:
        raise InputError(f"specialize_limit is {limit}; expected 1 or more")
    if not is_all_ours(machine, passes):
        raise InputError(
            "specialize: 'auto' compiles in another process, which has no passes, templates and "
            "cost models that were registered in this one; expected those of the package: give "
            "sizes instead"
        )


def _require_one_program(name: str, is_one: bool, option: str = "specialize") -> None:
    if not is_one:
        raise InputError(
            f"{option}: {name} has steps that the host computes; expected a model that "
            f"is one program: leave {option} out"
        )


@dataclass(frozen=True)
class _Request:
    """How a model, or each part of one with host steps, is compiled; see ``compile``."""

    machine: MachineDescription
    pipeline: Pipeline
    dump_ir: Path | None
    records: RecordsSource
    require_records: bool
    specialize: tuple[Specialization, ...] = ()


def _warmed_up(compiled: CompiledModel) -> CompiledModel:
    """The model after its first run, behind all that pushes it out of the caches again.

    That is also freeing what a compilation held.
    """
    phases = Phases()
    with phases.timed("first run"):
        has_run = compiled.warm_up()
    if has_run:
        compiled.report.phases = [*compiled.report.phases, *phases.records]
    return compiled


def _from_cache(
    model: ModelSource,
    request: _Request,
    input_shapes: Mapping[str, Sequence[int | str]] | None,
) -> CompiledModel:
    """The program that an earlier compilation left, or a new one, which is left for later ones."""
    cache = program_cache()
    if cache is None or isinstance(model, tvm.IRModule) or request.dump_ir is not None:
        return _compiled_anew(model, request, input_shapes)
    phases = Phases()
    present_key = partial(
        program_key,
        model,
        request.machine,
        request.pipeline,
        input_shapes,
        request.records,
        request.require_records,
        request.specialize,
    )
    with phases.timed(FROM_CACHE):
        key = present_key()
        found = cache.find(key) if key is not None else None
    if found is not None:
        found.report.phases = phases.records
        _with_compilers(found, model, request, input_shapes)
        return found
    compiled = _compiled_for(model, request, input_shapes)
    refusals = [one for kernel in compiled.report.kernels for one in kernel.refusals]
    refusals += [one.skipped for one in compiled.report.passes]
    # Users hear each time of what went wrong.
    is_sound = not any(refusal.endswith(FAILED) for refusal in refusals)
    if key is not None and type(compiled) is CompiledModel and is_sound:
        with phases.timed(FROM_CACHE):
            # The file may have been written to while it was compiled.
            if present_key() == key:
                cache.keep(key, compiled)
    compiled.report.phases = [*compiled.report.phases, *phases.records]
    return _warmed_up(compiled)


def _compiled_for(
    model: ModelSource,
    request: _Request,
    input_shapes: Mapping[str, Sequence[int | str]] | None,
) -> CompiledModel:
    phases = Phases()
    if isinstance(model, tvm.IRModule):
        compiled = _compiled(model, request, phases, model, input_shapes)
        _with_compilers(compiled, model, request, input_shapes)
        return compiled
    with phases.timed("import"):
        ready = prepare_model(model, input_shapes)
        partition = partition_graph(ready.prepared, ready.model.graph)
    if partition is None:
        compiled = _compiled(ready, request, phases, model, input_shapes)
    else:
        # No part is a decoder: what it takes and gives may have any names.
        request = replace(request, pipeline=replace(request.pipeline, names_states=False))
        _require_one_program(ready.name, not request.specialize)
        _require_one_program(ready.name, request.pipeline.memory_limit is None, "memory_limit")
        parts = [_compiled(part_of(ready, part), request) for part in partition.parts]
        level = request.pipeline.opt_level
        compiled = with_host_steps(ready, partition, parts, request.machine, level, phases)
    _with_compilers(compiled, model, request, input_shapes)
    return compiled


@tvm_ext.without_garbage_collection()
def _compiled_anew(
    model: ModelSource,
    request: _Request,
    input_shapes: Mapping[str, Sequence[int | str]] | None,
) -> CompiledModel:
    """Without the cache of programs."""
    return _warmed_up(_compiled_for(model, request, input_shapes))


def _with_compilers(
    compiled: CompiledModel,
    model: ModelSource,
    request: _Request,
    input_shapes: Mapping[str, Sequence[int | str]] | None,
) -> None:
    """Lets a program compile its model again: for other shapes, and for a session."""
    alone = replace(request, specialize=())
    compiled.compile_again = partial(_compiled_anew, model, alone)
    if programs_of(request.machine).device == "cpu" and type(compiled) is CompiledModel:
        # All sessions of a model share a program.
        compiled.compile_session = cache(partial(_for_session, model, alone, input_shapes))


@tvm_ext.without_garbage_collection()
def _for_session(
    model: ModelSource,
    request: _Request,
    input_shapes: Mapping[str, Sequence[int | str]] | None,
    states: States,
    last: LastPositions,
) -> CompiledModel:
    """The program of a session; see ``with_states``."""
    pipeline = with_states(request.pipeline, states, last)
    return _from_cache(model, replace(request, pipeline=pipeline), input_shapes)


@dataclass
class _Planned:
    """A program ahead of its code."""

    lowered: LoweredModel
    scheduled: tvm.IRModule
    mod: tvm.IRModule
    context: CompileContext
    runner: PassRunner


def _planned(
    model: ModelSource,
    request: _Request,
    phases: Phases,
    code: KernelCode | None,
    input_shapes: Mapping[str, Sequence[int | str]] | None = None,
) -> _Planned:
    machine, pipeline, records = request.machine, request.pipeline, request.records
    runner, limit = PassRunner(request.dump_ir), limit_bytes(machine, pipeline.memory_limit)
    with compiling(machine, code) as context:
        lowered = lower_model(model, input_shapes, pipeline, runner, phases)
        context.ranges = lowered.imported.ranges
        scheduled = schedule_module(lowered, pipeline, runner, phases, context, records)
        _warn_of_defects(context.choices, lowered)
        sizes = usual_sizes(lowered.imported)
        if request.require_records:
            require_hits(context.choices, lowered.kernels, lowered.calls, sizes)
        context.kernels = lowered.kernels
        mod = plan_module(scheduled, pipeline, runner, phases)
        context.memory = with_kernel_arrays(context, lowered.kernels, scheduled, sizes)
        require_memory(
            context.memory,
            lowered.imported.name,
            limit,
            lambda: largest_result(lowered.kernels, lowered.calls),
        )
        lowered = replace(lowered, calls=_calls_in_order(lowered.calls, context.call_sources))
    return _Planned(lowered, scheduled, mod, context, runner)


def _calls_in_order(calls: list[KernelCall], sources: list[int] | None) -> list[KernelCall]:
    """The calls as the program makes them, where a memory limit changed that."""
    # A pass of a user may have changed the calls before.
    if sources is None or set(sources) != set(range(len(calls))):
        return calls
    return [calls[source] for source in sources]


def _compiled(
    model: PreparedModel | tvm.IRModule,
    request: _Request,
    phases: Phases | None = None,
    source: "ModelSource | None" = None,
    input_shapes: Mapping[str, Sequence[int | str]] | None = None,
) -> CompiledModel:
    """One program for all of a prepared model or a Relax module.

    ``source`` is what it was prepared from, for its specialised programs.
    """
    with kernel_code(request.machine) as code:
        return _compiled_by(code, model, request, phases or Phases(), source, input_shapes)


def _compiled_by(
    code: KernelCode | None,
    model: PreparedModel | tvm.IRModule,
    request: _Request,
    phases: Phases,
    source: "ModelSource | None",
    input_shapes: Mapping[str, Sequence[int | str]] | None,
) -> CompiledModel:
    machine = request.machine
    first = _planned(model, request, phases, code, input_shapes)
    given = specialized_shapes(first.lowered.imported.inputs, request.specialize)
    every = [{**(input_shapes or {}), **shapes} for shapes in given]
    extra = Phases()
    others = [_planned(source or model, request, extra, code, shapes) for shapes in every]
    if others:
        phases.records.append(PhaseRecord("specialize", sum(one.seconds for one in extra.records)))
    # Code that has begun is made meanwhile.
    report = _report(first, request)
    with compiling(machine, code) as context, phases.timed(CODE):
        program = build_program(
            with_specialized(first.mod, [other.mod for other in others]),
            context.target,
            machine,
            first.lowered.kernels,
            first.context.choices,
            first.lowered.calls,
        )
    if program.choices != first.context.choices:
        first.context.choices = program.choices
        report = _report(first, request)
    report.specialized = [_report(one, request, n) for n, one in enumerate(others, 1)]
    report.phases = phases.records
    report.kernels_from_cache = context.kernels_from_cache
    report.device = _with_graph_refusal(program.device, report)
    imported = [one.lowered.imported for one in (first, *others)]
    model_to_run = CompiledModel(
        program=program.executable,
        inputs=imported[0].inputs,
        outputs=imported[0].outputs,
        target=target_record(machine),
        threads=threads_of(machine),
        report=report,
        specialized=[(one.inputs, one.outputs) for one in imported[1:]],
    )
    with phases.timed("link"):
        model_to_run.link()
    report.memory = replace(report.memory, program_bytes=model_to_run.table_bytes())
    return model_to_run


def _copied_outputs(planned: _Planned, runner: PassRunner) -> list[str] | None:
    """Names of the outputs that a run copies; None for all, and all inputs as well.

    The program is seen ahead of its storage: what a user's pass makes of that is not known. One
    with a state in place writes to that, and to no other input.
    """
    mod, outputs = planned.scheduled, planned.lowered.imported.outputs
    is_session = planned.lowered.state is not None
    may_write = current_cpu() is not None and not is_session and writes_to_inputs(mod)
    if may_write or runner.has_users_change("memory", "target"):
        return None
    shared = zip(outputs, shared_outputs(mod["main"]), strict=True)
    return [spec.name for spec, is_shared in shared if is_shared]


def _out_params(
    planned: tvm.IRModule, outputs: Sequence[TensorSpec], runner: PassRunner
) -> list[str]:
    """Names of the outputs that can be written to a caller's memory.

    None where a user's pass may have changed ``main`` after the other function was made from it.
    """
    if runner.has_users_change("memory", "target"):
        return []
    return [outputs[place].name for place in out_params(planned)]


def _warn_of_defects(choices: Mapping[str, ScheduleChoice], lowered: LoweredModel) -> None:
    """Warns of templates that failed, with the nodes of the first kernel on which they did."""
    nodes = {call.kernel: call.where for call in reversed(lowered.calls)}
    failed = {
        template: (nodes.get(kernel, kernel), error)
        for kernel, choice in choices.items()
        for template, error in choice.failures.items()
    }
    for template, (where, error) in failed.items():
        warning = DefectWarning(
            f"bug in tvm-ext: template '{template}' failed on what '{where}' computes, which gets "
            f"another schedule and may be slower; expected one of its own: {REPORT_IT}"
        )
        warning.__cause__ = error
        warnings.warn(warning, stacklevel=3)


def _report(planned: _Planned, request: _Request, number: int = 0) -> CompileReport:
    """The report of a program, or of the specialised program ``number``, ahead of its code."""
    lowered, context, runner = planned.lowered, planned.context, planned.runner
    imported, machine = lowered.imported, request.machine
    report = CompileReport(
        model=imported.name,
        opt_level=request.pipeline.opt_level,
        target=machine.model_dump(mode="json"),
        versions=VersionsRecord.installed().model_dump(),
        inputs=[spec.describe() for spec in imported.inputs],
        outputs=[spec.describe() for spec in imported.outputs],
        graph=_graph_record(lowered),
    )
    records = kernel_records(
        lowered.kernels,
        lowered.calls,
        context.choices,
        cost_model(machine),
        bool(record_folders(request.records)),
        planned.mod,
    )
    if report.symbolic_sizes:
        report.nominal, records = nominal_figures(
            lowered.kernels,
            records,
            usual_sizes(imported),
            context.storage_bytes,
            cost_model(machine),
        )
        report.micro_batch = _micro_batch(lowered, report.nominal)
    report.kernels = specialized_kernels(records, number)
    report.passes = runner.records
    report.memory = replace(
        context.memory.without_bounds(),
        copied_outputs=_copied_outputs(planned, runner),
        out_params=_out_params(planned.mod, imported.outputs, runner),
        weights_read_bytes=weights_read(lowered.kernels) or None,
    )
    report.state = lowered.state
    if lowered.sharding is not None:
        report.sharding = lowered.sharding.beside_kernels(context.kernels_beside)
    problems = [str(problem) for problem in context.records.problems] if context.records else []
    report.warnings = [*imported.warnings, *_warnings(report), *problems]
    return report


def _micro_batch(lowered: LoweredModel, nominal: SizesRecord) -> MicroBatchRecord | None:
    """How a run on this CPU cuts its batch into micro-batches, if its items are independent."""
    machine = current_cpu()
    # A state in place belongs to all items at once.
    if machine is None or nominal.work is None or lowered.state is not None:
        return None
    # Parts of a batch would exchange values with those of another device at the same time.
    if lowered.sharding is not None:
        return None
    dimension = independent_items(lowered.kernels)
    allowed = lowered.imported.ranges.get(dimension)
    if not dimension or (allowed is not None and allowed.low > 1):
        # Code for at least two items is not for one.
        return None
    shapes = [spec.shape for spec in lowered.imported.inputs]
    elements = sum(
        math.prod(nominal.sizes[n] if isinstance(n, str) else n for n in shape[1:])
        for shape in shapes
        if shape[:1] == (dimension,)
    )
    call_seconds = len(lowered.calls) * machine.kernel_overhead_us * 1e-6
    return micro_batch(nominal, dimension, elements, call_seconds)


def _with_graph_refusal(device: DeviceRecord | None, report: CompileReport) -> DeviceRecord | None:
    """What a program for a GPU holds, with the reason why it holds no CUDA graph."""
    if device is None or device.graphs or device.no_graphs:
        return device
    record = next((one for one in report.passes if one.name == "CudaGraphs"), None)
    if record is None:
        return replace(device, no_graphs=f"not a part of {report.opt_level}")
    refusals = [decision.reason for decision in record.decisions]
    return replace(device, no_graphs=record.skipped or "; ".join(refusals))


def _warnings(report: CompileReport) -> list[str]:
    """What a user should know of before trusting the speed or the memory figures."""
    found = [
        f"kernel {kernel.name} keeps the loops that TVM wrote: {kernel.reason}"
        for kernel in report.kernels
        if kernel.source == "as written"
    ]
    is_known = report.nominal is not None and report.nominal.memory_bytes is not None
    if report.memory.dynamic and not is_known:
        hint = "give them ranges (--input-shape x=N:1:8,...) so that storage is planned"
        found.append(f"memory is {report.not_known}{f': {hint}' if report.symbolic_sizes else ''}")
    return found


def _graph_record(lowered: LoweredModel) -> GraphRecord:
    after = operator_counts(lowered.graph)
    return GraphRecord(
        onnx_nodes=lowered.imported.onnx_operators,
        prepared_nodes=lowered.imported.prepared_operators,
        relax_before=operator_counts(lowered.imported.mod),
        relax_after=after,
        kernels_before_fusion=lowered.kernels_before_fusion,
        kernels=len(lowered.calls),
        batch_norms_left=after.get("nn.batch_norm", 0),
        may_divide_by_zero=may_divide_by_zero(lowered.kernels),
        sizes_from_data=sizes_from_data(lowered.graph),
    )
