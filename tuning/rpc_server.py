"""A server of TVM's RPC that measures candidates."""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable
from functools import partial

from tvm.rpc.server import Server

from tvm_ext.configs.errors import TuningError
from tvm_ext.tuning.cuda.build import offer_begin_gpu
from tvm_ext.tuning.cuda.presence import has_gpu
from tvm_ext.tuning.runner import parse_address
from tvm_ext.tuning.worker_process import end_with_parent, limit_memory

# Ports that are tried from the first on.
_PORTS = 100


def serve(
    tracker: str,
    key: str,
    host: str,
    port: int,
    memory_bytes: int,
    ready: Callable[[int], object],
    waiting: Callable[[], object] = lambda: None,
) -> None:
    """Registers with the tracker and serves until Ctrl-C.

    Each session gets a process of its own, so a candidate that crashes ends only that.

    Parameters
    ----------
    tracker : str
        "HOST:PORT".
    key : str
        Name under which sessions ask for the server.
    host, port : str, int
        Where to listen; the first free port from ``port`` on.
    memory_bytes : int
        Memory that a session may take beyond what the server has after its start; 0 for no limit.
        Where there is a GPU there is none: CUDA reserves more address space than would be of use.
    ready : callable
        Called with the port when the server listens and the tracker answers.
    waiting : callable
        Called once where the tracker does not answer yet; it is asked again every second.

    Raises
    ------
    TuningError
        The tracker's address is none, or nothing can listen there.
    """
    address = parse_address(tracker)
    if memory_bytes and has_gpu():
        memory_bytes = 0
    try:
        server = Server(
            host,
            port,
            port + _PORTS,
            tracker_addr=address,
            key=key,
            silent=True,
            server_init_callback=partial(_begin_server, os.getpid(), memory_bytes),
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise TuningError(
            f"cannot listen on {host}:{port} ({error}); expected a free port at an address of this "
            "machine: choose another with --host or --port"
        ) from error
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    with contextlib.suppress(KeyboardInterrupt):
        if not _answers(address):
            waiting()
        while not stopped.is_set() and not _answers(address):
            stopped.wait(1.0)
        if not stopped.is_set():
            ready(server.port)
        # In short steps: a wait without an end is deaf to Ctrl-C on some systems.
        while not stopped.wait(0.5):
            pass
    server.terminate()


def _answers(address: tuple[str, int]) -> bool:
    """Whether something listens at the tracker's address."""
    try:
        with socket.create_connection(address, timeout=1.0):
            return True
    except OSError:
        return False


def _begin_server(parent: int, memory_bytes: int) -> None:
    """Runs in the server's process; sessions are its children and inherit the limit."""
    end_with_parent(parent)
    offer_begin_gpu()
    limit_memory(memory_bytes)
