"""Checks the arrays of a run against what the model expects."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from tvm_ext.configs.errors import nearest_hint
from tvm_ext.errors import InputError
from tvm_ext.tensor_spec import TensorSpec

# Element types below a byte, which a compiled program holds in a byte each.


# The names are NumPy's with ml_dtypes; each holder has all numbers of its type.
HOLDERS = {
    "int4": "int8",
    "uint4": "uint8",
    "int2": "int8",
    "uint2": "uint8",
    "float4_e2m1fn": "float8_e4m3fn",
    "float6_e2m3fn": "float8_e4m3fn",
    "float6_e3m2fn": "float8_e4m3fn",
}


def numpy_type(name: str) -> np.dtype:
    """The type of this name, those of ml_dtypes included."""
    return np.dtype(getattr(ml_dtypes, name, name))


def hold(array: np.ndarray, dtype: str) -> np.ndarray:
    """An array of ``dtype`` as the program takes it."""
    return array.astype(numpy_type(HOLDERS[dtype])) if dtype in HOLDERS else array


def release(array: np.ndarray, dtype: str) -> np.ndarray:
    """What the program returned, in the output's own ``dtype``."""
    return array.astype(numpy_type(dtype)) if dtype in HOLDERS else array


# Runs in which dimensions of one name have several sizes.
#
# Exporters use one name for several things, and ONNX Runtime looks at sizes only where operators
# need them to be equal. A program has one variable for a name, so such a run needs another
# program.


class ContradictingSizesError(InputError):
    """A dimension has another size in an input than another one of its name had before."""


class ContradictingSizesWarning(UserWarning):
    """The model was compiled once more, with dimensions of one name taken for different ones."""


def shapes_named_apart(
    specs: Sequence[TensorSpec], inputs: Mapping[str, Any]
) -> dict[str, list[int | str]]:
    """The shapes to compile with so that ``inputs``, arrays by name, can be run.

    The first size of a name keeps it; each other size gets a name, after the first input with it.
    """
    first: dict[str, int] = {}
    names: dict[tuple[str, int], str] = {}
    taken = {size for spec in specs for size in spec.shape if isinstance(size, str)}
    shapes: dict[str, list[int | str]] = {}
    for spec in specs:
        if not spec.is_tensor:
            continue
        shape: list[int | str] = []
        sizes = zip(spec.shape, inputs[spec.name].shape, strict=True)
        for axis, (wanted, size) in enumerate(sizes):
            name = wanted
            if isinstance(wanted, str) and first.setdefault(wanted, size) != size:
                own = _free_name(f"{wanted}_of_{spec.name}", taken)
                name = names.setdefault((wanted, size), own)
                taken.add(name)
            allowed = spec.ranges[axis] if spec.ranges else None
            # What the windows of the model ask for, it asks for again.
            limited = allowed is not None and allowed.has_end
            shape.append(f"{name}:{allowed}" if limited else name)
        shapes[spec.name] = shape
    return shapes


def _free_name(wanted: str, taken: set[str]) -> str:
    # What is no letter or digit has a meaning in the text of a size.
    name = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in wanted)
    while name in taken:
        name += "_"
    return name


InputCheck: TypeAlias = Callable[[TensorSpec, Any, dict[str, int]], Any]
"""Checks one input, with the sizes of symbolic dimensions so far; returns what a run takes."""


def check_inputs(
    specs: Sequence[TensorSpec],
    inputs: Mapping[str, Any],
    check_one: InputCheck | None = None,
    sizes: dict[str, int] | None = None,
) -> list[Any]:
    """The arrays in the order of ``specs``, dense and of the right dtype and shape.

    A symbolic dimension takes the size of the first input that has it; the others must agree.
    ``check_one`` checks each of them, ``check_host_array`` if None. ``sizes`` gets the sizes of
    symbolic dimensions by name.

    Raises
    ------
    InputError
        A name is missing or unknown, a value is no array, or a dtype, rank or size differs. It is
        a ContradictingSizesError where dimensions of one name have several sizes.
    """
    if not isinstance(inputs, Mapping):
        raise InputError(
            f"inputs are a {type(inputs).__name__}, expected a mapping of name to array: "
            f"pass {{name: array}} with {', '.join(repr(spec.name) for spec in specs)}"
        )
    known = {spec.name: spec for spec in specs}
    for name in inputs:
        if name not in known:
            raise InputError(f"the model has no input {name!r}; {nearest_hint(str(name), known)}")
    sizes = {} if sizes is None else sizes
    check = check_one or check_host_array
    arrays = []
    for spec in specs:
        if spec.name not in inputs:
            raise InputError(
                f"input '{spec.name}' is missing; expected {spec.describe()}: pass it to run"
            )
        arrays.append(check(spec, inputs[spec.name], sizes))
    return arrays


def fit_shapes(specs: Sequence[TensorSpec], shapes: Sequence[Sequence[int] | None]) -> bool:
    """Whether arrays of these shapes have the known sizes of ``specs``."""
    return all(
        shape is not None
        and len(shape) == len(spec.shape)
        and all(isinstance(own, str) or own == n for own, n in zip(spec.shape, shape, strict=True))
        for spec, shape in zip(specs, shapes, strict=True)
    )


def require_fits(spec: TensorSpec, array: Any, sizes: dict[str, int]) -> None:
    """Checks the shape of an array or tensor; raises InputError.

    ``sizes`` holds the sizes of symbolic dimensions and gets those that ``array`` decides.
    """
    shape = tuple(array.shape)
    if len(shape) != len(spec.shape):
        raise InputError(
            f"input '{spec.name}' is {describe(array)} (rank {len(shape)}), expected rank "
            f"{len(spec.shape)}, {spec.describe()}: reshape it"
        )
    for axis, allowed in enumerate(spec.ranges):
        if allowed is not None and shape[axis] not in allowed:
            found = f"input '{spec.name}' is {describe(array)}"
            if not allowed.has_end:
                raise InputError(
                    f"{found}, expected a size of at least {allowed.low} on axis {axis} "
                    f"({spec.describe()}), so that the model's windows fit: resize it"
                )
            raise InputError(
                f"{found}, expected a size from {allowed.low} to {allowed.high} on axis {axis} "
                f"({spec.describe()}): resize it or compile for a wider range"
            )
    for axis, (size, wanted) in enumerate(zip(shape, spec.shape, strict=True)):
        expected = sizes.setdefault(wanted, size) if isinstance(wanted, str) else wanted
        if size != expected and isinstance(wanted, str):
            raise ContradictingSizesError(
                f"input '{spec.name}' is {describe(array)}, expected size {expected} on axis "
                f"{axis} ({spec.describe()}), which is the size of '{wanted}' in an earlier "
                "input: resize it, or compile with input shapes that give the two sizes "
                "different names"
            )
        if size != expected:
            raise InputError(
                f"input '{spec.name}' is {describe(array)}, expected size {expected} on axis "
                f"{axis} ({spec.describe()}): resize it or compile for this size"
            )


def check_host_array(spec: TensorSpec, value: Any, sizes: dict[str, int]) -> np.ndarray:
    """One input as a dense array of the dtype that the program takes; raises InputError."""
    # Not asked of every array: NumPy's masked arrays are a module that it loads on first use.
    if hasattr(value, "mask") and np.ma.is_masked(value):
        raise InputError(
            f"input '{spec.name}' has masked elements; expected an array without any: fill them "
            "with .filled(VALUE)"
        )
    try:
        has_array = isinstance(value, np.ndarray) or hasattr(value, "__array__")
        is_tensor = not has_array and hasattr(value, "__dlpack__")
        array = np.from_dlpack(value) if is_tensor else np.asarray(value)
    except (ValueError, TypeError, RuntimeError, BufferError) as error:
        raise InputError(
            f"input '{spec.name}' cannot be read as an array; expected {spec.describe()}: pass a "
            "NumPy array"
        ) from error
    if not is_named(array.dtype, spec.dtype):
        raise InputError(
            f"input '{spec.name}' is {describe(array)}, expected {spec.describe()}: "
            f"convert it with .astype('{spec.dtype}')"
        )
    require_fits(spec, array, sizes)
    return hold(np.ascontiguousarray(array).reshape(array.shape), spec.dtype)


@functools.cache
def is_named(dtype: np.dtype, name: str) -> bool:
    """Whether ``name`` is that of an element type; kept, as NumPy takes microseconds to name it."""
    return str(dtype) == name


def describe(array: Any) -> str:
    """Dtype and shape of an array or tensor: "float32[2, 3]"."""
    return f"{array.dtype}{list(array.shape)}"


def require_no_device(stay: bool | None) -> None:
    """Refuses what only models for a GPU can do; raises InputError."""
    if stay:
        raise InputError(
            "on_device is set and the model was compiled for a CPU; expected a model for a GPU: "
            "leave it out, or compile for target 'cuda'"
        )
