"""The memory of states that grow: a buffer for each, with room for more rows."""

from collections.abc import Mapping, Sequence

import numpy as np
import tvm_ffi

from tvm_ext.model_inputs import numpy_type
from tvm_ext.program_call import memory_tensor
from tvm_ext.session.state_pairs import StatePair
from tvm_ext.tensor_spec import TensorSpec


class StateBuffers:
    """One buffer for each of some states.

    Parameters
    ----------
    pairs : sequence of StatePair
        The states, all of which grow.
    specs : mapping of str to TensorSpec
        The inputs by name, as the model has them.
    capacity : int
        How many rows each buffer has room for.
    sizes : mapping of str to int
        The sizes of the other dimensions that a run decides.
    """

    def __init__(
        self,
        pairs: Sequence[StatePair],
        specs: Mapping[str, TensorSpec],
        capacity: int,
        sizes: Mapping[str, int],
    ) -> None:
        self._axes = {pair.input: pair.axis or 0 for pair in pairs}
        self._arrays: dict[str, np.ndarray] = {}
        for name, axis in self._axes.items():
            spec = specs[name]
            shape = [sizes.get(n, 0) if isinstance(n, str) else n for n in spec.shape]
            shape[axis] = capacity
            # Memory of zeros is not touched before rows are written.
            self._arrays[name] = np.zeros(shape, numpy_type(spec.dtype))
        self.tensors: dict[str, tvm_ffi.Tensor] = {
            name: memory_tensor(array) for name, array in self._arrays.items()
        }

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return sum(array.nbytes for array in self._arrays.values())

    def rows(self, length: int) -> dict[str, np.ndarray]:
        """The first ``length`` rows of each buffer, as views of it."""
        return {name: array[self._first(name, length)] for name, array in self._arrays.items()}

    def row_bytes(self, name: str) -> int:
        """Bytes of one row of a state."""
        array = self._arrays[name]
        return array.nbytes // array.shape[self._axes[name]]

    def write(self, arrays: Mapping[str, np.ndarray], length: int) -> None:
        """Takes these as the first ``length`` rows of the buffers."""
        for name, array in self._arrays.items():
            array[self._first(name, length)] = arrays[name]

    def _first(self, name: str, length: int) -> tuple[slice, ...]:
        return (*([slice(None)] * self._axes[name]), slice(length))
