"""Arrays that a kernel is run with, and what it has to compute from them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import tirx

from tvm_ext.tir_schedules.block_access import static_extent
from tvm_ext.tir_schedules.llvm.flat_views import nodes

# Differences of one kernel relative to the largest magnitude of its result. Sums in another order
# differ by some 1e-6, Winograd's transforms by 1e-5; a lost term of a sum of thousands by 1e-2.
_TOLERANCES = {"float64": 1e-9, "float32": 5e-4, "float16": 1e-2, "bfloat16": 5e-2}

# Indices that random integers stay below.
_INDEX_LIMIT = 4


@dataclass(frozen=True)
class KernelArguments:
    """The parameters of a kernel.

    Attributes
    ----------
    shapes : tuple[tuple[int, ...], ...]
        Sizes of each parameter.
    dtypes : tuple[str, ...]
        Element type of each.
    results : tuple[int, ...]
        Positions of those that the kernel writes.
    """

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    results: tuple[int, ...]


def kernel_arguments(func: tirx.PrimFunc) -> KernelArguments:
    """The parameters of ``func``, whose sizes are known."""
    written = [store.buffer for store in nodes(func.body, tirx.BufferStore)]
    return KernelArguments(
        tuple(tuple(static_extent(size) or 0 for size in p.shape) for p in func.params),
        tuple(str(param.dtype) for param in func.params),
        tuple(i for i, p in enumerate(func.params) if any(p.same_as(b) for b in written)),
    )


def random_arrays(arguments: KernelArguments, seed: int) -> list[np.ndarray]:
    """One array a parameter; the same for the same seed. Results start as zeros."""
    generator = np.random.default_rng(seed)
    arrays = []
    for position, (shape, dtype) in enumerate(zip(arguments.shapes, arguments.dtypes, strict=True)):
        if position in arguments.results:
            arrays.append(np.zeros(shape, dtype=numpy_dtype(dtype)))
        else:
            arrays.append(_random_array(generator, shape, dtype))
    return arrays


def numpy_dtype(dtype: str) -> np.dtype:
    """NumPy's element type, with those of ml_dtypes."""
    if dtype.startswith(("bfloat", "float8", "int4", "uint4")):
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, dtype))
    return np.dtype(dtype)


def _random_array(generator: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    kind = tvm.DataType(dtype)
    if dtype == "bool":
        return generator.integers(0, 2, shape).astype(bool)
    if "float" in dtype:
        return generator.standard_normal(shape, dtype=np.float32).astype(numpy_dtype(dtype))
    if kind.bits <= 8:
        low = 0 if dtype.startswith("uint") else -(1 << (kind.bits - 1))
        return generator.integers(low, low + (1 << kind.bits), shape).astype(numpy_dtype(dtype))
    # Wider integers are indices and sizes: small ones are inside of most tensors.
    return generator.integers(0, _INDEX_LIMIT, shape).astype(numpy_dtype(dtype))


def difference(ours: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> str:
    """How results differ by more than their type allows, in a few words; empty when they do not."""
    for position, (mine, right) in enumerate(zip(ours, expected, strict=True)):
        found = _difference(mine, right)
        if found:
            return f"result {position}: {found}"
    return ""


def _difference(ours: np.ndarray, expected: np.ndarray) -> str:
    dtype = str(expected.dtype)
    if dtype not in _TOLERANCES:
        wrong = int(np.count_nonzero(ours != expected))
        return f"{wrong} of {expected.size} elements differ" if wrong else ""
    mine, right = ours.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(right)
    special = ~finite
    same = np.array_equal(mine[special], right[special], equal_nan=True)
    if not same or not np.isfinite(mine[finite]).all():
        return "NaN or infinity at other places"
    if not finite.any():
        return ""
    magnitude = float(np.abs(right[finite]).max()) or 1.0
    largest = float(np.abs(mine[finite] - right[finite]).max()) / magnitude
    if largest <= _TOLERANCES[dtype]:
        return ""
    return f"off by {largest:.1e} of the largest magnitude; accepted is {_TOLERANCES[dtype]:.0e}"
