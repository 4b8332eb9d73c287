"""What a step takes from the one before: arrays that the program reads and writes in place."""

from collections.abc import Iterable, Mapping

import numpy as np
import tvm_ffi

from tvm_ext.program_call import memory_tensor


class KeptTensors:
    """Arrays by the names of the program's parameters.

    Attributes
    ----------
    arrays : dict[str, np.ndarray]
        The arrays.
    tensors : dict[str, tvm_ffi.Tensor]
        Their memory, as the program takes it.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.arrays = dict(arrays)
        self.tensors: dict[str, tvm_ffi.Tensor] = {
            name: memory_tensor(array) for name, array in arrays.items()
        }

    def replace(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Goes on with these arrays; those that are the memory of now stay."""
        for name, array in arrays.items():
            if array.ctypes.data != self.arrays[name].ctypes.data:
                self.arrays[name], self.tensors[name] = array, memory_tensor(array)

    def clear(self, names: Iterable[str]) -> None:
        """Sets all elements of these to zero."""
        for name in names:
            self.arrays[name].fill(0)
