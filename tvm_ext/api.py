"""``compile`` and ``load``: the road that a model takes, from ONNX to a program."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import onnx
import tvm

from tvm_ext.artifact import VersionsRecord
from tvm_ext.compiled_model import CompiledModel, target_record
from tvm_ext.compiler.build import build, twin
from tvm_ext.compiler.graph_facts import operator_counts, require_lowered
from tvm_ext.compiler.kernel_calls import FusionObserver, kernel_calls
from tvm_ext.compiler.kernel_records import kernel_records
from tvm_ext.compiler.memory import plan_memory
from tvm_ext.compiler.packed_weights import mark_constant_parameters, pack_weights
from tvm_ext.errors import BuildError, TvmExtError, reason_of
from tvm_ext.hardware.description import CpuDescription, Description, GpuDescription
from tvm_ext.hardware.roofline import cost_model
from tvm_ext.hardware.targets import compiling_for, resolve_target
from tvm_ext.onnx_frontend import ImportedModel, import_model
from tvm_ext.passes.pipeline import build_pipeline
from tvm_ext.passes.runner import PassRunner
from tvm_ext.report.records import CompileReport, GraphRecord, PhaseRecord
from tvm_ext.tir_schedules.select import schedule_kernels

ModelSource: TypeAlias = "str | Path | onnx.ModelProto"
TargetSource: TypeAlias = "str | Path | tvm.target.Target | CpuDescription | GpuDescription"


def compile(
    model: ModelSource,
    target: TargetSource = "cpu",
    *,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    opt_level: int | str = "O3",
    disabled_passes: Iterable[str] = (),
    pass_config: Mapping[str, Mapping[str, Any]] | None = None,
    dump_ir: str | Path | None = None,
) -> CompiledModel:
    """Compiles an ONNX model.

    Parameters
    ----------
    model : str, Path or onnx.ModelProto
        The model or the path of its file.
    target : str, Path, tvm.target.Target or description
        ``"cpu"`` for this machine, the name of a preset (``tvm-ext targets list``), the path of a
        TOML file, or a target of TVM.
    input_shapes : mapping of input name to sizes, optional
        Freezes dynamic dimensions.
    opt_level : int or str
        0 to 3, or "O0" to "O3": which passes run (``tvm-ext passes list``).
    disabled_passes : iterable of str
        Names of passes to leave out.
    pass_config : mapping of pass name to options, optional
        Options by pass.
    dump_ir : path, optional
        Folder into which the module is written after each pass.

    Returns
    -------
    CompiledModel

    Raises
    ------
    TvmExtError
        A subclass says what is wrong: ModelError, UnsupportedOperatorError, InputError,
        TargetError, ConfigError, PassError or BuildError.
    """
    machine = resolve_target(target)
    pipeline = build_pipeline(opt_level, disabled_passes, pass_config)
    runner = PassRunner(Path(dump_ir) if dump_ir is not None else None)
    phases = _Phases()
    with compiling_for(machine) as tvm_target:
        with phases.timed("import"):
            imported = import_model(model, input_shapes)
        with phases.timed("graph passes"):
            graph = runner.run(pipeline.graph, imported.mod)
        with phases.timed("lower and fuse"):
            fusion = FusionObserver()
            kernels = runner.run(pipeline.lower, graph, extra=[fusion])
            require_lowered(kernels, imported.name)
            kernels = runner.run(pipeline.schedule, kernels)
        with phases.timed("schedule"):
            scheduled, choices = schedule_kernels(mark_constant_parameters(kernels), machine)
            scheduled = pack_weights(scheduled, choices)
            scheduled = runner.run(pipeline.tile, scheduled)
        with phases.timed("memory"):
            planned, memory = plan_memory(scheduled)
            planned = runner.run(pipeline.target, planned)
        with phases.timed("build"):
            executable = build(planned, tvm_target)
            program = twin(executable, planned, tvm_target)
        calls = kernel_calls(kernels)
        report = _report(imported, pipeline.opt_level, machine)
        report.graph = _graph_record(imported, graph, len(calls), fusion)
        report.kernels = kernel_records(kernels, calls, choices, cost_model(machine))
    report.phases = phases.records
    report.passes = runner.records
    report.memory = memory
    report.warnings = _warnings(report)
    return CompiledModel(
        program=program,
        to_save=executable,
        inputs=imported.inputs,
        outputs=imported.outputs,
        target=target_record(machine),
        threads=machine.cores if isinstance(machine, CpuDescription) else 1,
        report=report,
    )


def load(path: str | Path) -> CompiledModel:
    """Loads a model that ``CompiledModel.save`` wrote, after checking all of the file.

    Raises
    ------
    ArtifactError
        The file is damaged, newer, of another version of TVM, or for another machine.
    """
    return CompiledModel.load(path)


class _Phases:
    """Wall time of the phases, in order; an error of TVM's gets the name of its phase."""

    def __init__(self) -> None:
        self.records: list[PhaseRecord] = []

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        begun = time.perf_counter()
        try:
            yield
        except TvmExtError:
            raise
        except (tvm.error.InternalError, RuntimeError, ValueError, TypeError) as error:
            raise BuildError(
                f"phase '{name}' failed in TVM ({reason_of(error)}); expected a model that TVM can "
                "lower: try --opt-level 0 and find the step with --dump-ir"
            ) from error
        self.records.append(PhaseRecord(name, time.perf_counter() - begun))


def _report(imported: ImportedModel, opt_level: str, machine: Description) -> CompileReport:
    return CompileReport(
        model=imported.name,
        opt_level=opt_level,
        target=machine.model_dump(mode="json"),
        versions=VersionsRecord.installed().model_dump(),
        inputs=[spec.describe() for spec in imported.inputs],
        outputs=[spec.describe() for spec in imported.outputs],
    )


def _warnings(report: CompileReport) -> list[str]:
    """What a user should know of before trusting the speed or the memory figures."""
    found = [
        f"kernel {kernel.name} keeps the loops that TVM wrote: {kernel.reason}"
        for kernel in report.kernels
        if kernel.source == "as written"
    ]
    if report.memory.dynamic:
        found.append("some buffers have sizes known only at run time: memory is a lower bound")
    return found


def _graph_record(
    imported: ImportedModel, graph: tvm.IRModule, kernels: int, fusion: FusionObserver
) -> GraphRecord:
    after = operator_counts(graph)
    return GraphRecord(
        onnx_nodes=imported.onnx_operators,
        prepared_nodes=imported.prepared_operators,
        relax_before=operator_counts(imported.mod),
        relax_after=after,
        kernels_before_fusion=fusion.kernel_calls or kernels,
        kernels=kernels,
        batch_norms_left=after.get("nn.batch_norm", 0),
    )
