"""The programs that are timed: ours, PyTorch's operators, its compiler, and ONNX Runtime."""

import functools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import tvm
from peers import PeerError, refusal

import tvm_ext
from tvm_ext.cuda.tensors import with_stream

# Time on the device, and the peaks that figures are held against; PyTorch is handed in.


_CALLS = 20
_COPY_BYTES = 1 << 30
_LARGE = 8192
_FIRST_CALLS = 3
_FEWEST_SAMPLES = 3

# Device time after which an idle device has raised its clocks.
_WARM_UP_SECONDS = 0.05


@dataclass(frozen=True)
class Timed:
    """Seconds of one call, and how the calls were started."""

    seconds: float
    started: str


@dataclass(frozen=True)
class Peaks:
    """What this very device reached: bytes a second copied, operations a second of a product."""

    name: str
    copy_bytes: float
    flops: dict[str, float]


@dataclass(frozen=True)
class OnOwnStream:
    """A program that waits for what it queues, on a stream of its own: it cannot be recorded."""

    run: Callable[[], object]

    def __call__(self) -> object:
        return self.run()


class Stopwatch:
    """Measures with events of the device.

    Calls are recorded into a CUDA graph, so that the time to start them does not count; what cannot
    be recorded is started call by call. A call finds in the cache what the call before has left.
    """

    def __init__(self, torch: Any, seconds: float) -> None:
        self._torch = torch
        self._seconds = seconds

    def in_turn(self, programs: Sequence[Callable[[], object]]) -> list[Timed]:
        """Median time of a call of each program, which take turns.

        Raises RuntimeError, as PyTorch and TVM do, where a program fails on the device.
        """
        rows = [self._prepared(program) for program in programs]
        warm = 0.0
        while rows and warm < _WARM_UP_SECONDS:
            warm += sum(self._measured(run) for run, _ in rows)
        samples: list[list[float]] = [[] for _ in rows]
        spent = 0.0
        while rows and (spent < self._seconds * len(rows) or len(samples[0]) < _FEWEST_SAMPLES):
            for (run, _), taken in zip(rows, samples, strict=True):
                seconds = self._measured(run)
                taken.append(seconds / _CALLS)
                spent += seconds
        return [
            Timed(statistics.median(taken), started)
            for (_, started), taken in zip(rows, samples, strict=True)
        ]

    def _prepared(self, program: Callable[[], object]) -> tuple[Callable[[], object], str]:
        """What starts ``_CALLS`` calls of a program, and how."""
        torch = self._torch
        for _ in range(_FIRST_CALLS):
            program()
        torch.cuda.synchronize()
        if isinstance(program, OnOwnStream):
            return _repeated(program), "calls"
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                for _ in range(_CALLS):
                    program()
        except RuntimeError:
            torch.cuda.synchronize()
            return _repeated(program), "calls"
        graph.replay()
        return graph.replay, "graph"

    def _measured(self, run: Callable[[], object]) -> float:
        torch = self._torch
        begun = torch.cuda.Event(enable_timing=True)
        ended = torch.cuda.Event(enable_timing=True)
        begun.record()
        run()
        ended.record()
        ended.synchronize()
        return float(begun.elapsed_time(ended)) / 1e3


def measured_peaks(torch: Any, watch: Stopwatch) -> Peaks:
    """Copy bandwidth of 1 GiB, read and written, and cuBLAS's rate on products of 8192."""
    source = torch.empty(_COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    (copied,) = watch.in_turn([lambda: target.copy_(source)])
    flops = {}
    for dtype in ("bfloat16", "float16"):
        kind = getattr(torch, dtype)
        a, b = (torch.randn(_LARGE, _LARGE, device="cuda", dtype=kind) for _ in range(2))
        product = functools.partial(torch.matmul, a, b, out=torch.empty_like(a))
        (taken,) = watch.in_turn([product])
        flops[dtype] = 2 * _LARGE**3 / taken.seconds
    name = torch.cuda.get_device_name()
    return Peaks(name, 2 * _COPY_BYTES / copied.seconds, flops)


def _repeated(program: Callable[[], object]) -> Callable[[], object]:
    def run() -> None:
        for _ in range(_CALLS):
            program()

    return run


Program = Callable[[], Any]
Model: TypeAlias = onnx.ModelProto | Path


class CudaPeer:
    """A compiled model on tensors of PyTorch, queued on PyTorch's stream; returns its outputs.

    What is timed is the program, not the checks of ``CompiledModel.run``. Raises TvmExtError.
    """

    def __init__(
        self, torch: Any, model: Model, tensors: Mapping[str, Any], tf32: bool = False
    ) -> None:
        shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
        # A graph cannot be recorded inside of the one that the stopwatch records.
        self._compiled = tvm_ext.compile(
            model,
            target="cuda",
            input_shapes=shapes,
            disabled_passes=("CudaGraphs",),
            tf32=tf32,
        )
        # The first run makes the virtual machine and says what is wrong with the device.
        self._compiled.run(dict(tensors), on_device=True)
        machine, _ = self._compiled.gpu_program.made()
        self._main = machine["main"]
        inputs = [tensors[spec.name] for spec in self._compiled.inputs]
        self._arguments = [tvm.runtime.from_dlpack(tensor) for tensor in inputs]
        self._torch, self._device = torch, tvm.cuda()

    def __call__(self) -> list[Any]:
        with with_stream(self._device, self._torch.cuda.current_stream().cuda_stream):
            result = self._main(*self._arguments)
        return [result] if isinstance(result, tvm.runtime.Tensor) else list(result)

    def release(self) -> None:
        """Gives the device's memory back; it cannot be called any more."""
        del self._main, self._arguments
        self._compiled.gpu_program.release_memory()


def compiled_by_torch(torch: Any, path: Path, tensors: Sequence[Any], mode: str) -> Program:
    """``torch.compile`` of the model as onnx2torch reads it; raises PeerError."""
    if find_spec("onnx2torch") is None:
        raise PeerError("not measured: onnx2torch is not installed")
    try:
        import onnx2torch

        module = onnx2torch.convert(str(path)).eval().cuda()
        compiled = torch.compile(module, mode=mode, dynamic=False)

        def run() -> Any:
            with torch.inference_mode():
                return compiled(*tensors)

        run()
    # Whatever a reader of models raises: the others are still measured.
    except Exception as error:
        raise refusal("fails", error) from error
    return run


def onnx_runtime(path: Path, tensors: Mapping[str, Any], tf32: bool) -> Program:
    """ONNX Runtime's CUDA provider with inputs and outputs on the device; raises PeerError."""
    if find_spec("onnxruntime") is None:
        raise PeerError("not measured: onnxruntime-gpu is not installed")
    import onnxruntime

    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        raise PeerError("not measured: this onnxruntime has no CUDA provider")
    # It multiplies float32 in tf32 unless told otherwise.
    options = {"use_tf32": str(int(tf32))}
    try:
        session = onnxruntime.InferenceSession(
            str(path), providers=[("CUDAExecutionProvider", options)]
        )
        if session.get_providers()[0] != "CUDAExecutionProvider":
            raise PeerError("not measured: ONNX Runtime's CUDA provider cannot be loaded")
        binding = session.io_binding()
        for name, tensor in tensors.items():
            kind = np.dtype(str(tensor.dtype).removeprefix("torch."))
            binding.bind_input(name, "cuda", 0, kind, tuple(tensor.shape), tensor.data_ptr())
        for output in session.get_outputs():
            binding.bind_output(output.name, "cuda")
        session.run_with_iobinding(binding)
    except PeerError:
        raise
    except Exception as error:
        raise refusal("fails", error) from error

    return OnOwnStream(lambda: session.run_with_iobinding(binding))


def device_tensor(torch: Any, array: np.ndarray) -> Any:
    """The array on the device; NumPy's own types and bfloat16."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).cuda().view(torch.bfloat16)
    return torch.from_numpy(array).cuda()


def host_arrays(torch: Any, outputs: Any) -> list[np.ndarray]:
    """What a program returned, as arrays of float32 on the host."""
    tensors = [outputs] if torch.is_tensor(outputs) else list(outputs)
    return [
        (tensor if torch.is_tensor(tensor) else torch.from_dlpack(tensor)).float().cpu().numpy()
        for tensor in tensors
    ]


def largest_difference(given: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> float:
    """The largest difference of outputs, relative to the largest magnitude of each.

    Infinite where a shape differs, or where only one of the two is a number.
    """
    worst = 0.0
    for a, b in zip(given, wanted, strict=True):
        if a.shape != b.shape:
            return float("inf")
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        if same.all():
            continue
        with np.errstate(invalid="ignore"):
            difference = float(np.abs(a - b)[~same].max())
        scale = float(np.abs(b[np.isfinite(b)]).max(initial=1e-30))
        worst = max(worst, float("inf") if np.isnan(difference) else difference / scale)
    return worst


__all__ = [
    "Model",
    "CudaPeer",
    "Program",
    "compiled_by_torch",
    "device_tensor",
    "host_arrays",
    "largest_difference",
    "onnx_runtime",
]
