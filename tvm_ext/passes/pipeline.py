"""Optimisation levels O0 to O3: lists of passes, read from ``configs/pipelines``."""

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import tvm
from pydantic import AfterValidator, Field

from tvm_ext.configs.errors import nearest_hint
from tvm_ext.configs.loader import ConfigModel, config_folder, load_toml
from tvm_ext.errors import ConfigError, PassError
from tvm_ext.passes import registry
from tvm_ext.passes.registry import load_plugins

# Without these nothing can be built; they can be moved around, not left out.
REQUIRED = frozenset({"DispatchSampling", "DispatchSortScan", "LegalizeOps"})


PassName = Annotated[str, AfterValidator(registry.current_name)]


class PipelineConfig(ConfigModel):
    """One file of ``configs/pipelines``: names of passes in their order.

    ``graph`` runs on Relax operators, ``lower`` turns them into fused kernels, ``tile`` runs on
    kernels whose loops are final, ``memory`` on programs whose storage is planned.
    """

    summary: str
    graph: list[PassName]
    lower: list[PassName]
    tile: list[PassName] = Field(default_factory=list)
    memory: list[PassName] = Field(default_factory=list)


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

    Raises
    ------
    PassError, ConfigError
        A name is unknown, a required pass is disabled, or options do not fit their pass.
    """
    load_plugins()
    name = opt_level_name(opt_level)
    disabled = _checked_names(
        [disabled_passes] if isinstance(disabled_passes, str) else disabled_passes
    )
    options = _plain_options(pass_config or {})
    for key, value in options.items():
        registry.get(key).make(value)
    config = load_pipelines()[name]

    def steps(names: list[str]) -> tuple[PassStep, ...]:
        return tuple(_step(registry.get(n), options, disabled) for n in names)

    graph, lower = _place_user_passes(config.graph, config.lower)
    listed = {"schedule": [], "tile": config.tile, "memory": config.memory, "target": []}
    others = {level: steps(_ordered(level, names)) for level, names in listed.items()}
    return Pipeline(name, steps(graph), steps(lower), **others)


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


def _user_entries(level: str) -> list[registry.PassEntry]:
    return [e for e in registry.all_entries() if e.level == level and not e.in_pipelines]


def _place_user_passes(graph: list[str], lower: list[str]) -> tuple[list[str], list[str]]:
    """Users' graph passes go next to the neighbour they name, else to the end of the graph stage.

    The neighbour may be missing at a low optimisation level: the pass then goes to the end too.
    """
    graph, lower = list(graph), list(lower)
    for entry in _user_entries("graph"):
        neighbour = entry.after or entry.before
        stage = lower if neighbour in lower and neighbour not in graph else graph
        stage.insert(_position(stage, entry), entry.name)
    return graph, lower


def _position(names: list[str], entry: registry.PassEntry) -> int:
    if entry.after and entry.after in names:
        # Behind the last one of that name: what it waits for is then done.
        return len(names) - names[::-1].index(entry.after)
    if entry.before and entry.before in names:
        return names.index(entry.before)
    # PropagateSpans closes the graph stage, so that added bindings get a span as well.
    return names.index("PropagateSpans") if "PropagateSpans" in names else len(names)


def _ordered(level: str, listed: list[str]) -> list[str]:
    """The listed passes of a level with users' passes placed among them."""
    names = list(listed)
    for entry in _user_entries(level):
        names.insert(_position(names, entry), entry.name)
    return names
