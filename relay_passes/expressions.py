"""Reads expressions of Relax: operator, static shape, constant, scale and shift per channel."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.sym import Analyzer
from tvm_ffi import structural_map

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.relay_passes.binding_rewriter import GraphView
from tvm_ext.relay_passes.spans import bindings_of

BROADCAST_ATTRIBUTE = "tvm_ext.broadcast"
"""Of a kernel that does no more than repeat its first operand along axes of size 1."""


def operator_name(value: relax.Expr) -> str:
    """Name of the operator that ``value`` calls; empty when it calls none."""
    if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op):
        return str(value.op.name)
    return ""


def convolution_like(
    call: relax.Call, x: relax.Expr, weight: relax.Expr, **changed: Any
) -> relax.Call:
    """The convolution that ``call`` is, of other tensors and with attributes ``changed``."""
    attrs: Any = call.attrs
    lists = ("strides", "padding", "dilation")
    layouts = ("data_layout", "kernel_layout", "out_layout")
    given = {
        **{name: [int(n) for n in getattr(attrs, name)] for name in lists},
        **{name: str(getattr(attrs, name)) for name in layouts},
        "groups": int(attrs.groups),
        "out_dtype": str(call.ty.dtype),
    }
    make = getattr(relax.op.nn, operator_name(call).removeprefix("relax.nn."))
    return make(x, weight, **given | changed)


def in_groups(call: relax.Call) -> bool:
    """Whether it is a convolution whose channels are in several groups."""
    return operator_name(call) != "relax.matmul" and int(call.attrs.groups) > 1


# Shapes of expressions as plain numbers, and why there are none.


def static_shape(expr: relax.Expr) -> list[int] | None:
    """Extents of the tensor ``expr``; None when its shape is unknown or symbolic."""
    return static_extents(expr.ty)


def static_extents(ty: tvm.ir.Type) -> list[int] | None:
    """Extents of a tensor of this type; None when they are unknown or symbolic."""
    return _numbers(ty.shape if isinstance(ty, relax.TensorType) else None)


def _numbers(shape: Any) -> list[int] | None:
    return None if _obstacle([shape]) else [int(extent) for extent in shape.values[:]]


def same_extents(first: Sequence[Any], second: Sequence[Any]) -> bool:
    """Whether two shapes, of numbers and of TVM's expressions, are the same in every run."""
    return len(first) == len(second) and all(map(_same_extent, first, second))


def _same_extent(one: Any, other: Any) -> bool:
    numbers = [int(n) for n in (one, other) if isinstance(n, int | tvm.tirx.IntImm)]
    if numbers:
        return len(numbers) == 2 and numbers[0] == numbers[1]
    return bool(tvm_ffi.structural_equal(one, other))


def item_shape(expr: relax.Expr) -> list[int] | None:
    """Extents of the tensor ``expr`` for a batch of one; None when that is not known.

    A first dimension of any size is taken for the batch: what is decided for one item of it holds
    for each. Without such a dimension these are the extents.
    """
    shape = expr.ty.shape if isinstance(expr.ty, relax.TensorType) else None
    return _numbers(_of_one_item(shape))


# What sizes that a run decides are taken to be where a decision needs numbers.

# A side of a feature map, and a side of the image (or the samples of a sound) that all others are
# computed from: the first that leaves enough of each.
_NOMINAL_SIDE, _NOMINAL_IMAGE_SIDES = 64, (224, 224 * 8, 224 * 64)
# Elements along a side of an image, and of a sequence.
_FEWEST, _FEWEST_IN_SEQUENCE = 1, 8

_nominal: ContextVar[Mapping[str, int]] = ContextVar("nominal_sizes", default={})  # noqa: B039


@contextmanager
def deciding_for(mod: tvm.IRModule, ranges: Mapping[str, tuple[int, int]]) -> Iterator[None]:
    """Decisions in the block take ``nominal_sizes`` of inputs for those that a run decides."""
    token = _nominal.set(nominal_sizes(mod, ranges))
    try:
        yield
    finally:
        _nominal.reset(token)


def nominal_sizes(mod: tvm.IRModule, ranges: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """By name, sizes of inputs that leave all tensors of the function ``main`` some elements.

    Of two seconds of sound, 32,000 samples, seven strided convolutions leave a hundred frames; of
    224 samples they would leave none. ``ranges`` are the least and the largest size that each name
    may have.
    """
    names = dict.fromkeys(str(size.name) for size in sizes_of_params(mod["main"]))
    allowed = {name: ranges.get(name, (1, _NOMINAL_IMAGE_SIDES[-1])) for name in names}
    tried = [
        {name: min(max(side, low), high) for name, (low, high) in allowed.items()}
        for side in _NOMINAL_IMAGE_SIDES
    ]
    extents = _computed_extents(mod, names)

    def too_few(sizes: Mapping[str, int]) -> list[Any]:
        return [one for one, fewest in extents if (value_for(one, sizes) or 0) < fewest]

    # Those that are few of the largest image do not depend on it.
    unreachable = too_few(tried[-1])
    return next(sizes for sizes in tried if len(too_few(sizes)) <= len(unreachable))


def sizes_of_params(func: relax.Function) -> list[tvm.ir.Var]:
    """The variables that are sizes of a function's parameters: known when a run starts."""
    shapes = [param.ty.shape for param in func.params if isinstance(param.ty, relax.TensorType)]
    sizes = [size for shape in shapes if shape is not None for size in shape]
    return [size for size in sizes if is_symbolic(size)]


def _computed_extents(mod: tvm.IRModule, names: Collection[str]) -> list[tuple[Any, int]]:
    """Sizes of tensors that are computed of inputs' sizes, each once, and their fewest elements."""
    found: dict[Any, tuple[Any, int]] = {}
    for binding in bindings_of(mod["main"]):
        shape = getattr(binding.var.ty, "shape", None)
        if not isinstance(shape, relax.ShapeExpr):
            continue
        fewest = _FEWEST_IN_SEQUENCE if len(shape) == 3 else _FEWEST
        for extent in shape:
            used = {str(one.name) for one in tvm.tirx.analysis.undefined_vars(extent)}
            if used and used <= set(names) and not is_symbolic(extent):
                found[tvm_ffi.StructuralKey(extent)] = extent, fewest
    return list(found.values())


def nominal_shape(ty: Any) -> list[int] | None:
    """Extents of a tensor for a batch of one, and images of a nominal size where a run decides.

    None where nothing is known of the shape.
    """
    shape = _of_one_item(ty.shape) if isinstance(ty, relax.TensorType) else None
    if not isinstance(shape, relax.ShapeExpr):
        return None
    return [_nominal_extent(extent) for extent in shape.values[:]]


def known_extents(ty: relax.TensorType) -> list[int]:
    """``nominal_shape`` of a convolution's tensor; raises NotApplicable where nothing is known."""
    extents = nominal_shape(ty)
    if extents is None:
        raise NotApplicable("nothing is known of the shape of a convolution's tensor")
    return extents


def tensor_bytes(ty: relax.TensorType) -> float:
    """Bytes of a tensor, of nominal extents where they are symbolic."""
    element = tvm.DataType(ty.dtype).bits / 8
    return element * prod(known_extents(ty))


def _nominal_extent(extent: Any) -> int:
    sizes = _nominal.get()
    if is_symbolic(extent) and str(extent.name) not in sizes:
        return _NOMINAL_SIDE
    number = value_for(extent, sizes)
    # Not every function of a size is worked out, nor is every size a possible one.
    return number if number is not None and number >= 0 else _NOMINAL_SIDE


def value_for(extent: Any, sizes: Mapping[str, int]) -> int | None:
    """An extent for these sizes, by name; None where it is not worked out."""
    if isinstance(extent, tvm.tirx.IntImm):
        return int(extent)

    def size(variable: tvm.ir.Var) -> tvm.tirx.IntImm:
        number = sizes.get(str(variable.name), _NOMINAL_IMAGE_SIDES[0])
        return tvm.tirx.const(number, str(variable.ty))

    number = Analyzer().simplify(structural_map(extent, (tvm.ir.Var, size)))
    return int(number) if isinstance(number, tvm.tirx.IntImm) else None


def _of_one_item(shape: Any) -> Any:
    # A slice is a list: element by element, TVM's arrays take several times as long.
    extents = shape.values[:] if isinstance(shape, relax.ShapeExpr) else []
    if not extents or not is_symbolic(extents[0]):
        return shape
    return relax.ShapeExpr([tvm.tirx.const(1, "int64"), *extents[1:]])


def is_symbolic(extent: Any) -> bool:
    """Whether a dimension has a size of its own that is known in the run only."""
    return isinstance(extent, tvm.tirx.Var)


def shape_obstacle(*tensors: relax.Expr) -> str:
    """What the shapes of ``tensors`` lack to be numbers; empty when they are."""
    return _obstacle([tensor.ty.shape for tensor in tensors])


def item_obstacle(*tensors: relax.Expr) -> str:
    """What the shapes of ``tensors`` lack to be numbers, a dynamic batch aside; or nothing."""
    return _obstacle([_of_one_item(tensor.ty.shape) for tensor in tensors])


def feature_map_obstacle(axis: int, *maps: relax.Expr) -> str:
    """What ``maps`` lack to be images of any size with a known number of channels, on ``axis``."""
    if any(nominal_shape(one.ty) is None for one in maps):
        return "its shape is not known"
    if not all(isinstance(one.ty.shape[axis], tvm.tirx.IntImm) for one in maps):
        return "its number of channels is symbolic"
    return ""


def _obstacle(shapes: list[Any]) -> str:
    if not all(isinstance(shape, relax.ShapeExpr) for shape in shapes):
        return "its shape is not known"
    if not all(
        isinstance(extent, tvm.tirx.IntImm) for shape in shapes for extent in shape.values[:]
    ):
        return "its shape is symbolic"
    return ""


# Reads operators that scale and shift a value per channel by constants.
#
# Batch normalisation at inference is such an operator: with constant statistics it is ``scale * x
# + shift`` with ``scale = gamma / sqrt(var + epsilon)`` and ``shift = beta - mean * scale``
# (Ioffe and Szegedy 2015, arXiv 1502.03167, algorithm 2).


FLOAT_BITS = {"float16": 16, "bfloat16": 16, "float32": 32, "float64": 64}

_BINARY_OPS = ("relax.add", "relax.subtract", "relax.multiply", "relax.divide")
_BATCH_NORM_ARGS = ("gamma", "beta", "mean", "variance")


@dataclass(frozen=True)
class AffineStep:
    """A value computed as ``scale * source + shift``.

    Attributes
    ----------
    name : str
        The operator, for reports.
    source : relax.Var
        The value that is scaled and shifted.
    scale, shift : numpy.ndarray or None
        float64, broadcast against ``source`` as NumPy does; None stands for 1 and for 0.
    between : tuple of relax.Var
        Variables between ``source`` and the result.
    problem : str or None
        Why this operator has no constant scale and shift although its kind would allow it.
    """

    name: str
    source: relax.Var
    scale: np.ndarray | None = None
    shift: np.ndarray | None = None
    between: tuple[relax.Var, ...] = ()
    problem: str | None = None

    @property
    def normalises(self) -> bool:
        """True for batch normalisation, which somebody expects to be folded away."""
        return self.name == "batch_norm"


def read_step(view: GraphView, var: relax.Var, value: relax.Expr) -> AffineStep | None:
    """The step that the binding ``var = value`` makes; None when it is no affine operator."""
    if isinstance(value, relax.Var):
        # An alias does no work of its own: what it stands for is looked at where it is bound.
        return None
    if not _is_float(var):
        return None
    if isinstance(value, relax.TupleGetItem):
        return _batch_norm_step(view, value)
    if view.call(value, *_BINARY_OPS) is not None:
        return _binary_step(view, value)
    if view.call(value, "relax.astype") is not None and _is_float_var(value.args[0]):
        return AffineStep("astype", value.args[0])
    return None


def numpy_dtype(name: str) -> np.dtype:
    """The element type ``name`` of TVM, such as "float32" or "bfloat16", for NumPy."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def is_constant(view: GraphView, expr: relax.Expr) -> bool:
    """True when ``constant_value`` gives a value for ``expr``."""
    value = view.value(expr)
    if isinstance(value, tvm.ir.GenericConst):
        return isinstance(value.ty, relax.TensorType)
    call = view.call(value, *_EVALUATORS)
    if call is None or not is_constant(view, call.args[0]):
        return False
    return call.op.name != "relax.reshape" or not _obstacle([call.args[1]])


def read_only(tensor: tvm.runtime.Tensor) -> np.ndarray:
    """The numbers of a tensor where they lie, as a copy of all weights would take long."""
    try:
        array = np.from_dlpack(tensor)
    except RuntimeError:
        # NumPy has no bfloat16 of its own, nor types of less than a byte.
        array = tensor.numpy()
    array.flags.writeable = False
    return array


def constant_value(view: GraphView, expr: relax.Expr) -> np.ndarray | None:
    """The constant behind ``expr``, looking through reshapes, transposes and casts of one.

    It may not be written to.
    """
    if not is_constant(view, expr):
        return None
    value = view.value(expr)
    if isinstance(value, tvm.ir.GenericConst):
        return read_only(value.value)
    return _EVALUATORS[value.op.name](constant_value(view, value.args[0]), value)


def _permute(array: np.ndarray, call: relax.Call) -> np.ndarray:
    axes = call.attrs.axes
    return np.transpose(array, None if axes is None else [int(axis) for axis in axes])


_EVALUATORS = {
    "relax.reshape": lambda array, call: array.reshape([int(dim) for dim in call.args[1].values]),
    "relax.permute_dims": _permute,
    "relax.expand_dims": lambda array, call: np.expand_dims(
        array, tuple(int(axis) for axis in call.attrs.axis)
    ),
    "relax.astype": lambda array, call: array.astype(numpy_dtype(str(call.ty.dtype))),
}


def _is_float_var(expr: relax.Expr) -> bool:
    return isinstance(expr, relax.Var) and _is_float(expr)


def _is_float(expr: relax.Expr) -> bool:
    return isinstance(expr.ty, relax.TensorType) and str(expr.ty.dtype) in FLOAT_BITS


def _channel_constant(view: GraphView, expr: relax.Expr) -> np.ndarray | None:
    """``expr`` in float64 when it is a constant that varies along one axis at most."""
    if not is_constant(view, expr) or expr.ty.shape is None:
        return None
    if sum(int(dim) != 1 for dim in expr.ty.shape) > 1:
        return None
    array = constant_value(view, expr)
    return None if array is None else array.astype(np.float64)


def _binary_step(view: GraphView, call: relax.Call) -> AffineStep | None:
    left, right = call.args
    name = call.op.name.removeprefix("relax.")
    if _is_float_var(left):
        constant = _channel_constant(view, right)
        return None if constant is None else _step_with_right_constant(name, left, constant)
    if not _is_float_var(right) or name == "divide":
        return None
    constant = _channel_constant(view, left)
    if constant is None:
        return None
    if name == "subtract":
        return AffineStep(name, right, np.asarray(-1.0), constant)
    return _step_with_right_constant(name, right, constant)


def _step_with_right_constant(name: str, source: relax.Var, constant: np.ndarray) -> AffineStep:
    if name == "multiply":
        return AffineStep(name, source, scale=constant)
    if name == "divide":
        with np.errstate(divide="ignore"):
            return AffineStep(name, source, scale=1.0 / constant)
    return AffineStep(name, source, shift=-constant if name == "subtract" else constant)


def _batch_norm_step(view: GraphView, item: relax.TupleGetItem) -> AffineStep | None:
    call = view.call(item.tuple_value, "relax.nn.batch_norm")
    if call is None or item.index != 0 or not _is_float_var(call.args[0]):
        return None
    source = call.args[0]
    try:
        scale, shift = _batch_norm_affine(view, call, item.tuple_value)
    except NotApplicable as refused:
        return AffineStep("batch_norm", source, problem=str(refused))
    between = (item.tuple_value,) if isinstance(item.tuple_value, relax.Var) else ()
    return AffineStep("batch_norm", source, scale, shift, between)


def _batch_norm_affine(
    view: GraphView, call: relax.Call, result: relax.Expr
) -> tuple[np.ndarray, np.ndarray]:
    attrs = call.attrs
    ndim = int(call.args[0].ty.ndim)
    if attrs.training:
        raise NotApplicable("batch_norm in training mode depends on the batch")
    if view.uses(result) > 1:
        raise NotApplicable("more than the normalised value of batch_norm is used")
    if ndim < 1:
        raise NotApplicable("the rank of the input of batch_norm is not known")
    values = [constant_value(view, argument) for argument in call.args[1:]]
    missing = [n for n, value in zip(_BATCH_NORM_ARGS, values, strict=True) if value is None]
    if missing:
        raise NotApplicable(f"{', '.join(missing)} of batch_norm: not constant")
    gamma, beta, mean, variance = (np.asarray(value, dtype=np.float64) for value in values)
    # The epsilon of the attribute, not rounded to the type of the data: in float16 it could be 0.
    spread = variance + float(attrs.epsilon)
    if not np.all(spread > 0):
        raise NotApplicable("variance + epsilon of batch_norm is not positive in every channel")
    scale = (gamma if attrs.scale else 1.0) / np.sqrt(spread)
    with np.errstate(invalid="ignore"):
        shift = (beta if attrs.center else 0.0) - mean * scale
    shape = [1] * ndim
    shape[int(attrs.axis) % ndim] = -1
    return scale.reshape(shape), shift.reshape(shape)


def replaced(expr: relax.Expr, values: Mapping[relax.Var, relax.Expr]) -> relax.Expr:
    """The expression with other ones in place of some variables."""
    return _Replaced(values).visit_expr(expr) if values else expr


@mutator
class _Replaced(PyExprMutator):
    def __init__(self, values: Mapping[relax.Var, relax.Expr]) -> None:
        super().__init__()
        self._values = values

    def visit_var_(self, var: relax.Var) -> relax.Expr:
        return self._values[var] if var in self._values else super().visit_var_(var)

    def visit_dataflow_var_(self, var: relax.DataflowVar) -> relax.Expr:
        return self._values[var] if var in self._values else super().visit_dataflow_var_(var)
