"""Which integers an expression can be, where tables of constants decide it.

A table of a model, of a gather's indices or of a forest's nodes, is known when its kernel is
built, and with it all that the kernel reads and computes from it.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx

from tvm_ext.tir_schedules.analysis.buffer_access import is_conditional, nodes, static_extent

# The tables at a parameter of a kernel, one for each of its calls; None if one call has another
# thing there.
Tables: TypeAlias = Callable[[int], Sequence[np.ndarray] | None]

# What is computed of more values at a time takes longer than it saves.
_MOST_VALUES = 1 << 22

_OPERATORS: dict[type, Callable[..., Any]] = {
    tirx.Add: np.add,
    tirx.Sub: np.subtract,
    tirx.Mul: np.multiply,
    tirx.Min: np.minimum,
    tirx.Max: np.maximum,
    tirx.BitwiseAnd: np.bitwise_and,
    tirx.BitwiseOr: np.bitwise_or,
    tirx.BitwiseXor: np.bitwise_xor,
    tirx.LShift: np.left_shift,
    tirx.RShift: np.right_shift,
}
_COMPARISONS: dict[type, Callable[..., Any]] = {
    tirx.EQ: np.equal,
    tirx.NE: np.not_equal,
    tirx.LT: np.less,
    tirx.LE: np.less_equal,
    tirx.GT: np.greater,
    tirx.GE: np.greater_equal,
}


class _Unknown(Exception):
    """An expression that other things decide as well, or that can be too many values."""


class PossibleValues:
    """The values of integers in a kernel.

    Parameters
    ----------
    func : PrimFunc
        A kernel that is not scheduled yet.
    tables : callable
        What is known to be in its parameters.
    """

    def __init__(self, func: tirx.PrimFunc, tables: Tables) -> None:
        self._tables = tables
        self._parameters = {hash(param): place for place, param in enumerate(func.params)}
        self._stores: dict[int, list[tirx.BufferStore]] = defaultdict(list)
        self._loops: dict[int, tirx.For] = {}
        for node in nodes(func.body, tirx.BufferStore, tirx.For):
            if isinstance(node, tirx.For):
                self._loops[hash(node.loop_var)] = node
            elif "int" in str(node.value.ty):
                self._stores[hash(node.buffer)].append(node)
        # Of what is read; None while it is being found: what decides itself is not known.
        self._found: dict[Any, np.ndarray | None] = {}

    def of(self, expr: tvm.ir.Expr) -> np.ndarray | None:
        """All that an expression can be, and maybe more; None if that is not known.

        A tensor that the kernel writes itself counts as written before it is read.
        """
        try:
            return _Grid(self._source).evaluated(expr)
        except _Unknown:
            return None

    def _source(self, expr: tvm.ir.Expr) -> np.ndarray:
        """What a variable or an element can be."""
        key, find = self._variable(expr) if isinstance(expr, tvm.ir.Var) else self._element(expr)
        if key not in self._found:
            self._found[key] = None
            with suppress(_Unknown):
                self._found[key] = find()
        found = self._found[key]
        if found is None:
            raise _Unknown
        return found

    def _variable(self, var: tirx.Var) -> tuple[Any, Callable[[], np.ndarray]]:
        loop = self._loops.get(hash(var))
        if loop is None:
            raise _Unknown
        first, extent = static_extent(loop.min), static_extent(loop.extent)
        if first is None or extent is None or not 0 < extent <= _MOST_VALUES:
            raise _Unknown
        values = np.arange(first, first + extent, dtype=str(var.ty))
        return hash(var), lambda: values

    def _element(self, load: tvm.ir.TensorLoad) -> tuple[Any, Callable[[], np.ndarray]]:
        """Of a tensor that the kernel writes all elements are taken together."""
        buffer = hash(load.source)
        stores = self._stores.get(buffer)
        if stores is not None:
            grids = (_Grid(self._source).evaluated(store.value) for store in stores)
            return buffer, lambda: _distinct(grids)
        tables = self._tables(self._parameters[buffer]) if buffer in self._parameters else None
        if not tables:
            raise _Unknown
        numbers = tuple(map(static_extent, load.indices))
        return (buffer, numbers), lambda: _distinct(_at(table, numbers) for table in tables)


def _distinct(parts: Iterable[np.ndarray]) -> np.ndarray:
    """Sorted. Equal parts, as an unrolled loop gives them, are sorted once."""
    different: list[np.ndarray] = []
    for part in parts:
        if not any(np.array_equal(part, other) for other in different):
            different.append(part)
    values = np.unique(np.concatenate([part.ravel() for part in different]))
    if not 0 < values.size <= _MOST_VALUES:
        raise _Unknown
    return values


def _at(table: np.ndarray, numbers: Sequence[int | None]) -> np.ndarray:
    """The elements of a table at a place, of which some axes are known."""
    if table.ndim != len(numbers) or any(
        number is not None and not 0 <= number < size
        for number, size in zip(numbers, table.shape, strict=True)
    ):
        raise _Unknown
    return table[tuple(slice(None) if number is None else number for number in numbers)]


class _Grid:
    """An expression for every value of what it is computed from.

    Each variable, element and comparison in it has an axis of its own, so that one that occurs
    twice has one value in both places.
    """

    def __init__(self, source: Callable[[tvm.ir.Expr], np.ndarray]) -> None:
        self._source = source
        self._axes: dict[Any, np.ndarray] = {}

    def evaluated(self, expr: Any) -> np.ndarray:
        """Its values; integers and truth values only."""
        kind, dtype = type(expr), str(expr.ty)
        if kind in _COMPARISONS:
            return self._compared(expr)
        if "int" not in dtype:
            raise _Unknown
        if kind is tirx.IntImm:
            return np.asarray(int(expr.value)).astype(dtype)
        if kind is tirx.Cast:
            return self.evaluated(expr.value).astype(dtype)
        if kind in _OPERATORS:
            sides = self.evaluated(expr.a), self.evaluated(expr.b)
            return np.asarray(_OPERATORS[kind](*sides)).astype(dtype)
        if kind is tirx.Select:
            parts = (expr.condition, expr.true_value, expr.false_value)
            return np.where(*map(self.evaluated, parts))
        if is_conditional(expr):
            return np.where(*map(self.evaluated, expr.args))
        if kind in (tvm.ir.Var, tvm.ir.TensorLoad):
            return self._axis(expr, self._source)
        raise _Unknown

    def _compared(self, expr: Any) -> np.ndarray:
        """True and false, where the sides are not known."""
        try:
            sides = self.evaluated(expr.a), self.evaluated(expr.b)
        except _Unknown:
            return self._axis(expr, lambda _: np.array([False, True]))
        return np.asarray(_COMPARISONS[type(expr)](*sides))

    def _axis(self, expr: tvm.ir.Expr, values: Callable[[tvm.ir.Expr], np.ndarray]) -> np.ndarray:
        key = tvm_ffi.StructuralKey(expr)
        if key not in self._axes:
            self._axes[key] = values(expr).reshape(-1, *[1] * len(self._axes))
            if math.prod(found.size for found in self._axes.values()) > _MOST_VALUES:
                raise _Unknown
        return self._axes[key]
