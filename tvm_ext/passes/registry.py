"""The registry of passes: built-in ones, TVM's, and users' own, by ``register_pass`` or by an
entry point in ``tvm_ext.passes``.
"""

import functools
import inspect
import threading
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Literal, get_args

import tvm
import tvm_ffi

import tvm_ext
from tvm_ext.configs.errors import nearest_hint
from tvm_ext.configs.former_names import PASSES as FORMER_NAMES
from tvm_ext.errors import PassError, own_words
from tvm_ext.relay_passes.graph_pass import build_options, option_defaults

# What code of a user raised, in its own words.


_OTHERS = tuple(Path(package.__file__ or "").parent for package in (tvm, tvm_ffi, tvm_ext))


def users_words(raised: BaseException | None) -> str:
    """The text of an error, if code of a user raised it: not TVM's, nor Python's of our call."""
    file = ""
    for frame, _ in traceback.walk_tb(raised.__traceback__ if raised is not None else None):
        file = frame.f_code.co_filename
    theirs = Path(file).suffix == ".py" and not any(Path(file).is_relative_to(f) for f in _OTHERS)
    if not theirs or isinstance(raised, tvm.error.InternalError):
        return own_words(raised) or "it raised an error, which --debug shows"
    lines = [line.strip() for line in str(raised).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(raised).__name__


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
    behind : tuple of str
        Passes that have to stand before it, wherever a pipeline has them too.
    needs : tuple of str
        Passes that have to stand before it, and that no pipeline with it may lack.
    required : bool
        Whether no pipeline may lack it.
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
    behind: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    required: bool = False
    after: str = ""
    before: str = ""
    in_pipelines: bool = True

    def options(self) -> dict[str, Any]:
        """Option names and defaults; empty when the pass takes none."""
        options_class = getattr(self.factory, "options_class", None)
        if options_class is None or not is_dataclass(options_class):
            return {}
        return option_defaults(options_class)

    def make(self, options: dict[str, Any]) -> tvm.transform.Pass:
        """The pass with these options; raises ConfigError or PassError for wrong ones."""
        options_class = getattr(self.factory, "options_class", None)
        if options_class is not None:
            return self.factory(**build_options(options_class, options))
        if options:
            raise PassError(
                f"pass '{self.name}' takes no options, and was given {', '.join(options)}: leave "
                f"them out"
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
        del _entries[get(name).name]


def get(name: str) -> PassEntry:
    """The pass of that name; raises PassError with the nearest name when there is none."""
    found = _entries.get(current_name(name))
    if found is None:
        raise PassError(f"no pass is named '{name}'; {nearest_hint(name, _entries)}")
    return found


def current_name(name: str) -> str:
    """The present name of a pass, which ``name`` may be a former one of."""
    return name if name in _entries else FORMER_NAMES.get(name, name)


def all_entries() -> list[PassEntry]:
    """Every registered pass, in the order of registration."""
    return list(_entries.values())


def first_line(doc: str | None) -> str:
    """The first non-empty line of a docstring."""
    return next((line.strip() for line in (doc or "").splitlines() if line.strip()), "")


# ``register_pass``: the way for users to add passes, as decorator and as call.


PassLike = Any


def register_pass(
    pass_like: PassLike | None = None,
    *,
    level: Level = "graph",
    name: str = "",
    after: str = "",
    before: str = "",
    source: str = "user",
) -> Any:
    """Registers a pass that runs in every later ``compile``, at every optimisation level.

    Parameters
    ----------
    pass_like : tvm.transform.Pass, function, or class
        A pass, a function ``(IRModule, PassContext) -> IRModule`` or ``IRModule -> IRModule``, or a
        class whose instances are passes (such as one decorated with
        ``tvm.transform.module_pass``). Leave it out to use ``register_pass`` as a decorator.
    level : {"graph", "schedule", "tile", "target"}
        Where the pass runs. "graph": on Relax. "schedule": on kernels whose loops no template has
        chosen yet; templates leave a kernel alone if the pass gives it the attribute
        ``tirx.is_scheduled``. "tile": on kernels whose loops are final. "target": on the finished
        module, before code generation.
    name : str
        The name of the pass. The default is the name of the function or class.
    after, before : str
        Name of a registered pass of the same level that this pass runs right after or before. By
        default the pass runs at the end of its level.

    Returns
    -------
    The object that was given, so that it can still be used by its name.

    Raises
    ------
    PassError
        The name is taken, the level or neighbour is unknown, or the object is not a pass.
    """
    if pass_like is None:
        return functools.partial(
            register_pass, level=level, name=name, after=after, before=before, source=source
        )
    if after and before:
        raise PassError(
            f"a pass was given after='{after}' and before='{before}'; expected one: leave the "
            f"other out"
        )
    own_name = name or _name_of(pass_like)
    add(
        PassEntry(
            name=own_name,
            level=level,
            factory=_factory(pass_like, own_name),
            source=source,
            summary=first_line(getattr(pass_like, "__doc__", "")),
            doc=inspect.getdoc(pass_like) or "",
            after=current_name(after),
            before=current_name(before),
            in_pipelines=False,
        )
    )
    return pass_like


def _name_of(pass_like: PassLike) -> str:
    if isinstance(pass_like, tvm.transform.Pass):
        return str(pass_like.info.name)
    found = getattr(pass_like, "__name__", "")
    if not found or found == "<lambda>":
        raise PassError("a pass without a name was given: pass name='...'")
    return str(found)


def _factory(pass_like: PassLike, name: str) -> Callable[..., tvm.transform.Pass]:
    if isinstance(pass_like, tvm.transform.Pass):
        return lambda: pass_like
    if isinstance(pass_like, type):
        return pass_like
    if not callable(pass_like):
        raise PassError(
            f"'{name}' is a {type(pass_like).__name__}; expected a tvm.transform.Pass, a class of "
            "passes, or a function of an IRModule"
        )
    run = _two_arguments(pass_like)

    def checked(mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        after = run(mod, ctx)
        if not isinstance(after, tvm.IRModule):
            raise PassError("it returned something that is no module")
        return after

    return lambda: tvm.transform.module_pass(checked, opt_level=0, name=name)


def _two_arguments(function: Callable[..., tvm.IRModule]) -> Callable[..., tvm.IRModule]:
    """TVM hands (module, context) to a pass; a function of the module alone is welcome too."""
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        return lambda mod, ctx: function(mod)
    # TVM's decorator wants a plain function that it may set attributes on.
    return lambda mod, ctx: function(mod, ctx)


# Finds passes that installed distributions offer in the entry-point group ``tvm_ext.passes``.
#
# An entry point names either a pass (anything ``register_pass`` takes) or a function without
# parameters that calls ``register_pass`` itself. A plugin that fails to load is reported as a
# warning and left out: it must not take the compiler down.


GROUP = "tvm_ext.passes"


_EXITED = "it ends the program while it is imported (sys.exit)"

_plugins_lock = threading.RLock()


def load_plugins() -> tuple[str, ...]:
    """Registers every plugin's passes, once in a process; returns the names of the entry points."""
    with _plugins_lock:
        return _load_once()


@functools.cache
def _load_once() -> tuple[str, ...]:
    return load_group(GROUP, _load)


def load_group(group: str, load: Callable[[EntryPoint], None]) -> tuple[str, ...]:
    """Loads the entry points of a group, by name; warns of those that fail. Returns the others."""
    loaded = []
    for point in sorted(entry_points(group=group), key=lambda p: p.name):
        try:
            load(point)
        except (Exception, SystemExit) as error:  # noqa: BLE001  (a plugin may raise anything)
            reason = users_words(error) if isinstance(error, Exception) else _EXITED
            warnings.warn(f"plugin '{point.name}' of {group} was left out: {reason}", stacklevel=2)
            continue
        loaded.append(point.name)
    return tuple(loaded)


def _load(point: EntryPoint) -> None:
    source = point.dist.name if point.dist is not None else "plugin"
    loaded = point.load()
    is_pass = isinstance(loaded, tvm.transform.Pass | type)
    if is_pass or inspect.signature(loaded).parameters:
        register_pass(loaded, name=point.name, source=source)
        return
    before = {entry.name for entry in all_entries()}
    loaded()
    if before == {entry.name for entry in all_entries()}:
        raise PassError("its function registered no pass: call register_pass in it")
