"""The registry of passes: built-in ones, TVM's, and users' own."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal, get_args

import tvm

from tvm_ext.configs.nearest import nearest_hint
from tvm_ext.errors import PassError
from tvm_ext.passes.users_words import users_words
from tvm_ext.relay_passes.graph_pass import build_options

Level = Literal["graph", "schedule", "tile", "memory", "target"]
LEVELS: tuple[str, ...] = get_args(Level)


@dataclass(frozen=True)
class PassEntry:
    """One registered pass.

    Attributes
    ----------
    name : str
        How pipelines and the command line call it.
    level : str
        Where it runs: ``graph`` (Relax), ``schedule`` (kernels before a template chose their
        loops), ``tile`` (kernels after), ``memory`` (storage is planned), ``target`` (the finished
        module before code generation).
    factory : Callable[..., tvm.transform.Pass]
        Makes the pass from its options.
    source : str
        "built-in", "tvm", "user", or the distribution whose entry point registered it.
    summary : str
        First line of its documentation.
    doc : str
        All of its documentation.
    after, before : str
        The pass that it is placed behind or ahead of; empty for the end of its level.
    in_pipelines : bool
        Whether it runs only where a pipeline lists it (built-in and TVM's passes) or always.
    """

    name: str
    level: Level
    factory: Callable[..., tvm.transform.Pass]
    source: str
    summary: str
    doc: str = ""
    after: str = ""
    before: str = ""
    in_pipelines: bool = True

    def options(self) -> dict[str, Any]:
        """Option names and defaults; empty when the pass takes none."""
        options_class = getattr(self.factory, "options_class", None)
        if options_class is None or not is_dataclass(options_class):
            return {}
        return {field.name: field.default for field in fields(options_class)}

    def make(self, options: dict[str, Any]) -> tvm.transform.Pass:
        """The pass with these options; raises ConfigError or PassError for wrong ones."""
        options_class = getattr(self.factory, "options_class", None)
        if options_class is not None:
            return self.factory(**build_options(options_class, options))
        if options:
            raise PassError(
                f"pass '{self.name}' takes no options, got {', '.join(options)}: drop them"
            )
        try:
            made = self.factory()
        except Exception as error:
            raise PassError(
                f"pass '{self.name}' cannot be made ({users_words(error)}); expected a class or "
                "factory that needs no arguments: register an instance, or use graph_pass for "
                "options"
            ) from error
        if not isinstance(made, tvm.transform.Pass):
            raise PassError(
                f"pass '{self.name}' made a {type(made).__name__}, expected a "
                "tvm.transform.Pass: return one from its factory"
            )
        return made


_entries: dict[str, PassEntry] = {}
_lock = threading.Lock()


def add(entry: PassEntry) -> None:
    """Registers a pass.

    Raises
    ------
    PassError
        The name is taken, the level is unknown, or it names a pass that does not exist.
    """
    if entry.level not in LEVELS:
        raise PassError(
            f"pass '{entry.name}' has level '{entry.level}'; {nearest_hint(entry.level, LEVELS)}"
        )
    with _lock:
        if entry.name in _entries:
            raise PassError(
                f"a pass named '{entry.name}' is registered already "
                f"({_entries[entry.name].source}): give another name, or take the other one out "
                f"with tvm_ext.passes.registry.remove('{entry.name}')"
            )
        for neighbour in (entry.after, entry.before):
            _require_neighbour(entry, neighbour)
        _entries[entry.name] = entry


def _require_neighbour(entry: PassEntry, neighbour: str) -> None:
    if not neighbour:
        return
    if neighbour not in _entries:
        raise PassError(
            f"pass '{entry.name}' wants to run next to '{neighbour}', which is not registered; "
            + nearest_hint(neighbour, _entries)
        )
    if _entries[neighbour].level != entry.level:
        raise PassError(
            f"pass '{entry.name}' of level {entry.level} wants to run next to '{neighbour}' of "
            f"level {_entries[neighbour].level}; expected one level: choose another neighbour"
        )


def remove(name: str) -> None:
    """Unregisters a pass; raises PassError when there is none of that name."""
    with _lock:
        if name not in _entries:
            raise PassError(f"no pass is named '{name}'; {nearest_hint(name, _entries)}")
        del _entries[name]


def get(name: str) -> PassEntry:
    """The pass of that name; raises PassError with the nearest name when there is none."""
    if name not in _entries:
        raise PassError(f"no pass is named '{name}'; {nearest_hint(name, _entries)}")
    return _entries[name]


def all_entries() -> list[PassEntry]:
    """Every registered pass, in the order of registration."""
    return list(_entries.values())


def first_line(doc: str | None) -> str:
    """The first non-empty line of a docstring."""
    return next((line.strip() for line in (doc or "").splitlines() if line.strip()), "")
