"""Finds passes that installed distributions offer in the entry-point group ``tvm_ext.passes``.

An entry point names either a pass (anything ``register_pass`` takes) or a function without
parameters that calls ``register_pass`` itself. A plugin that fails to load is reported as a warning
and left out: it must not take the compiler down.
"""

import functools
import inspect
import threading
import warnings
from importlib.metadata import EntryPoint, entry_points

import tvm

from tvm_ext.errors import PassError
from tvm_ext.passes import registry
from tvm_ext.passes.register import register_pass
from tvm_ext.passes.users_words import users_words

GROUP = "tvm_ext.passes"


_lock = threading.RLock()


def load_plugins() -> tuple[str, ...]:
    """Registers every plugin's passes, once in a process; returns the names of the entry points."""
    with _lock:
        return _load_once()


@functools.cache
def _load_once() -> tuple[str, ...]:
    loaded = []
    for point in sorted(entry_points(group=GROUP), key=lambda p: p.name):
        try:
            _load(point)
        except Exception as error:  # noqa: BLE001  (a plugin may raise anything)
            reason = users_words(error)
            warnings.warn(f"plugin '{point.name}' of {GROUP} was left out: {reason}", stacklevel=2)
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
    before = {entry.name for entry in registry.all_entries()}
    loaded()
    if before == {entry.name for entry in registry.all_entries()}:
        raise PassError("its function registered no pass: call register_pass in it")
