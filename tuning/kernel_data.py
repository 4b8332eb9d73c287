"""Arrays that a kernel is run with, and what it has to compute from them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm.sym import Analyzer
from tvm_ffi import structural_map

from tvm_ext.tir_schedules.analysis.buffer_access import among, nodes, static_extent
from tvm_ext.tir_schedules.statements import sizes_at
from tvm_ext.tuning.candidate import Arguments

# Differences relative to an element, or to the median magnitude where that is larger: sums cancel.
# Sums in another order differ by some 1e-6, Winograd's transforms by 1e-5; a lost term of a sum of
# thousands by 1e-2.
_TOLERANCES = {"float64": 1e-9, "float32": 5e-4, "float16": 1e-2, "bfloat16": 5e-2}

# Results before a run, on either side: who reads what it has not written gets something else.
_EXPECTED_FILL, _CANDIDATE_FILL = -12345, 54321

# Numbers that random integers stay below, and indices as well where axes are longer.
_INTEGER_LIMIT = 5


@dataclass(frozen=True)
class KernelArguments:
    """The parameters of a kernel.

    Attributes
    ----------
    arguments : Arguments
        The sizes of each parameter, or its value where it is a number.
    dtypes : tuple[str, ...]
        Element type of each.
    results : tuple[int, ...]
        Positions of those that the kernel writes.
    index_limits : tuple[int or None, ...]
        For each that holds indices, the extent of the shortest axis that they select from.
    is_positive : bool
        Whether floating-point arrays hold positive numbers only, for logarithms and roots.
    """

    arguments: Arguments
    dtypes: tuple[str, ...]
    results: tuple[int, ...]
    index_limits: tuple[int | None, ...]
    is_positive: bool = False

    def positive(self) -> "KernelArguments":
        """The same with positive numbers."""
        return replace(self, is_positive=True)


def kernel_arguments(func: tirx.PrimFunc, arguments: Arguments) -> KernelArguments:
    """The parameters of ``func`` in a call."""
    written = [store.buffer for store in nodes(func.body, tirx.BufferStore)]
    sizes = sizes_at(func, arguments)
    return KernelArguments(
        arguments,
        tuple(str(param.dtype if hasattr(param, "shape") else param.ty) for param in func.params),
        tuple(i for i, p in enumerate(func.params) if among(p, written)),
        tuple(_index_limit(func, param, sizes) for param in func.params),
    )


def _index_limit(
    func: tirx.PrimFunc, param: tirx.Buffer, sizes: Mapping[tvm.ir.Var, tirx.IntImm]
) -> int | None:
    """The extent of the shortest axis that elements of a parameter select from."""

    def extent(size: tirx.Expr) -> int | None:
        known = structural_map(size, (tvm.ir.Var, lambda var: sizes.get(var, var)))
        return static_extent(Analyzer().simplify(known))

    accesses = [(load.source, load.indices) for load in nodes(func.body, tvm.ir.TensorLoad)]
    accesses += [(store.buffer, store.indices) for store in nodes(func.body, tirx.BufferStore)]
    extents = [
        extent(buffer.shape[axis]) or 1
        for buffer, indices in accesses
        for axis, index in enumerate(indices)
        if any(load.source.same_as(param) for load in nodes(index, tvm.ir.TensorLoad))
    ]
    return min(extents, default=None)


def random_arrays(arguments: KernelArguments, seed: int) -> list[Any]:
    """One array a parameter, and the numbers as they are; the same for the same seed."""
    generator = np.random.default_rng(seed)
    arrays: list[Any] = [
        np.int64(given) if isinstance(given, int) else _random_array(generator, given, dtype, limit)
        for given, dtype, limit in zip(
            arguments.arguments, arguments.dtypes, arguments.index_limits, strict=True
        )
    ]
    if arguments.is_positive:
        arrays = [np.abs(a) + a.dtype.type(0.1) if _is_float(a) else a for a in arrays]
    for position in arguments.results:
        arrays[position] = before_run(arrays[position], expected=True)
    return arrays


def before_run(array: np.ndarray, expected: bool = False) -> np.ndarray:
    """What a result holds before a run: other values for the expected one than for candidates."""
    fill = _EXPECTED_FILL if expected else _CANDIDATE_FILL
    # Every number but zero is true.
    value = fill > 0 if array.dtype == bool else fill
    return np.full_like(array, np.array(value).astype(array.dtype))


def numpy_dtype(dtype: str) -> np.dtype:
    """NumPy's element type, with those of ml_dtypes."""
    if dtype.startswith(("bfloat", "float8", "int4", "uint4")):
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, dtype))
    return np.dtype(dtype)


def _random_array(
    generator: np.random.Generator, shape: tuple[int, ...], dtype: str, limit: int | None
) -> np.ndarray:
    kind = tvm.DataType(dtype)
    if dtype == "bool":
        return generator.integers(0, 2, shape).astype(bool)
    if "float" in dtype:
        return generator.standard_normal(shape, dtype=np.float32).astype(numpy_dtype(dtype))
    if limit is not None:
        # Indices: 0 up to the last one that is inside of every axis.
        return generator.integers(0, min(limit, _INTEGER_LIMIT), shape).astype(numpy_dtype(dtype))
    if kind.bits <= 8:
        low = 0 if dtype.startswith("uint") else -(1 << (kind.bits - 1))
        return generator.integers(low, low + (1 << kind.bits), shape).astype(numpy_dtype(dtype))
    # Sizes and counts: small, and never the zero that something may be divided by.
    return generator.integers(1, _INTEGER_LIMIT, shape).astype(numpy_dtype(dtype))


def finite_share(arrays: Sequence[np.ndarray]) -> float:
    """The smallest share of finite elements in any of the arrays, 0 to 1."""
    shares = [float(np.isfinite(a.astype(np.float64)).mean()) for a in arrays if _is_float(a)]
    return min(shares, default=1.0)


def difference(ours: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> str:
    """How results differ by more than their type allows, in a few words; empty when they do not."""
    for position, (mine, right) in enumerate(zip(ours, expected, strict=True)):
        found = _difference(mine, right)
        if found:
            return f"result {position}: {found}"
    return ""


def _is_float(array: np.ndarray) -> bool:
    return str(array.dtype) in _TOLERANCES


def _difference(ours: np.ndarray, expected: np.ndarray) -> str:
    if not _is_float(expected):
        wrong = int(np.count_nonzero(ours != expected))
        return f"{wrong} of {expected.size} elements differ" if wrong else ""
    tolerance = _TOLERANCES[str(expected.dtype)]
    mine, right = ours.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(right)
    special = ~finite
    same = np.array_equal(mine[special], right[special], equal_nan=True)
    if not same or not np.isfinite(mine[finite]).all():
        return "NaN or infinity at other places"
    magnitudes = np.abs(right[finite])
    if not magnitudes.size:
        return ""
    typical = float(np.median(magnitudes[magnitudes > 0])) if magnitudes.any() else 1.0
    off = np.abs(mine[finite] - right[finite]) / np.maximum(magnitudes, typical)
    if float(off.max()) <= tolerance:
        return ""
    wrong = int(np.count_nonzero(off > tolerance))
    return (
        f"{wrong} of {expected.size} elements differ, by up to {float(off.max()):.1e} of their "
        f"magnitude; accepted is {tolerance:.0e}"
    )
