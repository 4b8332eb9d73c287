"""What every pass of the graph level is made of: a decorator, options, and a log of decisions.

``graph_pass`` makes a dataclass of options with ``transform_module`` a pass of TVM. A pass
records what it did and what it left alone, with the reasons; ``recording`` collects these.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import MISSING, dataclass, fields
from typing import Any

import tvm

from tvm_ext.configs.decision import Decision
from tvm_ext.configs.errors import ConfigError, nearest_hint

# TVM's numbers, a kernel's attribute ``op_pattern``: it may follow others, elementwise operators
# may follow it, and neither. (Where it is 0, for elementwise ones, TVM finds another for itself.)
BROADCAST = 1
INJECTIVE = 2
OUT_ELEMENTWISE_FUSABLE = 4
OPAQUE = 8


def graph_pass(cls: Any) -> Any:
    """Turns ``cls`` into a factory of ``tvm.transform.Pass`` objects named like the class.

    ``cls`` declares its options as annotated fields with defaults, and a method
    ``transform_module(self, mod, ctx) -> IRModule``. The result is called with the options and
    its value goes into ``tvm.transform.Sequential``; ``options_class`` on it is the dataclass.
    """
    options_class: Any = dataclass(frozen=True)(cls)
    options_class.transform_module = _noting_errors(cls.transform_module)
    factory = tvm.transform.module_pass(options_class, opt_level=0, name=cls.__name__)
    factory.options_class = options_class
    return factory


_raised: ContextVar[BaseException | None] = ContextVar("raised_in_pass", default=None)


def raised_in_pass() -> BaseException | None:
    """What the last pass that failed raised, once: TVM hands on the text of it alone."""
    raised = _raised.get()
    _raised.set(None)
    return raised


def _noting_errors(transform: Callable[..., tvm.IRModule]) -> Callable[..., tvm.IRModule]:
    @functools.wraps(transform)
    def noting(self: Any, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        try:
            return transform(self, mod, ctx)
        except BaseException as error:
            _raised.set(error)
            raise

    return noting


def option_defaults(options_class: Any) -> dict[str, Any]:
    """The options of a pass by name, with their defaults."""
    return {
        one.name: one.default if one.default_factory is MISSING else one.default_factory()
        for one in fields(options_class)
    }


def build_options(options_class: type, given: dict[str, Any]) -> dict[str, Any]:
    """Checks ``given`` against the fields of ``options_class``; returns it unchanged.

    Raises
    ------
    ConfigError
        An option is unknown, or a value has another type than the default of its field.
    """
    known = option_defaults(options_class)
    for key, value in given.items():
        if key not in known:
            hint = nearest_hint(key, known)
            raise ConfigError(f"{options_class.__name__} has no option '{key}'; {hint}")
        default = known[key]
        if default is not None and not isinstance(value, type(default)):
            raise ConfigError(
                f"option '{key}' of {options_class.__name__} is {value!r}; expected "
                f"{type(default).__name__}: give a value of that type"
            )
    return given


# What the passes did and what they left alone, with the reasons.


# The decisions in their order, and the same as a set, in which a repeated one is found at once.
_Log = tuple[list[Decision], set[Decision]]
_active: ContextVar[_Log | None] = ContextVar("pass_log", default=None)


@contextmanager
def recording() -> Iterator[list[Decision]]:
    """Collects the decisions of all passes that run inside the block."""
    decisions: list[Decision] = []
    token = _active.set((decisions, set()))
    try:
        yield decisions
    finally:
        _active.reset(token)


def _record(decision: Decision) -> None:
    log = _active.get()
    if log is None or decision in log[1]:
        return
    log[0].append(decision)
    log[1].add(decision)


def record_applied(pass_name: str, where: str, what: str) -> None:
    """Notes a rewrite that was made; does nothing outside of ``recording()``."""
    _record(Decision(pass_name, True, where, what))


def record_refusal(pass_name: str, where: str, reason: str) -> None:
    """Notes a near match that was left alone; does nothing outside of ``recording()``."""
    _record(Decision(pass_name, False, where, reason))
