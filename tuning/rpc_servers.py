"""Servers of TVM's RPC that a tracker lends."""

import socket

from tvm import rpc

from tvm_ext.tuning.errors import TuningError
from tvm_ext.tuning.run_device import RunDeviceAddress

_CONNECT_SECONDS = 5.0


def rpc_devices(tracker: str, key: str, session_seconds: float) -> list[RunDeviceAddress]:
    """One address for each server that is registered under ``key`` now.

    Parameters
    ----------
    tracker : str
        "HOST:PORT".
    key : str
        Name under which servers registered.
    session_seconds : float
        How long a server may be used for one kernel; it ends what takes longer.

    Raises
    ------
    TuningError
        The tracker cannot be reached, or lends no server under this key.
    """
    host, port = parse_address(tracker)
    address = RunDeviceAddress(host, port, key, session_seconds)
    count = alive_servers(address)
    if count == 0:
        raise TuningError(
            f"the RPC tracker at {tracker} has no server with key '{key}'; expected at least one: "
            f"start it with 'tvm-ext worker --tracker {tracker} --key {key}'"
        )
    return [address] * count


def alive_servers(address: RunDeviceAddress) -> int:
    """Servers that the tracker knows under the address's key. Raises TuningError without one."""
    try:
        # TVM itself would try for a minute.
        socket.create_connection((address.host, address.port), _CONNECT_SECONDS).close()
        tracker = rpc.connect_tracker(address.host, address.port)
        summary = tracker.summary()
        tracker.close()
    except (OSError, RuntimeError) as error:
        raise TuningError(
            f"no RPC tracker answers at {address.host}:{address.port} ({error}); expected one: "
            "start it with 'python -m tvm.exec.rpc_tracker'"
        ) from error
    return sum(server["key"] == f"server:{address.key}" for server in summary["server_info"])


def parse_address(text: str) -> tuple[str, int]:
    """ "HOST:PORT" in two; raises TuningError for another form."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise TuningError(f"'{text}' is no address; expected HOST:PORT such as 127.0.0.1:9190")
    return host.strip("[]"), int(port)
