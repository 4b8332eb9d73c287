"""What a long piece of work is at, told to whoever listens; nobody does unless asked to."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_listener: ContextVar[Callable[[str], None] | None] = ContextVar("progress", default=None)


def tell(what: str) -> None:
    """Says what begins now, in a few words; costs next to nothing where nobody listens."""
    listener = _listener.get()
    if listener is not None:
        listener(what)


@contextmanager
def listening(listener: Callable[[str], None]) -> Iterator[None]:
    """Has ``listener`` told what this thread begins inside of the block."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def part_of(what: str) -> Iterator[None]:
    """Has what is told inside of the block told as a part of ``what``, which begins now."""
    listener = _listener.get()
    if listener is None:
        yield
        return
    listener(what)
    with listening(lambda step: listener(f"{what}: {step}")):
        yield
