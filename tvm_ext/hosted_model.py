"""A compiled model with steps that the host computes: strings, sequences, maps and optionals."""

import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tvm_ext.artifact import (
    LoadedArtifact,
    TargetRecord,
    VersionsRecord,
    write_artifact,
)
from tvm_ext.artifact.manifest import HOST_MEMBER, MANIFEST_MEMBER, REPORT_MEMBER, part_member
from tvm_ext.compiled_model import CompiledModel
from tvm_ext.compiler.backend import target_record
from tvm_ext.compiler.stages import Phases
from tvm_ext.configs.atomic_file import check_writable
from tvm_ext.cuda.program import CudaProgram
from tvm_ext.errors import TargetError
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.hardware.timing import timed
from tvm_ext.model_inputs import HOLDERS, check_inputs, require_no_device
from tvm_ext.onnx_frontend import PreparedModel
from tvm_ext.onnx_frontend.host.partition import GraphPartition
from tvm_ext.onnx_frontend.host.program import HostProgram, HostStep, HostSteps, read_host_steps
from tvm_ext.onnx_frontend.host.values import checked_input, output_conversion, value_spec
from tvm_ext.onnx_frontend.prepare import operator_counts
from tvm_ext.profiling import MeasuredRun, ProfiledMachine, call_times, profile_facts
from tvm_ext.report.compile_report import CompileReport
from tvm_ext.report.profile import HOST, CallTime, Profile
from tvm_ext.report.records import GraphRecord, KernelCall, MemoryRecord, PhaseRecord
from tvm_ext.tensor_spec import STRING, TensorSpec


class HostedModel(CompiledModel):
    """What ``tvm_ext.compile`` returns for a model that is not made of tensors of numbers only.

    It runs as ``CompiledModel`` does. Inputs and outputs are as ONNX Runtime has them: arrays of
    ``str`` objects, lists of arrays, dictionaries, None for an optional without an element.

    Attributes
    ----------
    inputs, outputs : tuple[TensorSpec, ...]
        Names (as in the ONNX model), dtypes and shapes.
    report : CompileReport
        What the compiler did in all parts; ``report.host`` has what falls to the host.
    """

    def __init__(
        self,
        host: HostSteps,
        parts: Sequence[CompiledModel],
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
        target: TargetRecord,
        report: CompileReport,
    ) -> None:
        # Not that of CompiledModel: each part has a program of its own, and this none.
        self.inputs = inputs
        self.outputs = outputs
        self.report = report
        self._host = host
        self._parts = tuple(parts)
        self._has_program = False
        self._out_params = []
        self._gpu = None
        self._threads = max((part._threads for part in parts), default=1)
        self._target = target
        versions = {opset.domain: opset.version for opset in host.opset_import}
        functions = [part.as_function for part in parts]
        self._program_of_host = HostProgram(host.graph, versions, functions)
        checks = {value.name: checked_input(value) for value in host.graph.input}
        self._check = lambda spec, value, sizes: checks[spec.name](spec, value, sizes)
        self._only_numbers = all(
            spec.is_tensor and spec.dtype != STRING and spec.dtype not in HOLDERS for spec in inputs
        )
        # Name, shape and dtype of the inputs of the last run, if these are all there is to check.
        self._last: tuple[tuple[str, tuple[int, ...], np.dtype], ...] | None = None
        fresh = self._made_by_parts()
        self._conversions = tuple(
            (value.name, output_conversion(value.type, is_fresh=value.name in fresh))
            for value in host.graph.output
        )

    def _made_by_parts(self) -> set[str]:
        """Values whose memory is nothing else's: a part makes them anew in each run."""
        return {
            name
            for step in self._program_of_host.steps
            if step.part is not None
            for name in step.outputs
            if self._parts[step.part].is_fresh(name)
        }

    def _results(self, inputs: Mapping[str, Any], on_device: bool | None) -> dict[str, Any]:
        require_no_device(on_device)
        values = self._program_of_host.run(self._checked(inputs))
        return {name: convert(values[name]) for name, convert in self._conversions}

    def _profiled(
        self, inputs: Mapping[str, Any], repeat: int, machine: ProfiledMachine
    ) -> Profile:
        """Time per kernel and host step.

        Steps of the host are named by their operators. Parts in bodies of the host's If and Loop
        count to these. Each step is measured on its own; the run that stands for all has them one
        after the other.
        """
        given = self._checked(inputs)
        run = partial(self._program_of_host.run, given)
        run()
        whole = _median_seconds(run, repeat)
        values = run()
        steps = [
            (step, self._measured_step(step, values, repeat))
            for step in self._program_of_host.steps
        ]
        calls: list[CallTime] = []
        begun = 0.0
        for step, measured in steps:
            if step.part is None:
                calls.append(_host_call(step, 1e6 * measured.seconds, begun))
            else:
                part = self._parts[step.part]
                for call in call_times(measured, part.report, machine):
                    calls.append(replace(call, begun=begun + call.begun, part=step.part))
            begun += 1e6 * measured.lasted
        return Profile(
            **profile_facts(self.report, self.inputs, inputs),
            repeat=max(1, repeat),
            run_microseconds=1e6 * whole,
            calls=tuple(calls),
            traced_microseconds=begun,
            peaks=machine.summary(),
        )

    def _measured_step(self, step: HostStep, values: dict[str, Any], repeat: int) -> MeasuredRun:
        """One step alone, of a part with its kernels."""
        if step.part is None:
            seconds = _median_seconds(partial(step.apply, values), repeat)
            return MeasuredRun(seconds, (), seconds)
        return self._parts[step.part]._measured({n: values[n] for n in step.inputs}, repeat)

    def save(self, path: str | Path) -> None:
        """Writes the model to one file, atomically; see ``tvm_ext.artifact`` for the format."""
        check_writable(path)
        members: dict[str, bytes] = {HOST_MEMBER: self._host.SerializeToString(deterministic=True)}
        with tempfile.TemporaryDirectory() as folder:
            for index, part in enumerate(self._parts):
                file = Path(folder) / part_member(index)
                part.save(file)
                members[file.name] = file.read_bytes()
        write_artifact(
            path,
            members=members,
            report_json=self.report.to_json(),
            model_name=self.report.model,
            inputs=self.inputs,
            outputs=self.outputs,
            target=self._target,
        )

    @property
    def gpu_program(self) -> CudaProgram:
        """Raises TargetError: there is no one program."""
        raise TargetError(
            "the model has steps on the host; expected one that runs on the GPU alone: "
            "measure it with profile"
        )

    def kernel_calls(self) -> list[KernelCall]:
        """Every kernel call of a run of each part with its original nodes."""
        return [call for part in self._parts for call in part.kernel_calls()]

    def _checked(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """The inputs as steps take them; a check takes as long as a small model."""
        last = self._last
        if last is not None and type(inputs) is dict and len(inputs) == len(last):
            for name, shape, dtype in last:
                array = inputs.get(name)
                if type(array) is not np.ndarray or array.shape != shape or array.dtype != dtype:
                    break
            else:
                return inputs
        arrays = check_inputs(self.inputs, inputs, self._check)
        names = [spec.name for spec in self.inputs]
        if self._only_numbers and all(type(inputs[name]) is np.ndarray for name in names):
            kinds = [(array.shape, array.dtype) for array in arrays]
            self._last = tuple((name, *kind) for name, kind in zip(names, kinds, strict=True))
        return dict(zip(names, arrays, strict=True))

    def warm_up(self) -> bool:
        """Runs each part; see ``CompiledModel.warm_up``."""
        ran = [part.warm_up() for part in self._parts]
        return any(ran)

    @classmethod
    def from_artifact(cls, artifact: LoadedArtifact, threads: int | None = None) -> "HostedModel":
        """The model in a file that was read and checked.

        Raises
        ------
        ArtifactError
            A part of it cannot be loaded.
        """
        host = read_host_steps(artifact.members[HOST_MEMBER])
        count = len(artifact.members) - len((HOST_MEMBER, REPORT_MEMBER, MANIFEST_MEMBER))
        parts = [CompiledModel.from_artifact(artifact.part(n), threads) for n in range(count)]
        manifest = artifact.manifest
        return cls(
            host=host,
            parts=parts,
            inputs=tuple(manifest.inputs),
            outputs=tuple(manifest.outputs),
            target=manifest.target,
            report=CompileReport.from_json(artifact.report_json),
        )


def _host_call(step: HostStep, microseconds: float, begun: float) -> CallTime:
    return CallTime(
        calls=1,
        microseconds=microseconds,
        cost=None,
        kernel=f"{HOST} {step.operator}",
        origins=(step.name,),
        schedule=HOST,
        begun=begun,
        lasted=microseconds,
    )


def _median_seconds(action: Callable[[], object], repeat: int) -> float:
    timer = timed(action)
    return statistics.median(timer() for _ in range(max(1, repeat)))


def with_host_steps(
    whole: PreparedModel,
    partition: GraphPartition,
    parts: Sequence[CompiledModel],
    machine: MachineDescription,
    opt_level: str,
    phases: Phases,
) -> HostedModel:
    """The model of compiled parts and host steps, with one report for all of it."""
    made = {spec.name: spec for part in parts for spec in part.outputs}
    graph = partition.host.graph
    inputs = tuple(value_spec(value, whole.ranges) for value in graph.input)
    outputs = tuple(made.get(value.name) or value_spec(value) for value in graph.output)
    reports = [part.report for part in parts]
    report = CompileReport(
        model=whole.name,
        opt_level=opt_level,
        target=machine.model_dump(mode="json"),
        versions=VersionsRecord.installed().model_dump(),
        inputs=[spec.describe() for spec in inputs],
        outputs=[spec.describe() for spec in outputs],
        phases=[*phases.records, *_sums([p for one in reports for p in one.phases])],
        graph=_whole_graph(whole, reports),
        passes=[record for one in reports for record in one.passes],
        kernels=[record for one in reports for record in one.kernels],
        memory=_whole_memory([one.memory for one in reports]),
        warnings=[warning for one in reports for warning in one.warnings],
        device=next((one.device for one in reports if one.device is not None), None),
        host=list(partition.records),
    )
    return HostedModel(partition.host, parts, inputs, outputs, target_record(machine), report)


def _sums(phases: Sequence[PhaseRecord]) -> list[PhaseRecord]:
    """The time of each phase over all parts."""
    names = dict.fromkeys(phase.name for phase in phases)
    return [PhaseRecord(n, sum(one.seconds for one in phases if one.name == n)) for n in names]


def _whole_graph(whole: PreparedModel, reports: Sequence[CompileReport]) -> GraphRecord:
    graphs = [report.graph for report in reports]
    before: Counter[str] = Counter()
    after: Counter[str] = Counter()
    for graph in graphs:
        before.update(graph.relax_before)
        after.update(graph.relax_after)
    return GraphRecord(
        onnx_nodes=operator_counts(whole.model.graph),
        prepared_nodes=operator_counts(whole.prepared.graph),
        relax_before=dict(before),
        relax_after=dict(after),
        kernels_before_fusion=sum(graph.kernels_before_fusion for graph in graphs),
        kernels=sum(graph.kernels for graph in graphs),
        batch_norms_left=sum(graph.batch_norms_left for graph in graphs),
        may_divide_by_zero=any(graph.may_divide_by_zero for graph in graphs),
        sizes_from_data=any(graph.sizes_from_data for graph in graphs),
    )


def _whole_memory(parts: Sequence[MemoryRecord]) -> MemoryRecord:
    """Parts run one after the other: the largest peak, and all weights."""
    largest = max(parts, key=lambda one: one.planned_peak_bytes or 0, default=MemoryRecord())
    return MemoryRecord(
        planned_peak_bytes=_largest([one.planned_peak_bytes for one in parts]),
        unplanned_bytes=_largest([one.unplanned_bytes for one in parts]),
        weights_bytes=sum(one.weights_bytes for one in parts),
        dynamic=any(one.dynamic for one in parts),
        weights_read_bytes=sum(one.weights_read_bytes or 0 for one in parts) or None,
        kernel_bytes=max((one.kernel_bytes or 0 for one in parts), default=0) or None,
        kernel_thread_bytes=max((one.kernel_thread_bytes or 0 for one in parts), default=0) or None,
        program_bytes=sum(one.program_bytes or 0 for one in parts) or None,
        workspace_bytes=largest.workspace_bytes,
    )


def _largest(sizes: Sequence[int | None]) -> int | None:
    """None where one is not known."""
    known = [size for size in sizes if size is not None]
    return max(known, default=0) if len(known) == len(sizes) else None
