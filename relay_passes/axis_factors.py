"""Follows the axes of a tensor through reshapes and transposes, with sizes of a run among them.

A reshape splits axes into factors and joins neighbours, a transpose moves axes as a whole. So each
axis of the result is a run of factors of the source's axes, and the order of all factors says what
a chain of both does: in the order of the source it moves no data, otherwise one transpose does it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm_ffi import structural_equal

from tvm_ext.relay_passes.expressions import operator_name, same_extents
from tvm_ext.relay_passes.layout_roles import permutation_of

# Operators that give the same elements in the same order another shape.
RESHAPES = frozenset({"relax.reshape", "relax.expand_dims", "relax.squeeze", "relax.flatten"})
MOVEMENTS = RESHAPES | {"relax.permute_dims"}


@dataclass(frozen=True)
class Extent:
    """A product of a number and of symbolic sizes, which ``AxisFactors`` numbers."""

    number: int
    symbols: tuple[int, ...] = ()

    def divided_by(self, other: "Extent") -> "Extent | None":
        """The quotient; None where ``other`` does not divide this product."""
        left = list(self.symbols)
        for symbol in other.symbols:
            if symbol not in left:
                return None
            left.remove(symbol)
        quotient, rest = divmod(self.number, other.number)
        return None if rest else Extent(quotient, tuple(left))


ONE = Extent(1)


@dataclass(frozen=True)
class Factor:
    """A part of an axis of the source; ``place`` sorts as the factors lie in memory."""

    place: tuple[int, ...]
    extent: Extent


# For each axis of a tensor, the factors that it runs over, the slowest first.
View = tuple[tuple[Factor, ...], ...]


class AxisFactors:
    """The views of one tensor, the source, that reshapes and transposes give.

    Parameters
    ----------
    shape : sequence of int or TVM expressions
        The shape of the source.
    """

    def __init__(self, shape: Sequence[Any]) -> None:
        self._symbols: list[Any] = []
        self.shape = shape
        extents = [self._extent(extent) for extent in shape]
        self.source: View = tuple(
            () if extent == ONE else (Factor((axis,), extent),)
            for axis, extent in enumerate(extents)
        )

    def moved(self, view: View, call: relax.Call) -> View | None:
        """``view`` behind one of ``MOVEMENTS``; None where its axes cannot be followed."""
        if operator_name(call) == "relax.permute_dims":
            return tuple(view[axis] for axis in permutation_of(call))
        shape = call.ty.shape
        return self.reshaped(view, list(shape)) if isinstance(shape, relax.ShapeExpr) else None

    def is_in_order(self, view: View) -> bool:
        """Whether a tensor with this view has its elements in the order of the source."""
        places = [factor.place for factor in _flat(view)]
        return places == sorted(places)

    def view_behind(self, chain: Sequence[relax.Call]) -> View | None:
        """The view at the end of ``MOVEMENTS`` of which the first reads the source."""
        view: View | None = self.source
        for call in chain:
            view = self.moved(view, call) if view is not None else None
        return view

    def one_transpose(
        self, view: View, shape: relax.ShapeExpr
    ) -> list[Callable[[relax.Expr], relax.Call]]:
        """How the source becomes a tensor with ``view`` and ``shape``: each call on the one before.

        It is one transpose of as few axes as possible, between reshapes where these are needed.
        """
        in_memory = sorted(_flat(view), key=lambda factor: factor.place)
        position = {factor.place: number for number, factor in enumerate(in_memory)}
        runs: list[list[Factor]] = []
        for factor in _flat(view):
            if runs and position[factor.place] == position[runs[-1][-1].place] + 1:
                runs[-1].append(factor)
            else:
                runs.append([factor])
        sizes = [self._product([factor.extent for factor in run]) for run in runs]
        inside = sorted(range(len(runs)), key=lambda number: runs[number][0].place)
        axes = [inside.index(number) for number in range(len(runs))]
        split = [sizes[number] for number in inside]
        calls: list[Callable[[relax.Expr], relax.Call]] = []
        if not same_extents(split, self.shape):
            calls.append(lambda x: relax.op.reshape(x, split))
        calls.append(lambda x: relax.op.permute_dims(x, axes))
        if not same_extents(sizes, shape):
            calls.append(lambda x: relax.op.reshape(x, shape))
        return calls

    def shape_of_source(self, shape: Sequence[Any], view: View) -> list[Any] | None:
        """The shape in which what broadcasts to a reshape with ``view`` does so to the source.

        None where it broadcasts along a part of an axis only.
        """
        parts = self._parts(shape, view)
        if parts is None:
            return None
        result = []
        for axis in range(len(self.shape)):
            extents = [parts[f.place] for f in _flat(view) if f.place[0] == axis]
            if ONE in extents and any(extent != ONE for extent in extents):
                return None
            result.append(self._product(extents))
        return result

    def constant_of_source(self, array: np.ndarray, view: View) -> np.ndarray | None:
        """``array``, which broadcasts to a tensor with ``view``, as one that does to the source.

        It is spread out along axes of the source of which it follows a part. None where it varies
        along a size that is not known.
        """
        parts = self._parts(array.shape, view)
        if parts is None or any(extent.symbols for extent in parts.values()):
            return None
        places = [factor.place for factor in _flat(view)]
        axes = sorted(range(len(places)), key=places.__getitem__)
        parted = array.reshape([parts[place].number for place in places]).transpose(axes)
        in_memory = [_flat(view)[axis] for axis in axes]
        spread, wanted = list(parted.shape), []
        for axis in range(len(self.shape)):
            own = [n for n, factor in enumerate(in_memory) if factor.place[0] == axis]
            if any(spread[n] != 1 for n in own):
                if any(in_memory[n].extent.symbols for n in own):
                    return None
                spread = [
                    in_memory[n].extent.number if n in own else e for n, e in enumerate(spread)
                ]
            wanted.append(prod(spread[n] for n in own))
        return np.ascontiguousarray(np.broadcast_to(parted, spread).reshape(wanted))

    def _parts(self, shape: Sequence[Any], view: View) -> dict[tuple[int, ...], Extent] | None:
        """By place of each factor, its extent in a tensor that broadcasts to ``view``."""
        extents = [ONE] * (len(view) - len(shape)) + [self._extent(extent) for extent in shape]
        parts: dict[tuple[int, ...], Extent] = {}
        for axis, extent in zip(view, extents, strict=True):
            if extent not in (ONE, _joined(axis)):
                return None
            parts.update((f.place, ONE if extent == ONE else f.extent) for f in axis)
        return parts

    def reshaped(self, view: View, shape: Sequence[Any]) -> View | None:
        """``view`` behind a reshape to ``shape``; None where it joins parts of several axes."""
        left = _flat(view)
        axes: list[tuple[Factor, ...]] = []
        for wanted in map(self._extent, shape):
            axis: list[Factor] = []
            while wanted != ONE:
                if not left or 0 in (wanted.number, left[0].extent.number):
                    return None
                first = left.pop(0)
                rest = wanted.divided_by(first.extent)
                if rest is not None:
                    axis.append(first)
                    wanted = rest
                    continue
                rest = first.extent.divided_by(wanted)
                if rest is None:
                    return None
                axis.append(Factor((*first.place, 0), wanted))
                left.insert(0, Factor((*first.place, 1), rest))
                wanted = ONE
            axes.append(tuple(axis))
        return tuple(axes) if not left else None

    def _extent(self, extent: Any) -> Extent:
        if isinstance(extent, int | tirx.IntImm):
            return Extent(int(extent))
        if isinstance(extent, tirx.Mul):
            one, two = self._extent(extent.a), self._extent(extent.b)
            return Extent(one.number * two.number, tuple(sorted(one.symbols + two.symbols)))
        for number, known in enumerate(self._symbols):
            if structural_equal(known, extent):
                return Extent(1, (number,))
        self._symbols.append(extent)
        return Extent(1, (len(self._symbols) - 1,))

    def _product(self, extents: Sequence[Extent]) -> Any:
        product: Any = prod(extent.number for extent in extents)
        for number in sorted(number for extent in extents for number in extent.symbols):
            symbol = self._symbols[number]
            product = symbol if isinstance(product, int) and product == 1 else product * symbol
        return product


def _joined(axis: Sequence[Factor]) -> Extent:
    symbols = sorted(symbol for factor in axis for symbol in factor.extent.symbols)
    return Extent(prod(factor.extent.number for factor in axis), tuple(symbols))


def _flat(view: View) -> list[Factor]:
    return [factor for axis in view for factor in axis]
