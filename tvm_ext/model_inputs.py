"""Checks the arrays of a run against what the model expects."""

import functools
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tvm_ext.configs.nearest import nearest_hint
from tvm_ext.errors import InputError
from tvm_ext.narrow_dtypes import hold
from tvm_ext.tensor_spec import TensorSpec


def check_inputs(
    specs: Sequence[TensorSpec], inputs: Mapping[str, npt.ArrayLike]
) -> list[np.ndarray]:
    """The arrays in the order of ``specs``, dense and of the right dtype and shape.

    A symbolic dimension takes the size of the first input that has it; the others must agree.

    Raises
    ------
    InputError
        A name is missing or unknown, a value is no array, or a dtype, rank or size differs.
    """
    if not isinstance(inputs, Mapping):
        raise InputError(
            f"inputs are a {type(inputs).__name__}, expected a mapping of name to array: "
            f"pass {{name: array}} with {', '.join(repr(spec.name) for spec in specs)}"
        )
    known = {spec.name: spec for spec in specs}
    for name in inputs:
        if name not in known:
            raise InputError(
                f"input '{name}' is not one of the model's; {nearest_hint(name, known)}"
            )
    sizes: dict[str, int] = {}
    arrays = []
    for spec in specs:
        if spec.name not in inputs:
            raise InputError(
                f"input '{spec.name}' is missing; expected {spec.describe()}: pass it to run"
            )
        arrays.append(_check_one(spec, inputs[spec.name], sizes))
    return arrays


def _check_one(spec: TensorSpec, value: npt.ArrayLike, sizes: dict[str, int]) -> np.ndarray:
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(
            f"input '{spec.name}' cannot be read as an array ({error}); expected "
            f"{spec.describe()}: pass a NumPy array"
        ) from error
    if not _is_named(array.dtype, spec.dtype):
        raise InputError(
            f"input '{spec.name}' is {_describe(array)}, expected {spec.describe()}: "
            f"convert it with .astype('{spec.dtype}')"
        )
    if array.ndim != len(spec.shape):
        raise InputError(
            f"input '{spec.name}' is {_describe(array)} (rank {array.ndim}), expected rank "
            f"{len(spec.shape)}, {spec.describe()}: reshape it"
        )
    for axis, allowed in enumerate(spec.ranges):
        if allowed is not None and array.shape[axis] not in allowed:
            raise InputError(
                f"input '{spec.name}' is {_describe(array)}, expected a size from {allowed.low} to "
                f"{allowed.high} on axis {axis} ({spec.describe()}): resize it or compile for a "
                "wider range"
            )
    for axis, (size, wanted) in enumerate(zip(array.shape, spec.shape, strict=True)):
        expected = sizes.setdefault(wanted, size) if isinstance(wanted, str) else wanted
        if size != expected:
            raise InputError(
                f"input '{spec.name}' is {_describe(array)}, expected size {expected} on axis "
                f"{axis} ({spec.describe()}): resize it or compile for this size"
            )
    return hold(np.ascontiguousarray(array).reshape(array.shape), spec.dtype)


@functools.cache
def _is_named(dtype: np.dtype, name: str) -> bool:
    # Kept, as NumPy takes microseconds to name a dtype, at every input of every run.
    return str(dtype) == name


def _describe(array: np.ndarray) -> str:
    return f"{array.dtype}{list(array.shape)}"
