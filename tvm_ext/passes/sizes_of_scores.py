"""Scores that were broadcast against a mask get back the size that they had."""

from collections.abc import Collection, Sequence
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.passes.attention_pattern import from_matmul
from tvm_ext.passes.attention_sinks import AttentionSink, find_sink
from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, Replacement
from tvm_ext.relay_passes.expressions import BROADCAST_ATTRIBUTE, same_extents
from tvm_ext.relay_passes.spans import all_bindings_of, relax_functions

# What works element by element, or along the keys.
_STEPS = (
    *("relax.add", "relax.subtract", "relax.multiply", "relax.divide", "relax.where"),
    *("relax.astype", "relax.tanh", "relax.isnan", "relax.nn.softmax"),
)


class SizesOfScores(BindingRewriter):
    """Moves the run's check of a size from the weights to the masks.

    Before: ``s = add(broadcast(qk, n), broadcast(mask, n)); p = match_cast(softmax(s), past + q)``
    After:  ``m = match_cast(broadcast(mask, n), past + q); p = softmax(add(qk, m))``

    A mask has a size of its own, under another name, and only the run can tell whether that is the
    number of keys or 1. The product with the values, or a second mask that has the number of keys,
    asks for that number, so that in every run without an error the scores have it.
    """

    pass_name = "AttentionFusion"
    roots = frozenset({"relax.matmul", *_STEPS})

    def __init__(self) -> None:
        # By hash, the variables of checks that others have taken the place of.
        self._replaced: set[int] = set()

    def run(self, mod: tvm.IRModule) -> tvm.IRModule:
        """The rewritten module; ``mod`` itself when nothing matches."""
        changed = super().run(mod)
        if not self._replaced:
            return mod
        for name, func in relax_functions(changed).items():
            changed.update_func(name, _WithoutCasts(self._replaced).visit_expr(func))
        return relax.transform.DeadCodeElimination()(changed)

    def start_function(self, func: relax.Function) -> None:
        super().start_function(func)
        self._casts = {
            hash(binding.var): binding
            for binding in all_bindings_of(func)
            if isinstance(binding, relax.MatchCast)
        }

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        reader = self.view.call(var, *self.roots)
        if reader is None:
            return None
        arguments = list(reader.args[:])
        for place, argument in enumerate(arguments):
            cast = self._casts.get(hash(argument))
            if cast is None or self.view.uses(argument) != 1:
                continue
            shapes = [one.ty.shape.values[:] for one in (cast.value, cast.var)]
            chain = _Chain(self, dict(_renamed(*shapes)), var)
            if not chain.is_broadcast(cast.value) or not chain.is_of_product():
                continue
            arguments[place] = chain.sized(cast.value)
            self._replaced.add(hash(cast.var))
            changed = relax.Call(reader.op, arguments, reader.attrs, reader.ty_args)
            return Replacement(changed, tuple(chain.passed), "the scores have the size of the keys")
        return None


def _renamed(old: Sequence[Any], new: Sequence[Any]) -> list[tuple[int, Any]]:
    """The axes, from the last, whose size has another name, with that name."""
    pairs = enumerate(zip(old, new, strict=True))
    return [
        (place - len(old), after)
        for place, (before, after) in pairs
        if not same_extents([before], [after])
    ]


@mutator
class _WithoutCasts(PyExprMutator):
    """Drops checks, which no pass takes for unused."""

    def __init__(self, dropped: Collection[int]) -> None:
        super().__init__()
        self._dropped = dropped

    def visit_match_cast_(self, binding: relax.MatchCast) -> None:
        if hash(binding.var) not in self._dropped:
            super().visit_match_cast_(binding)


class _Chain:
    """What is between the product of queries and keys and the weights."""

    def __init__(self, rewriter: SizesOfScores, sizes: dict[int, Any], var: relax.Var) -> None:
        self.rewriter, self.sizes, self.var = rewriter, sizes, var
        self.view, self.mod = rewriter.view, rewriter.mod
        self.passed: list[relax.Var] = []
        self._sources: list[relax.Expr] = []
        self._made: dict[int, relax.Expr] = {}

    def is_broadcast(self, expr: relax.Expr) -> bool:
        """Whether behind all steps are scores that had the wanted sizes before."""
        source = self._source(expr)
        if source is not None:
            self._sources.append(source)
            return True
        inner = self._broadcast(expr)
        if inner is not None:
            return self.is_broadcast(inner)
        sink = find_sink(self.view, expr)
        if sink is not None:
            return self.is_broadcast(sink.scores)
        call = self.view.call(expr, *_STEPS)
        return call is not None and any(map(self.is_broadcast, self._wide(call)))

    def is_of_product(self) -> bool:
        """Whether these scores are read by a product, or are one: others are no attention's."""
        is_read = self.view.call(self.var, "relax.matmul") is not None
        return is_read or any(from_matmul(self.view, source) for source in self._sources)

    def sized(self, expr: relax.Expr) -> relax.Expr:
        """The same with the wanted sizes."""
        if hash(expr) not in self._made:
            self._made[hash(expr)] = self._sized(expr)
        return self._made[hash(expr)]

    def _sized(self, expr: relax.Expr) -> relax.Expr:
        source = self._source(expr)
        if source is not None:
            return source
        inner = self._broadcast(expr)
        if inner is not None and self.is_broadcast(inner):
            self.passed.append(expr)
            return self.sized(inner)
        sink = find_sink(self.view, expr)
        if sink is not None and self.is_broadcast(expr):
            return self._beside_sink(sink, expr)
        call = self.view.call(expr, *_STEPS)
        if call is None or not self.is_broadcast(expr):
            return self.rewriter.cast(expr, relax.TensorType(self._shape(expr), expr.ty.dtype))
        wide = self._wide(call)
        arguments = [
            self.sized(argument) if any(argument.same_as(one) for one in wide) else argument
            for argument in call.args[:]
        ]
        self.passed.append(expr)
        made = relax.Call(call.op, arguments, call.attrs, call.ty_args)
        return self.rewriter.bind(made, self.var)

    def _beside_sink(self, sink: AttentionSink, expr: relax.Expr) -> relax.Expr:
        """The weights ``expr`` of scores beside a sink, with the wanted sizes."""
        self.passed += [expr, self.rewriter.view.value(expr).args[0], sink.both]
        scores = self.sized(sink.scores)
        sides = [scores, sink.column] if sink.first == 0 else [sink.column, scores]
        both = self.rewriter.bind(relax.op.concat(sides, axis=-1), self.var)
        softmax = relax.Call(sink.softmax.op, [both], sink.softmax.attrs)
        weights = self.rewriter.bind(softmax, self.var)
        last, size = scores.ty.ndim - 1, scores.ty.shape.values[-1]
        begin, end = tirx.const(sink.first, "int64"), size + sink.first
        dropped = relax.op.strided_slice(weights, [last], [begin], [end], assume_inbound=True)
        return self.rewriter.bind(dropped, self.var)

    def _wide(self, call: relax.Call) -> list[relax.Expr]:
        """The operands that have the size of the result on an axis that is renamed."""
        result = call.ty.shape.values[:]
        return [
            argument
            for argument in call.args[:]
            if isinstance(argument, relax.Var)
            and isinstance(argument.ty, relax.TensorType)
            and any(
                -axis <= argument.ty.ndim
                and same_extents([argument.ty.shape.values[axis]], [result[axis]])
                for axis in self.sizes
            )
        ]

    def _shape(self, expr: relax.Expr) -> list[Any]:
        """The shape of ``expr`` with the wanted sizes; of an axis of size 1 that again."""
        shape = list(expr.ty.shape.values)
        for axis, size in self.sizes.items():
            if -axis <= len(shape) and not isinstance(shape[axis], tirx.IntImm):
                shape[axis] = size
        return shape

    def _source(self, expr: relax.Expr) -> relax.Expr | None:
        """What a kernel broadcasts, if that has the wanted sizes already."""
        source = self._broadcast(expr)
        if source is None or not same_extents(source.ty.shape.values[:], self._shape(expr)):
            return None
        return source

    def _broadcast(self, expr: relax.Expr) -> relax.Expr | None:
        """What a kernel broadcasts."""
        call = self.view.call(expr, "relax.call_tir")
        if call is None or not isinstance(call.args[0], tvm.ir.GlobalVar):
            return None
        attributes = self.mod[call.args[0]].attrs or {}
        if BROADCAST_ATTRIBUTE not in attributes:
            return None
        return call.args[1].fields[0]
