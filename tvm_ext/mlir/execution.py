"""Kernels and graphs compiled by MLIR in this process, and called on arrays."""

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from torch_mlir import ir
from torch_mlir.execution_engine import ExecutionEngine
from torch_mlir.runtime import get_ranked_memref_descriptor

from tvm_ext.mlir import MlirError
from tvm_ext.mlir.from_relax import MAIN, ConvertedGraph
from tvm_ext.mlir.from_tensorir import ConvertedKernel
from tvm_ext.mlir.lowering import GRAPH_STAGES, lower_to

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
        lower_to(converted.module, "llvm", done=converted.stage)
        self._engine = _engine(converted.module, converted.name)
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


class CompiledGraph:
    """The graph of a model as machine code, for one thread.

    Parameters
    ----------
    converted : ConvertedGraph
        The graph, with known sizes, which is lowered in place.
    stages : mapping, optional
        How it is lowered: ``GRAPH_STAGES``, or ``UNOPTIMIZED_STAGES``.

    Raises
    ------
    MlirError
        A size or an operator is missing, or a pass of MLIR, or LLVM, fails.
    """

    def __init__(
        self,
        converted: ConvertedGraph,
        stages: Mapping[str, Sequence[str]] = GRAPH_STAGES,
    ) -> None:
        main = converted.module.body.operations[0]
        types = [ir.RankedTensorType(one) for one in main.type.results]
        if not converted.is_whole or not all(one.has_static_shape for one in types):
            raise MlirError(
                "a graph was to be compiled of which an operator or a size is missing; expected "
                "all of them: give input shapes, or look at the operators that have no form"
            )
        self._shapes = [(list(one.shape), str(one.element_type)) for one in types]
        with converted.module.context:
            main.attributes["llvm.emit_c_interface"] = ir.UnitAttr.get()
        lower_to(converted.module, "llvm", stages)
        self._engine = _engine(converted.module, MAIN)
        self._weights = converted.weights

    def __call__(self, *inputs: np.ndarray) -> list[np.ndarray]:
        """The outputs of the model for these inputs; truth values are bytes."""
        results = [np.empty(shape, _ELEMENTS[element]) for shape, element in self._shapes]
        self.run_into(inputs, results)
        return results

    def run_into(self, inputs: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> None:
        """Writes the outputs into arrays of their shapes and types, which may have gaps.

        Raises MlirError for arrays that are no such results.
        """
        self._require_results(results)
        written = [np.require(one, requirements="C") for one in results]
        given = [np.require(one, requirements="C") for one in (*inputs, *self._weights)]
        self._engine.invoke(MAIN, *map(_argument, (*given, *written)))
        for result, one in zip(results, written, strict=True):
            if one is not result:
                result[...] = one

    def _require_results(self, results: Sequence[np.ndarray]) -> None:
        wanted = [(_ELEMENTS[element].itemsize, shape) for shape, element in self._shapes]
        found = [(one.dtype.itemsize, list(one.shape)) for one in results]
        if found != wanted or not all(one.flags.writeable for one in results):
            given = ", ".join(f"{one.dtype} {list(one.shape)}" for one in results)
            expected = ", ".join(f"{element} {shape}" for shape, element in self._shapes)
            raise MlirError(
                f"results were to be written to arrays {given or 'of none'}; expected {expected}, "
                "which may be written: give such arrays"
            )


# Types of elements of results, by their names in MLIR, which do not say who is unsigned.
_ELEMENTS: Mapping[str, Any] = {
    **{f"i{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"f{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
    "bf16": np.dtype(ml_dtypes.bfloat16),
}


def _engine(module: ir.Module, name: str) -> ExecutionEngine:
    try:
        engine = ExecutionEngine(module, opt_level=2)
        # The code is made here, and not in the first call.
        engine.lookup(name)
    except RuntimeError as error:
        raise MlirError(
            f"LLVM does not compile {name} from MLIR; expected code: leave it to TVM's code "
            "generation"
        ) from error
    return engine


def _argument(value: np.ndarray | np.generic) -> Any:
    if isinstance(value, np.generic):
        return ctypes.pointer(_INTEGERS[str(value.dtype)](int(value)))
    array = value.view(np.uint8) if value.dtype == np.bool_ else value
    descriptor = get_ranked_memref_descriptor(array)
    # A pointer to the pointer to the descriptor: the engine looks through the first.
    return ctypes.pointer(ctypes.pointer(descriptor))
