"""A tracker and servers of TVM's RPC on this machine, as users start them."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tvm.rpc.tracker import Tracker

from tvm_ext.tuning.runner import RunDeviceAddress, alive_servers

KEY = "house"
_LOOPBACK = "127.0.0.1"


@contextmanager
def rpc_house(servers: int) -> Iterator[tuple[RunDeviceAddress, list[subprocess.Popen]]]:
    """The tracker's address and the servers' processes, once all have registered."""
    tracker = Tracker(_LOOPBACK, port=9290, port_end=9390, silent=True)
    processes: list[subprocess.Popen] = []
    try:
        address = RunDeviceAddress(_LOOPBACK, tracker.port, KEY, 20.0)
        command = [sys.executable, "-P", "-c", "from tvm_ext.cli.main import main; main()"]
        for _ in range(servers):
            processes.append(
                subprocess.Popen(
                    [
                        *command,
                        "rpc-server",
                        "--tracker",
                        f"{_LOOPBACK}:{tracker.port}",
                        "--key",
                        KEY,
                    ],
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )
        deadline = time.monotonic() + 60
        while alive_servers(address) < servers:
            assert time.monotonic() < deadline, "the servers did not register"
            time.sleep(0.2)
        yield address, processes
    finally:
        for process in processes:
            process.kill()
            process.wait()
        tracker.terminate()
