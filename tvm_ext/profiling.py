"""Times every kernel of a run through the virtual machine's instrument hook."""

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import tvm_ffi
from tvm import relax

from tvm_ext.configs.errors import ConfigError, TargetError
from tvm_ext.configs.progress import tell
from tvm_ext.hardware.cost_model import Work, cost_model
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.hardware.targets import description_of
from tvm_ext.report.compile_report import CompileReport
from tvm_ext.report.formulas import FormulaError, evaluate
from tvm_ext.report.profile import CallCost, CallTime, Peaks
from tvm_ext.report.records import KernelRecord
from tvm_ext.run_errors import GO_ON
from tvm_ext.tensor_spec import TensorSpec

Arguments: TypeAlias = tuple[tuple[int, ...] | int | None, ...]
"""Of a call's arguments the shapes of tensors and the numbers, None for others."""


@dataclass(frozen=True)
class MeasuredCall:
    """One call of a kernel.

    Attributes
    ----------
    kernel : str
        Name of the kernel.
    shapes : Arguments
        Its sizes in this call.
    seconds : float
        Median over the runs.
    begun, lasted : float
        Seconds from the start of the run that stands for all, and its time there.
    """

    kernel: str
    shapes: Arguments
    seconds: float
    begun: float
    lasted: float


@dataclass(frozen=True)
class MeasuredRun:
    """What was measured.

    Attributes
    ----------
    seconds : float
        Median time of a whole run without the hook, host work included.
    calls : tuple[MeasuredCall, ...]
        In the order of the run.
    lasted : float
        Seconds of the run that stands for all, with the hook.
    """

    seconds: float
    calls: tuple[MeasuredCall, ...]
    lasted: float


class _Stopwatch:
    """Before and after each kernel call of one run; ``sync`` waits for the device's work."""

    def __init__(self, kernels: Collection[str], sync: Callable[[], object] | None = None) -> None:
        self.calls: list[tuple[str, Arguments, float, float]] = []
        self._kernels = kernels
        self._sync = sync
        self._shapes: Arguments = ()
        self._begun = 0.0
        self.started = time.perf_counter()
        self.lasted = 0.0

    def __call__(self, func: Any, name: str, before: bool, result: Any, *args: Any) -> int:
        if name in self._kernels:
            if self._sync is not None:
                self._sync()
            now = time.perf_counter()
            if before:
                self._shapes = tuple(_shape_or_number(argument) for argument in args)
                self._begun = time.perf_counter()
            else:
                begun = self._begun - self.started
                self.calls.append((str(name), self._shapes, begun, now - self._begun))
        return GO_ON


def _shape_or_number(argument: Any) -> tuple[int, ...] | int | None:
    if isinstance(argument, tvm_ffi.Tensor):
        return tuple(argument.shape)
    return argument if isinstance(argument, int) else None


def profile_run(
    machine: relax.VirtualMachine | tvm_ffi.Module,
    tensors: Sequence[tvm_ffi.Tensor],
    kernels: Collection[str],
    repeat: int,
    watched: relax.VirtualMachine | None = None,
    sync: Callable[[], object] | None = None,
    function: str = "main",
) -> MeasuredRun:
    """Runs the program without and with the hook, which stays in; takes medians call by call.

    The hook goes into ``watched``, a machine with the same program, where that is given. ``sync``
    waits for a device, whose calls return before their work is done. The first run does not count.
    """
    main = machine[function]
    wait = sync or (lambda: None)
    tell("measuring runs")
    main(*tensors)
    whole = []
    for _ in range(max(1, repeat)):
        wait()
        begun = time.perf_counter()
        main(*tensors)
        wait()
        whole.append(time.perf_counter() - begun)
    if watched is not None:
        # Its first run sets up memory and code, as that of the other did.
        watched[function](*tensors)
    hooked = watched or machine
    tell("measuring kernels")
    runs = []
    for _ in range(max(1, repeat)):
        watch = _Stopwatch(kernels, sync)
        hooked["set_instrument"](watch)
        main = hooked[function]
        watch.started = time.perf_counter()
        main(*tensors)
        wait()
        watch.lasted = time.perf_counter() - watch.started
        runs.append(watch)
    return _medians(runs, statistics.median(whole))


def _medians(runs: Sequence[_Stopwatch], seconds: float) -> MeasuredRun:
    """Calls with their medians; the run whose time is nearest to their sum stands for all."""
    # A branch may make runs differ in length; calls are paired within the shortest.
    length = min(len(run.calls) for run in runs)
    medians = [statistics.median(run.calls[i][-1] for run in runs) for i in range(length)]

    def distance(run: _Stopwatch) -> float:
        return abs(sum(lasted for *_, lasted in run.calls[:length]) - sum(medians))

    shown = min(runs, key=distance)
    calls = [
        MeasuredCall(name, shapes, median, begun, lasted)
        for median, (name, shapes, begun, lasted) in zip(medians, shown.calls, strict=False)
    ]
    return MeasuredRun(seconds, tuple(calls), shown.lasted)


class ProfiledMachine:
    """What times are modelled for, and what rates are compared with.

    Parameters
    ----------
    report : CompileReport
        That of the program; its target is the machine.
    threads : int
        How many threads run the program, on a CPU: its peaks are those of so many cores.
    measure_peaks : bool
        Whether the peaks are measured, when they are first asked for. That leaves threads of TVM
        busy for some time.

    Raises
    ------
    TargetError
        Peaks were to be measured of something else than a CPU.
    """

    def __init__(self, report: CompileReport, threads: int, measure_peaks: bool) -> None:
        self.described: MachineDescription | None = None
        # A plug-in's machine is not known where the plug-in is not installed.
        with suppress(ConfigError, TargetError):
            self.described = description_of(report.target, "the report")
        if isinstance(self.described, CpuDescription):
            self.described = self.described.with_threads(threads)
        elif measure_peaks:
            name = report.target.get("name")
            raise TargetError(
                f"peaks were to be measured, and the model was compiled for '{name}'; expected one "
                "for a CPU: leave measure_peaks out"
            )
        self._measures = measure_peaks

    @cached_property
    def peaks(self) -> MachineDescription | None:
        """The description whose rates are the peaks; None where nothing is known of the machine."""
        if not self._measures or not isinstance(self.described, CpuDescription):
            return self.described
        # Brings the language that its kernels are written in.
        from tvm_ext.hardware.cpu.measured_peaks import with_measured_peaks

        tell("measuring the machine's peaks")
        return with_measured_peaks(self.described)

    def summary(self) -> Peaks | None:
        """What a profile says of the peaks."""
        machine = self.peaks
        if machine is None:
            return None
        described = f"as target {machine.name} is described, not measured"
        source = "measured on this machine, after the runs" if self._measures else described
        return Peaks(machine.peak_flops("float32"), machine.bandwidth(math.inf), source)


def profile_facts(
    report: CompileReport, specs: Sequence[TensorSpec], inputs: Mapping[str, Any]
) -> dict[str, Any]:
    """What a profile says of the model and of the sizes of the run, by the names of its fields."""
    shapes = {spec: getattr(inputs.get(spec.name), "shape", None) for spec in specs}
    return {
        "model": report.model_name,
        "target": str(report.target.get("name", "")),
        "opt_level": report.opt_level,
        "inputs": tuple(spec.of_shape(shape).describe() for spec, shape in shapes.items()),
    }


def call_times(
    measured: MeasuredRun,
    report: CompileReport,
    machine: ProfiledMachine,
) -> tuple[CallTime, ...]:
    """The calls with what the report says of their kernels, and what they could take."""
    records = {record.name: record for record in report.kernels}
    costs: dict[tuple[str, Arguments], CallCost | None] = {}
    counts = Counter(call.kernel for call in measured.calls)
    seen: Counter[str] = Counter()
    times = []
    for call in measured.calls:
        record, key = records[call.kernel], (call.kernel, call.shapes)
        if key not in costs:
            costs[key] = _cost(record, call.shapes, machine)
        origins = tuple(record.origins)
        # Without branches and loops the calls of a run are those of the program, in their order.
        if not report.graph.has_control_flow and counts[call.kernel] == len(origins):
            origins = (origins[seen[call.kernel]],)
        seen[call.kernel] += 1
        times.append(
            CallTime(
                calls=1,
                microseconds=1e6 * call.seconds,
                cost=costs[key],
                kernel=call.kernel,
                origins=origins,
                schedule=record.schedule,
                begun=1e6 * call.begun,
                lasted=1e6 * call.lasted,
                versions=_versions(record, call.shapes),
            )
        )
    return tuple(times)


def _cost(record: KernelRecord, arguments: Arguments, machine: ProfiledMachine) -> CallCost | None:
    """What one call with these arguments does; None where it is not known."""
    flops, nbytes, seconds = record.flops, record.bytes, record.estimated_seconds
    if flops is not None and nbytes is not None and seconds is not None:
        return _beside_peaks(Work(flops, nbytes, record.dtype), seconds, machine.peaks)
    work = _work(record, arguments)
    if work is None or machine.described is None:
        return None
    return _beside_peaks(work, cost_model(machine.described).seconds(work), machine.peaks)


def _work(record: KernelRecord, arguments: Arguments) -> Work | None:
    """What a call does whose sizes the run decides; None where they do not tell."""
    symbolic = record.symbolic
    if symbolic is None:
        return None
    sizes = symbolic.at(arguments)
    try:
        flops, nbytes = (evaluate(one, sizes) for one in (symbolic.flops, symbolic.bytes))
    except FormulaError:
        return None
    return Work(float(flops), float(nbytes), record.dtype)


def _versions(record: KernelRecord, arguments: Arguments) -> tuple[tuple[int, str], ...]:
    symbolic = record.symbolic
    return symbolic.versions_at(symbolic.at(arguments)) if symbolic is not None else ()


def _beside_peaks(work: Work, seconds: float, peaks: MachineDescription | None) -> CallCost:
    if peaks is None:
        return CallCost(work.flops, work.bytes, 1e6 * seconds)
    return CallCost(
        work.flops,
        work.bytes,
        1e6 * seconds,
        # Reports of former versions do not say the type.
        1e6 * work.flops / peaks.peak_flops(work.dtype) if work.dtype else None,
        1e6 * work.bytes / peaks.bandwidth(work.bytes),
    )
