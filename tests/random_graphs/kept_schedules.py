"""Schedules and checks of kernels that are made once a process, for campaigns about other things.

A campaign over plans of memory draws thousands of programs of the same few hundred kernels. The
code of a kernel is in the cache on the disk from its second program on, and what comes ahead of
that takes as long.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest import mock

import tvm_ffi

from tvm_ext.compiler import kernel_records
from tvm_ext.passes import check_bounds
from tvm_ext.tir_schedules import schedule_kernels


class _Kept:
    """What a function of a kernel gave for equal kernels."""

    def __init__(self) -> None:
        self._found: dict[Any, list[tuple[Any, Any]]] = {}

    def get(self, kernel: Any, further: Any, make: Callable[[], tuple[Any, bool]]) -> Any:
        """The result for a kernel and what else it depends on; ``make`` says if it may be kept."""
        key = (tvm_ffi.structural_hash(kernel), further)
        for known, result in self._found.get(key, ()):
            if tvm_ffi.structural_equal(known, kernel):
                return result
        result, may_keep = make()
        if may_keep:
            self._found.setdefault(key, []).append((kernel, result))
        return result


def _scheduling(schedule: Callable[..., Any]) -> Callable[..., Any]:
    kept = _Kept()

    @wraps(schedule)
    def once(func: Any, machine: Any, stated: Any) -> Any:
        further = (machine.name, repr(stated))
        return kept.get(func, further, lambda: (schedule(func, machine, stated), True))

    return once


def _checking(check: Callable[..., Any]) -> Callable[..., Any]:
    kept = _Kept()

    @wraps(check)
    def once(func: Any, tables: Callable[[int], Any]) -> Any:
        asked: list[int] = []

        def noted(place: int) -> Any:
            asked.append(place)
            return tables(place)

        # What depends on numbers that a kernel is given is found out each time.
        return kept.get(func, "", lambda: (check(func, noted), not asked))

    return once


def _alone(work: Callable[[Any], Any]) -> Callable[[Any], Any]:
    kept = _Kept()

    @wraps(work)
    def once(func: Any) -> Any:
        return kept.get(func, "", lambda: (work(func), True))

    return once


_KEEPING = [
    (module, name, keeping(getattr(module, name)))
    for module, name, keeping in (
        (schedule_kernels, "_schedule_by_rule", _scheduling),
        (check_bounds, "checked_bounds", _checking),
        (kernel_records, "kernel_work", _alone),
    )
]


@contextmanager
def kept_schedules() -> Iterator[None]:
    """Inside, kernels that are equal to an earlier one of this process are not scheduled again."""
    with ExitStack() as stack:
        for module, name, once in _KEEPING:
            stack.enter_context(mock.patch.object(module, name, once))
        yield
