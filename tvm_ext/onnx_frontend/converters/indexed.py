"""GatherElements, GatherND, ScatterElements and ScatterND that stay inside their data.

TVM's converters read and write wherever the indices point to: one index beyond the data ends the
process, or overwrites what lies there. Here it takes the nearest element, as in Gather. (ONNX
Runtime raises an error for such an index.)
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from tvm_ext.hardware.targets import current_gpu
from tvm_ext.hardware.tvm_compat import (
    OnnxGatherElements,
    OnnxGatherND,
    OnnxScatterElements,
    OnnxScatterND,
    onnx_constant,
)
from tvm_ext.onnx_frontend.converters.arguments import text
from tvm_ext.onnx_frontend.converters.scatter import scattered_elements, scattered_slices

_Sizes = Callable[[list[int], int, dict], np.ndarray]


def _along_axis(shape: list[int], _indices: int, attr: dict) -> np.ndarray:
    return np.array(shape[attr.get("axis", 0)])


def _of_coordinates(shape: list[int], coordinates: int, attr: dict) -> np.ndarray:
    first = attr.get("batch_dims", 0)
    return np.array(shape[first : first + coordinates])


def _clamping(converter: type, sizes: _Sizes, alone: Callable[..., Any] | None = None) -> type:
    """TVM's ``converter`` with indices that are clamped to ``sizes`` beforehand.

    ``alone``: what takes its place for open sizes, and on GPUs where updates are not combined.
    """

    class Clamping(converter):
        @classmethod
        def get_converter(cls, opset: int) -> Callable[..., Any]:
            convert = super().get_converter(opset)

            def inside(bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> Any:
                given = type(inputs)(inputs)
                given[1] = _clamped(bb, inputs, attr, params, sizes)
                if alone is not None and _is_taken(given, attr):
                    return alone(bb, given, attr)
                return convert(bb, given, attr, params)

            return inside

    Clamping.__name__ = converter.__name__
    Clamping.__doc__ = f"TVM's {converter.__name__} with indices that stay inside of the data."
    return Clamping


def _clamped(
    bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any, sizes: _Sizes
) -> relax.Expr:
    indices = onnx_constant(inputs[1], params)
    shape, counted = _static_shape(inputs[0]), _static_shape(indices)
    if shape is None or counted is None:
        return inputs[1]
    high = sizes(shape, counted[-1] if counted else 0, attr)
    dtype = str(indices.ty.dtype)
    if isinstance(indices, tvm.ir.GenericConst):
        values = indices.value.numpy()
        return relax.const(np.clip(values, -high, high - 1).astype(dtype), dtype)
    low = relax.const((-high).astype(dtype), dtype)
    above = relax.const((high - 1).astype(dtype), dtype)
    return bb.normalize(relax.op.minimum(bb.normalize(relax.op.maximum(indices, low)), above))


def _static_shape(value: relax.Expr) -> list[int] | None:
    shape = getattr(value.ty, "shape", None)
    if not isinstance(shape, relax.ShapeExpr):
        return None
    sizes = list(shape.values)
    return [int(s) for s in sizes] if all(isinstance(s, tirx.IntImm) for s in sizes) else None


def _is_taken(inputs: Any, attr: dict) -> bool:
    """Whether sizes are open, or updates take the place of data on a GPU."""
    if any(_static_shape(value) is None for value in inputs[:3]):
        return True
    return text(attr, "reduction", "none") == "none" and current_gpu() is not None


def _elements_alone(bb: relax.BlockBuilder, inputs: Any, attr: dict) -> relax.Expr:
    axis, reduction = attr.get("axis", 0), text(attr, "reduction", "none")
    return scattered_elements(bb, inputs[0], inputs[1], inputs[2], axis, reduction)


def _slices_alone(bb: relax.BlockBuilder, inputs: Any, attr: dict) -> relax.Expr:
    reduction = text(attr, "reduction", "none")
    return scattered_slices(bb, inputs[0], inputs[1], inputs[2], reduction)


GatherElements = _clamping(OnnxGatherElements, _along_axis)
GatherND = _clamping(OnnxGatherND, _of_coordinates)
ScatterElements = _clamping(OnnxScatterElements, _along_axis, _elements_alone)
ScatterND = _clamping(OnnxScatterND, _of_coordinates, _slices_alone)
