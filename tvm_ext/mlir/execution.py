"""Kernels compiled by MLIR in this process, and called on arrays."""

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch_mlir.execution_engine import ExecutionEngine
from torch_mlir.runtime import get_ranked_memref_descriptor

from tvm_ext.mlir import MlirError
from tvm_ext.mlir.from_tensorir import ConvertedKernel
from tvm_ext.mlir.lowering import lower_to

_INTEGERS: Mapping[str, Any] = {
    **{f"int{bits}": getattr(ctypes, f"c_int{bits}") for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": getattr(ctypes, f"c_uint{bits}") for bits in (8, 16, 32, 64)},
}


class CompiledKernel:
    """A kernel as machine code.

    Parameters
    ----------
    converted : ConvertedKernel
        The kernel, which is lowered in place.

    Raises
    ------
    MlirError
        A pass of MLIR, or LLVM, fails on it.
    """

    def __init__(self, converted: ConvertedKernel) -> None:
        lower_to(converted.module, "llvm")
        try:
            self._engine = ExecutionEngine(converted.module, opt_level=2)
            # The code is made here, and not in the first call.
            self._engine.lookup(converted.name)
        except RuntimeError as error:
            raise MlirError(
                f"LLVM does not compile kernel {converted.name} from MLIR; expected code: leave "
                "the kernel to TVM's code generation"
            ) from error
        self._name = converted.name

    def __call__(self, arguments: Sequence[np.ndarray | np.generic]) -> None:
        """Calls it; arrays that it writes are changed in place.

        Parameters
        ----------
        arguments : sequence of np.ndarray or np.generic
            One for each parameter: arrays, without gaps between rows, and integers of the
            parameters' types.
        """
        kept = [_argument(one) for one in arguments]
        self._engine.invoke(self._name, *kept)


def _argument(value: np.ndarray | np.generic) -> Any:
    if isinstance(value, np.generic):
        return ctypes.pointer(_INTEGERS[str(value.dtype)](int(value)))
    array = value.view(np.uint8) if value.dtype == np.bool_ else value
    descriptor = get_ranked_memref_descriptor(array)
    # A pointer to the pointer to the descriptor: the engine looks through the first.
    return ctypes.pointer(ctypes.pointer(descriptor))
