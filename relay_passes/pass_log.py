"""What the passes did and what they left alone, with the reasons."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class PassDecision:
    """One rewrite that was made, or one near match that was left alone.

    Attributes
    ----------
    pass_name : str
        Name of the pass.
    applied : bool
        True for a rewrite, False for a refusal.
    where : str
        Names of the original nodes, joined by " + ".
    reason : str
        What was done, or why nothing was.
    """

    pass_name: str
    applied: bool
    where: str
    reason: str


# The decisions in their order, and the same as a set, in which a repeated one is found at once.
_Log = tuple[list[PassDecision], set[PassDecision]]
_active: ContextVar[_Log | None] = ContextVar("pass_log", default=None)


@contextmanager
def recording() -> Iterator[list[PassDecision]]:
    """Collects the decisions of all passes that run inside the block."""
    decisions: list[PassDecision] = []
    token = _active.set((decisions, set()))
    try:
        yield decisions
    finally:
        _active.reset(token)


def _record(decision: PassDecision) -> None:
    log = _active.get()
    if log is None or decision in log[1]:
        return
    log[0].append(decision)
    log[1].add(decision)


def record_applied(pass_name: str, where: str, what: str) -> None:
    """Notes a rewrite that was made; does nothing outside of ``recording()``."""
    _record(PassDecision(pass_name, True, where, what))


def record_refusal(pass_name: str, where: str, reason: str) -> None:
    """Notes a near match that was left alone; does nothing outside of ``recording()``."""
    _record(PassDecision(pass_name, False, where, reason))
