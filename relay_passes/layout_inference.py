"""Layout functions (``FRelaxInferLayout``) for operators that TVM 0.27 has none or a bad one for.

ConvertLayout puts channels first before every operator without one, so that a single clip in each
activation would undo a plan. The one for stack names the new axis S in place of the next letter,
which stops ConvertLayout at the next reduction, whatever the layout. ``layout_roles`` registers
these functions; of the former, those that TVM has not got.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.ir import Op

_ATTRIBUTE = "FRelaxInferLayout"

# Above the level that TVM registers its own attributes at, 10.
_OVERRIDING_LEVEL = 11

# Operators that treat their first input as another one does; their other inputs are no tensors.
_LIKE = {
    "relax.clip": "relax.nn.relu",
    "relax.nn.leakyrelu": "relax.nn.relu",
    "relax.nn.softplus": "relax.nn.relu",
    "relax.nn.log_softmax": "relax.nn.softmax",
}


@cache
def register_layout_functions() -> None:
    """Registers what TVM lacks, and replaces the function of stack; once for a process."""
    functions: dict[str, Any] = {
        name: Op.get(other).get_attr(_ATTRIBUTE) for name, other in _LIKE.items()
    }
    functions["relax.nn.pad"] = _infer_pad
    functions["relax.quantize"] = _infer_quantize
    functions["relax.dequantize"] = _infer_dequantize
    for name, function in functions.items():
        if Op.get(name).get_attr(_ATTRIBUTE) is None:
            tvm.ir.register_op_attr(name, _ATTRIBUTE, function)
    tvm.ir.register_op_attr("relax.stack", _ATTRIBUTE, _infer_stack, level=_OVERRIDING_LEVEL)


def _infer_pad(call: relax.Call, _desired: Any, layouts: Mapping[relax.Var, Any]) -> Any:
    decision, order = _data_layout(call, layouts)
    attrs = call.attrs
    widths = [int(attrs.pad_width[2 * axis + side]) for axis in order for side in (0, 1)]
    padded = relax.op.nn.pad(call.args[0], widths, str(attrs.pad_mode), float(attrs.pad_value))
    return _output([decision], [decision], padded.attrs)


def _infer_stack(call: relax.Call, _desired: Any, _layouts: Mapping[relax.Var, Any]) -> Any:
    """Keeps the original order: a new axis in channels last is no layout of an image."""
    parts = [_unary_layout(relax.Var("part", ty), {}) for ty in call.args[0].ty.fields]
    ty = call.args[0].ty.fields[0]
    made = relax.Var("made", relax.TensorType(dtype=ty.dtype, ndim=ty.ndim + 1))
    return _output([parts], [_unary_layout(made, {})], call.attrs)


def _infer_quantize(call: relax.Call, _desired: Any, layouts: Mapping[relax.Var, Any]) -> Any:
    return _infer_scaled(call, layouts, relax.op.quantize)


def _infer_dequantize(call: relax.Call, _desired: Any, layouts: Mapping[relax.Var, Any]) -> Any:
    return _infer_scaled(call, layouts, relax.op.dequantize)


def _infer_scaled(
    call: relax.Call, layouts: Mapping[relax.Var, Any], make: Callable[..., relax.Call]
) -> Any:
    """Scale and zero point are scalars or vectors along one axis of the data."""
    decision, order = _data_layout(call, layouts)
    data, scale, zero_point = call.args
    axis = order.index(int(call.attrs.axis) % len(order)) if order else int(call.attrs.axis)
    moved = make(data, scale, zero_point, axis, str(call.attrs.out_dtype))
    others = [_unary_layout(arg, {}) for arg in (scale, zero_point)]
    return _output([decision, *others], [decision], moved.attrs)


def _data_layout(call: relax.Call, layouts: Mapping[relax.Var, Any]) -> tuple[Any, list[int]]:
    """TVM's decision for the first input, and the original axis at each place of that layout.

    A layout with split axes, which no function here handles, is put back to the original.
    """
    data = call.args[0]
    decision = _unary_layout(data, layouts)
    letters = "" if decision.layout is None else str(decision.layout.name)
    if len(letters) != data.ty.ndim:
        decision, letters = _unary_layout(data, {}), "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[: data.ty.ndim]
    return decision, [ord(letter) - ord("A") for letter in letters]


def _unary_layout(data: relax.Expr, layouts: Mapping[relax.Var, Any]) -> Any:
    """What TVM decides for ``data``: its layout in ``layouts``, else the original order."""
    infer = Op.get("relax.nn.relu").get_attr(_ATTRIBUTE)
    return infer(relax.op.nn.relu(data), {}, layouts).input_layouts[0]


def _output(taken: list[Any], made: list[Any], attrs: tvm.ir.Attrs) -> Any:
    """TVM's InferLayoutOutput, which has no constructor in Python."""
    image = relax.Var("image", relax.TensorType((1,), "float32"))
    some = Op.get("relax.nn.relu").get_attr(_ATTRIBUTE)(relax.op.nn.relu(image), {}, {})
    make = tvm_ffi.get_global_func("ffi.MakeObjectFromPackedArgs")
    index = type(some).__tvm_ffi_type_info__.type_index
    fields = {"input_layouts": taken, "output_layouts": made, "new_attrs": attrs, "new_args": {}}
    return make(index, *[item for pair in fields.items() for item in pair])
