"""A server without a tracker waits for one, and does not say that it serves."""

import signal
from typing import Any

import pytest

from tvm_ext.tuning import rpc_server


class Listening:
    """Stands for TVM's server."""

    port = 9093

    def __init__(self, *_args: Any, **_options: Any) -> None:
        pass

    def terminate(self) -> None:
        pass


@pytest.mark.extended
def test_it_is_ready_once_the_tracker_answers(monkeypatch) -> None:
    answers = iter([False, False, True])
    told: list[str] = []

    def stop(_port: int) -> None:
        told.append("ready")
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(rpc_server, "Server", Listening)
    monkeypatch.setattr(rpc_server, "_answers", lambda _address: next(answers))
    before = signal.getsignal(signal.SIGTERM)
    try:
        where = ("127.0.0.1:9190", "key", "127.0.0.1", 9091, 0)
        rpc_server.serve(*where, ready=stop, waiting=lambda: told.append("waiting"))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert told == ["waiting", "ready"]


def test_nothing_answers_at_a_free_port() -> None:
    assert not rpc_server._answers(("127.0.0.1", 1))
