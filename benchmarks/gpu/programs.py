"""The programs that are timed: ours, PyTorch's operators, its compiler, and ONNX Runtime."""

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import onnx
import tvm
from peers.peer import PeerError, refusal

import tvm_ext
from gpu.device import OnOwnStream
from tvm_ext.cuda.device_memory import with_stream
from tvm_ext.errors import TvmExtError

Program = Callable[[], Any]


def ours(torch: Any, model: onnx.ModelProto | str, tensors: Mapping[str, Any]) -> Program:
    """A compiled model on tensors of PyTorch, queued on PyTorch's stream; returns its outputs.

    What is timed is the program, not the checks of ``CompiledModel.run``. Raises TvmExtError.
    """
    shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
    # A graph cannot be recorded inside of the one that the stopwatch records.
    compiled = tvm_ext.compile(
        model, target="cuda", input_shapes=shapes, disabled_passes=("CudaGraphs",)
    )
    # The first run makes the virtual machine and says what is wrong with the device.
    compiled.run(dict(tensors), on_device=True)
    machine, _ = compiled.gpu_program.made()
    arguments = [tvm.runtime.from_dlpack(tensors[spec.name]) for spec in compiled.inputs]
    main, device = machine["main"], tvm.cuda()

    def run() -> list[Any]:
        with with_stream(device, torch.cuda.current_stream().cuda_stream):
            result = main(*arguments)
        return [result] if isinstance(result, tvm.runtime.Tensor) else list(result)

    return run


def compiled_by_torch(torch: Any, model: onnx.ModelProto, tensors: Sequence[Any]) -> Program:
    """``torch.compile`` of the model as onnx2torch reads it; raises PeerError."""
    if find_spec("onnx2torch") is None:
        raise PeerError("not measured: onnx2torch is not installed")
    try:
        import onnx2torch

        module = onnx2torch.convert(model).eval().cuda()
        compiled = torch.compile(module)

        def run() -> Any:
            with torch.inference_mode():
                return compiled(*tensors)

        run()
    # Whatever a reader of models raises: the others are still measured.
    except Exception as error:
        raise refusal("fails", error) from error
    return run


def onnx_runtime(model: onnx.ModelProto, tensors: Mapping[str, Any]) -> Program:
    """ONNX Runtime's CUDA provider with inputs and outputs on the device; raises PeerError."""
    if find_spec("onnxruntime") is None:
        raise PeerError("not measured: onnxruntime-gpu is not installed")
    import onnxruntime

    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        raise PeerError("not measured: this onnxruntime has no CUDA provider")
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), providers=["CUDAExecutionProvider"]
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


def largest_difference(torch: Any, found: Sequence[Any], wanted: Sequence[Any]) -> float:
    """The largest difference of outputs, relative to the largest magnitude of each."""
    worst = 0.0
    for one, other in zip(found, wanted, strict=True):
        a, b = torch.from_dlpack(one).double(), other.double()
        worst = max(worst, float((a - b).abs().max() / b.abs().max().clamp(min=1e-30)))
    return worst


__all__ = [
    "PeerError",
    "Program",
    "TvmExtError",
    "compiled_by_torch",
    "largest_difference",
    "onnx_runtime",
    "ours",
]
