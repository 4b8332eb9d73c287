"""Range with a length that follows from sizes, and long lists that are no constants.

TVM's converter computes the number of elements in the run where a bound is a float, and gives it a
size that is related to no other: a grid of anchors of a detector then fits its feature map in no
proof, and everything behind it is compared in the run. It makes a constant of known bounds whatever
its length, and takes a length beyond NumPy's integers for none at all: from 0 to 2**63 - 1 came out
empty.
"""

from typing import Any

import tvm
from tvm import relax, te, tirx

from tvm_ext.hardware.tvm_compat import OnnxOpConverter, onnx_converter_map
from tvm_ext.onnx_frontend.converters.arguments import Size, constant_array
from tvm_ext.onnx_frontend.converters.runtime_sizes import wide
from tvm_ext.onnx_frontend.converters.traits import takes_sizes
from tvm_ext.onnx_frontend.sizes import SizeValues
from tvm_ext.onnx_frontend.sizes.scalar_rules import analyzer_of
from tvm_ext.onnx_frontend.sizes.size_values import FLOATS
from tvm_ext.onnx_frontend.value_sizes import range_steps

# Longer ones are computed in the run and are no constant of the program.
LISTED_STEPS = 1 << 20

_TvmRange = onnx_converter_map()["Range"]


@takes_sizes(0, 1, 2)
class Range(OnnxOpConverter):
    """Numbers from a start to a limit; TVM's converter where one is computed from values."""

    @classmethod
    def _impl_v11(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        stored = [constant_array(value, params) for value in inputs]
        numbers = [a.item() for a in stored if a is not None and a.size == 1]
        if len(numbers) == len(stored):
            count = range_steps(*numbers)
            if count <= LISTED_STEPS:
                return _TvmRange.get_converter(11)(bb, inputs, attr, params)
            dtype = str(inputs[0].ty.dtype)
            first, step = (tirx.const(number, dtype) for number in (numbers[0], numbers[2]))
            return _sequence(bb, count, lambda i: first + i.astype(dtype) * step)
        bounds = [_whole_number(value, params) for value in inputs]
        delta = bounds[2]
        if None in bounds or not isinstance(delta, int) or not delta:
            tensors = [v.as_tensor(bb) if isinstance(v, SizeValues) else v for v in inputs]
            return _TvmRange.get_converter(11)(bb, type(inputs)(tensors), attr, params)
        start, limit = (wide(bound) for bound in bounds[:2])
        length, dtype = _number_of_steps(start, limit, delta), _dtype_of(inputs)
        return _sequence(bb, length, lambda i, start: (start + i * delta).astype(dtype), start)


def _sequence(bb: relax.BlockBuilder, length: Size, element: Any, *values: Any) -> relax.Expr:
    def kernel(length: Any, *values: Any) -> te.Tensor:
        return te.compute((length,), lambda i: element(i, *values), name="range")

    return bb.emit_te(kernel, length, *values, primfunc_name_hint="range")


def _number_of_steps(start: tirx.Expr, limit: tirx.Expr, delta: int) -> Size:
    """How many steps of ``delta`` there are from ``start`` until before ``limit``."""
    distance = limit - start if delta > 0 else start - limit
    analyzer = analyzer_of(distance)
    length = analyzer.simplify(tirx.floordiv(distance + (abs(delta) - 1), abs(delta)))
    if isinstance(length, tirx.IntImm):
        return max(0, int(length))
    return length if analyzer.can_prove(length >= 0) else tirx.max(length, wide(0))


def _whole_number(value: Any, params: Any) -> Size | None:
    """A bound as an integer or as an expression of sizes; None where it is neither."""
    if isinstance(value, SizeValues):
        (element,) = value.listed()
        if isinstance(element, tirx.Cast) and value.dtype in FLOATS:
            element = element.value
        is_whole = isinstance(element, tvm.ir.Expr) and str(element.ty.dtype) == "int64"
        return element if is_whole else None
    stored = constant_array(value, params)
    if stored is None or stored.size != 1 or float(stored.item()) != int(stored.item()):
        return None
    return int(stored.item())


def _dtype_of(inputs: Any) -> str:
    """The type of the elements, which is that of the bounds."""
    first = inputs[0]
    return first.dtype if isinstance(first, SizeValues) else str(first.ty.dtype)
