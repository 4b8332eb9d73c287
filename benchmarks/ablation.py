"""Leaves out one pass at a time, and measures what the program loses."""

import os
import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from model_list import ModelEntry
from results import geometric_mean, relative_difference

import tvm_ext
from tvm_ext.check.inputs import load_inputs, random_inputs
from tvm_ext.compiler.compile_context import compiling
from tvm_ext.compiler.stages import Phases, lower_model, plan_module, schedule_module
from tvm_ext.errors import TvmExtError
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.hardware.timing import interleaved_seconds, timed
from tvm_ext.passes import registry
from tvm_ext.passes.pipeline import REQUIRED, PassPipeline, build_pipeline, load_pipelines
from tvm_ext.passes.runner import PassRunner
from tvm_ext.report.compile_report import CompileReport
from tvm_ext.report.records import ModuleCounts

LAYOUTS = ("channels_first", "channels_last")
PLANNED = "planned"
# Two times that are closer than this are called equal, however quiet the machine was.
LEAST_NOISE = 0.02
# A larger difference is no chance.
_SURE = 0.3
# Planned memory is exact; a smaller share than this is due to rounding of sizes.
_MEMORY_CHANGES = 0.01
# The level that is measured, which is the default one.
LEVEL = "O3"


@dataclass(frozen=True)
class PassEffect:
    """The module behind one pass.

    Attributes
    ----------
    name : str
        The pass.
    seconds : float
        Time that the pass took.
    changed : bool
        Whether it changed the module.
    operators, kernels, bytes : int
        Calls of operators, kernels, and bytes of the tensors between them.
    planned_bytes : int or None
        Planned memory of the program that the required passes alone make of that module; None where
        it is not known.
    """

    name: str
    seconds: float
    changed: bool
    operators: int
    kernels: int
    bytes: int
    planned_bytes: int | None = None


@dataclass(frozen=True)
class Ratios:
    """Times of one program by those of another, one ratio for each alternation.

    Attributes
    ----------
    median, low, high : float
        The median and the quartiles of the ratios.
    """

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, ratios: Sequence[float]) -> "Ratios":
        """The summary of some ratios."""
        low, median, high = np.percentile(ratios, (25, 50, 75))
        return cls(float(median), float(low), float(high))


@dataclass(frozen=True)
class ProgramFigures:
    """One program of a model.

    Attributes
    ----------
    calls : int
        Calls of kernels in one run.
    bytes : int
        Bytes of the tensors between the kernels.
    planned_bytes : int or None
        Planned memory; None where a run decides sizes without a limit.
    pass_seconds : float
        Time that all passes took together.
    """

    calls: int
    bytes: int
    planned_bytes: int | None
    pass_seconds: float

    @classmethod
    def of(cls, report: CompileReport) -> "ProgramFigures":
        """The figures of a compilation."""
        behind = [one.after for one in report.passes if one.level == "graph" and one.after]
        counts = behind[-1] if behind else ModuleCounts()
        nominal = report.nominal.memory_bytes if report.nominal is not None else None
        return cls(
            sum(kernel.calls for kernel in report.kernels),
            counts.intermediate_bytes,
            nominal if report.memory.dynamic else report.memory.planned_peak_bytes,
            sum(one.seconds for one in report.passes),
        )


@dataclass(frozen=True)
class Variant:
    """The program without a pass, or in a stated layout, beside the usual one.

    Attributes
    ----------
    name : str
        The pass, or the layout.
    figures : ProgramFigures or None
        None where it was not compiled.
    time : Ratios or None
        Its time by that of the usual program: above 1, the usual one is faster. None where it was
        not timed, because it is the same program.
    milliseconds : float or None
        Median time of one run; None where it was not timed.
    own_seconds : float
        Time that the pass takes in a usual compilation.
    difference : float
        Largest difference of its outputs, as a share of their largest magnitude.
    reason : str
        Why it was not timed; empty where it was.
    """

    name: str
    figures: ProgramFigures | None = None
    time: Ratios | None = None
    milliseconds: float | None = None
    own_seconds: float = 0.0
    difference: float = 0.0
    reason: str = ""


@dataclass
class ModelEffects:
    """What the passes do for one model.

    Attributes
    ----------
    name : str
        The model.
    nodes : int
        Nodes of the ONNX model.
    usual : ProgramFigures
        The program with all passes.
    milliseconds : float
        Median time of one run of it.
    noise : float
        By how much two copies of it differ in time, as a share.
    effects : list of PassEffect
        The passes of level graph, in their order.
    removals, layouts : list of Variant
        Without each optional pass, and in each stated layout.
    """

    name: str
    nodes: int
    usual: ProgramFigures
    milliseconds: float
    noise: float
    effects: list[PassEffect] = field(default_factory=list)
    removals: list[Variant] = field(default_factory=list)
    layouts: list[Variant] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "ModelEffects":
        """The record that ``to_dict`` made."""
        return cls(
            data["name"],
            data["nodes"],
            ProgramFigures(**data["usual"]),
            data["milliseconds"],
            data["noise"],
            [PassEffect(**one) for one in data["effects"]],
            [_variant(one) for one in data["removals"]],
            [_variant(one) for one in data["layouts"]],
        )

    def pays(self, variant: Variant) -> bool:
        """Whether the usual program is faster than the variant, beyond noise."""
        time = variant.time
        return time is not None and time.median > 1 + self.noise and time.low > 1

    def slows(self, variant: Variant) -> bool:
        """Whether the usual program is slower than the variant, beyond noise."""
        time = variant.time
        return time is not None and time.median < 1 / (1 + self.noise) and time.high < 1

    def memory_ratio(self, variant: Variant) -> float | None:
        """Planned memory of the variant by that of the usual program; None where not known."""
        if variant.figures is None:
            return None
        theirs, ours = variant.figures.planned_bytes, self.usual.planned_bytes
        if theirs is None or ours is None:
            return None
        # A program without a buffer is as good as one with a byte.
        return max(theirs, 1) / max(ours, 1)


def _variant(data: Mapping[str, Any]) -> Variant:
    parts = dict(data)
    figures, time = parts.pop("figures"), parts.pop("time")
    return Variant(
        figures=ProgramFigures(**figures) if figures else None,
        time=Ratios(**time) if time else None,
        **parts,
    )


# Verdicts.


@dataclass(frozen=True)
class Verdict:
    """What a pass is worth over all models.

    Attributes
    ----------
    name : str
        The pass.
    acts : list of str
        Models that it changes.
    faster, slower, smaller, larger : dict of str to float
        By model, the ratio of time or of memory, without the pass by with it, where it is beyond
        noise: the first and the third are above 1, the others below.
    time, memory : float or None
        Geometric means of these ratios over all models, also those that the pass does not change.
    """

    name: str
    acts: list[str]
    faster: dict[str, float]
    slower: dict[str, float]
    smaller: dict[str, float]
    larger: dict[str, float]
    time: float | None
    memory: float | None

    @property
    def is_worth_it(self) -> bool:
        """Whether the pass pays on a model in time or memory, and slows none."""
        return bool(self.faster or self.smaller) and not self.slower

    def sentence(self) -> str:
        """One line for people."""
        if not self.acts:
            return "It changes none of these models."
        said = [_most("It pays on", self.faster), _most("It saves memory on", self.smaller)]
        said += [_most("It needs more memory on", self.larger)]
        if not self.faster and not self.smaller:
            said.insert(0, f"It changes {_models(len(self.acts))} and gains nothing beyond noise.")
        said.append(_most("It slows", self.slower) or "It slows none.")
        return " ".join(part for part in said if part)


def _most(begin: str, ratios: Mapping[str, float]) -> str:
    if not ratios:
        return ""
    sizes = {name: max(ratio, 1 / ratio) for name, ratio in ratios.items()}
    where = max(sizes, key=lambda name: sizes[name])
    return f"{begin} {_models(len(ratios))}, by up to {sizes[where]:.2f} times ({where})."


def _models(count: int) -> str:
    return f"{count} model{'' if count == 1 else 's'}"


def verdicts(models: Sequence[ModelEffects]) -> list[Verdict]:
    """One verdict for each pass, in the order in which passes run."""
    names = dict.fromkeys(one.name for model in models for one in model.removals)
    return [_verdict(name, models) for name in names]


def _verdict(name: str, models: Sequence[ModelEffects]) -> Verdict:
    pairs = [(m, one) for m in models for one in m.removals if one.name == name]
    memory = {m.name: m.memory_ratio(one) for m, one in pairs}
    return Verdict(
        name,
        [m.name for m, one in pairs if one.figures is not None],
        {m.name: one.time.median for m, one in pairs if one.time and m.pays(one)},
        {m.name: one.time.median for m, one in pairs if one.time and m.slows(one)},
        {n: r for n, r in memory.items() if r is not None and r > 1 + _MEMORY_CHANGES},
        {n: r for n, r in memory.items() if r is not None and r < 1 / (1 + _MEMORY_CHANGES)},
        geometric_mean(one.time.median if one.time else 1.0 for _, one in pairs),
        geometric_mean(1.0 if ratio is None else ratio for ratio in memory.values()),
    )


# Measuring.


@dataclass(frozen=True)
class AblationSettings:
    """How to measure.

    Attributes
    ----------
    machine : MachineDescription
        This machine, with as many cores as a run may use threads.
    alternations : int
        How many ratios are taken of each pair of programs.
    seconds : float
        Time to spend on each pair of programs, without pauses.
    passes : collection of str
        The passes to leave out; all optional ones of level graph where it is empty.
    memory : bool
        Whether to plan memory behind each pass, which takes a compilation without code each.
    """

    machine: MachineDescription
    alternations: int
    seconds: float
    passes: Collection[str] = ()
    memory: bool = True


def optional_passes(wanted: Collection[str] = ()) -> list[str]:
    """The passes of level graph at the default level that can be left out, in their order.

    Raises
    ------
    TvmExtError
        A wanted pass is unknown, is required, or does not run at that level.
    """
    level = load_pipelines()[LEVEL]
    names = [n for n in dict.fromkeys([*level.graph, *level.lower]) if n not in REQUIRED]
    chosen = [registry.get(name).name for name in wanted]
    for name in chosen:
        if name not in names:
            raise TvmExtError(
                f"pass '{name}' cannot be left out of {LEVEL}; expected an optional pass of level "
                f"graph: choose of {', '.join(names)}"
            )
    return [name for name in names if not chosen or name in chosen]


def measure_effects(
    entry: ModelEntry, settings: AblationSettings, tell: Callable[[str], None]
) -> ModelEffects:
    """Compiles a model with all passes and without each, and compares the programs.

    Raises
    ------
    TvmExtError
        The model cannot be compiled with all passes.
    """
    # The code of equal kernels is made once; other scripts turn that off to measure compilations.
    os.environ.pop("TVM_EXT_CACHE", None)
    contest = _Contest(entry, settings)
    noise, milliseconds = contest.noise()
    report = contest.usual.report
    effects = ModelEffects(
        entry.name,
        sum(report.graph.onnx_nodes.values()),
        ProgramFigures.of(report),
        milliseconds,
        noise,
    )
    tell("the module behind each pass")
    effects.effects = _effects(contest.at_run_sizes(), settings, report)
    for name in optional_passes(settings.passes):
        tell(f"without {name}")
        effects.removals.append(contest.without(name))
    for layout in LAYOUTS:
        tell(f"layout {layout}")
        effects.layouts.append(contest.in_layout(layout))
    return effects


class _Contest:
    """The usual program of a model, which others are compared with."""

    def __init__(self, entry: ModelEntry, settings: AblationSettings) -> None:
        self._entry = entry
        self._settings = settings
        self.usual = self._compiled()
        specs = self.usual.inputs
        given = entry.inputs
        self._inputs = load_inputs(given, specs) if given is not None else random_inputs(specs)
        self._outputs = self._run(self.usual)

    def at_run_sizes(self) -> ModelEntry:
        """The model with the sizes of the run, for which memory can be planned ahead."""
        return replace(self._entry, shapes={n: a.shape for n, a in self._inputs.items()})

    def noise(self) -> tuple[float, float]:
        """By how much two equal programs differ in time, and the milliseconds of one."""
        ratios, milliseconds = self._timed(self._compiled())
        spread = max(abs(ratios.median - 1), (ratios.high - ratios.low) / 2)
        return max(spread, LEAST_NOISE), milliseconds

    def without(self, name: str) -> Variant:
        """The program without a pass."""
        records = [one for one in self.usual.report.passes if one.name == name]
        seconds = sum(one.seconds for one in records)
        if not any(one.changed for one in records):
            return Variant(name, own_seconds=seconds, reason="it changes nothing")
        return self._compared(name, seconds, disabled_passes=(name,))

    def in_layout(self, layout: str) -> Variant:
        """The program with all convolutions in a stated layout."""
        return self._compared(layout, 0.0, pass_config={"LayoutPlanning": {"layout": layout}})

    def _compared(self, name: str, own_seconds: float, **options: Any) -> Variant:
        try:
            other = self._compiled(**options)
            difference = relative_difference(self._run(other), self._outputs)
        except TvmExtError as error:
            return Variant(name, own_seconds=own_seconds, reason=str(error))
        figures = ProgramFigures.of(other.report)
        if _signature(other.report) == _signature(self.usual.report):
            reason = "the kernels are the same"
            return Variant(name, figures, None, None, own_seconds, difference, reason)
        ratios, milliseconds = self._timed(other)
        if LEAST_NOISE < abs(ratios.median - 1) < _SURE:
            # Of a hundred pairs some differ by chance: a small difference has to be seen twice.
            again, milliseconds = self._timed(other)
            ratios = min(ratios, again, key=lambda one: abs(one.median - 1))
        return Variant(name, figures, ratios, milliseconds, own_seconds, difference)

    def _compiled(self, **options: Any) -> tvm_ext.CompiledModel:
        entry, machine = self._entry, self._settings.machine
        return tvm_ext.compile(entry.path, machine, input_shapes=entry.shapes, **options)

    def _run(self, model: tvm_ext.CompiledModel) -> list[np.ndarray]:
        found = model.run(self._inputs)
        return [np.asarray(found[spec.name]) for spec in model.outputs]

    def _timed(self, other: tvm_ext.CompiledModel) -> tuple[Ratios, float]:
        """Times of the other program by those of the usual one, taken in turns."""
        timers = [timed(partial(one.run, self._inputs)) for one in (self.usual, other)]
        share = self._settings.seconds / self._settings.alternations
        ratios, taken = [], []
        for _ in range(self._settings.alternations):
            # Two turns, the second one backwards, so that neither program always comes first.
            ours, theirs = interleaved_seconds(timers, share, rounds=2)
            ratios.append(statistics.median(theirs) / statistics.median(ours))
            taken += theirs
        return Ratios.of(ratios), 1e3 * statistics.median(taken)


def _signature(report: CompileReport) -> list[Any]:
    """What is the same for two programs of the same kernels and the same storage.

    How often the module was constant-folded, or in which order equal kernels are numbered, is not.
    """
    kernels = sorted(
        (one.calls, one.schedule, one.dtype, str(one.flops), str(one.bytes), *sorted(one.origins))
        for one in report.kernels
    )
    behind = [one.after for one in report.passes if one.after is not None]
    return [kernels, report.memory, behind[-1:]]


# The module behind each pass.


def _effects(
    entry: ModelEntry, settings: AblationSettings, report: CompileReport
) -> list[PassEffect]:
    found = []
    records = [one for one in report.passes if one.level == "graph"]
    for place, one in enumerate(records):
        counts = one.after or ModuleCounts()
        planned = None
        if one.changed and settings.memory:
            planned = _planned_behind(entry, settings.machine, place)
        figures = (counts.operators, counts.kernels, counts.intermediate_bytes)
        found.append(PassEffect(one.name, one.seconds, one.changed, *figures, planned))
    return found


def pipeline_up_to(place: int) -> PassPipeline:
    """The default passes of level graph up to this place, and behind it required ones alone."""
    level = load_pipelines()[LEVEL]
    count = len(level.graph)
    return PassPipeline(
        graph=list(_kept(level.graph, place)),
        lower=list(_kept(level.lower, place - count)),
        schedule=[name for name in level.schedule if name != "ScheduleKernels"],
        summary=f"passes up to {place}",
    )


def _kept(names: Sequence[str], place: int) -> Iterator[str]:
    return (name for at, name in enumerate(names) if at <= place or name in REQUIRED)


def _planned_behind(entry: ModelEntry, machine: MachineDescription, place: int) -> int | None:
    """Planned memory if the pipeline ended behind this pass; None where nothing can be planned."""
    pipeline = build_pipeline(LEVEL, own=pipeline_up_to(place))
    runner, phases = PassRunner(), Phases()
    try:
        with compiling(machine) as context:
            lowered = lower_model(entry.path, entry.shapes, pipeline, runner, phases)
            context.ranges = lowered.imported.ranges
            scheduled = schedule_module(lowered, pipeline, runner, phases, context, ())
            plan_module(scheduled, pipeline, runner, phases)
            memory = context.memory
    except TvmExtError:
        return None
    return None if memory.dynamic else memory.planned_peak_bytes
