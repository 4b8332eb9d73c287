"""ConvBnReluFold: batch normalisation and constant scales into weights and bias."""

from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax

from tvm_ext.relay_passes.affine import FLOAT_BITS, AffineStep, CannotFold, read_step
from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, GraphView, Replacement
from tvm_ext.relay_passes.graph_pass import graph_pass
from tvm_ext.relay_passes.linear_op import LINEAR_OPS, LinearOp, read_linear


@graph_pass
class ConvBnReluFold:
    """Folds what scales and shifts a convolution's or matmul's result into its weights and bias.

    Per output channel c, for any run of batch_norm, and add, subtract, multiply and divide by
    constants, that computes ``s[c] * y + t[c]``::

        y = conv(x, W); z = s * (y + b) + t; relu(z)
        y = conv(x, W * s); z = y + (b * s + t); relu(z)

    conv is any of conv1d, conv2d, conv3d, their transposed forms, and matmul; grouped or not, in
    any unblocked layout. The activation stays behind the bias, where operator fusion puts all
    three into one kernel.

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
class _Run:
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
        super().__init__()
        self._runs: dict[relax.Var, _Run] = {}
        self._inner: set[relax.Var] = set()

    def replace(self, var: relax.Var, _value: relax.Expr) -> Replacement | None:
        run = self._runs.get(var)
        if run is None or var in self._inner:
            return None
        if run.problem is None and not run.changes_something:
            return None
        try:
            return self._fold(run)
        except CannotFold as refused:
            if run.deserves_a_reason:
                self.refuse(str(refused), *((run.source,) if run.linear is not None else ()), var)
            return None

    def start_function(self, func: relax.Function) -> None:
        """Finds all runs of the function; longer ones swallow shorter."""
        super().start_function(func)
        bindings = self.view.bindings().items()
        steps = {var: read_step(self.view, var, value) for var, value in bindings}
        found = {var: step for var, step in steps.items() if step is not None}
        self._runs = {var: _trace(self.view, found, var) for var in found}
        self._inner = {
            inner for run in self._runs.values() if run.problem is None for inner in run.inner_vars
        }

    def _fold(self, run: _Run) -> Replacement:
        if run.problem is not None or run.linear is None:
            raise CannotFold(run.problem)
        linear = run.linear
        scale, shift = _compose(run.steps, linear)
        value = run.source if np.all(scale == 1) else linear.scaled(self.view, scale)
        if np.any(shift != 0):
            value = relax.op.add(value, linear.bias(shift))
        names = " + ".join(step.name for step in reversed(run.steps))
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
        raise CannotFold("the scale or shift to fold is not finite")
    return scale, shift


def _trace(view: GraphView, steps: dict[relax.Var, AffineStep], var: relax.Var) -> _Run:
    """Follows the steps below ``var`` down to the operator they belong to."""
    top = steps[var]
    if top.problem is not None:
        return _Run((top,), top.source, problem=top.problem)
    run = [top]
    below = steps.get(top.source)
    while below is not None and below.problem is None and view.uses(run[-1].source) == 1:
        run.append(below)
        below = steps.get(below.source)
    source = run[-1].source
    call = view.bindings().get(source)
    if call is None or view.call(call, *LINEAR_OPS) is None:
        return _Run(tuple(run), source, problem=_no_linear_operator(view, source))
    try:
        linear = read_linear(view, call)
        _check(view, tuple(run), var, linear)
    except CannotFold as refused:
        return _Run(tuple(run), source, problem=str(refused))
    return _Run(tuple(run), source, linear)


def _check(view: GraphView, run: tuple[AffineStep, ...], var: relax.Var, linear: LinearOp) -> None:
    source = run[-1].source
    if view.uses(source) > 1:
        raise CannotFold(
            f"the result of {linear.name} is used elsewhere too and would be computed twice"
        )
    for step in run:
        linear.per_channel(step.name, step.scale, 1.0)
        linear.per_channel(step.name, step.shift, 0.0)
    bits = FLOAT_BITS[linear.dtype]
    between = [str(step.source.ty.dtype) for step in run]
    widened = all(dtype == linear.dtype or FLOAT_BITS[dtype] > bits for dtype in between)
    if str(var.ty.dtype) != linear.dtype or not widened:
        raise CannotFold(
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
