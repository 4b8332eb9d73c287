"""What is measured: a compiled model, and the same ONNX model in other programs."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from tvm_ext.check.reference import ReferenceSession
from tvm_ext.configs.progress import tell
from tvm_ext.errors import ReferenceUnavailableError

if TYPE_CHECKING:
    import numpy as np

    from tvm_ext.compiled_model import CompiledModel


@dataclass(frozen=True)
class Program:
    """A model that is ready to run.

    Attributes
    ----------
    name : str
        What users call the program.
    calls : tuple of callable
        Runs it once on the inputs; one callable for each stream.
    load_seconds : float
        Time to make it ready.
    load_bytes : int
        By how much the process grew meanwhile.
    """

    name: str
    calls: tuple[Callable[[], object], ...]
    load_seconds: float
    load_bytes: int


def ours(
    load: "Callable[[], CompiledModel]",
    inputs: "Callable[[CompiledModel], Mapping[str, np.ndarray]]",
    streams: int,
    threads: int | None,
) -> "tuple[Program, Mapping[str, np.ndarray]]":
    """A model of this package and what it is fed; each stream runs on ``threads`` threads."""
    kept: list[CompiledModel] = []
    seconds, grown = _cost(lambda: kept.append(load()))
    model = kept[0]
    feed = inputs(model)
    share = threads if streams > 1 else None
    calls = tuple(lambda: model.run(feed, threads=share) for _ in range(streams))
    return Program("tvm-ext", calls, seconds, grown), feed


def program(
    name: str, model: Path, feed: "Mapping[str, np.ndarray]", streams: int, threads: int
) -> Program:
    """One of ``PROGRAMS``.

    Raises
    ------
    ReferenceUnavailableError
        It is not installed, or refuses the model or the inputs.
    """
    title, make = PROGRAMS[name]
    tell(f"loading {title}")
    calls: list[Callable[[], object]] = []
    seconds, grown = _cost(lambda: calls.extend(make(model, feed, streams, threads)))
    return Program(title, tuple(calls), seconds, grown)


def _cost(action: Callable[[], object]) -> tuple[float, int]:
    process = psutil.Process()
    before, begun = process.memory_info().rss, time.perf_counter()
    action()
    return time.perf_counter() - begun, max(0, process.memory_info().rss - before)


def _onnx_runtime(
    model: Path, feed: "Mapping[str, np.ndarray]", streams: int, threads: int
) -> Sequence[Callable[[], object]]:
    """One session for all streams, as its makers advise."""
    session = ReferenceSession(model, threads, exact=False)
    session.run(feed)
    return [lambda: session.run(feed)] * streams


def _openvino(
    model: Path, feed: "Mapping[str, np.ndarray]", streams: int, threads: int
) -> Sequence[Callable[[], object]]:
    """A request for each stream, in float32 as the others; its arrays are not copied."""
    try:
        import openvino
    except ImportError as error:
        raise ReferenceUnavailableError(
            f"OpenVINO cannot be imported ({error}); expected the package: pip install openvino"
        ) from error
    settings: dict[str, Any] = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": threads * streams,
        "PERFORMANCE_HINT": "LATENCY" if streams == 1 else "THROUGHPUT",
        "NUM_STREAMS": streams,
    }
    try:
        network = openvino.Core().read_model(str(model))
        known = {name for port in network.inputs for name in port.get_names()}
        fed = {name: array for name, array in feed.items() if name in known}
        network.reshape({name: list(array.shape) for name, array in fed.items()})
        compiled = openvino.compile_model(network, "CPU", settings)
        requests = [compiled.create_infer_request() for _ in range(streams)]
        for request in requests:
            request.infer(fed)
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise ReferenceUnavailableError(
            f"OpenVINO refuses the model ({lines[-1][:300] if lines else type(error).__name__}); "
            "expected one that it runs: leave it out of --against"
        ) from error

    def call_of(request: Any) -> Callable[[], object]:
        return lambda: request.infer(fed, share_inputs=True, share_outputs=True)

    return [call_of(request) for request in requests]


_Make = Callable[[Path, "Mapping[str, np.ndarray]", int, int], Sequence[Callable[[], object]]]

PROGRAMS: dict[str, tuple[str, _Make]] = {
    "onnxruntime": ("ONNX Runtime", _onnx_runtime),
    "openvino": ("OpenVINO", _openvino),
}
"""The other programs: what users call each, and what makes its calls."""
