"""The functions that compiled programs call to exchange values, for the communicator of a process.

Programs call ``runtime.disco.allreduce`` and the like. In a worker of TVM's Disco these look for
the function of a library of collectives, whose name is empty until one is set, as no library for
CPUs comes with TVM. Elsewhere, as under ``mpiexec``, the functions are replaced themselves.
"""

import threading
from collections.abc import Callable
from typing import Any

import tvm_ffi

from tvm_ext.configs.sharding_record import DONE_FUNCTION, START_FUNCTION
from tvm_ext.distributed.communicator import Communicator
from tvm_ext.errors import RunError
from tvm_ext.program_call import memory_view

_LIBRARY = "runtime.disco.."
_PROGRAM = "runtime.disco."


_own = threading.local()


def use_communicator(communicator: Communicator) -> None:
    """Has the programs that this thread runs exchange values by ``communicator``."""
    _own.communicator = communicator


def _communicator() -> Communicator:
    found: Communicator | None = getattr(_own, "communicator", None)
    if found is None:
        raise RunError(
            "a program of one of several devices was run alone; expected all of them: run the "
            "whole model"
        )
    return found


def _all_reduce(send: Any, kind: Any, _in_group: bool, receive: Any) -> None:
    _communicator().all_reduce(memory_view(send), memory_view(receive), _number(kind))


def _start_all_reduce(send: Any, kind: Any, _in_group: bool, receive: Any) -> None:
    _communicator().start_all_reduce(memory_view(send), memory_view(receive), _number(kind))


def _finish_all_reduce(_send: Any, receive: Any) -> None:
    _communicator().finish_all_reduce(memory_view(receive))


def _all_gather(send: Any, _in_group: bool, receive: Any) -> None:
    _communicator().all_gather(memory_view(send), memory_view(receive))


def _broadcast(send: Any, _in_group: bool, receive: Any) -> None:
    _communicator().broadcast(memory_view(send), memory_view(receive))


def _reduce_scatter(send: Any, kind: Any, receive: Any) -> None:
    _communicator().reduce_scatter(memory_view(send), memory_view(receive), _number(kind))


def register_collectives(is_disco: bool) -> None:
    """Lets programs of this process find the functions."""
    tvm_ffi.register_error("RunError", RunError)
    prefix = _LIBRARY if is_disco else _PROGRAM
    _register(f"{prefix}allreduce", _all_reduce)
    _register(f"{prefix}allgather", _all_gather)
    _register(f"{prefix}broadcast_from_worker0", _broadcast)
    # Disco has none: it is the program that calls them in any case.
    _register(f"{_PROGRAM}reduce_scatter", _reduce_scatter)
    _register(START_FUNCTION, _start_all_reduce)
    _register(DONE_FUNCTION, _finish_all_reduce)


def _number(kind: Any) -> int:
    """A program gives a number as a shape of one."""
    return kind if isinstance(kind, int) else int(kind[0])


def _register(name: str, function: Callable[..., None]) -> None:
    tvm_ffi.register_global_func(name, function, override=True)
