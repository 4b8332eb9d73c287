"""What a kernel of PolyBench consists of here."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import tirx

Arrays = list[NDArray[Any]]


@dataclass(frozen=True)
class PolybenchKernel:
    """One kernel.

    Attributes
    ----------
    name : str
        PolyBench's name.
    build : callable
        The kernel for given sizes.
    reference : callable
        Computes the same of its arguments, in place.
    small, large : tuple[int, ...]
        Sizes for tests, and for measuring.
    inputs : callable, optional
        Makes the arguments of a kernel; by default numbers between 0 and 1.
    """

    name: str
    build: Callable[..., tirx.PrimFunc]
    reference: Callable[..., None]
    small: tuple[int, ...]
    large: tuple[int, ...]
    inputs: Callable[[tirx.PrimFunc], Arrays] | None = None

    def arguments(self, func: tirx.PrimFunc) -> Arrays:
        """Arguments for a kernel of ``build``, the same in each run."""
        return random_arguments(func) if self.inputs is None else self.inputs(func)


def shapes_of(func: tirx.PrimFunc) -> list[tuple[tuple[int, ...], str]]:
    """The shape and type of each argument."""
    return [(tuple(int(size) for size in param.shape), str(param.dtype)) for param in func.params]


def random_arguments(func: tirx.PrimFunc) -> Arrays:
    """Numbers between 0 and 1."""
    generator = np.random.default_rng(0)
    return [generator.random(shape).astype(dtype) for shape, dtype in shapes_of(func)]


def dominant_diagonal(func: tirx.PrimFunc) -> Arrays:
    """Symmetric matrices that can be factorised, and vectors."""
    arguments = random_arguments(func)
    for number, array in enumerate(arguments):
        if array.ndim == 2:
            arguments[number] = (array + array.T) / 2 + len(array) * np.eye(len(array))
    return arguments
