"""How each operator of Relax behaves when its inputs have channels last.

The answer comes from the operator's own ``FRelaxInferLayout``, the function that
``relax.transform.ConvertLayout`` follows: it is asked what it would do if all inputs had channels
last. So a plan built on these roles is one that ConvertLayout can carry out.
"""

import functools
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax
from tvm.ir import GenericConst, Op

from tvm_ext.relay_passes.expressions import operator_name
from tvm_ext.relay_passes.layout_cost import LAYOUT_NAMES, ChannelLayout

# Layout functions (``FRelaxInferLayout``) for operators that TVM 0.27 has none or a bad one for.
#
# ConvertLayout puts channels first before every operator without one, so that a single clip in
# each activation would undo a plan. The one for stack names the new axis S in place of the next
# letter, which stops ConvertLayout at the next reduction, whatever the layout. ``layout_roles``
# registers these functions; of the former, those that TVM has not got.


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


@functools.cache
def register_layout_functions() -> None:
    """Registers what TVM lacks, and replaces the function of stack; once for a process."""
    functions: dict[str, Any] = {
        name: Op.get(other).get_attr(_ATTRIBUTE) for name, other in _LIKE.items()
    }
    functions["relax.nn.pad"] = _infer_pad
    functions["relax.where"] = _infer_where
    functions["relax.quantize"] = functools.partial(_infer_scaled, relax.op.quantize)
    functions["relax.dequantize"] = functools.partial(_infer_scaled, relax.op.dequantize)
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


def _infer_where(call: relax.Call, _desired: Any, layouts: Mapping[relax.Var, Any]) -> Any:
    """All operands and the result have one layout, beside numbers, which have none."""
    ranks = {arg.ty.ndim for arg in call.args} - {0}
    known = layouts if len(ranks) == 1 else {}
    found = [_unary_layout(arg, known) for arg in call.args]
    images = [one for one, arg in zip(found, call.args, strict=True) if arg.ty.ndim]
    moved = [one for one in images if one.layout is not None and not _is_first(one.layout.name)]
    if not images:
        return _output(found, [found[0]], call.attrs)
    chosen = [*moved, *images][0]
    if not known:
        return _output(found, [_unary_layout(relax.Var("made", call.ty), {})], call.attrs)
    taken = [chosen if arg.ty.ndim else one for one, arg in zip(found, call.args, strict=True)]
    return _output(taken, [chosen], call.attrs)


def _infer_stack(call: relax.Call, _desired: Any, _layouts: Mapping[relax.Var, Any]) -> Any:
    """Keeps the original order: a new axis in channels last is no layout of an image."""
    parts = [_unary_layout(relax.Var("part", ty), {}) for ty in call.args[0].ty.fields]
    ty = call.args[0].ty.fields[0]
    made = relax.Var("made", relax.TensorType(dtype=ty.dtype, ndim=ty.ndim + 1))
    return _output([parts], [_unary_layout(made, {})], call.attrs)


def _infer_scaled(
    make: Callable[..., relax.Call],
    call: relax.Call,
    _desired: Any,
    layouts: Mapping[relax.Var, Any],
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


register_layout_functions()

# They infer a layout, but TVM has no lowering for channels last (transposed convolutions) or
# infers one that lowers to something else; tests/relay_passes/test_layout_planning.py tries each
# of the others.
CHANNELS_FIRST_ONLY = tuple(f"relax.nn.conv{n}d_transpose" for n in (1, 2, 3))

CONVOLUTIONS = {"relax.nn.conv1d": 3, "relax.nn.conv2d": 4, "relax.nn.conv3d": 5}

# Operators whose operands broadcast.
BROADCASTING = frozenset(
    {
        "relax.add",
        "relax.subtract",
        "relax.multiply",
        "relax.divide",
        "relax.floor_divide",
        "relax.mod",
        "relax.floor_mod",
        "relax.power",
        "relax.maximum",
        "relax.minimum",
        "relax.equal",
        "relax.not_equal",
        "relax.less",
        "relax.less_equal",
        "relax.greater",
        "relax.greater_equal",
        "relax.logical_and",
        "relax.logical_or",
        "relax.logical_xor",
        "relax.bitwise_and",
        "relax.bitwise_or",
        "relax.bitwise_xor",
    }
)


class Role(Enum):
    """What an operator does with a layout."""

    OPAQUE = auto()
    """Takes and makes channels first only."""
    FOLLOWS = auto()
    """Makes what it takes, in either layout at the same cost."""
    CLOSES = auto()
    """Takes either layout; its result is the same for both (channels first, or no image)."""


def infers_layout(name: str) -> bool:
    """Whether ConvertLayout passes layouts through the operator ``name``."""
    return bool(name) and tvm.ir.Op.get(name).get_attr(_ATTRIBUTE) is not None


def is_planned(ty: relax.Type) -> bool:
    """Whether tensors of type ``ty`` can have channels last: an image with known channels."""
    if not isinstance(ty, relax.TensorType) or ty.ndim not in LAYOUT_NAMES:
        return False
    return isinstance(ty.shape, relax.ShapeExpr) and isinstance(ty.shape[1], tvm.tirx.IntImm)


def role_of(call: relax.Call) -> Role:
    """The role of ``call``, which calls an operator that is no convolution."""
    name = operator_name(call)
    if not infers_layout(name) or name in CHANNELS_FIRST_ONLY:
        return Role.OPAQUE
    inputs = [leaf for arg in call.args for leaf in _image_types(arg.ty)]
    results = _image_types(call.ty)
    if not inputs or not all(is_planned(ty) for ty in inputs + results):
        return Role.OPAQUE
    inferred = _inferred_layouts(canonical_call(call))
    if inferred is None:
        return Role.OPAQUE
    taken, made = inferred
    if not all(_is_converted(letters) for letters in taken):
        return Role.OPAQUE
    if any(len(letters) in LAYOUT_NAMES for letters in made) and all(map(_is_converted, made)):
        return Role.FOLLOWS
    return Role.CLOSES if all(map(_is_first, made)) else Role.OPAQUE


def canonical_call(call: relax.Call) -> relax.Call:
    """``call`` in the form that ConvertLayout handles well; ``call`` itself if it is so already.

    A constant that broadcasts gets all axes of the other operand, since a shorter one pins the
    result to channels first; negative axes of a squeeze are counted from the front, since TVM
    0.27 writes outside of a string for them.
    """
    name = operator_name(call)
    if name == "relax.squeeze" and call.attrs.axis is not None:
        ndim = call.args[0].ty.ndim
        axes = [int(axis) % ndim for axis in call.attrs.axis]
        if axes == [int(axis) for axis in call.attrs.axis]:
            return call
        return relax.op.squeeze(call.args[0], axes)
    if name not in BROADCASTING and name != "relax.where":
        return call
    if not all(isinstance(arg.ty, relax.TensorType) for arg in call.args):
        return call
    ndim = max(arg.ty.ndim for arg in call.args)
    args = [_with_rank(arg, ndim) for arg in call.args]
    if all(new.same_as(old) for new, old in zip(args, call.args, strict=True)):
        return call
    return relax.Call(call.op, args, call.attrs, call.ty_args)


def conversion_axes(ndim: int, to: ChannelLayout) -> tuple[int, ...]:
    """Axes of the ``permute_dims`` that converts an image of rank ``ndim`` to the layout ``to``."""
    if to is ChannelLayout.CHANNELS_LAST:
        return (0, *range(2, ndim), 1)
    return (0, ndim - 1, *range(1, ndim - 1))


def permutation_of(call: relax.Call) -> tuple[int, ...]:
    """The axes of a call of ``relax.permute_dims``; without attribute all axes, reversed."""
    if call.attrs.axes is None:
        return tuple(reversed(range(call.args[0].ty.ndim)))
    ndim = len(call.attrs.axes)
    return tuple(int(axis) % ndim for axis in call.attrs.axes)


def _with_rank(arg: relax.Expr, ndim: int) -> relax.Expr:
    if not isinstance(arg, GenericConst) or not 0 < arg.ty.ndim < ndim:
        return arg
    values = arg.value.numpy()
    return relax.const(values.reshape((1,) * (ndim - values.ndim) + values.shape), arg.ty.dtype)


def _image_types(ty: relax.Type) -> list[relax.TensorType]:
    """The types in ``ty`` of tensors with the rank of an image; an unknown rank counts as one."""
    if isinstance(ty, relax.TensorType):
        return [ty] if ty.ndim == -1 or ty.ndim in LAYOUT_NAMES else []
    if isinstance(ty, relax.TupleType):
        return [leaf for part in ty.fields for leaf in _image_types(part)]
    return []


def _inferred_layouts(call: relax.Call) -> tuple[list[str], list[str]] | None:
    """Axis letters of what the operator takes and makes when it is given channels last.

    None when the operator cannot infer it, as a slice along axes that are not constants.
    """
    decisions: dict[relax.Var, Any] = {}
    args = [_probe_argument(arg, decisions) for arg in call.args]
    probe = relax.BlockBuilder().normalize(
        relax.Call(call.op, args, call.attrs, call.ty_args, call.span)
    )
    infer = call.op.get_attr(_ATTRIBUTE)
    try:
        inferred = infer(probe, {}, decisions)
    except (tvm.error.InternalError, ValueError, TypeError):
        return None
    return _layout_letters(inferred.input_layouts), _layout_letters(inferred.output_layouts)


def _probe_argument(arg: relax.Expr, decisions: dict[relax.Var, Any]) -> relax.Expr:
    """A fresh variable for a tensor, with channels last in ``decisions`` if it is an image."""
    if isinstance(arg.ty, relax.TensorType):
        variable = relax.Var("probe", arg.ty)
        if arg.ty.ndim in LAYOUT_NAMES:
            decisions[variable] = _last_decision(arg.ty.ndim)
        return variable
    if isinstance(arg.ty, relax.TupleType) and _image_types(arg.ty):
        parts = [relax.Var("part", part) for part in arg.ty.fields]
        return relax.Tuple([_probe_argument(part, decisions) for part in parts])
    return arg


def _layout_letters(nested: Any) -> list[str]:
    """Axis letters (ABCD is the original order) of a nested list of TVM's layout decisions."""
    if hasattr(nested, "layout"):
        return [] if nested.layout is None else [str(nested.layout.name)]
    return [letters for part in nested for letters in _layout_letters(part)]


def _is_first(letters: str) -> bool:
    return list(letters) == sorted(letters)


def _is_converted(letters: str) -> bool:
    """Channels last for an image, the original order for anything else."""
    if len(letters) not in LAYOUT_NAMES:
        return _is_first(letters)
    first = sorted(letters)
    axes = conversion_axes(len(letters), ChannelLayout.CHANNELS_LAST)
    return list(letters) == [first[axis] for axis in axes]


@functools.cache
def _last_decision(ndim: int) -> Any:
    """TVM's object for channels last; it has no constructor, so a convolution is asked for one."""
    name = next(name for name, rank in CONVOLUTIONS.items() if rank == ndim)
    convolve = getattr(relax.op.nn, name.rsplit(".", 1)[1])
    weight = relax.const(np.zeros((1,) * ndim, "float32"))
    image = relax.Var("image", relax.TensorType((1,) * ndim, "float32"))
    call = relax.BlockBuilder().normalize(convolve(image, weight))
    names = LAYOUT_NAMES[ndim][ChannelLayout.CHANNELS_LAST]
    return call.op.get_attr(_ATTRIBUTE)(call, {name: list(names)}, {}).input_layouts[0]
