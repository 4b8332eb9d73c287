"""Arrays and numbers to call a kernel with, drawn so that it computes what it would in a model."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

import ml_dtypes
import numpy as np
import tvm
from tvm import tirx

from tvm_ext.mlir.from_tensorir import is_buffer
from tvm_ext.relay_passes.expressions import value_for
from tvm_ext.tir_schedules.analysis.buffer_access import nodes, static_extent
from tvm_ext.tir_schedules.check_bounds import condition_of_sizes

# What a call gives a kernel: shapes of tensors, those of the results as well, and numbers.
Arguments: TypeAlias = Sequence["tuple[int, ...] | int"]

# Integers without another limit go this far in both directions: sums of products of them fit.
_WIDEST = 100


# Sizes that are tried for a kernel of which the data of a run decide the sizes.
_SIZES = (1, 2, 5, 8, 17, 64, 300)
_TRIES = 300
# Of all arrays of a kernel together.
_MOST_ELEMENTS = 4_000_000


def assumed_arguments(kernel: tirx.PrimFunc, sizes: Mapping[str, int]) -> Arguments | None:
    """Shapes and numbers for a call that fit together; None where none were found.

    Parameters
    ----------
    kernel : tirx.PrimFunc
        A kernel that branches or loops of a model call, or whose sizes the data of a run decide.
    sizes : mapping of str to int
        What is known of symbolic sizes, by name: other sizes are tried only where these do not fit.
    """
    generator = np.random.default_rng(0)
    shapes = [param.shape if is_buffer(param) else [param] for param in kernel.params]
    variables = {str(v.name) for shape in shapes for one in shape for v in nodes(one, tvm.ir.Var)}
    condition = condition_of_sizes(kernel)
    for attempt in range(_TRIES):
        drawn = {name: int(generator.choice(_SIZES)) for name in sorted(variables)}
        given = drawn | (dict(sizes) if attempt < _TRIES // 3 else {})
        found = [[value_for(one, given) for one in shape] for shape in shapes]
        known = [one for shape in found for one in shape]
        if any(one is None or one < 1 for one in known):
            continue
        total = sum(math.prod(one or 0 for one in shape) for shape in found)
        fits = condition is None or value_for(condition, given) == 1
        if fits and total <= _MOST_ELEMENTS:
            pairs = zip(kernel.params, found, strict=True)
            return [tuple(n or 0 for n in s) if is_buffer(p) else s[0] or 0 for p, s in pairs]
    return None


Draw: TypeAlias = Literal["around zero", "positive", "small"]
"""Which floating-point numbers are drawn.

"around zero": between -1 and 1. "positive": between 0.1 and 1, for roots and logarithms. "small":
around zero, and smaller by the root of the longest axis, as weights are that training begins with:
a recurrence of larger ones makes anything of a rounding error.
"""

DRAWS: tuple[Draw, ...] = get_args(Draw)


def random_arguments(
    kernel: tirx.PrimFunc, given: Arguments, seed: int, draw: Draw = "around zero"
) -> list[np.ndarray | np.generic]:
    """One value for each parameter.

    Integers with which a kernel looks something up lie within the smallest axis that it looks up
    in, and others reach ``_WIDEST``.

    Parameters
    ----------
    kernel : tirx.PrimFunc
        The kernel, before it is scheduled.
    given : sequence
        The shape or number of each parameter.
    seed : int
        Of the draws.
    draw : str
        Which floating-point numbers are drawn.
    """
    generator = np.random.default_rng(seed)
    limit = _lookup_limit(kernel, given)
    least = 1 if draw == "positive" or _divides(kernel) else None
    longest = max((size for one in given if isinstance(one, tuple) for size in one), default=1)
    scale = 1 / math.sqrt(max(1, longest)) if draw == "small" else 1.0
    values: list[np.ndarray | np.generic] = []
    for param, one in zip(kernel.params, given, strict=True):
        if not is_buffer(param):
            values.append(np.dtype(str(param.ty)).type(one))
            continue
        shape = one if isinstance(one, tuple) else (one,)
        kind = str(param.dtype)
        if "float" in kind:
            low = scale * (-1.0 if least is None else 0.1)
            values.append(generator.uniform(low, scale, shape).astype(_numpy_type(kind)))
        else:
            values.append(_drawn_integers(generator, shape, kind, limit, least))
    return values


def _numpy_type(dtype: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, dtype, dtype))


def _drawn_integers(
    generator: np.random.Generator,
    shape: tuple[int, ...],
    dtype: str,
    limit: int | None,
    least: int | None,
) -> np.ndarray:
    if dtype == "bool":
        return generator.integers(0, 2, shape).astype(np.bool_)
    kind = _numpy_type(dtype)
    info = np.iinfo(kind)
    low, high = max(int(info.min), -_WIDEST), min(int(info.max), _WIDEST)
    if kind.itemsize == 1:
        low, high = int(info.min), int(info.max)
    if limit is not None:
        low, high = 0, min(int(info.max), limit - 1)
    if least is not None:
        low = min(max(low, least), high)
    return generator.integers(low, high + 1, shape).astype(kind)


def _lookup_limit(kernel: tirx.PrimFunc, given: Arguments) -> int | None:
    """The size of the smallest axis of which the data say the place; None where there is none."""
    sizes = _sizes(kernel, given)
    found = []
    for buffer, indices in _accesses(kernel):
        for index, extent in zip(indices, buffer.shape, strict=True):
            if nodes(index, tvm.ir.TensorLoad):
                known = static_extent(extent)
                found.append(sizes.get(hash(extent), 1) if known is None else known)
    bounds = [loop.extent for loop in nodes(kernel.body, tirx.For)]
    if any(nodes(bound, tvm.ir.TensorLoad) for bound in bounds):
        found.append(2)
    return max(min(found), 1) if found else None


def _accesses(kernel: tirx.PrimFunc) -> Iterator[tuple[Any, Sequence[Any]]]:
    for load in nodes(kernel.body, tvm.ir.TensorLoad):
        yield load.source, load.indices
    for store in nodes(kernel.body, tirx.BufferStore):
        yield store.buffer, store.indices


def _sizes(kernel: tirx.PrimFunc, given: Arguments) -> dict[int, int]:
    """What symbolic sizes are in a call, by the hash of their variables."""
    found: dict[int, int] = {}
    for param, one in zip(kernel.params, given, strict=True):
        if isinstance(one, tuple):
            for size, number in zip(param.shape, one, strict=True):
                found.setdefault(hash(size), number)
    return found


_DIVISIONS = (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)


def _divides(kernel: tirx.PrimFunc) -> bool:
    """Whether a kernel divides integers by what it loads: by 0 that ends the process."""
    found = nodes(kernel.body, *_DIVISIONS)
    return any("float" not in str(one.ty) and nodes(one.b, tvm.ir.TensorLoad) for one in found)
