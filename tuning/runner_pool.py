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

# How long a session waits for a server when none is left.
_PATIENCE_SECONDS = 60.0


@dataclass(frozen=True)
class Runner:
    """A process, and the device that it runs candidates on."""

    worker: Worker
    address: RunDeviceAddress


class RunnerPool:
    """Lends runners; those whose server is gone are retired.

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
        self._active = len(self._all)
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

    @contextmanager
    def lent(self) -> Iterator[Runner]:
        """A runner for the block."""
        runner = self._free.get()
        try:
            yield runner
        finally:
            if self._is_needed(runner):
                self._free.put(runner)

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

    def _is_needed(self, runner: Runner) -> bool:
        if not self.is_remote:
            return True
        with self._lock:
            try:
                fewer = self._count_servers(runner.address) < self._active
            except TuningError:
                return True
            if fewer and self._active > 1:
                self._active -= 1
                return False
            return True
