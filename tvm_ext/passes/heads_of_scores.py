"""Scores whose batch and heads are one axis on their way get two axes for them everywhere."""

from collections.abc import Iterable

from tvm import relax

from tvm_ext.passes.attention_operands import extents, uniform_value
from tvm_ext.passes.attention_pattern import from_matmul
from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, Replacement

# What works element by element, or along the keys.
_ELEMENTWISE = (
    *("relax.add", "relax.subtract", "relax.multiply", "relax.divide", "relax.where"),
    *("relax.astype", "relax.tanh", "relax.maximum"),
)
_STEPS = (*_ELEMENTWISE, "relax.nn.softmax")


class HeadsOfScores(BindingRewriter):
    """Moves the views between two and one axis for batch and heads out of an attention.

    Before: ``s = reshape(add(matmul(q, k), bias), (b, h, q, k)); p = reshape(softmax(s), (b * h,
            q, k)); y = matmul(p, v)``, as Bloom is written, whose bias are positions (ALiBi)
    After:  ``s = add(matmul(q4, k4), bias4); p = softmax(s); y = reshape(matmul(p, v4), ...)``
            with ``q4 = reshape(q, (b, h, q, d))`` and so on

    The product with the values may have two axes already, as in GPT-NeoX.

    Leaves alone: scores with another user than the next step, and views of other axes.
    """

    pass_name = "AttentionFusion"
    roots = frozenset({"relax.matmul"})

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        product = self.view.call(var, "relax.matmul")
        ranks = set() if product is None else {arg.ty.ndim for arg in product.args}
        if product is None or ranks not in ({3}, {4}):
            return None
        given, values = product.args
        weights = given if ranks == {4} else self._viewed(given, 4)
        if weights is None or self.view.uses(given) != 1:
            return None
        self._passed = [] if ranks == {4} else [given]
        if not self._leads_to_scores(weights):
            return None
        self._var = var
        self._leading = list(weights.ty.shape.values[:2])
        values = values if ranks == {4} else self._apart(values)
        changed = relax.Call(product.op, [self._steps(weights), values], product.attrs)
        if ranks == {3}:
            changed = relax.op.reshape(self.bind(changed, var), product.ty.shape)
        return Replacement(changed, tuple(self._passed), "batch and heads are axes of their own")

    def _viewed(self, expr: relax.Expr, rank: int) -> relax.Expr | None:
        """What is of this rank ahead of a view that keeps queries and keys."""
        call = self.view.call(expr, "relax.reshape")
        if call is None or call.args[0].ty.ndim != rank:
            return None
        before, after = extents(call.args[0]), extents(call)
        same = before is not None and after is not None and before[-2:] == after[-2:]
        return call.args[0] if same else None

    def _leads_to_scores(self, expr: relax.Expr) -> bool:
        """Whether steps lead up from the weights to a product that was viewed; notes them."""
        if not isinstance(expr, relax.Var) or self.view.uses(expr) != 1:
            return False
        self._passed.append(expr)
        scores = self._viewed(expr, 3)
        if scores is not None:
            return from_matmul(self.view, scores) and self._may_be_apart(scores)
        call = self.view.call(expr, *_STEPS)
        return call is not None and any(map(self._leads_to_scores, _as_large(call)))

    def _may_be_apart(self, scores: relax.Expr) -> bool:
        """Whether steps with one axis for batch and heads can have two; notes them."""
        if not isinstance(scores, relax.Var) or self.view.uses(scores) != 1:
            return False
        self._passed.append(scores)
        product = self.view.call(scores, "relax.matmul")
        if product is not None:
            shapes = [extents(arg) or [None] for arg in (product, *product.args)]
            return all(len(one) == 3 and one[0] == shapes[0][0] for one in shapes)
        call = self.view.call(scores, *_ELEMENTWISE)
        return call is not None and any(map(self._may_be_apart, _as_large(call)))

    def _steps(self, expr: relax.Expr) -> relax.Expr:
        """The weights and what is ahead of them, with two axes from the product on."""
        scores = self._viewed(expr, 3)
        if scores is not None:
            return self._apart(scores)
        call = self.view.call(expr, *_STEPS)
        if call is None or not self._is_passed(expr):
            return expr
        return self._bound(call, [self._steps(arg) for arg in call.args])

    def _is_passed(self, expr: relax.Expr) -> bool:
        return any(expr.same_as(one) for one in self._passed)

    def _apart(self, expr: relax.Expr) -> relax.Expr:
        """A tensor with one axis for batch and heads, with two."""
        call = self.view.call(expr, *_ELEMENTWISE, "relax.matmul")
        if call is not None and self._is_passed(expr):
            # torch.baddbmm adds zeros that it makes for that.
            left = [arg for arg in call.args if uniform_value(self.view, arg) != 0]
            if call.op.name == "relax.add" and len(left) == 1:
                return self._apart(left[0])
            return self._bound(call, [self._operand(arg, expr) for arg in call.args])
        shape = [*self._leading, *expr.ty.shape.values[1:]]
        return self.bind(relax.op.reshape(expr, shape), self._var)

    def _operand(self, arg: relax.Expr, result: relax.Expr) -> relax.Expr:
        """An operand of a step: what has no such axis, or repeats it, stays as it is."""
        sizes, wanted = extents(arg), extents(result)
        if not isinstance(arg.ty, relax.TensorType) or sizes is None or wanted is None:
            return arg
        return self._apart(arg) if len(sizes) == 3 and sizes[0] == wanted[0] else arg

    def _bound(self, call: relax.Call, args: Iterable[relax.Expr]) -> relax.Var:
        return self.bind(relax.Call(call.op, list(args), call.attrs), self._var)


def _as_large(call: relax.Call) -> list[relax.Expr]:
    """The operands of the result's own size."""
    return [arg for arg in call.args if extents(arg) == extents(call)]
