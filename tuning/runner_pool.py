"""Where candidates run: worker processes, each with a device, lent to one candidate at a time."""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tvm_ext.tuning.errors import TuningError
from tvm_ext.tuning.run_device import RunDeviceAddress
from tvm_ext.tuning.worker import Worker

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
                    "least one: start it with 'tvm-ext worker' and tune again"
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
