"""Where kernels run: this process, or a server of TVM's RPC."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from tvm_ext.hardware.threads import use_threads


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
    """

    host: str = ""
    port: int = 0
    key: str = ""
    session_seconds: float = 60.0


class RunDevice:
    """Loads libraries and makes tensors in one place.

    Parameters
    ----------
    session : RPC session or None
        None for this process.
    """

    def __init__(self, session: Any = None) -> None:
        self._session = session
        self._device = tvm.cpu(0) if session is None else session.cpu(0)
        self._modules: dict[str, Any] = {}

    def use_threads(self, count: int) -> None:
        """Sizes the thread pool that kernels use."""
        if self._session is None:
            use_threads(count)
            return
        configure = self._session.get_function("runtime.config_threadpool")
        configure(1, count)

    def kernel(self, library: str) -> Callable[..., Any]:
        """The function "main" of a library."""
        return self._module(library)["main"]

    def timer(self, library: str, tensors: Sequence[Any]) -> Callable[[int], float]:
        """Runs "main" a number of times and returns the mean seconds of one call."""
        module = self._module(library)

        def seconds(calls: int) -> float:
            evaluator = module.time_evaluator("main", self._device, number=calls, repeat=1)
            return float(evaluator(*tensors).mean)

        return seconds

    def tensors(self, arrays: Sequence[np.ndarray]) -> list[Any]:
        """The arrays where the kernels run."""
        return [tvm.runtime.tensor(array, self._device) for array in arrays]

    def _module(self, library: str) -> Any:
        if library not in self._modules:
            self._modules[library] = self._load(library)
        return self._modules[library]

    def _load(self, library: str) -> Any:
        if self._session is None:
            return tvm.runtime.load_module(library)
        # Libraries of different kernels have one file name each.
        self._session.upload(library)
        return self._session.load_module(Path(library).name)


@contextmanager
def open_device(address: RunDeviceAddress) -> Iterator[RunDevice]:
    """The device at an address, for one kernel; a server goes back to the tracker afterwards."""
    if not address.host:
        yield RunDevice()
        return
    from tvm import rpc

    tracker = rpc.connect_tracker(address.host, address.port)
    session = tracker.request(address.key, priority=1, session_timeout=address.session_seconds)
    yield RunDevice(session)
