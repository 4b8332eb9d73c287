"""MinMaxFusion: minimum and maximum of a tensor in one read, with what is computed from both."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm_ffi import structural_equal

from tvm_ext.hardware.cpu.description import current_cpu
from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, GraphView, Replacement, view_of
from tvm_ext.relay_passes.expressions import constant_value
from tvm_ext.relay_passes.graph_pass import OPAQUE, graph_pass

# What may follow for each pair of results, as a kernel of TVM's own computes it.
_OPERATORS: dict[str, Callable[..., Any]] = {
    "relax.add": lambda a, b: a + b,
    "relax.subtract": lambda a, b: a - b,
    "relax.multiply": lambda a, b: a * b,
    "relax.divide": lambda a, b: a / b,
    "relax.minimum": tirx.Min,
    "relax.maximum": tirx.Max,
    "relax.equal": tirx.EQ,
    "relax.less": tirx.LT,
    "relax.where": tirx.Select,
    "relax.negative": lambda a: -a,
    "relax.round": tirx.nearbyint,
}
_TYPES = ("float32", "float64")
_BYTES = ("uint8", "int8")

# Operators of such a chain; an expression has those in front of it once for each of its uses.
_LONGEST_CHAIN = 24


@graph_pass
class MinMaxFusion:
    """Reads a tensor once where its minimum and its maximum are wanted.

    Before: ``low = min(x); high = max(x); scale = (high - low) / 255``
    After:  ``scale = min_max(x)``, of as many results as are used

    DynamicQuantizeLinear needs both before the first number is quantised, and a scale and a zero
    point from them: single numbers, each of which would be a kernel of its own.

    Leaves alone: extrema over different axes; other types than float32 and float64; what is
    computed from other tensors as well; other targets than CPUs.

    Run after: LayoutPlanning, FoldConstantCalls. Run before: LegalizeOps.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """The rewritten module; ``mod`` itself when nothing matches."""
        return mod if current_cpu() is None else _MinMaxFuser().run(mod)


@dataclass
class _Pair:
    """The extrema of a tensor over the same axes, and what is computed from these alone."""

    low: relax.Var
    high: relax.Var
    inside: list[relax.Var] = field(default_factory=list)
    results: list[relax.Var] = field(default_factory=list)
    fused: relax.Var | None = None


class _MinMaxFuser(BindingRewriter):
    pass_name = "MinMaxFusion"

    def has_work(self, func: relax.Function) -> bool:
        """Whether there are both of them."""
        return view_of(func).operators >= {"relax.min", "relax.max"}

    def start_function(self, func: relax.Function) -> None:
        super().start_function(func)
        self._pair_of: dict[int, _Pair] = {}
        readers = _readers(self.view)
        for pair in _pairs(self.view):
            _complete(self.view, pair, readers)
            self._pair_of.update((hash(result), pair) for result in pair.results)

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        pair = self._pair_of.get(hash(var))
        if pair is None:
            return None
        if pair.fused is None:
            pair.fused = self.bind(self._kernel(pair), *pair.inside)
        made: relax.Expr = pair.fused
        if len(pair.results) > 1:
            made = relax.TupleGetItem(pair.fused, _position(var, pair.results))
        return Replacement(made, (), "with the other extremum of its tensor")

    def _kernel(self, pair: _Pair) -> relax.Call:
        # One of the two operators, as ``_pairs`` has found.
        call: Any = self.view.value(pair.low)
        x, attrs = call.args[0], call.attrs
        rank = x.ty.ndim
        axes = range(rank) if attrs.axis is None else sorted(int(a) % rank for a in attrs.axis)
        return self.builder.call_te(
            lambda data: _computed(self.view, pair, data, axes, bool(attrs.keepdims)),
            x,
            primfunc_name_hint="min_max",
            primfunc_attrs={"op_pattern": OPAQUE},
        )


def _pairs(view: GraphView) -> list[_Pair]:
    """Minima and maxima of the same tensor, over the same axes."""
    lows, highs = _extrema(view)
    pairs = []
    for low, of_low in lows:
        for high, of_high in highs:
            if of_low.args[0].same_as(of_high.args[0]) and structural_equal(
                of_low.attrs, of_high.attrs
            ):
                pairs.append(_Pair(low, high, [low, high]))
                highs.remove((high, of_high))
                break
    return pairs


def _extrema(view: GraphView) -> tuple[list[Any], list[Any]]:
    found: tuple[list[Any], list[Any]] = ([], [])
    for var, value in view.bindings().items():
        for name, calls in zip(("relax.min", "relax.max"), found, strict=True):
            call = None if isinstance(value, relax.Var) else view.call(value, name)
            if call is not None and _is_possible(call):
                calls.append((var, call))
    return found


def _is_possible(call: relax.Call) -> bool:
    x = call.args[0]
    return isinstance(x, relax.Var) and x.ty.shape is not None and str(x.ty.dtype) in _TYPES


def _readers(view: GraphView) -> dict[int, dict[relax.Var, None]]:
    """By the hash of a variable: those of the operators that read it, in order."""
    found: dict[int, dict[relax.Var, None]] = {}
    for var, value in view.bindings().items():
        for arg in _tensors(value) if isinstance(value, relax.Call) else ():
            found.setdefault(hash(arg), {})[var] = None
    return found


def _complete(view: GraphView, pair: _Pair, readers: Mapping[int, Iterable[relax.Var]]) -> None:
    """Finds what is computed from the pair alone, and which of it others use."""
    waiting = True
    while waiting:
        reading = dict.fromkeys(r for var in pair.inside for r in readers.get(hash(var), ()))
        more = [
            var
            for var in reading
            if _position(var, pair.inside) < 0 and _is_inside(view, pair, view.bindings()[var])
        ]
        waiting = bool(more) and len(pair.inside) + len(more) <= _LONGEST_CHAIN
        pair.inside += more if waiting else []
    own: dict[int, int] = {}
    for var in pair.inside:
        for arg in _tensors(view.bindings()[var]):
            own[hash(arg)] = own.get(hash(arg), 0) + 1
    pair.results = [v for v in pair.inside if view.uses(v) > own.get(hash(v), 0)]


def _is_inside(view: GraphView, pair: _Pair, value: relax.Expr) -> bool:
    """Whether it is an operator on numbers of the pair, and on stored ones that are alone."""
    call = view.call(value, *_OPERATORS, "relax.astype", "relax.clip")
    if call is None or isinstance(value, relax.Var):
        return False
    if not structural_equal(call.ty.shape, pair.low.ty.shape):
        return False
    if call.op.name == "relax.astype" and str(call.args[0].ty.dtype) in _BYTES:
        # A zero point is cast where it is used: passes that look for one want its type.
        return False
    known = [arg for arg in _tensors(call) if _position(arg, pair.inside) >= 0]
    others = [arg for arg in _tensors(call) if _position(arg, pair.inside) < 0]
    numbers = [constant_value(view, arg) for arg in others]
    return bool(known) and all(number is not None and number.size == 1 for number in numbers)


def _tensors(call: Any) -> list[relax.Expr]:
    return [arg for arg in call.args if isinstance(arg.ty, relax.TensorType)]


def _position(var: relax.Expr, among: Sequence[relax.Var]) -> int:
    return next((i for i, other in enumerate(among) if var.same_as(other)), -1)


def _computed(
    view: GraphView, pair: _Pair, x: te.Tensor, axes: Iterable[int], keepdims: bool
) -> list[te.Tensor]:
    """The results of a pair as tensor expressions."""
    low, high = _extremes(x, list(axes), keepdims)

    def value(var: relax.Expr, place: tuple[Any, ...]) -> Any:
        if var.same_as(pair.low) or var.same_as(pair.high):
            return (low if var.same_as(pair.low) else high)(*place)
        number = constant_value(view, var)
        if number is not None:
            return tirx.const(number.item(), str(var.ty.dtype))
        # One of the operators, as ``_is_inside`` has found.
        call: Any = view.value(var)
        args = [value(arg, place) for arg in _tensors(call)]
        if call.op.name == "relax.astype":
            return args[0].astype(str(call.ty.dtype))
        if call.op.name == "relax.clip":
            least, most = (_number(bound, str(call.ty.dtype)) for bound in call.args[1:])
            return tirx.Max(tirx.Min(args[0], most), least)
        return _OPERATORS[call.op.name](*args)

    def element(result: relax.Var) -> Callable[..., Any]:
        return lambda *place: value(result, place)

    return [te.compute(low.shape, element(r), str(r.name)) for r in pair.results]


def _number(bound: Any, dtype: str) -> tirx.Expr:
    return tirx.const(getattr(bound, "value", bound), dtype)


def _extremes(x: te.Tensor, axes: Sequence[int], keepdims: bool) -> list[te.Tensor]:
    """The smallest and the largest number over some axes; of none at all, infinities."""
    dtype = str(x.dtype)
    ends = [tirx.const(np.inf, dtype), tirx.const(-np.inf, dtype)]
    both = te.comm_reducer(
        lambda a, b: (tirx.Min(a[0], b[0]), tirx.Max(a[1], b[1])), lambda *_: ends, "min_max"
    )
    reduced = {axis: te.reduce_axis((0, x.shape[axis]), f"k{axis}") for axis in axes}
    rest = [axis for axis in range(len(x.shape)) if axis not in axes]
    shape = [tirx.const(1, "int64") if axis in axes else n for axis, n in enumerate(x.shape)]
    shape = shape if keepdims else [x.shape[axis] for axis in rest]

    def extremes(*place: tirx.Var) -> Any:
        kept = [place[axis] for axis in rest] if keepdims else place
        at = {**reduced, **dict(zip(rest, kept, strict=True))}
        element = x(*(at[axis] for axis in range(len(x.shape))))
        return both((element, element), axis=list(reduced.values()))

    return list(te.compute(shape, extremes, "min_max"))
