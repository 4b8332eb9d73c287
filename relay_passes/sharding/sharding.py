"""How a tensor is spread over the devices of a program."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
    """

    axis: int | None = None
    reduction: str = ""

    def __str__(self) -> str:
        if self.axis is not None:
            return f"split along axis {self.axis}"
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
