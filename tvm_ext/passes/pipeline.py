"""Pipelines of passes: the optimisation levels O0 to O3, read from ``configs/pipelines``, and those
that users compose.
"""

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import tvm
from pydantic import AfterValidator, Field

from tvm_ext.configs.byte_sizes import parse_bytes
from tvm_ext.configs.errors import nearest_hint
from tvm_ext.configs.loader import ConfigModel, check_config, config_folder, load_toml
from tvm_ext.errors import ConfigError, PassError
from tvm_ext.mlir import require_mlir
from tvm_ext.passes import registry
from tvm_ext.passes.registry import load_plugins

# Without these nothing can be built; they can be moved around, not left out.
REQUIRED = frozenset(entry.name for entry in registry.all_entries() if entry.required)

# The parts of a pipeline in their order, with the level of the passes in each.
STAGES: dict[str, registry.Level] = {
    "graph": "graph",
    "lower": "graph",
    "schedule": "schedule",
    "tile": "tile",
    "memory": "memory",
    "target": "target",
}
# Users' passes without a neighbour go ahead of these, to the end of what their level is about.
_CLOSING = {
    "graph": "PropagateSpans",
    "schedule": "MarkConstantParameters",
    "tile": "PropagateNan",
    "memory": "LowerAllocTensor",
    "target": "MlirCodeGeneration",
}


PassName = Annotated[str, AfterValidator(registry.current_name)]


class PipelineConfig(ConfigModel):
    """One file of ``configs/pipelines``: names of passes in their order.

    ``graph`` runs on Relax operators, ``lower`` turns them into fused kernels, ``schedule`` chooses
    the kernels' loops, ``tile`` runs on kernels whose loops are final, ``memory`` plans storage and
    turns the program into calls of the virtual machine, ``target`` runs right before code
    generation.
    """

    summary: str
    graph: list[PassName]
    lower: list[PassName]
    schedule: list[PassName]
    tile: list[PassName]
    memory: list[PassName]
    target: list[PassName] = Field(default_factory=list)


class _PipelineFile(ConfigModel):
    """The file of a ``PassPipeline``."""

    summary: str = ""
    graph: list[PassName] | None = None
    lower: list[PassName] | None = None
    schedule: list[PassName] | None = None
    tile: list[PassName] | None = None
    memory: list[PassName] | None = None
    target: list[PassName] | None = None
    options: dict[str, dict[str, Any]] = Field(default_factory=dict)


@dataclass(frozen=True)
class PassPipeline:
    """A pipeline of passes that a user chooses.

    Attributes
    ----------
    graph, lower, schedule, tile, memory, target : sequence of str, optional
        For each stage (see ``PipelineConfig``), the names of its passes in the order in which they
        run. A stage that is None runs the passes of the optimisation level.
    options : mapping of str to mapping
        The options of passes, by the name of the pass and of the option.
    summary : str
        What reports call the pipeline. For a pipeline from a file without a summary it is the name
        of the file.

    Raises
    ------
    ConfigError
        A field has another type.
    """

    graph: Sequence[str] | None = None
    lower: Sequence[str] | None = None
    schedule: Sequence[str] | None = None
    tile: Sequence[str] | None = None
    memory: Sequence[str] | None = None
    target: Sequence[str] | None = None
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    summary: str = ""

    def __post_init__(self) -> None:
        given = {one.name: getattr(self, one.name) for one in fields(self)}
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in given.items()}
        checked = check_config(plain, _PipelineFile, "the pipeline")
        for stage in STAGES:
            # Under the present names of passes.
            object.__setattr__(self, stage, getattr(checked, stage))

    @classmethod
    def from_file(cls, path: str | Path) -> "PassPipeline":
        """Reads a TOML file; raises ConfigError for one that is no pipeline."""
        read = load_toml(Path(path), _PipelineFile)
        return cls(**{**read.model_dump(), "summary": read.summary or Path(path).stem})


PipelineSource: TypeAlias = PassPipeline | str | Path


# The pass that reorders a program for a memory limit, which is its option "limit".
_LIMIT = "LimitMemory"


@dataclass(frozen=True)
class PassStep:
    """A pass in a pipeline: its entry, and why it is skipped (empty when it runs)."""

    entry: registry.PassEntry
    options: dict[str, Any]
    skipped: str = ""

    def make(self) -> tvm.transform.Pass:
        """The pass with its options."""
        return self.entry.make(self.options)


@dataclass(frozen=True)
class Pipeline:
    """The passes of one compilation, by stage, in the order in which they run."""

    opt_level: str
    graph: tuple[PassStep, ...]
    lower: tuple[PassStep, ...]
    schedule: tuple[PassStep, ...]
    tile: tuple[PassStep, ...]
    memory: tuple[PassStep, ...]
    target: tuple[PassStep, ...]
    # Whether the model's states and logits are looked for, as ``with_states`` states them.
    names_states: bool = False

    @property
    def ahead_of_schedules(self) -> tuple[PassStep, ...]:
        """The part of the schedule stage that leaves kernels as a tuner starts from them."""
        return self.schedule[: self._scheduling]

    @property
    def schedules(self) -> tuple[PassStep, ...]:
        """The rest of that stage: ScheduleKernels, and what follows it."""
        return self.schedule[self._scheduling :]

    @property
    def _scheduling(self) -> int:
        names = [step.entry.name for step in self.schedule]
        # Without it, packing is the first step that takes kernels as they are.
        return min(names.index(n) for n in ("ScheduleKernels", "PackWeights") if n in names)

    @property
    def memory_limit(self) -> int | None:
        """Bytes that the values of a run may take; None where no limit was given."""
        given = (s.options.get("limit") for s in self.memory if s.entry.name == _LIMIT)
        return next(given, None) or None

    @property
    def schedules_kernels(self) -> bool:
        """Whether ScheduleKernels runs."""
        return any(s.entry.name == "ScheduleKernels" and not s.skipped for s in self.schedule)


@functools.cache
def load_pipelines() -> dict[str, PipelineConfig]:
    """The optimisation levels by name, lowest first."""
    folder = config_folder("pipelines")
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".toml"))
    return {name.removesuffix(".toml"): load_toml(folder / name, PipelineConfig) for name in names}


def opt_level_name(opt_level: int | str) -> str:
    """``3``, ``"3"`` and ``"O3"`` are all ``"O3"``; raises ConfigError for an unknown level."""
    name = str(opt_level).upper()
    name = name if name.startswith("O") else f"O{name}"
    known = load_pipelines()
    if name not in known:
        raise ConfigError(
            f"optimisation level '{opt_level}' is unknown; {nearest_hint(name, known)}"
        )
    return name


def build_pipeline(
    opt_level: int | str = "O3",
    disabled_passes: Iterable[str] = (),
    pass_config: Mapping[str, Mapping[str, Any]] | None = None,
    own: PipelineSource | None = None,
) -> Pipeline:
    """The passes of an optimisation level with users' passes placed among them.

    Parameters
    ----------
    opt_level : int or str
        0 to 3, or "O0" to "O3".
    disabled_passes : iterable of str
        Names of passes to leave out; they stay in the report as skipped.
    pass_config : mapping of pass name to options
        Options by pass, for example ``{"LayoutPlanning": {"machine": machine}}``.
    own : PassPipeline, or the path of its file, optional
        A user's pipeline; what it leaves open is as at ``opt_level``.

    Raises
    ------
    PassError, ConfigError
        A name is unknown, a required pass is missing or disabled, passes stand at another level or
        in another order than they can run in, or options do not fit their pass.
    """
    load_plugins()
    name = opt_level_name(opt_level)
    if isinstance(own, str | Path):
        own = PassPipeline.from_file(own)
    disabled = _checked_names(
        [disabled_passes] if isinstance(disabled_passes, str) else disabled_passes
    )
    options = _plain_options(own.options if own is not None else {})
    for key, given in _plain_options(pass_config or {}).items():
        options[key] = {**options.get(key, {}), **given}
    for key, value in options.items():
        registry.get(key).make(value)
    listed = {stage: list(getattr(load_pipelines()[name], stage)) for stage in STAGES}
    if own is not None:
        given = {stage: getattr(own, stage) for stage in STAGES}
        listed |= {stage: list(names) for stage, names in given.items() if names is not None}
        _check_rules(listed)
        name = own.summary or "own pipeline"
    placed = _with_user_passes(listed)
    steps = {
        stage: tuple(_step(registry.get(one), options, disabled) for one in names)
        for stage, names in placed.items()
    }
    return Pipeline(name, names_states=False, **steps)


def with_fast_math(
    pass_config: Mapping[str, Mapping[str, Any]] | None,
) -> dict[str, dict[str, Any]]:
    """``pass_config`` with the rules that hold for finite numbers alone turned on.

    Raises ConfigError where it has not the form of options by pass.
    """
    options = _plain_options(pass_config or {})
    name = "AlgebraicSimplification"
    return {**options, name: {"fast_math": True, **options.get(name, {})}}


# Who generates the code of a CPU's kernels.
CODE_GENERATORS = ("tvm", "mlir")


def with_code_generator(
    pass_config: Mapping[str, Mapping[str, Any]] | None, name: str | None
) -> Mapping[str, Mapping[str, Any]] | None:
    """``pass_config`` with one of ``CODE_GENERATORS``; itself where none is named.

    Raises
    ------
    ConfigError
        There is no such generator, or ``pass_config`` has not the form of options by pass.
    MlirError
        The generator is not installed.
    """
    if name is None:
        return pass_config
    if name not in CODE_GENERATORS:
        raise ConfigError(
            f"the code generator is '{name}', which does not exist; "
            f"{nearest_hint(name, CODE_GENERATORS)}"
        )
    if name == "mlir":
        require_mlir()
    options = _plain_options(pass_config or {})
    return {**options, "MlirCodeGeneration": {"enabled": name == "mlir"}}


def with_options(pipeline: Pipeline, name: str, options: Mapping[str, Any]) -> Pipeline:
    """``pipeline`` with other options of the pass ``name``, wherever it runs."""
    stages: dict[str, Any] = {
        stage: tuple(
            replace(step, options={**step.options, **options}) if step.entry.name == name else step
            for step in getattr(pipeline, stage)
        )
        for stage in STAGES
    }
    return replace(pipeline, **stages)


def with_states(
    pipeline: Pipeline,
    states: tuple[tuple[int, int, int], ...],
    last: tuple[tuple[int, int], ...],
) -> Pipeline:
    """``pipeline`` for the program of a session.

    ``states`` are for ``KeepStateInPlace``, and ``last`` are outputs for ``LastPositionOnly``.
    """
    keeping = with_options(pipeline, "KeepStateInPlace", {"states": states})
    narrow = with_options(keeping, "LastPositionOnly", {"outputs": last})
    return replace(narrow, names_states=False)


def with_memory_limit(
    pass_config: Mapping[str, Mapping[str, Any]] | None, limit: int | str | None
) -> Mapping[str, Mapping[str, Any]] | None:
    """``pass_config`` with a limit of bytes for the values of a run; itself where there is none.

    Raises ConfigError where the limit is no size, or ``pass_config`` has not the form of options.
    """
    if limit is None:
        return pass_config
    options = _plain_options(pass_config or {})
    nbytes = parse_bytes(limit, "the memory limit")
    return {**options, _LIMIT: {**options.get(_LIMIT, {}), "limit": nbytes}}


def _check_rules(listed: Mapping[str, Sequence[str]]) -> None:
    """Raises PassError for the first rule that a user's pipeline breaks."""
    for stage, names in listed.items():
        for name in names:
            level = registry.get(name).level
            if level != STAGES[stage]:
                fitting = next(s for s, own_level in STAGES.items() if own_level == level)
                raise PassError(
                    f"pass '{name}' of level {level} stands in stage '{stage}' of the pipeline; "
                    f"expected passes of level {STAGES[stage]} there: move it to '{fitting}'"
                )
    order = [name for names in listed.values() for name in names]
    *_, top = load_pipelines().values()
    for name in sorted(REQUIRED):
        if name not in order:
            stage = next(stage for stage in STAGES if name in getattr(top, stage))
            raise PassError(
                f"the pipeline has no pass '{name}', without which no program can be built; "
                f"expected it in stage '{stage}': add it"
            )
    for position, name in enumerate(order):
        entry = registry.get(name)
        late = [other for other in entry.behind if other in order[position:]]
        for other in [*late, *(one for one in entry.needs if one not in order[:position])]:
            raise PassError(
                f"pass '{name}' of the pipeline needs '{other}' before it; expected the order "
                f"'{other}', '{name}': see 'tvm-ext passes list'"
            )


def _plain_options(pass_config: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    try:
        return {registry.current_name(name): dict(given) for name, given in pass_config.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"pass_config is {pass_config!r}; expected options by pass: "
            "write {'MyPass': {'limit': 64}}"
        ) from error


def _step(
    entry: registry.PassEntry, options: dict[str, dict[str, Any]], disabled: frozenset[str]
) -> PassStep:
    skipped = "disabled" if entry.name in disabled else ""
    return PassStep(entry, options.get(entry.name, {}), skipped)


def _checked_names(names: Iterable[str]) -> frozenset[str]:
    checked = frozenset(map(registry.current_name, names))
    for name in checked:
        registry.get(name)
        if name in REQUIRED:
            raise PassError(
                f"pass '{name}' cannot be disabled: without it operators cannot be built; "
                "disable another one"
            )
    return checked


def _with_user_passes(listed: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """The stages with users' passes, each next to the neighbour it names, else at the level's end.

    The neighbour may be missing at a low optimisation level: the pass then goes to the end too. One
    that the pipeline lists itself stays where it is.
    """
    stages = {stage: list(names) for stage, names in listed.items()}
    for entry in registry.all_entries():
        if entry.in_pipelines or any(entry.name in names for names in listed.values()):
            continue
        stage = _stage_of(entry, stages)
        stages[stage].insert(_position(stages[stage], entry, stage), entry.name)
    return stages


def _stage_of(entry: registry.PassEntry, stages: Mapping[str, Sequence[str]]) -> str:
    neighbour = entry.after or entry.before
    own = [stage for stage, level in STAGES.items() if level == entry.level]
    return next((stage for stage in own if neighbour in stages[stage]), own[0])


def _position(names: Sequence[str], entry: registry.PassEntry, stage: str) -> int:
    if entry.after and entry.after in names:
        # Behind the last one of that name: what it waits for is then done.
        return len(names) - list(names)[::-1].index(entry.after)
    closing = entry.before if entry.before in names else _CLOSING.get(stage, "")
    return list(names).index(closing) if closing in names else len(names)
