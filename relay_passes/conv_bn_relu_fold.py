"""ConvBnReluFold: batch normalisation and constant scales into weights and bias."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np
import tvm
from tvm import relax

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.relay_passes.axis_factors import RESHAPES, AxisFactors
from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, GraphView, Replacement
from tvm_ext.relay_passes.expressions import (
    FLOAT_BITS,
    AffineStep,
    constant_value,
    is_constant,
    numpy_dtype,
    read_step,
)
from tvm_ext.relay_passes.graph_pass import graph_pass

# Convolutions and matmuls with constant weights: which channel a weight belongs to.
#
# Every operator here is linear in its weights, so scaling output channel ``c`` is the same as
# scaling the weights of ``c``. ``LinearOp`` knows where these lie, for any layout and any groups.


_CONVOLUTIONS = tuple(f"relax.nn.conv{n}d" for n in (1, 2, 3))
_TRANSPOSED = tuple(f"relax.nn.conv{n}d_transpose" for n in (1, 2, 3))
_MATMUL = "relax.matmul"
_RESHAPE = "reshape"
LINEAR_OPS = (*_CONVOLUTIONS, *_TRANSPOSED, _MATMUL)


@dataclass(frozen=True)
class LinearOp:
    """A convolution or matmul and the place of its output channels.

    Attributes
    ----------
    call : relax.Call
        The operator; its second argument is the weight, a constant or views of one.
    ndim, channel_axis : int
        Rank of the output, and which of its axes counts the output channels.
    channels : int
        Number of output channels, over all groups.
    order : tuple of int
        Axes of the weight, output channels first; for a transposed convolution input channels
        first, then output channels of one group.
    groups : int or None
        Number of groups when the weight splits the output channels by group (transposed), else
        None.
    """

    call: relax.Call
    ndim: int
    channel_axis: int
    channels: int
    order: tuple[int, ...]
    groups: int | None = None

    @property
    def name(self) -> str:
        """The operator without its namespace, for reports."""
        return str(self.call.op.name).rsplit(".", 1)[-1]

    @property
    def dtype(self) -> str:
        """Type of the output's elements."""
        return str(self.call.ty.dtype)

    def per_channel(self, name: str, factor: np.ndarray | None, neutral: float) -> np.ndarray:
        """``factor`` as one float64 for each output channel, shape (channels,).

        Raises
        ------
        NotApplicable
            ``factor`` varies along another axis, or would make the output larger.
        """
        if factor is None:
            return np.full(self.channels, neutral)
        expected = [1] * max(self.ndim, factor.ndim)
        expected[self.channel_axis - self.ndim] = self.channels
        padded = factor.reshape([1] * (len(expected) - factor.ndim) + list(factor.shape))
        fits = all(have in (1, want) for have, want in zip(padded.shape, expected, strict=True))
        if not fits or factor.ndim > self.ndim:
            raise NotApplicable(
                f"the constant of {name} has shape {factor.shape}, expected one value per output "
                f"channel: {self.channels} along axis {self.channel_axis} of {self.ndim}"
            )
        return np.broadcast_to(padded.reshape(-1), (self.channels,))

    def scaled(self, view: GraphView, scale: np.ndarray) -> relax.Call:
        """This operator with its weights multiplied by ``scale``, shape (channels,), float64.

        The product is formed in float64 and rounded once.

        Raises
        ------
        NotApplicable
            The new weights are not finite, or so small that their type cannot hold them.
        """
        weight = constant_value(view, self.call.args[1])
        if weight is None:
            raise NotApplicable(f"the weights of {self.name} are not constant")
        with np.errstate(invalid="ignore", over="ignore"):
            rows = self._to_rows(weight).astype(np.float64) * scale[:, None]
        largest = np.abs(rows).max(axis=1, initial=0.0)
        limits = ml_dtypes.finfo(weight.dtype)
        if not np.all(largest <= float(limits.max)):
            raise NotApplicable(f"folded weights are not finite in {weight.dtype}")
        # Below the smallest normal number precision is lost; above it no weight is off by more
        # than half a unit in the last place of the largest one of its channel.
        if np.any((largest > 0) & (largest < float(limits.smallest_normal))):
            raise NotApplicable(f"folded weights are too small for {weight.dtype}")
        folded = self._from_rows(rows.astype(weight.dtype), weight.shape)
        # Without its type TVM makes float32 of a float64.
        weights = relax.const(folded, str(folded.dtype))
        return relax.Call(self.call.op, [self.call.args[0], weights], self.call.attrs)

    def bias(self, shift: np.ndarray) -> tvm.ir.GenericConst:
        """The constant that adds ``shift``, shape (channels,), to the output.

        Its shape broadcasts on the channel axis: (channels,) for a matmul, the rank of the output
        for a convolution.

        Raises
        ------
        NotApplicable
            A value is not finite in the type of the output.
        """
        with np.errstate(over="ignore"):
            values = shift.astype(numpy_dtype(self.dtype))
        if not np.all(np.isfinite(values.astype(np.float64))):
            raise NotApplicable(f"the folded bias is not finite in {self.dtype}")
        shape = [1] * self.ndim
        shape[self.channel_axis] = self.channels
        is_matmul = self.call.op.name == _MATMUL
        return relax.const(values if is_matmul else values.reshape(shape), self.dtype)

    def _to_rows(self, weight: np.ndarray) -> np.ndarray:
        """The weights as (channels, weights of one channel)."""
        ordered = weight.transpose(self.order)
        if self.groups is not None:
            inputs, outputs = ordered.shape[:2]
            grouped = ordered.reshape(self.groups, inputs // self.groups, outputs, -1)
            ordered = grouped.swapaxes(1, 2)
        return ordered.reshape(self.channels, -1)

    def _from_rows(self, rows: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        ordered_shape = [shape[axis] for axis in self.order]
        if self.groups is not None:
            inputs, outputs = ordered_shape[:2]
            grouped = rows.reshape(self.groups, outputs, inputs // self.groups, -1)
            rows = grouped.swapaxes(1, 2)
        weight = rows.reshape(ordered_shape).transpose(np.argsort(self.order))
        return np.ascontiguousarray(weight)


def read_linear(view: GraphView, call: relax.Call) -> LinearOp:
    """What ``call``, one of ``LINEAR_OPS``, does with its weights.

    Raises
    ------
    NotApplicable
        The weights are not constant or not floating point, or a layout is not understood.
    """
    name = str(call.op.name).rsplit(".", 1)[-1]
    weight = call.args[1]
    if not is_constant(view, weight):
        raise NotApplicable(f"the weights of {name} are not constant")
    dtypes = (str(weight.ty.dtype), str(call.ty.dtype))
    if not all(dtype in FLOAT_BITS for dtype in dtypes):
        raise NotApplicable(
            f"{name} computes {dtypes[1]} from {dtypes[0]}, expected floating point"
        )
    shape = [int(dim) for dim in weight.ty.shape]
    if call.op.name == _MATMUL:
        return _read_matmul(call, shape)
    return _read_convolution(call, name, shape)


def _read_matmul(call: relax.Call, shape: list[int]) -> LinearOp:
    ndim = int(call.ty.ndim)
    if len(shape) != 2 or ndim < 1:
        raise NotApplicable(
            f"matmul has weights of shape {tuple(shape)} and a result of rank {ndim}, "
            "expected two-dimensional weights and a known rank"
        )
    return LinearOp(call, ndim, ndim - 1, shape[1], (1, 0))


def _read_convolution(call: relax.Call, name: str, shape: list[int]) -> LinearOp:
    kernel_layout, out_layout = str(call.attrs.kernel_layout), str(call.attrs.out_layout)
    if not (kernel_layout + out_layout).isalpha() or not (kernel_layout + out_layout).isupper():
        raise NotApplicable(
            f"{name} has the layouts {kernel_layout} and {out_layout}, expected unblocked ones"
        )
    out_axis = kernel_layout.index("O")
    first: tuple[int, ...] = (out_axis,)
    groups = None
    channels = shape[out_axis]
    if call.op.name in _TRANSPOSED:
        first = (kernel_layout.index("I"), out_axis)
        groups = int(call.attrs.groups)
        channels *= groups
    rest = tuple(axis for axis in range(len(shape)) if axis not in first)
    ndim = len(out_layout)
    return LinearOp(call, ndim, out_layout.index("C"), channels, first + rest, groups)


@graph_pass
class ConvBnReluFold:
    """Folds what scales and shifts a convolution's or matmul's result into its weights and bias.

    Per output channel c, for any run of batch_norm, and add, subtract, multiply and divide by
    constants, that computes ``s[c] * y + t[c]``::

        y = conv(x, W); z = s * (y + b) + t; relu(z)
        y = conv(x, W * s); z = y + (b * s + t); relu(z)

    conv is any of conv1d, conv2d, conv3d, their transposed forms, and matmul; grouped or not, in
    any unblocked layout. The activation stays behind the bias, where operator fusion puts all
    three into one kernel. Reshapes may stand in between, as exporters write them around the
    batch_norm of a matmul's result; they follow the bias then.

    Leaves alone: batch_norm that follows anything else, trains, or has run-time parameters;
    weights that are not constant; a value in the run that is used elsewhere too (the convolution
    would be computed twice); constants that are not per output channel; blocked layouts; results
    that are not finite or too small for the weights' type; a bias on its own. A constant that
    several convolutions share is copied for each.

    Run after / before: after FoldConstantCalls (parameters become constants); before
    DecomposeOpsForInference (takes batch_norm apart) and before operator fusion.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """The folded module; ``mod`` itself when there is nothing to fold."""
        # Unused statistics of batch_norm must not count as uses.
        cleaned = relax.transform.DeadCodeElimination()(mod)
        folded = _Folder().run(cleaned)
        return mod if folded is cleaned else folded


@dataclass(frozen=True)
class _AffineRun:
    """Steps on top of a linear operator, the last one first; ``problem`` says why not to fold."""

    steps: tuple[AffineStep, ...]
    source: relax.Var
    linear: LinearOp | None = None
    problem: str | None = None

    @property
    def deserves_a_reason(self) -> bool:
        """False for what looks like a fold only by accident, such as scaled attention scores."""
        top = self.steps[0]
        return top.normalises or (top.scale is not None and top.scale.size > 1)

    @property
    def changes_something(self) -> bool:
        """False for a bias alone, which is how a folded operator looks, and for casts alone."""
        shifts = sum(step.shift is not None for step in self.steps)
        return shifts > 1 or any(step.scale is not None for step in self.steps)

    @property
    def inner_vars(self) -> tuple[relax.Var, ...]:
        """The variables from the linear operator up to the last step, in order."""
        variables: list[relax.Var] = []
        for step in reversed(self.steps):
            variables += [step.source, *step.between]
        return tuple(variables)


class _Folder(BindingRewriter):
    pass_name = "ConvBnReluFold"

    def __init__(self) -> None:
        self._runs: dict[relax.Var, _AffineRun] = {}
        self._inner: set[relax.Var] = set()

    def replace(self, var: relax.Var, _value: relax.Expr) -> Replacement | None:
        run = self._runs.get(var)
        if run is None or var in self._inner:
            return None
        if run.problem is None and not run.changes_something:
            return None
        try:
            return self._fold(var, run)
        except NotApplicable as refused:
            if run.deserves_a_reason:
                self.refuse(str(refused), *((run.source,) if run.linear is not None else ()), var)
            return None

    def start_function(self, func: relax.Function) -> None:
        """Finds all runs of the function; longer ones swallow shorter."""
        super().start_function(func)
        bindings = self.view.bindings().items()
        steps = {
            var: read_step(self.view, var, value) or _reshape_step(self.view, value)
            for var, value in bindings
        }
        found = {var: step for var, step in steps.items() if step is not None}
        tops = [var for var, step in found.items() if step.name != _RESHAPE]
        self._runs = {var: _trace(self.view, found, var) for var in tops}
        self._inner = {
            inner for run in self._runs.values() if run.problem is None for inner in run.inner_vars
        }

    def _fold(self, var: relax.Var, run: _AffineRun) -> Replacement:
        if run.problem is not None or run.linear is None:
            raise NotApplicable(run.problem or "")
        linear = run.linear
        scale, shift = _compose(run.steps, linear)
        value = run.source if np.all(scale == 1) else linear.scaled(self.view, scale)
        if np.any(shift != 0):
            value = relax.op.add(value, linear.bias(shift))
        if any(step.name == _RESHAPE for step in run.steps):
            value = relax.op.reshape(value, var.ty.shape)
        names = " + ".join(step.name for step in reversed(run.steps) if step.name != _RESHAPE)
        return Replacement(value, run.inner_vars, f"folded {names} into {linear.name}")


def _compose(steps: tuple[AffineStep, ...], linear: LinearOp) -> tuple[np.ndarray, np.ndarray]:
    """Scale and shift of all ``steps`` (last first) together, float64, shape (channels,)."""
    scale, shift = np.ones(linear.channels), np.zeros(linear.channels)
    for step in reversed(steps):
        factor = linear.per_channel(step.name, step.scale, 1.0)
        offset = linear.per_channel(step.name, step.shift, 0.0)
        with np.errstate(invalid="ignore", over="ignore"):
            scale, shift = scale * factor, shift * factor + offset
    if not np.all(np.isfinite(scale)) or not np.all(np.isfinite(shift)):
        raise NotApplicable("the scale or shift to fold is not finite")
    return scale, shift


def _trace(view: GraphView, steps: dict[relax.Var, AffineStep], var: relax.Var) -> _AffineRun:
    """Follows the steps below ``var`` down to the operator they belong to."""
    top = steps[var]
    if top.problem is not None:
        return _AffineRun((top,), top.source, problem=top.problem)
    run = [top]
    below = steps.get(top.source)
    while below is not None and below.problem is None and view.uses(run[-1].source) == 1:
        run.append(below)
        below = steps.get(below.source)
    source = run[-1].source
    call = view.bindings().get(source)
    if call is None or view.call(call, *LINEAR_OPS) is None:
        return _AffineRun(tuple(run), source, problem=_no_linear_operator(view, source))
    try:
        linear = read_linear(view, call)
        run = _in_axes_of_source(run, var)
        _check(view, tuple(run), var, linear)
    except NotApplicable as refused:
        return _AffineRun(tuple(run), source, problem=str(refused))
    return _AffineRun(tuple(run), source, linear)


def _reshape_step(view: GraphView, value: relax.Expr) -> AffineStep | None:
    """A reshape as a step that changes no number; exporters put one behind most matmuls."""
    call = view.call(value, *RESHAPES) if isinstance(value, relax.Call) else None
    is_step = call is not None and isinstance(call.args[0], relax.Var)
    return AffineStep(_RESHAPE, call.args[0]) if call is not None and is_step else None


def _in_axes_of_source(run: Sequence[AffineStep], var: relax.Var) -> list[AffineStep]:
    """``run`` with constants that broadcast to what its first step reads, ahead of all reshapes."""
    if all(step.name != _RESHAPE for step in run):
        return list(run)
    results = [var, *(step.source for step in run)]
    shapes = [result.ty.shape for result in results]
    if not all(isinstance(shape, relax.ShapeExpr) for shape in shapes):
        raise NotApplicable("a tensor is reshaped whose shape is not known")
    factors = AxisFactors(list(shapes[-1]))
    view = factors.source
    moved: list[AffineStep] = []
    for step, shape in zip(reversed(run), reversed(shapes[:-1]), strict=True):
        if step.name == _RESHAPE:
            seen = factors.reshaped(view, list(shape))
            if seen is None:
                raise NotApplicable("a reshape joins parts of several axes")
            view = seen
        scale, shift = (
            None if constant is None else factors.constant_of_source(constant, view)
            for constant in (step.scale, step.shift)
        )
        if (scale is None, shift is None) != (step.scale is None, step.shift is None):
            raise NotApplicable(f"the constant of {step.name} varies along a size of the run")
        moved.insert(0, replace(step, scale=scale, shift=shift))
    return moved


def _check(view: GraphView, run: tuple[AffineStep, ...], var: relax.Var, linear: LinearOp) -> None:
    source = run[-1].source
    if view.uses(source) > 1:
        raise NotApplicable(
            f"the result of {linear.name} is used elsewhere too and would be computed twice"
        )
    for step in run:
        linear.per_channel(step.name, step.scale, 1.0)
        linear.per_channel(step.name, step.shift, 0.0)
    bits = FLOAT_BITS[linear.dtype]
    between = [str(step.source.ty.dtype) for step in run]
    widened = all(dtype == linear.dtype or FLOAT_BITS[dtype] > bits for dtype in between)
    if str(var.ty.dtype) != linear.dtype or not widened:
        raise NotApplicable(
            f"{linear.name} gives {linear.dtype}, what follows it computes {var.ty.dtype} by way "
            f"of {', '.join(between)}: expected the same type at both ends, none narrower between"
        )


def _no_linear_operator(view: GraphView, source: relax.Var) -> str:
    if view.uses(source) > 1:
        return "its input is used elsewhere too, and comes from no convolution or matmul"
    value = view.bindings().get(source)
    if value is None:
        origin = "an input of the function"
    elif isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op):
        origin = f"the result of {value.op.name.rsplit('.', 1)[-1]}"
    else:
        origin = "a part of a tuple, or a value of another kind"
    return f"its input is {origin}, expected a convolution or matmul"
