"""Where kernels run: this process, or a server of TVM's RPC."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from tvm_ext.hardware.description import Description, GpuDescription
from tvm_ext.hardware.threads import use_threads
from tvm_ext.tuning.gpu_start import BEGIN_GPU, GpuProblem, begin_gpu

# Calls of a turn with an emptied cache: emptying it takes some 50 microseconds each time.
_MOST_FLUSHED = 50


def device_kind(machine: Description) -> str:
    """TVM's name of the device that runs code for a machine: "cpu" or "cuda"."""
    return "cuda" if isinstance(machine, GpuDescription) else "cpu"


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

    @property
    def device(self) -> tvm.runtime.Device:
        """The device itself."""
        return self._device

    def use_threads(self, count: int) -> None:
        """Sizes the thread pool that kernels use; those of a GPU use none."""
        if self._kind != "cpu":
            return
        if self._session is None:
            use_threads(count)
            return
        configure = self._session.get_function("runtime.config_threadpool")
        configure(1, count)

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
    """The device at an address, for one kernel; a server goes back to the tracker afterwards.

    Raises GpuProblem if there is to be a GPU and it cannot be used.
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
        raise GpuProblem(f"{who}{problem}")


def _begun_on_server(session: Any, arch: str) -> str:
    try:
        begin = session.get_function(BEGIN_GPU)
    except (AttributeError, RuntimeError, ValueError):
        # A server of TVM's own: it uses what TVM has loaded.
        return ""
    return str(begin(arch))
