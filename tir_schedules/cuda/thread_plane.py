"""Threads of a block along two axes, of which each holds a part of what is written for all."""

from collections.abc import Callable
from typing import Any

from tvm import tirx

from tvm_ext.tir_schedules.cuda.launch import Arrays, bound


class ThreadPlane:
    """The threads, and the arrays that they allocate.

    Parameters
    ----------
    extents : tuple[int, int]
        Threads along y and x.
    dtype : str
        Of indices.
    """

    def __init__(self, extents: tuple[int, int], dtype: str) -> None:
        self.extents, self.dtype = extents, dtype
        self.arrays = Arrays(dtype)
        self.y = self.x = self.number(0)

    def number(self, value: int) -> Any:
        """A constant of the type of the loops."""
        return tirx.const(value, self.dtype)

    def threads(self, body: Callable[[], tirx.Stmt]) -> tirx.Stmt:
        """``body`` for all threads: what stands between two barriers."""

        def column(x: Any) -> tirx.Stmt:
            self.x = x
            return body()

        def line(y: Any) -> tirx.Stmt:
            self.y = y
            return bound("threadIdx.x", self.extents[1], self.dtype, column)

        return bound("threadIdx.y", self.extents[0], self.dtype, line)

    def mine(self) -> list[tuple[Any, int]]:
        """The thread that is written just now, with how many there are along each axis."""
        return [(self.y, self.extents[0]), (self.x, self.extents[1])]
