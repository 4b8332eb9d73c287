"""Operators that the default domain had before its first release, which ONNX Runtime still runs.

Converters for Core ML and for Windows wrote them. The forms are those of ONNX Runtime's schemas.
"""

import numpy as np
import onnx_ir as ir

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.onnx_frontend.microsoft.builder import FAR, Builder

_Results = list[ir.Value | None]


def affine(b: Builder) -> _Results:
    """``alpha * x + beta``."""
    scaled = b.op("Mul", b.input(0), b.number(b.attribute("alpha", 1.0)))
    return [b.op("Add", scaled, b.number(b.attribute("beta", 0.0)))]


def scale(b: Builder) -> _Results:
    """``scale * x``."""
    return [b.op("Mul", b.input(0), b.number(b.attribute("scale", 1.0)))]


def image_scaler(b: Builder) -> _Results:
    """``scale * x`` and a bias for each channel."""
    if b.dtype is None:
        raise NotApplicable("the type of its input is not known")
    bias = np.array(b.attribute("bias", []), b.dtype.numpy()).reshape(-1, 1, 1)
    scaled = b.op("Mul", b.input(0), b.number(b.attribute("scale", 1.0)))
    return [b.op("Add", scaled, b.constant(bias)) if bias.size else scaled]


def parametric_softplus(b: Builder) -> _Results:
    """``alpha * log(exp(beta * x) + 1)``."""
    inner = b.op("Mul", b.input(0), b.number(b.attribute("beta", 1.0)))
    return [b.op("Mul", b.op("Softplus", inner), b.number(b.attribute("alpha", 1.0)))]


def scaled_tanh(b: Builder) -> _Results:
    """``alpha * tanh(beta * x)``."""
    inner = b.op("Mul", b.input(0), b.number(b.attribute("beta", 1.0)))
    return [b.op("Mul", b.op("Tanh", inner), b.number(b.attribute("alpha", 1.0)))]


def crop(b: Builder) -> _Results:
    """An image without its borders, or the rows and columns that ``scale`` counts from them."""
    left, top, right, bottom = b.required("border")
    counts = b.attribute("scale", [])
    ends = [top + counts[0], left + counts[1]] if counts else [-bottom or FAR, -right or FAR]
    bounds = (b.constant(np.array(one, np.int64)) for one in ([top, left], ends, [2, 3]))
    return [b.op("Slice", b.input(0), *bounds)]


def dynamic_slice(b: Builder) -> _Results:
    """Slice as it is since opset 10."""
    return [b.op("Slice", b.input(0), b.input(1), b.input(2), b.optional(3))]


EXPERIMENTAL_REWRITES = {
    "Affine": affine,
    "Crop": crop,
    "DynamicSlice": dynamic_slice,
    "ImageScaler": image_scaler,
    "ParametricSoftplus": parametric_softplus,
    "Scale": scale,
    "ScaledTanh": scaled_tanh,
}
