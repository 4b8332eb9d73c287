"""GatherElements, GatherND, ScatterElements and ScatterND that stay inside their data.

TVM's converters read and write wherever the indices point to: one index beyond the data ends the
process, or overwrites what lies there. Here it takes the nearest element, as in Gather. (ONNX
Runtime raises an error for such an index.)
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx

from tvm_ext.hardware.targets import current_gpu
from tvm_ext.hardware.tvm_compat import (
    OnnxGatherElements,
    OnnxGatherND,
    OnnxScatterElements,
    OnnxScatterND,
    onnx_constant,
)
from tvm_ext.onnx_frontend.converters.arguments import sizes_of, text
from tvm_ext.onnx_frontend.converters.runtime_sizes import wide
from tvm_ext.onnx_frontend.converters.scatter import scattered_elements, scattered_slices

_Sizes = Callable[[list[Any], int, dict], Any]


def _along_axis(shape: list[Any], _indices: int, attr: dict) -> Any:
    return shape[attr.get("axis", 0)]


def _of_coordinates(shape: list[Any], coordinates: int, attr: dict) -> Any:
    first = attr.get("batch_dims", 0)
    return shape[first : first + coordinates]


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
                if alone is None and given[1] is inputs[1]:
                    given[1] = _clamped_in_the_run(bb, inputs, attr, sizes)
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
    high = np.array(sizes(shape, counted[-1] if counted else 0, attr))
    dtype = str(indices.ty.dtype)
    if isinstance(indices, tvm.ir.GenericConst):
        values = indices.value.numpy()
        return relax.const(np.clip(values, -high, high - 1).astype(dtype), dtype)
    low = relax.const((-high).astype(dtype), dtype)
    above = relax.const((high - 1).astype(dtype), dtype)
    return bb.normalize(relax.op.minimum(bb.normalize(relax.op.maximum(indices, low)), above))


def _clamped_in_the_run(bb: relax.BlockBuilder, inputs: Any, attr: dict, sizes: _Sizes) -> Any:
    """The indices inside of data of open sizes."""
    data, indices = inputs[0], inputs[1]
    counted = sizes_of(indices)
    last = counted[-1] if counted else 0
    if not isinstance(last, int):
        # Of GatherElements, which asks for the size of one axis.
        last = 0
    chosen = sizes(sizes_of(data), last, attr)
    listed = chosen if isinstance(chosen, list) else [chosen]

    def kernel(indices: te.Tensor, highs: list[Any]) -> te.Tensor:
        def inside(*place: tirx.Var) -> tirx.Expr:
            value = indices(*place)
            high = wide(highs[-1])
            for coordinate in range(len(highs) - 2, -1, -1):
                high = tirx.Select(place[-1] == coordinate, wide(highs[coordinate]), high)
            kept = tirx.min(tirx.max(value.astype("int64"), -high), high - 1)
            return kept.astype(indices.dtype)

        return te.compute(indices.shape, inside, name="inside")

    return bb.emit_te(kernel, indices, listed, primfunc_name_hint="indices_inside")


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
