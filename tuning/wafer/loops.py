"""The loops around a block of a kernel for a mesh, and values of its indices over them."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from tvm import tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.tir_schedules.analysis.affine import Affine, affine_of
from tvm_ext.tir_schedules.analysis.buffer_access import LoopAxis, element_bytes, static_extent
from tvm_ext.tir_schedules.analysis.index_values import Evaluator, evaluator_of
from tvm_ext.tir_schedules.wafer.annotations import (
    COLUMN,
    HOME,
    MESH_AXIS,
    PIPELINE,
    ROW,
    VECTOR,
    WHOLE,
)

Points = Mapping[int, np.ndarray]
"""By a loop's number, values of its variable; all arrays can be broadcast together."""


Evaluators = dict[int, tuple[Any, Evaluator | None]]
"""By an expression's hash, the expression, so that it stays, and its evaluator."""


@dataclass(frozen=True)
class MeshLoop(LoopAxis):
    """A loop of a kernel for a mesh.

    Attributes
    ----------
    number : int
        Of its own in the kernel.
    axis : str
        "row" or "column" if each iteration is one row or column of PEs, else empty.
    pipeline : int
        0 for an ordinary loop; see ``PIPELINE`` in ``tir_schedules/wafer/annotations.py``.
    is_vector : bool
        Whether one vector instruction does all iterations.
    """

    extent: int
    number: int = 0
    axis: str = ""
    pipeline: int = 0
    is_vector: bool = False


def loop_of(stmt: tirx.For, number: int) -> MeshLoop:
    """A loop as the annotations have it. NotApplicable for an extent that is no number."""
    if not isinstance(stmt.extent, tirx.IntImm):
        raise NotApplicable(f"loop {stmt.loop_var.name} has the extent {stmt.extent}, not a number")
    loop = MeshLoop(stmt.loop_var, int(stmt.extent.value), number=number)
    notes = stmt.annotations
    if not notes:
        return loop
    return replace(
        loop,
        axis=str(notes.get(MESH_AXIS, "")),
        pipeline=int(notes.get(PIPELINE, 0)),
        is_vector=VECTOR in notes,
    )


@dataclass(frozen=True)
class RegionAccess:
    """What a block reads or writes of one tensor.

    Attributes
    ----------
    source : tirx.Buffer
        The tensor.
    indices : tuple[PrimExpr, ...]
        Where it begins along each dimension.
    extents : tuple[int, ...]
        Elements along each dimension; 1 where the number is not known.
    """

    source: tirx.Buffer
    indices: tuple[tirx.Expr, ...]
    extents: tuple[int, ...]


class Place:
    """Where a block stands: the loops around it and what its iteration variables are bound to.

    Indices and conditions are those of the block. Where they are sums of multiples of loop
    variables, answers come from the factors; any other one is evaluated. Blocks often share their
    expressions, so ``evaluators`` is one for all of a kernel.
    """

    def __init__(self, loops: Sequence[MeshLoop], realize: Any, evaluators: Evaluators) -> None:
        self.loops = tuple(loops)
        self._evaluators = evaluators
        self.block = realize.block
        self.predicate = realize.predicate
        self.reads = _accesses(realize.block.reads)
        self.writes = _accesses(realize.block.writes)
        self._affine: dict[int, Affine | None] = {
            hash(one.var): Affine(0, {one.number: 1}) for one in self.loops
        }
        self._bindings = {
            hash(iter_var.var): value
            for iter_var, value in zip(realize.block.iter_vars, realize.iter_values, strict=True)
        }
        for var, value in self._bindings.items():
            self._affine[var] = affine_of(value, self._affine)
        self._mesh = {
            axis: tuple(one for one in self.loops if one.axis == axis) for axis in (ROW, COLUMN)
        }
        self._indices: dict[int, tuple[Any, Affine | None]] = {}

    def inner(self, counted: Sequence[MeshLoop] = ()) -> tuple[MeshLoop, ...]:
        """Loops that are neither of the mesh nor among ``counted``."""
        left_out = {one.number for one in counted}
        return tuple(one for one in self.loops if not one.axis and one.number not in left_out)

    def mesh(self, axis: str) -> tuple[MeshLoop, ...]:
        """Loops along one axis of the mesh; the inner ones are places within a group of PEs."""
        return self._mesh[axis]

    def line(self, axis: str) -> MeshLoop | None:
        """The innermost loop along one axis: the PEs that take part in one pattern."""
        return next(reversed(self.mesh(axis)), None)

    def coordinates(self, axis: str) -> dict[int, np.ndarray]:
        """For all places along one axis, the values of its loops, by number."""
        loops = self.mesh(axis)
        if not loops:
            return {}
        if len(loops) == 1:
            return {loops[0].number: np.arange(loops[0].extent)}
        places = np.indices([one.extent for one in loops]).reshape(len(loops), -1)
        return {one.number: places[position] for position, one in enumerate(loops)}

    def affine(self, index: tirx.Expr) -> Affine | None:
        """An index as a sum of multiples of loop variables; None where it depends on data."""
        key = hash(index)
        if key not in self._indices:
            self._indices[key] = index, affine_of(index, self._affine)
        return self._indices[key][1]

    def values(self, index: tirx.Expr, points: Points) -> np.ndarray:
        """An index for the values of the loops in ``points``, 0 for all others.

        Raises NotApplicable when it depends on anything else (an element of a tensor).
        """
        affine = self.affine(index)
        if affine is not None and not affine.others:
            total: Any = np.asarray(affine.constant)
            for number, factor in affine.factors.items():
                if number in points:
                    total = total + factor * points[number]
            return np.asarray(total)
        known = _KnownValues(self._bindings, self._evaluated)
        for one in self.loops:
            known[hash(one.var)] = np.asarray(points.get(one.number, _ZERO))
        return self._evaluated(index, known)

    def _evaluated(self, expr: tirx.Expr, known: Mapping[int, np.ndarray]) -> np.ndarray:
        key = hash(expr)
        if key not in self._evaluators:
            self._evaluators[key] = (expr, evaluator_of(expr))
        evaluator = self._evaluators[key][1]
        if evaluator is None:
            raise NotApplicable(f"the index {expr} depends on data")
        return evaluator(known)

    def span(self, index: Any, moving: Sequence[MeshLoop]) -> int:
        """How many values an index takes while ``moving`` run and all other loops stand still."""
        affine = self.affine(index)
        if affine is not None and not any(one.number in affine.others for one in moving):
            return 1 + sum(
                abs(affine.factors.get(one.number, 0)) * (one.extent - 1) for one in moving
            )
        used = [one for one in moving if one.number in self.variables(index)]
        corners = [
            {one.number: np.asarray(end) for one, end in zip(used, ends, strict=True)}
            for ends in product(*((0, one.extent - 1) for one in used))
        ]
        found = [int(self.values(index, corner)) for corner in corners]
        return max(found) - min(found) + 1

    def difference(self, condition: tirx.Expr) -> Affine | None:
        """What has to be below 0, if a condition is of that form and affine."""
        if not isinstance(condition, tirx.LT):
            return None
        left, right = self.affine(condition.a), self.affine(condition.b)
        if left is None or right is None:
            return None
        found = left.plus(right, -1)
        return None if found.others else found

    def variables(self, index: tirx.Expr) -> frozenset[int]:
        """Numbers of the loops that an index or a condition depends on.

        Raises NotApplicable when it depends on anything else.
        """
        affine = self.affine(index)
        if affine is None:
            raise NotApplicable(f"the index {index} depends on data")
        return affine.loops

    def conditions(self) -> Iterator[Any]:
        """The parts of the predicate, each of which has to hold."""
        waiting = [self.predicate]
        while waiting:
            part = waiting.pop()
            if isinstance(part, tirx.And):
                waiting += [part.a, part.b]
            elif not isinstance(part, tirx.IntImm):
                yield part


def _accesses(regions: Any) -> tuple[RegionAccess, ...]:
    found = []
    for one in regions:
        region = list(one.region)
        extents = tuple(int(getattr(dim.extent, "value", 1)) for dim in region)
        found.append(RegionAccess(one.source, tuple(dim.min for dim in region), extents))
    return tuple(found)


class _KnownValues(dict[int, np.ndarray]):
    """Values of variables by their hash; those of a block are found when they are asked for."""

    def __init__(self, bindings: Mapping[int, Any], evaluated: Callable[..., np.ndarray]) -> None:
        super().__init__()
        self._bindings = bindings
        self._evaluated = evaluated

    def __missing__(self, key: int) -> np.ndarray:
        self[key] = self._evaluated(self._bindings[key], self)
        return self[key]


_ZERO = np.asarray(0)


# Where the tensors of a kernel lie between kernels: which dimension is cut along which axis.


@dataclass(frozen=True)
class Home:
    """How a tensor is cut.

    Attributes
    ----------
    shape : tuple[int, ...]
        Of the tensor.
    axes : tuple[str, ...]
        For each dimension "row", "column" or "-".
    pieces : tuple[int, ...]
        For each dimension, elements of one shard.
    element_bytes : int
        Of one element.
    """

    shape: tuple[int, ...]
    axes: tuple[str, ...]
    pieces: tuple[int, ...]
    element_bytes: int

    def count(self, dimension: int) -> int:
        """Pieces that a dimension is cut into."""
        return -(-self.shape[dimension] // self.pieces[dimension])

    @property
    def shard_bytes(self) -> int:
        """Bytes of the tensor in one PE."""
        return math.prod(self.pieces) * self.element_bytes


def home_of(buffer: tirx.Buffer, axes: Sequence[str], counts: Sequence[int]) -> Home:
    """A tensor whose dimensions are cut along ``axes`` into ``counts`` pieces."""
    shape = tuple(static_extent(size) or 1 for size in buffer.shape)
    pieces = tuple(-(-size // count) for size, count in zip(shape, counts, strict=True))
    return Home(shape, tuple(axes), pieces, element_bytes(buffer))


def stated_homes(root: Any, func: Any, rows: int, columns: int) -> dict[Any, Home]:
    """By parameter, the homes that the annotations of the root block state."""
    found = {}
    for key, value in dict(root.annotations or {}).items():
        if str(key).startswith(HOME):
            buffer = func.params[int(str(key).removeprefix(HOME))]
            found[buffer] = _stated(buffer, str(value).split(), {ROW: rows, COLUMN: columns})
    return found


def _stated(buffer: tirx.Buffer, words: Sequence[str], extents: Mapping[str, int]) -> Home:
    if len(words) != len(buffer.shape):
        raise NotApplicable(
            f"the home of {buffer.name} has {len(words)} words, the tensor "
            f"{len(buffer.shape)} dimensions"
        )
    axes, counts = [], []
    for word in words:
        axis, _, count = word.partition("/")
        if axis not in (ROW, COLUMN, WHOLE) or not (count or "1").isdigit():
            raise NotApplicable(
                f"the home of {buffer.name} says '{word}'; expected row, column or -, or with a "
                "number of pieces, as in row/4"
            )
        axes.append(axis)
        counts.append(int(count) if count else extents.get(axis, 1))
    return home_of(buffer, axes, counts)


def home_from_access(buffer: tirx.Buffer, indices: Sequence[tirx.Expr], place: Place) -> Home:
    """A tensor lies where it is used: each dimension follows the axis whose PEs differ in it."""
    axes, counts = [], []
    for index in indices:
        loop = next((one for one in place.loops if one.axis and _moves(place, index, one)), None)
        axes.append(loop.axis if loop is not None else WHOLE)
        counts.append(loop.extent if loop is not None else 1)
    return home_of(buffer, axes, counts)


def _moves(place: Place, index: Any, loop: MeshLoop) -> bool:
    try:
        last = place.values(index, {loop.number: np.asarray(loop.extent - 1)})
        return bool((last != place.values(index, {})).any())
    except NotApplicable:
        return False
