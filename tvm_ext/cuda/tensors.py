"""Arrays on their way to the device and back: TVM's tensors, copies and streams, DLPack, and order
among what other libraries have queued.

DLPack tensors are taken as they are, others go through buffers. Everything here is queued on
CUDA's default stream.
"""

import contextlib
import ctypes
import functools
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
import tvm_ffi

from tvm_ext.errors import InputError, RunError
from tvm_ext.hardware.cuda.runtime_library import needed_cuda
from tvm_ext.model_inputs import HOLDERS, check_host_array, describe, require_fits
from tvm_ext.tensor_spec import TensorSpec

# TVM's tensors, copies and streams on a device, below what its Python classes offer.


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


# DLPack: the kind of a CUDA device, and how a consumer names CUDA's default stream.
DLPACK_CUDA = 2
DEFAULT_STREAM = 1

# What kernels take for granted of an argument's address.
_ALIGNMENT = 64


def on_device(value: Any) -> bool:
    """Whether a value is a tensor in the memory of a CUDA device."""
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack_device__"):
        return False
    try:
        return int(value.__dlpack_device__()[0]) == DLPACK_CUDA
    except (BufferError, RuntimeError, TypeError, ValueError):
        # Whoever reads it as an array on the host says what is wrong with it.
        return False


def check_input(spec: TensorSpec, value: Any, sizes: dict[str, int]) -> Any:
    """An ``InputCheck``: a tensor of the device as TVM's, without a copy; others as arrays.

    Raises
    ------
    InputError
        Its device, dtype, rank or size does not fit, or it is not dense.
    """
    if not on_device(value):
        return check_host_array(spec, value, sizes)
    index = int(value.__dlpack_device__()[1])
    if index != 0:
        raise InputError(
            f"input '{spec.name}' is on CUDA device {index}, and the model runs on device 0; "
            "expected it there: copy it, or choose the device with CUDA_VISIBLE_DEVICES"
        )
    try:
        tensor = dlpack_tensor(value, DEFAULT_STREAM)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(
            f"input '{spec.name}' cannot be taken from the device; expected "
            f"{spec.describe()}: pass it without gradient, such as x.detach()"
        ) from error
    wanted = HOLDERS.get(spec.dtype, spec.dtype)
    if str(tensor.dtype) != wanted:
        raise InputError(
            f"input '{spec.name}' is {describe(tensor)}, expected {spec.describe()}: convert it to "
            f"{wanted}"
        )
    require_fits(spec, tensor, sizes)
    if not tensor.is_contiguous():
        raise InputError(
            f"input '{spec.name}' is {describe(tensor)} with strides {list(tensor.strides)}; "
            "expected a dense tensor: pass x.contiguous()"
        )
    return tensor


class DeviceInputs:
    """Memory of one model that inputs from the host are copied through; for one run at a time.

    An array goes into page-locked memory first, from where the device fetches it while the host
    goes on (CUDA C++ Best Practices Guide, "Pinned Memory").
    """

    def __init__(self, device: tvm.runtime.Device) -> None:
        self._device = device
        self._kept: dict[int, _Buffer] = {}
        self._pending = False

    def filled(self, values: Sequence[Any]) -> list[tvm.runtime.Tensor]:
        """One tensor of the device a value, in order; valid until the next call."""
        if self._pending:
            # What the device may still be fetching must not be written over.
            self._device.sync()
        self._pending = False
        return [self._tensor(position, value) for position, value in enumerate(values)]

    def finished(self) -> None:
        """The device has done all that was queued."""
        self._pending = False

    def _tensor(self, position: int, value: Any) -> tvm.runtime.Tensor:
        if not isinstance(value, np.ndarray):
            if value.data_ptr() % _ALIGNMENT == 0 and byte_offset(value) == 0:
                return value
            tensor = self._buffer(position, value.numel() * _item_bytes(value.dtype)).tensor(
                value.shape, str(value.dtype)
            )
            copy_tensor(value, tensor)
            return tensor
        self._pending = True
        return self._buffer(position, value.nbytes).filled(value)

    def _buffer(self, position: int, size: int) -> "_Buffer":
        kept = self._kept.get(position)
        if kept is None or kept.size < size:
            # The old one goes first: there may be no room for both.
            self._kept.pop(position, None)
            kept = self._kept[position] = _Buffer.of(self._device, size)
        return kept


@dataclass(frozen=True)
class _Buffer:
    """Room on the device and, where the system locks pages for it, as much on the host."""

    size: int
    device_bytes: tvm.runtime.Tensor
    pinned_bytes: tvm.runtime.Tensor | None
    host_view: np.ndarray | None

    @classmethod
    def of(cls, device: tvm.runtime.Device, size: int) -> "_Buffer":
        size = max(size, _ALIGNMENT)
        on_the_device = tvm.runtime.empty((size,), "uint8", device)
        try:
            pinned = tvm.runtime.empty((size,), "uint8", pinned_device())
        except (RuntimeError, tvm.error.InternalError):
            # The system may lock no more pages for this process.
            forget_last_error()
            return cls(size, on_the_device, None, None)
        return cls(size, on_the_device, pinned, _host_view(pinned, size))

    def tensor(self, shape: Sequence[int], dtype: str) -> tvm.runtime.Tensor:
        return tensor_view(self.device_bytes, shape, dtype)

    def filled(self, array: np.ndarray) -> tvm.runtime.Tensor:
        shape, dtype = array.shape, str(array.dtype)
        tensor = self.tensor(shape, dtype)
        if self.pinned_bytes is None or self.host_view is None:
            copy_from_memory(tensor, array.ctypes.data, array.nbytes)
            return tensor
        np.copyto(self.host_view[: array.nbytes].view(array.dtype).reshape(shape), array)
        copy_tensor(tensor_view(self.pinned_bytes, shape, dtype), tensor)
        return tensor


def _host_view(tensor: tvm.runtime.Tensor, size: int) -> np.ndarray:
    memory = (ctypes.c_uint8 * size).from_address(tensor.data_ptr())
    return np.ctypeslib.as_array(memory)


def _item_bytes(dtype: Any) -> int:
    return (tvm.DataType(str(dtype)).bits + 7) // 8


# Order between a run and what other libraries have queued on the same device.
#
# A run queues everything on CUDA's default stream: TVM's copies go there whatever stream is set,
# and its pool hands memory from one run to the next, which only one stream keeps in order.
# PyTorch and CuPy use the same stream unless told otherwise. Where one of them has another stream
# current, a run waits for what is queued there, and that stream waits for the run; the host waits
# for neither. The streams of other libraries are not known: the host waits for the run where it
# reads their tensors.


# cudaStreamLegacy, by which some libraries name the default stream.
_DEFAULT = (0, 1)

# Whose current streams a run is in order with, or that have none.
_KNOWN = ("torch", "cupy", "tvm", "tvm_ffi", "numpy", "builtins")


@contextmanager
def ordered_with_others(device: tvm.runtime.Device) -> Iterator[None]:
    """What is queued inside of this block is in order with the current streams of other libraries.

    After an error nobody waits: the device may be gone. Raises RunError while PyTorch records a
    CUDA graph, whose stream no other may wait for.
    """
    # A graph is launched on the current one.
    make_current(device)
    others = other_streams(device)
    for stream in others:
        make_stream_wait(device, stream, 0)
    with with_stream(device, 0):
        yield
    for stream in others:
        make_stream_wait(device, 0, stream)


def other_streams(device: tvm.runtime.Device) -> list[int]:
    """The current streams of TVM, PyTorch and CuPy but for the default one."""
    found = [current_stream(device), _torch_stream(device.index), _cupy_stream(device.index)]
    return sorted({stream for stream in found if stream not in _DEFAULT})


def has_unknown_stream(value: Any) -> bool:
    """Whether the library that a value is of may have work of its own on a stream of its own."""
    return type(value).__module__.partition(".")[0] not in _KNOWN


def _torch_stream(index: int) -> int:
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    if torch.cuda.is_current_stream_capturing():
        raise RunError(
            "PyTorch is recording a CUDA graph, and a run has storage and graphs of its own that "
            "cannot be recorded; expected a run before or after: call it outside of "
            "torch.cuda.graph"
        )
    return int(torch.cuda.current_stream(index).cuda_stream)


def _cupy_stream(index: int) -> int:
    cupy: Any = sys.modules.get("cupy")
    if cupy is None or not hasattr(cupy, "cuda"):
        return 0
    with cupy.cuda.Device(index):
        return int(cupy.cuda.get_current_stream().ptr)
