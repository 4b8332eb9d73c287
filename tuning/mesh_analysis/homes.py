"""Where the tensors of a kernel lie between kernels: which dimension is cut along which axis."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_ext.tir_schedules.block_access import element_bytes, static_extent
from tvm_ext.tir_schedules.wafer.annotations import COLUMN, HOME, ROW, WHOLE
from tvm_ext.tuning.mesh_analysis.loops import Loop, NotReadable, Place


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


def home_of(buffer: Any, axes: Sequence[str], counts: Sequence[int]) -> Home:
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


def _stated(buffer: Any, words: Sequence[str], extents: Mapping[str, int]) -> Home:
    if len(words) != len(buffer.shape):
        raise NotReadable(
            f"the home of {buffer.name} has {len(words)} words, the tensor "
            f"{len(buffer.shape)} dimensions"
        )
    axes, counts = [], []
    for word in words:
        axis, _, count = word.partition("/")
        if axis not in (ROW, COLUMN, WHOLE) or not (count or "1").isdigit():
            raise NotReadable(
                f"the home of {buffer.name} says '{word}'; expected row, column or -, or with a "
                "number of pieces, as in row/4"
            )
        axes.append(axis)
        counts.append(int(count) if count else extents.get(axis, 1))
    return home_of(buffer, axes, counts)


def home_from_access(buffer: Any, indices: Sequence[Any], place: Place) -> Home:
    """A tensor lies where it is used: each dimension follows the axis whose PEs differ in it."""
    axes, counts = [], []
    for index in indices:
        loop = next((one for one in place.loops if one.axis and _moves(place, index, one)), None)
        axes.append(loop.axis if loop is not None else WHOLE)
        counts.append(loop.extent if loop is not None else 1)
    return home_of(buffer, axes, counts)


def _moves(place: Place, index: Any, loop: Loop) -> bool:
    try:
        last = place.values(index, {loop.number: np.asarray(loop.extent - 1)})
        return bool((last != place.values(index, {})).any())
    except NotReadable:
        return False
