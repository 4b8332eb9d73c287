"""Shapes of expressions as plain numbers, and why there are none."""

import tvm
from tvm import relax


def static_shape(expr: relax.Expr) -> list[int] | None:
    """Extents of the tensor ``expr``; None when its shape is unknown or symbolic."""
    if not isinstance(expr.ty, relax.TensorType) or shape_obstacle(expr):
        return None
    return [int(extent) for extent in expr.ty.shape]


def shape_obstacle(*tensors: relax.Expr) -> str:
    """What the shapes of ``tensors`` lack to be numbers; empty when they are."""
    shapes = [tensor.ty.shape for tensor in tensors]
    if not all(isinstance(shape, relax.ShapeExpr) for shape in shapes):
        return "its shape is not known"
    if not all(isinstance(extent, tvm.tirx.IntImm) for shape in shapes for extent in shape):
        return "its shape is symbolic"
    return ""
