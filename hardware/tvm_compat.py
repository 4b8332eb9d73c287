"""The one place that imports TVM names which are private or have moved between releases.

A TVM release that moves a name breaks this file and its test, and nothing else. One name a line.
"""

import ctypes
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm.base import _LOADED_LIBS as loaded_libraries
from tvm.ir import IRModule
from tvm.relax.frontend.onnx.onnx_frontend import Cast as OnnxCast
from tvm.relax.frontend.onnx.onnx_frontend import Gather as OnnxGather
from tvm.relax.frontend.onnx.onnx_frontend import GatherElements as OnnxGatherElements
from tvm.relax.frontend.onnx.onnx_frontend import GatherND as OnnxGatherND
from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter, OnnxOpConverter, onnx_input
from tvm.relax.frontend.onnx.onnx_frontend import ScatterElements as OnnxScatterElements
from tvm.relax.frontend.onnx.onnx_frontend import ScatterND as OnnxScatterND
from tvm.relax.frontend.onnx.onnx_frontend import Slice as OnnxSlice
from tvm.relax.frontend.onnx.onnx_frontend import _get_convert_map as onnx_converter_map
from tvm.relax.frontend.onnx.onnx_frontend import get_constant as onnx_constant
from tvm.relax.frontend.onnx.onnx_frontend import get_type as onnx_type_name
from tvm.runtime import _ffi_api as runtime_ffi
from tvm.s_tir.meta_schedule import TuneContext
from tvm.s_tir.meta_schedule import _ffi_api as meta_schedule_ffi
from tvm.s_tir.meta_schedule.logging import get_logger, get_logging_func
from tvm.s_tir.meta_schedule.search_strategy import SearchStrategy
from tvm.s_tir.meta_schedule.space_generator import SpaceGenerator
from tvm.support.nvcc import tvm_callback_cuda_compile as compile_cuda_by_tvm
from tvm.target import Target
from tvm.target import codegen as llvm_codegen
from tvm_ffi.libinfo import load_lib_ctypes

__all__ = [
    "ONNXGraphImporter",
    "OnnxCast",
    "OnnxGather",
    "OnnxGatherElements",
    "OnnxGatherND",
    "OnnxOpConverter",
    "OnnxScatterElements",
    "OnnxScatterND",
    "OnnxSlice",
    "compile_cuda_by_tvm",
    "copy_from_memory",
    "copy_tensor",
    "cuda_library_path",
    "cuda_runtime_present",
    "current_stream",
    "dlpack_tensor",
    "llvm_codegen",
    "load_cuda_runtime",
    "loaded_libraries",
    "make_stream_wait",
    "onnx_constant",
    "onnx_converter_map",
    "onnx_converter_names",
    "onnx_input",
    "onnx_type_name",
    "pinned_device",
    "runtime_ffi",
    "tensor_view",
    "tune_context",
    "with_stream",
]


def onnx_converter_names() -> frozenset[str]:
    """Operator names that TVM's ONNX importer has a converter for (domains are not told apart)."""
    return frozenset(onnx_converter_map())


def tune_context(
    mod: IRModule,
    target: Target,
    space_generator: SpaceGenerator | None,
    search_strategy: SearchStrategy | None,
    name: str,
    seed: int,
) -> TuneContext:
    """MetaSchedule's ``TuneContext`` with one thread.

    Its own constructor first imports the tensor intrinsics of all GPUs, which takes ten seconds.
    """
    context = TuneContext.__new__(TuneContext)
    context.__init_handle_by_constructor__(
        meta_schedule_ffi.TuneContext,
        mod,
        target,
        space_generator,
        search_strategy,
        name,
        1,
        seed,
        get_logging_func(get_logger(__name__)),
    )
    meta_schedule_ffi.TuneContextInitialize(context)
    return context


def cuda_runtime_present() -> bool:
    """Whether TVM has loaded its CUDA runtime, with which it runs programs on a GPU."""
    return tvm.get_global_func("device_api.cuda", allow_missing=True) is not None


def cuda_library_path() -> Path | None:
    """The file of TVM's CUDA runtime, beside that of its own; None where this TVM has none."""
    folder = Path(loaded_libraries["tvm_runtime"]._name).resolve().parent
    return next(iter(sorted(folder.glob("*tvm_runtime_cuda.*"))), None)


def load_cuda_runtime() -> None:
    """Loads it now, as TVM itself tries to do at import. Raises OSError or RuntimeError."""
    folder = Path(loaded_libraries["tvm_runtime"]._name).resolve().parent
    loaded_libraries["tvm_runtime_cuda"] = load_lib_ctypes(
        "tvm", "tvm_runtime_cuda", "RTLD_LOCAL", extra_lib_paths=[folder]
    )


def pinned_device() -> tvm.runtime.Device:
    """The kind of memory on the host whose pages CUDA has locked."""
    return tvm_ffi.device(int(tvm_ffi.DLDeviceType.kDLCUDAHost), 0)


def dlpack_tensor(value: Any, stream: int) -> tvm.runtime.Tensor:
    """A DLPack tensor as TVM's, without a copy; ``stream`` waits for what its library has queued.

    Of any alignment and strides. Raises what the library raises, or ValueError.
    """
    if isinstance(value, tvm_ffi.core.Tensor):
        return value
    return tvm_ffi.from_dlpack(value.__dlpack__(stream=stream))


def tensor_view(tensor: tvm.runtime.Tensor, shape: Sequence[int], dtype: str) -> tvm.runtime.Tensor:
    """The first bytes of a dense tensor as one of this shape and dtype."""
    return runtime_ffi.TVMTensorCreateView(
        tensor, tvm_ffi.Shape([int(size) for size in shape]), dtype, 0
    )


def copy_tensor(source: tvm.runtime.Tensor, target: tvm.runtime.Tensor) -> None:
    """Queues a copy on the default stream; page-locked memory is read later."""
    runtime_ffi.TVMTensorCopyFromTo(source, target)


def copy_from_memory(target: tvm.runtime.Tensor, address: int, size: int) -> None:
    """Copies ``size`` bytes at an address of the host, and waits for it."""
    runtime_ffi.TVMTensorCopyFromBytes(target, ctypes.c_void_p(address), size)


def current_stream(device: tvm.runtime.Device) -> int:
    """The stream on which TVM launches kernels in this thread; 0 is CUDA's default."""
    return int(tvm_ffi.get_raw_stream(device) or 0)


def with_stream(device: tvm.runtime.Device, stream: int) -> AbstractContextManager[Any]:
    """TVM launches kernels on this stream inside of the block, in this thread."""
    return tvm_ffi.use_raw_stream(device, stream)


def make_stream_wait(device: tvm.runtime.Device, first: int, then: int) -> None:
    """What is queued on stream ``then`` from now on waits for what ``first`` has queued so far."""
    tvm.get_global_func("runtime.Device_StreamSyncFromTo")(device, first, then)
