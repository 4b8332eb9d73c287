"""Normalisations as data: what is subtracted, what is divided by, and over which axes.

``Normalization`` is one member of the family, and writes it as a tensor expression.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import reduce
from typing import Any

from tvm import relax, te, tirx

NARROW_TYPES = ("float16", "bfloat16")


class Guard(Enum):
    """How ``eps`` keeps the divisor away from zero, ``s`` being the sum or mean of the squares."""

    ADD_INSIDE = "sqrt(s + eps)"
    ADD_OUTSIDE = "sqrt(s) + eps"
    MAX_INSIDE = "sqrt(max(s, eps))"
    MAX_OUTSIDE = "max(sqrt(s), eps)"
    ONE_FOR_ZERO = "1 where sqrt(s) is 0, else sqrt(s)"


class Squares(Enum):
    """What stands below the root; all but the first have the mean ``m`` of ``x`` subtracted.

    A difference of two means has other digits than the mean of the squared deviations, and may be
    below zero, so that a model that is written with one keeps it.
    """

    OF_VALUES = "x * x"
    OF_DEVIATIONS = "(x - m) * (x - m)"
    DIFFERENCE = "mean(x * x) - m * m"
    DIFFERENCE_FROM_ZERO = "max(mean(x * x) - m * m, 0)"


@dataclass(frozen=True)
class Divisor:
    """What is divided by: ``guard`` of ``factor`` times the sum of the squares, or their mean."""

    guard: Guard
    eps: float
    is_mean: bool
    factor: float = 1.0

    def below_root(self, squares: Any, count: Any) -> Any:
        """Of the sum ``squares`` of ``count`` elements, as an expression of TVM."""
        found = squares / count if self.is_mean else squares
        return found if self.factor == 1.0 else found * tirx.const(self.factor, str(squares.ty))

    def guarded(self, found: Any) -> Any:
        """The divisor, of what is below its root."""
        number: Callable[[float], Any] = lambda value: tirx.const(value, str(found.ty))  # noqa: E731
        eps = number(self.eps)
        if self.guard is Guard.ADD_INSIDE:
            return te.sqrt(found + eps)
        if self.guard is Guard.ADD_OUTSIDE:
            return te.sqrt(found) + eps
        if self.guard is Guard.MAX_INSIDE:
            return te.sqrt(te.max(found, eps))
        if self.guard is Guard.MAX_OUTSIDE:
            return te.max(te.sqrt(found), eps)
        root = te.sqrt(found)
        return tirx.Select(root == number(0.0), number(1.0), root)


@dataclass(frozen=True)
class Normalization:
    """``x``, less its mean where ``squares`` has one, over ``divisor``; both over ``axes``.

    ``multiplies`` says that the model multiplies by the inverse of the divisor. The result has the
    type ``dtype``; numbers of 16 bits are computed with as float32. With ``groups`` the first of
    the axes is that many groups of channels, each normalised for itself.
    """

    x: relax.Expr
    axes: tuple[int, ...]
    squares: Squares
    divisor: Divisor
    dtype: str
    multiplies: bool = False
    groups: int = 1

    @property
    def is_centred(self) -> bool:
        """Whether the mean is subtracted."""
        return self.squares is not Squares.OF_VALUES

    @property
    def name(self) -> str:
        """The name of the kernel, which is that of the best known of its kind."""
        if self.groups > 1:
            return "group_norm"
        if self.is_centred:
            return "layer_norm"
        is_mean = self.divisor.is_mean or self.divisor.factor != 1.0
        return "rms_norm" if is_mean else "l2_norm"

    def compute(self, x: te.Tensor) -> te.Tensor:
        """The tensor expression: one reduction or two, and what follows from them.

        Deviations from the mean wait for their second use where it is known how many they are, and
        where the rows that they make are rows of the whole tensor.
        """
        wide = "float32" if str(x.dtype) in NARROW_TYPES else str(x.dtype)
        count = tirx.Cast(wide, reduce(lambda a, b: a * b, self._extents(x)))
        source: Any = lambda *i: x(*i).astype(wide)  # noqa: E731
        value, mean = source, None
        if self.is_centred:
            total = self._sum(x, source, "total")
            mean = te.compute(total.shape, lambda *i: total(*i) / count, "mean")
            value = self._deviation(x, source, mean)
        squared = value if self.squares is Squares.OF_DEVIATIONS else source
        squares = self._sum(x, lambda *i: squared(*i) * squared(*i), "squares")
        divisor = te.compute(
            squares.shape, lambda *i: self._divisor(squares, mean, count, i), "divisor"
        )
        return te.compute(
            x.shape,
            lambda *i: self._quotient(value(*i), divisor(*self._kept(x, i))).astype(self.dtype),
            "normalised",
        )

    def _deviation(self, x: te.Tensor, source: Any, mean: te.Tensor) -> Any:
        deviation: Any = lambda *i: source(*i) - mean(*self._kept(x, i))  # noqa: E731
        known = all(isinstance(extent, tirx.IntImm) for extent in self._extents(x))
        used_twice = self.squares is Squares.OF_DEVIATIONS
        waits = known and used_twice and self.groups == 1
        return te.compute(x.shape, deviation, "centred") if waits else deviation

    def _divisor(
        self, squares: te.Tensor, mean: te.Tensor | None, count: Any, index: Sequence[tirx.Var]
    ) -> Any:
        found = self.divisor.below_root(squares(*index), count)
        if mean is not None and self.squares is not Squares.OF_DEVIATIONS:
            found = found - mean(*index) * mean(*index)
            if self.squares is Squares.DIFFERENCE_FROM_ZERO:
                found = te.max(tirx.const(0.0, str(found.ty)), found)
        return self.divisor.guarded(found)

    def _quotient(self, value: Any, divisor: Any) -> Any:
        if self.multiplies:
            return value * (tirx.const(1.0, str(value.ty)) / divisor)
        return value / divisor

    def _extents(self, x: te.Tensor) -> list[Any]:
        """How many elements are reduced along each of the axes."""
        sizes = [x.shape[axis] for axis in self.axes]
        return [sizes[0] // self.groups, *sizes[1:]] if self.groups > 1 else sizes

    def _sum(self, x: te.Tensor, element: Any, name: str) -> te.Tensor:
        kept = [self.groups if self._is_grouped(a) else n for a, n in enumerate(x.shape)]
        shape = [n for a, n in enumerate(kept) if a not in self.axes or self._is_grouped(a)] or [1]
        extents = self._extents(x)
        reduced = [
            te.reduce_axis((0, extent), name=f"k{axis}")
            for axis, extent in zip(self.axes, extents, strict=True)
        ]

        def total(*kept: tirx.Var) -> te.Tensor:
            along, across = iter(reduced), iter(kept)
            index = []
            for axis in range(len(x.shape)):
                if self._is_grouped(axis):
                    index.append(next(across) * extents[0] + next(along))
                else:
                    index.append(next(along if axis in self.axes else across))
            return te.sum(element(*index), axis=reduced)

        return te.compute(shape, total, name)

    def _is_grouped(self, axis: int) -> bool:
        return self.groups > 1 and axis == self.axes[0]

    def _kept(self, x: te.Tensor, index: Sequence[tirx.Var]) -> Sequence[Any]:
        """Where the reduced values of the row are that ``index`` lies in."""
        size = self._extents(x)[0]
        kept = [i // size if self._is_grouped(axis) else i for axis, i in enumerate(index)]
        return [
            i for axis, i in enumerate(kept) if axis not in self.axes or self._is_grouped(axis)
        ] or [0]
