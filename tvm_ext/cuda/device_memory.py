"""TVM's tensors, copies and streams on a device, below what its Python classes offer."""

import contextlib
import ctypes
import functools
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import tvm
import tvm_ffi

from tvm_ext.hardware.cuda.runtime_library import needed_cuda

# Where "byte_offset" is in a DLTensor, behind an address, a device, sizes and a type: dlpack.h.
_BYTE_OFFSET = 40

_address_in_capsule = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
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


def byte_offset(tensor: tvm.runtime.Tensor) -> int:
    """How far behind the address that the tensor holds its first element is; kernels want 0."""
    address = _address_in_capsule(tensor.__dlpack__(), b"dltensor")
    return ctypes.c_uint64.from_address(address + _BYTE_OFFSET).value


def tensor_view(tensor: tvm.runtime.Tensor, shape: Sequence[int], dtype: str) -> tvm.runtime.Tensor:
    """The first bytes of a dense tensor as one of this shape and dtype."""
    return _function("TVMTensorCreateView")(
        tensor, tvm_ffi.Shape([int(size) for size in shape]), dtype, 0
    )


def copy_tensor(source: tvm.runtime.Tensor, target: tvm.runtime.Tensor) -> None:
    """Queues a copy on the default stream; page-locked memory is read later."""
    _function("TVMTensorCopyFromTo")(source, target)


def copy_from_memory(target: tvm.runtime.Tensor, address: int, size: int) -> None:
    """Copies ``size`` bytes at an address of the host, and waits for it."""
    _function("TVMTensorCopyFromBytes")(target, ctypes.c_void_p(address), size)


def current_stream(device: tvm.runtime.Device) -> int:
    """The stream on which TVM launches kernels in this thread; 0 is CUDA's default."""
    return int(tvm_ffi.get_raw_stream(device) or 0)


def with_stream(device: tvm.runtime.Device, stream: int) -> AbstractContextManager[Any]:
    """TVM launches kernels on this stream inside of the block, in this thread."""
    return tvm_ffi.use_raw_stream(device, stream)


def make_stream_wait(device: tvm.runtime.Device, first: int, then: int) -> None:
    """What is queued on stream ``then`` from now on waits for what ``first`` has queued so far."""
    _function("Device_StreamSyncFromTo")(device, first, then)


def make_current(device: tvm.runtime.Device) -> None:
    """CUDA's calls of this thread are for this device from now on."""
    tvm.get_global_func("__tvm_set_device")(device.dlpack_device_type(), device.index)


def forget_last_error() -> None:
    """Takes back the error that CUDA's runtime keeps of this thread's last call that failed.

    Whoever launches a kernel next, such as PyTorch, would ask for it and take it for its own. One
    that is in the device itself stays.
    """
    with contextlib.suppress(OSError):
        # Loaded since TVM's runtime was; by this name the loader finds that one.
        ctypes.CDLL(f"libcudart.so.{needed_cuda()}").cudaGetLastError()


@functools.cache
def _function(name: str) -> Any:
    return tvm.get_global_func(f"runtime.{name}")
