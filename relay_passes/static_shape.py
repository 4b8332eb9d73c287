"""Shapes of expressions as plain numbers, and why there are none."""

from typing import Any

import tvm
from tvm import relax


def static_shape(expr: relax.Expr) -> list[int] | None:
    """Extents of the tensor ``expr``; None when its shape is unknown or symbolic."""
    return static_extents(expr.ty)


def static_extents(ty: tvm.ir.Type) -> list[int] | None:
    """Extents of a tensor of this type; None when they are unknown or symbolic."""
    shape = ty.shape if isinstance(ty, relax.TensorType) else None
    if shape is None or _obstacle([shape]):
        return None
    return [int(extent) for extent in shape]


def shape_obstacle(*tensors: relax.Expr) -> str:
    """What the shapes of ``tensors`` lack to be numbers; empty when they are."""
    return _obstacle([tensor.ty.shape for tensor in tensors])


def _obstacle(shapes: list[Any]) -> str:
    if not all(isinstance(shape, relax.ShapeExpr) for shape in shapes):
        return "its shape is not known"
    if not all(isinstance(extent, tvm.tirx.IntImm) for shape in shapes for extent in shape):
        return "its shape is symbolic"
    return ""
