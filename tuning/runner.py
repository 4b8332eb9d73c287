"""Where candidates run: this machine or servers of TVM's RPC, each lent to one candidate at a
time.
"""

import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import rpc

from tvm_ext.configs.errors import TuningError
from tvm_ext.hardware.cpu.threads import ThreadPool, thread_pool
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.tuning.backend import tuning_of
from tvm_ext.tuning.cuda.build import BEGIN_GPU, CudaUnavailable, begin_gpu
from tvm_ext.tuning.worker import Worker

# Calls of a turn with an emptied cache: emptying it takes some 50 microseconds each time.
_MOST_FLUSHED = 50


def device_kind(machine: MachineDescription) -> str:
    """TVM's name of the device that runs code for a machine: "cpu" or "cuda"."""
    return tuning_of(machine).device


@dataclass(frozen=True)
class RunDeviceAddress:
    """This process when ``host`` is empty, else a tracker that lends servers under ``key``.

    Attributes
    ----------
    host, port : str, int
        The tracker.
    key : str
        Name under which servers registered.
    session_seconds : float
        How long a server may be used for one kernel.
    kind : str
        TVM's name of the device: "cpu" or "cuda".
    arch : str
        What code for it is made for, such as "sm_90a"; empty for a CPU.
    """

    host: str = ""
    port: int = 0
    key: str = ""
    session_seconds: float = 60.0
    kind: str = "cpu"
    arch: str = ""


class RunDevice:
    """Loads libraries and makes tensors in one place.

    Parameters
    ----------
    session : RPC session or None
        None for this process.
    kind : str
        TVM's name of the device.
    """

    def __init__(self, session: Any = None, kind: str = "cpu") -> None:
        self._session = session
        self._kind = kind
        self._device = tvm.device(kind, 0) if session is None else session.device(kind, 0)
        self._modules: dict[str, Any] = {}
        self._pool = thread_pool if session is None else ThreadPool()
        self._threads = 0

    @property
    def device(self) -> tvm.runtime.Device:
        """The device itself."""
        return self._device

    def use_threads(self, count: int) -> None:
        """How many threads run a kernel's parallel loops; those of a GPU have none."""
        self._threads = count

    def kernel(self, library: str) -> Callable[..., Any]:
        """The function "main" of a library."""
        return self._module(library)["main"]

    def timer(
        self, library: str, tensors: Sequence[Any], flush_bytes: int = 0
    ) -> Callable[[int], float]:
        """Runs "main" a number of times and returns the mean seconds of one call.

        A GPU's own clock is read, behind the last call. With ``flush_bytes`` so much memory is
        copied before each call: then it finds nothing in a cache of this size, and its time has the
        start of the kernel in it, which otherwise runs beside the call before.
        """
        module = self._module(library)

        def seconds(calls: int) -> float:
            evaluator = module.time_evaluator("main", self._device, number=calls, repeat=1)
            return float(evaluator(*tensors).mean)

        def flushed_seconds(calls: int) -> float:
            evaluator = module.time_evaluator(
                "main",
                self._device,
                number=1,
                repeat=min(calls, _MOST_FLUSHED),
                cache_flush_bytes=flush_bytes,
            )
            return float(evaluator(*tensors).mean)

        return flushed_seconds if flush_bytes else seconds

    def tensors(self, arrays: Sequence[np.ndarray | np.generic]) -> list[Any]:
        """The arrays where the kernels run, and the numbers as they are."""
        return [
            tvm.runtime.tensor(array, self._device)
            if isinstance(array, np.ndarray)
            else array.item()
            for array in arrays
        ]

    def _module(self, library: str) -> Any:
        if library not in self._modules:
            module = self._modules[library] = self._load(library)
            if self._kind == "cpu":
                self._pool.share_with(module)
                self._pool.use_threads(self._threads)
        return self._modules[library]

    def _load(self, library: str) -> Any:
        if self._session is None:
            return tvm.runtime.load_module(library)
        # Libraries of different kernels have one file name each.
        self._session.upload(library)
        return self._session.load_module(Path(library).name)


@contextmanager
def open_device(address: RunDeviceAddress) -> Iterator[RunDevice]:
    """The device at an address, for one kernel; a server goes back to the tracker afterwards.

    Raises CudaUnavailable if there is to be a GPU and it cannot be used.
    """
    if not address.host:
        if address.kind == "cuda":
            _require("", begin_gpu(address.arch))
        yield RunDevice(None, address.kind)
        return
    from tvm import rpc

    tracker = rpc.connect_tracker(address.host, address.port)
    session = tracker.request(address.key, priority=1, session_timeout=address.session_seconds)
    if address.kind == "cuda":
        _require("the server says: ", _begun_on_server(session, address.arch))
    yield RunDevice(session, address.kind)


def _require(who: str, problem: str) -> None:
    if problem:
        raise CudaUnavailable(f"{who}{problem}")


def _begun_on_server(session: Any, arch: str) -> str:
    try:
        begin = session.get_function(BEGIN_GPU)
    except (AttributeError, RuntimeError, ValueError):
        # A server of TVM's own: it uses what TVM has loaded.
        return ""
    return str(begin(arch))


# Where candidates run: worker processes, each with a device, lent to one candidate at a time.


QUEUE_SECONDS = 120.0
"""How long a kernel may wait for a server, beside the time that it may run there."""

# How long a session waits for a server when none is left.
_PATIENCE_SECONDS = 60.0


@dataclass(frozen=True)
class Runner:
    """A process, and the device that it runs candidates on."""

    worker: Worker
    address: RunDeviceAddress


# How long it may take until a server that has returned is seen.
_CHECK_SECONDS = 3.0


class RunnerPool:
    """Lends runners; those whose server is gone rest until it returns.

    Parameters
    ----------
    addresses : Sequence[RunDeviceAddress]
        One for each candidate that may run at a time.
    memory_bytes : int
        Memory limit of the processes.
    count_servers : callable
        How many servers there are now at an address.
    """

    def __init__(
        self,
        addresses: Sequence[RunDeviceAddress],
        memory_bytes: int,
        count_servers: Callable[[RunDeviceAddress], int],
    ) -> None:
        self._all = [Runner(Worker(memory_bytes), address) for address in addresses]
        self._free: queue.SimpleQueue[Runner] = queue.SimpleQueue()
        self._count_servers = count_servers
        self._lock = threading.Lock()
        self._resting: list[Runner] = []
        self._checked = time.monotonic()
        self._closed = False
        for runner in self._all:
            self._free.put(runner)

    @property
    def size(self) -> int:
        """Candidates that may run at a time."""
        return len(self._all)

    @property
    def is_remote(self) -> bool:
        """Whether they run on servers, which can be lost through no fault of a candidate."""
        return bool(self._all[0].address.host)

    @property
    def kind(self) -> str:
        """TVM's name of their device: "cpu" or "cuda"."""
        return self._all[0].address.kind

    @contextmanager
    def lent(self) -> Iterator[Runner]:
        """A runner for the block."""
        self._wake()
        runner = self._free.get()
        try:
            yield runner
        finally:
            self._take_back(runner)

    def kill(self) -> None:
        """Ends all processes, as ``Worker.kill`` does."""
        self._closed = True
        for runner in self._all:
            runner.worker.kill()

    def close(self) -> None:
        """Ends all processes."""
        self._closed = True
        for runner in self._all:
            runner.worker.stop()

    def check_servers(self) -> None:
        """Waits for a server if none is left.

        Raises
        ------
        TuningError
            None is left, and none came back within a minute.
        """
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while self.is_remote and self._count_servers(self._all[0].address) == 0:
            if self._closed:
                return
            if time.monotonic() > deadline:
                raise TuningError(
                    f"no RPC server with key '{self._all[0].address.key}' is left; expected at "
                    "least one: start it with 'tvm-ext rpc-server' and tune again"
                )
            time.sleep(0.5)

    def _take_back(self, runner: Runner) -> None:
        """A runner that was lent can be lent again, or rests if there is one more than servers."""
        with self._lock:
            count = self._count(runner.address)
            active = len(self._all) - len(self._resting)
            if count is not None and count < active and active > 1:
                self._resting.append(runner)
                return
        self._free.put(runner)

    def _wake(self) -> None:
        """Lends runners again for which there are servers by now; asks every few seconds only."""
        with self._lock:
            now = time.monotonic()
            if not self._resting or now - self._checked < _CHECK_SECONDS:
                return
            self._checked = now
            count = self._count(self._resting[0].address) or 0
            while self._resting and len(self._all) - len(self._resting) < count:
                self._free.put(self._resting.pop())

    def _count(self, address: RunDeviceAddress) -> int | None:
        """Servers at an address; None if it does not matter, or the tracker does not answer."""
        if not self.is_remote:
            return None
        try:
            return self._count_servers(address)
        except TuningError:
            return None


# Servers of TVM's RPC that a tracker lends.


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
            f"start it with 'tvm-ext rpc-server --tracker {tracker} --key {key}'"
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
        raise TuningError(f"'{text}' is not an address; expected HOST:PORT such as 127.0.0.1:9190")
    return host.strip("[]"), int(port)
