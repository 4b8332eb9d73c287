"""How a tensor is spread over the devices of a program."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, tirx


@dataclass(frozen=True)
class Sharding:
    """How the devices hold a tensor: each all of it, a slice each, or a part of a reduction each.

    Attributes
    ----------
    axis : int or None
        Each device holds one of equal slices along this axis, in the order of the devices.
    reduction : str
        "sum", "max" or "min": the tensor is this reduction of what the devices hold.
    blocks : int
        The axis is as many equal blocks one behind the other, of each of which a device holds a
        slice: rows of (steps, batch) as one axis, of which each device has a part of the batch.
    """

    axis: int | None = None
    reduction: str = ""
    blocks: int = 1

    def __str__(self) -> str:
        if self.axis is not None:
            blocks = f" in {self.blocks} blocks" if self.blocks > 1 else ""
            return f"split along axis {self.axis}{blocks}"
        return f"partial {self.reduction}" if self.reduction else "on every device"


REPLICATED = Sharding()
PARTIAL_SUM = Sharding(reduction="sum")


def split(axis: int) -> Sharding:
    """A slice along ``axis`` on each device."""
    return Sharding(axis)


@dataclass(frozen=True)
class Placement:
    """One way to compute an operator on the devices without exchanging anything.

    Attributes
    ----------
    operands : tuple of Sharding
        What each operand has to be.
    results : tuple of Sharding
        What each result is then.
    """

    operands: tuple[Sharding, ...]
    results: tuple[Sharding, ...]


def in_blocks(shape: Sequence[Any], sharding: Sharding) -> list[Any]:
    """The extents of a tensor whose split axis is two: the blocks, and what each device splits.

    The tensor of these extents is split along the axis behind.
    """
    axis, extents = sharding.axis or 0, list(shape)
    return [*extents[:axis], sharding.blocks, int(extents[axis]) // sharding.blocks,
            *extents[axis + 1 :]]  # fmt: skip


def shape_of(expr: relax.Expr) -> list[Any] | None:
    """The extents of a tensor; None for what has no shape."""
    shape = getattr(expr.ty, "shape", None)
    return list(shape.values[:]) if isinstance(shape, relax.ShapeExpr) else None


def is_divisible(extent: Any, devices: int) -> bool:
    """Whether equal slices are left for the devices."""
    return isinstance(extent, tirx.IntImm) and int(extent) > 0 and int(extent) % devices == 0


def local_shape(shape: Sequence[Any], sharding: Sharding, devices: int) -> list[Any]:
    """The extents of what one device holds of a tensor of this shape."""
    extents = list(shape)
    if sharding.axis is not None:
        extents[sharding.axis] = tirx.IntImm("int64", int(extents[sharding.axis]) // devices)
    return extents


def slices_of(array: np.ndarray, sharding: Sharding, devices: int) -> list[np.ndarray]:
    """What each device holds of an array that is split."""
    axis = sharding.axis or 0
    apart = np.split(array.reshape(in_blocks(array.shape, sharding)), devices, axis=axis + 1)
    shape = list(array.shape)
    shape[axis] //= devices
    return [part.reshape(shape) for part in apart]


def are_equal(slices: Sequence[np.ndarray]) -> bool:
    """Whether all slices hold the same bytes."""
    return len({one.tobytes() for one in slices}) == 1
