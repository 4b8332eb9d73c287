"""NormalizationFusion: a normalisation that a model spells out, as one kernel."""

from dataclasses import replace
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.ir import GenericConst
from tvm_ffi import structural_equal

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.relay_passes.binding_rewriter import (
    BindingRewriter,
    GraphView,
    Replacement,
    view_of,
)
from tvm_ext.relay_passes.expressions import is_symbolic
from tvm_ext.relay_passes.gemm_epilogue import FLOAT_TYPES, same_shape
from tvm_ext.relay_passes.graph_pass import OUT_ELEMENTWISE_FUSABLE, graph_pass
from tvm_ext.relay_passes.normalization import NARROW_TYPES, Divisor, Guard, Normalization, Squares
from tvm_ext.relay_passes.normalization_spellings import ROOTS, Spelled, spelled_out

_OPERATORS = ("relax.nn.layer_norm", "relax.nn.rms_norm", "relax.nn.instance_norm")


@graph_pass
class NormalizationFusion:
    """Computes LayerNorm, RMSNorm, GroupNorm, InstanceNorm and L2 norm as one kernel over rows.

    Before: ``m = mean(x); d = x - m; v = mean(power(d, 2)); d / sqrt(v + eps)``
    After:  ``layer_norm(x)``; scale and shift that follow join it when operators are fused
    Before: ``w = astype(x, float32); w * rsqrt(mean(w * w) + eps)``
    After:  ``rms_norm(x)``, which reads the narrow numbers
    Before: ``s = scale * rsqrt(v + eps); x * s + (shift - m * s)``
    After:  ``layer_norm(x) * scale + shift``

    ``Guard`` has the ways in which ``eps`` may stand, ``normalization_spellings`` the operators.
    Also for ``layer_norm``, ``rms_norm``, ``group_norm`` and ``instance_norm`` of ``relax.nn``. TVM
    computes some of them from the mean of the squares, which loses all digits when the mean is
    much larger than the deviations. Here deviations are squared; a model that spells out the other
    formula keeps it. Sizes may be symbolic. Numbers of 16 bits are computed with as float32.

    Leaves alone: values inside that are used elsewhere as well; unknown shapes; scales of
    ``layer_norm`` and ``rms_norm`` that are not over the last axes.

    Run after: LayoutPlanning, FoldConstantCalls. Run before: LegalizeOps.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """The rewritten module; ``mod`` itself when nothing matches."""
        return _Fuser().run(_GroupFuser().run(mod))


class _NormalizationRewriter(BindingRewriter):
    """Makes kernels of normalisations."""

    pass_name = "NormalizationFusion"

    def _kernel(self, norm: Normalization) -> relax.Call:
        return self.builder.call_te(
            norm.compute,
            norm.x,
            primfunc_name_hint=norm.name,
            primfunc_attrs={"op_pattern": OUT_ELEMENTWISE_FUSABLE},
        )


class _GroupFuser(_NormalizationRewriter):
    """GroupNorm, which exporters write as an InstanceNorm between two reshapes.

    Before: ``r = reshape(x, [n, 8, -1]); y = reshape(normalised(r) * a + b, [n, 32, h, w])``
    After:  ``y = group_norm(x) * a' + b'``, where ones and zeros that fill ``a`` and ``b`` are gone
    """

    roots = frozenset({"relax.nn.group_norm", "relax.reshape"})

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        if not isinstance(value, relax.Call):
            return None
        if (call := self.view.call(value, "relax.nn.group_norm")) is not None:
            return self._operator(var, call)
        back = self.view.call(value, "relax.reshape")
        if back is None:
            return None
        passed, steps, inside = self._constant_steps(back.args[0])
        try:
            found = self._of_call(inside)
        except NotApplicable:
            return None
        if found is None or found.steps or any(self.view.uses(v) > 1 for v in passed):
            return None
        norm = _of_groups(self.view, found.norm, var)
        if norm is None:
            return None
        result: relax.Expr = self._kernel(norm)
        for operator, constant in reversed(steps):
            repeated = _by_channel(constant, norm)
            if not np.all(repeated == (operator == "relax.multiply")):
                apply = relax.op.multiply if operator == "relax.multiply" else relax.op.add
                result = apply(self.bind(result, var), relax.const(repeated, norm.dtype))
        absorbed = (*found.inner, *reversed(passed))
        return Replacement(result, absorbed, f"over {norm.groups} groups of channels")

    def _of_call(self, expr: relax.Expr) -> Spelled | None:
        value = self.view.value(expr)
        return spelled_out(self.view, value) if isinstance(value, relax.Call) else None

    def _constant_steps(
        self, expr: relax.Expr
    ) -> tuple[list[relax.Var], list[tuple[str, np.ndarray]], relax.Expr]:
        """What is multiplied by and added below ``expr``, last first, and what it is done to."""
        passed, steps = [], []
        while isinstance(expr, relax.Var):
            passed.append(expr)
            call = self.view.call(expr, "relax.multiply", "relax.add")
            pair = None if call is None else _value_and_constant(call)
            if call is None or pair is None:
                break
            expr = pair[0]
            steps.append((str(call.op.name), pair[1]))
        return passed, steps, expr

    def _operator(self, var: relax.Var, call: relax.Call) -> Replacement | None:
        attrs: Any = call.attrs
        x, rank = call.args[0], call.args[0].ty.ndim
        axes = tuple(sorted({int(axis) % rank for axis in attrs.axes}))
        divisor = Divisor(Guard.ADD_INSIDE, float(attrs.epsilon), is_mean=True)
        norm = Normalization(
            x, (1, *range(2, rank)), Squares.OF_DEVIATIONS, divisor, str(x.ty.dtype)
        )
        norm = replace(norm, groups=int(attrs.num_groups))
        try:
            _check(norm)
            if int(attrs.channel_axis) % rank != 1 or axes != tuple(range(2, rank)):
                raise NotApplicable("its channels are not the second axis, or it skips an axis")
        except NotApplicable as refused:
            self.refuse(str(refused), var)
            return None
        result = self.bind(self._kernel(norm), var)
        shape = [call.args[1].ty.shape[0]] + [1] * (rank - 2)
        scale, shift = (self.bind(relax.op.reshape(a, shape), var) for a in call.args[1:])
        result = self.bind(relax.op.multiply(result, scale), var) if attrs.scale else result
        result = self.bind(relax.op.add(result, shift), var) if attrs.center else result
        return Replacement(result, (), f"over {norm.groups} groups of channels, deviations squared")


class _Fuser(_NormalizationRewriter):
    """All others."""

    # The last operator of one that is spelled out divides, multiplies by an inverse, or adds what
    # is left of the mean.
    roots = frozenset(
        {*_OPERATORS, "relax.divide", "relax.multiply", "relax.add", "relax.subtract"}
    )

    def has_work(self, func: relax.Function) -> bool:
        return not view_of(func).operators.isdisjoint((*_OPERATORS, *ROOTS))

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        if not isinstance(value, relax.Call):
            return None
        try:
            if (call := self.view.call(value, *_OPERATORS)) is not None:
                return self._operator(var, call)
            found = spelled_out(self.view, value)
            if found is None:
                return None
            _check(found.norm)
            self._check_reached(found)
        except NotApplicable as refused:
            self.refuse(str(refused), var)
            return None
        result: relax.Expr = self._kernel(found.norm)
        for operator, operand in found.steps:
            apply = relax.op.multiply if operator == "relax.multiply" else relax.op.add
            result = apply(self.bind(result, var), operand)
        return Replacement(result, found.inner, f"over {_words(found.norm)} of its input")

    def _check_reached(self, found: Spelled) -> None:
        if not all(self.reaches(operand) for _, operand in found.steps):
            raise NotApplicable("its scale or shift is computed inside another block")

    def _operator(self, var: relax.Var, call: relax.Call) -> Replacement:
        attrs: Any = call.attrs
        x, kind = call.args[0], call.op.name.removeprefix("relax.nn.")
        rank, is_rms = x.ty.ndim, kind == "rms_norm"
        axes = tuple(sorted(int(axis) % rank for axis in attrs.axes))
        divisor = Divisor(Guard.ADD_INSIDE, float(attrs.epsilon), is_mean=True)
        squares = Squares.OF_VALUES if is_rms else Squares.OF_DEVIATIONS
        norm = Normalization(x, axes, squares, divisor, str(x.ty.dtype))
        _check(norm)
        if kind == "instance_norm":
            steps = self._by_channel(call, int(attrs.channel_axis) % rank, var)
        else:
            if axes != tuple(range(rank - len(axes), rank)):
                raise NotApplicable("it is not over the last axes")
            steps = list(call.args[1:])
        used = [True] if is_rms else [bool(attrs.scale), bool(attrs.center)]
        result = self.bind(self._kernel(norm), var)
        for operator, operand, is_used in zip(
            (relax.op.multiply, relax.op.add), steps, used, strict=False
        ):
            result = self.bind(operator(result, operand), var) if is_used else result
        return Replacement(result, (), f"over {_words(norm)} of its input, deviations squared")

    def _by_channel(self, call: relax.Call, axis: int, var: relax.Var) -> list[relax.Expr]:
        """Scale and shift with the rank of the data, to be applied along ``axis``."""
        shape = [1] * call.args[0].ty.ndim
        shape[axis] = call.args[0].ty.shape[axis]
        return [self.bind(relax.op.reshape(part, shape), var) for part in call.args[1:]]


def _check(norm: Normalization) -> None:
    """Raises NotApplicable where there is no kernel for ``norm``."""
    if str(norm.x.ty.dtype) not in (*FLOAT_TYPES, *NARROW_TYPES):
        raise NotApplicable(f"its type is {norm.x.ty.dtype}, which is no floating point type")
    shape = norm.x.ty.shape
    if not isinstance(shape, relax.ShapeExpr):
        raise NotApplicable("its shape is unknown, even as symbols")
    if any(isinstance(n, tirx.IntImm) and int(n) == 0 for n in shape):
        raise NotApplicable("its input is empty")
    # FuseTIR fails on sizes that are computed from others.
    if not all(isinstance(n, tirx.IntImm) or is_symbolic(n) for n in shape):
        raise NotApplicable("a size of its input is computed from others")


def _value_and_constant(call: relax.Call) -> tuple[relax.Expr, np.ndarray] | None:
    left, right = call.args
    if isinstance(right, GenericConst):
        return left, right.value.numpy()
    return (right, left.value.numpy()) if isinstance(left, GenericConst) else None


def _of_groups(view: GraphView, norm: Normalization, var: relax.Var) -> Normalization | None:
    """``norm``, of a tensor with its channels in groups, as one of the tensor that ``var`` is like.

    None where ``var`` does not have the shape of what was reshaped into groups.
    """
    reshape = view.call(norm.x, "relax.reshape")
    if reshape is None or norm.x.ty.ndim != 3 or norm.axes != (2,):
        return None
    x, groups = reshape.args[0], norm.x.ty.shape[1]
    if x.ty.ndim < 3 or not same_shape(x, var):
        return None
    channels, batches = x.ty.shape[1], (x.ty.shape[0], norm.x.ty.shape[0])
    known = isinstance(channels, tirx.IntImm) and isinstance(groups, tirx.IntImm)
    if not known or not structural_equal(*batches) or int(channels) % int(groups) != 0:
        return None
    found = replace(norm, x=x, axes=tuple(range(1, x.ty.ndim)), groups=int(groups))
    try:
        _check(found)
    except NotApplicable:
        return None
    return found


def _by_channel(constant: np.ndarray, norm: Normalization) -> np.ndarray:
    """A constant of each group, for each channel and with the rank of the channels first."""
    channels = int(norm.x.ty.shape[1])
    of_groups = np.broadcast_to(constant.reshape(-1), [norm.groups])
    by_channel = np.repeat(of_groups, channels // norm.groups)
    return by_channel.reshape([channels] + [1] * (norm.x.ty.ndim - 2))


def _words(norm: Normalization) -> str:
    return "axis " + ", ".join(str(axis) for axis in norm.axes)
