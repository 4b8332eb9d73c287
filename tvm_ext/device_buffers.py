"""Moves arrays to the device and back without the cost of a new tensor at every run.

TVM's own conversions take 15 and 6 microseconds a tensor, more than the kernels of a small model.
On a CPU an input is copied into a tensor that is kept, through a NumPy view of its memory.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm

_view = np.from_dlpack
_field = tvm.get_global_func("ffi.ArrayGetItem")

# Raised for tensors that NumPy cannot look at.
_NO_VIEW = (BufferError, RuntimeError, TypeError, ValueError, AttributeError)


class InputBuffers:
    """Tensors on one device that the inputs of these names are copied into; for one thread."""

    def __init__(self, device: tvm.runtime.Device, names: Sequence[str]) -> None:
        self._device = device
        self._names = tuple(names)
        self._kept: dict[int, tuple[tvm.runtime.Tensor, np.ndarray, tuple[int, ...], np.dtype]] = {}

    def refilled(self, inputs: Mapping[str, Any]) -> list[tvm.runtime.Tensor] | None:
        """The tensors of the last run with new values.

        None where an input is not an array of exactly the kind of the last run's, which has been
        checked; looking at each anew would take longer than a small model.
        """
        if len(self._kept) != len(self._names) or len(inputs) != len(self._names):
            return None
        tensors = []
        for position, name in enumerate(self._names):
            array = inputs.get(name)
            tensor, view, shape, dtype = self._kept[position]
            if type(array) is not np.ndarray or array.shape != shape or array.dtype != dtype:
                return None
            view[...] = array
            tensors.append(tensor)
        return tensors

    def filled(self, arrays: Sequence[np.ndarray]) -> list[tvm.runtime.Tensor]:
        """One tensor an array, in order, with its values; valid until the next call."""
        return [self._one(position, array) for position, array in enumerate(arrays)]

    def _one(self, position: int, array: np.ndarray) -> tvm.runtime.Tensor:
        if position in self._kept:
            tensor, view, shape, dtype = self._kept[position]
            if shape == array.shape and dtype == array.dtype:
                view[...] = array
                return tensor
        tensor = tvm.runtime.tensor(array, self._device)
        made = memory_view(tensor)
        if made is not None and made.flags.writeable:
            self._kept[position] = (tensor, made, made.shape, made.dtype)
        else:
            self._kept.pop(position, None)
        return tensor


def named_arrays(result: Any, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Copies of the tensors that a program returned, one alone or an array of TVM's, by name.

    Iterating over such an array takes a microsecond a tensor.
    """
    if isinstance(result, tvm.runtime.Tensor):
        return {names[0]: to_array(result)}
    try:
        return {name: _view(_field(result, place)).copy() for place, name in enumerate(names)}
    except _NO_VIEW:
        return {name: to_array(_field(result, place)) for place, name in enumerate(names)}


def memory_view(tensor: tvm.runtime.Tensor) -> np.ndarray | None:
    """The tensor's memory as an array; None where NumPy has no such view (GPU, bfloat16)."""
    try:
        return _view(tensor)
    except _NO_VIEW:
        return None


def to_array(tensor: tvm.runtime.Tensor) -> np.ndarray:
    """A copy of the tensor's values, which later runs do not change."""
    try:
        return _view(tensor).copy()
    except _NO_VIEW:
        return tensor.numpy()
