"""Runs of programs with CUDA graphs that launch every kernel by itself, so that each can be timed.

A virtual machine looks its built-in functions up by name when it is made. One that is made while
another function has the name of "run or capture" calls that one ever after.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tvm

from tvm_ext.passes.cuda_graphs import PLAIN_RUN, RUN_OR_CAPTURE


@contextmanager
def without_graphs() -> Iterator[None]:
    """Virtual machines made inside of this block never record or launch a graph."""
    own = tvm.get_global_func(RUN_OR_CAPTURE, allow_missing=True)
    tvm.register_global_func(RUN_OR_CAPTURE, _run, override=True)
    try:
        yield
    finally:
        if own is not None:
            tvm.register_global_func(RUN_OR_CAPTURE, own, override=True)


def register_plain_run() -> None:
    """Makes the function known to virtual machines under ``PLAIN_RUN``."""
    tvm.register_global_func(PLAIN_RUN, _run, override=True)


def _run(machine: Any, function: Any, arguments: Any, *rest: Any) -> Any:
    """Calls what would be captured; ``rest`` names the graph."""
    return tvm.get_global_func("vm.builtin.invoke_closure")(machine, function, *arguments)
