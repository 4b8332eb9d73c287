"""Arrays on their way to the device and back: DLPack tensors as they are, others through buffers.

Everything here is queued on CUDA's default stream; see ``streams``.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm

from tvm_ext.cuda.device_memory import (
    byte_offset,
    copy_from_memory,
    copy_tensor,
    dlpack_tensor,
    forget_last_error,
    pinned_device,
    tensor_view,
)
from tvm_ext.errors import InputError
from tvm_ext.model_inputs import check_host_array, describe, require_fits
from tvm_ext.narrow_dtypes import HOLDERS
from tvm_ext.tensor_spec import TensorSpec

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
            f"input '{spec.name}' is on CUDA device {index}, the model runs on device 0; expected "
            "it there: copy it, or choose the device with CUDA_VISIBLE_DEVICES"
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
        return [self._one(position, value) for position, value in enumerate(values)]

    def finished(self) -> None:
        """The device has done all that was queued."""
        self._pending = False

    def _one(self, position: int, value: Any) -> tvm.runtime.Tensor:
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
