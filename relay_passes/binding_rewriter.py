"""Walks the bindings of a module and replaces the ones a pass asks for, keeping origins.

A pass subclasses ``BindingRewriter`` and looks at the graph as it was before the walk: values
by variable, and how often each variable is used. What it returns may use variables of that old
graph freely; they are mapped to the new ones here.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.relay_passes.graph_pass import record_applied, record_refusal
from tvm_ext.relay_passes.spans import (
    bindings_of,
    describe_origin,
    origins_of,
    relax_functions,
    retyped_var,
    span_of,
)

# A rewrite may open the next one (Conv, BN, BN); more rounds than this is a pass that never ends.
MAX_ROUNDS = 16


@dataclass(frozen=True)
class Replacement:
    """The new value of a binding, and the variables whose work it now does as well.

    ``value`` is an expression over variables of the old graph; ``absorbed`` lists variables whose
    origins move to the replaced binding, and to the new bindings that calls nested in ``value``
    need; ``what`` says in a few words what was done.
    """

    value: relax.Expr
    absorbed: tuple[relax.Var, ...]
    what: str


class GraphView:
    """Values and uses of the variables of one function, as they are before a rewrite."""

    def __init__(self, func: relax.Function) -> None:
        self._func = func
        # All variables with what they are bound to, in program order.
        self.bound = [(binding.var, binding.value) for binding in bindings_of(func)]
        # By hash, which is that of the node, as TVM takes long to find two variables equal.
        self._value_of = {hash(var): value for var, value in self.bound}

    @cached_property
    def _values(self) -> Mapping[relax.Var, relax.Expr]:
        return relax.analysis.get_var2val(self._func)

    @cached_property
    def _uses(self) -> Counter[int]:
        # Made when it is asked for: in nearly all functions a pass finds nothing to do.
        found: Counter[int] = Counter()
        left = [self._func.body]
        while left:
            expr = left.pop()
            if isinstance(expr, relax.Var):
                found[hash(expr)] += 1
            else:
                left += _children(expr)
        return found

    def bindings(self) -> Mapping[relax.Var, relax.Expr]:
        """All variables that are bound to a value, with that value, in no promised order."""
        return self._values

    def value(self, expr: relax.Expr) -> relax.Expr:
        """What ``expr`` is bound to when it is a variable with a binding, else ``expr`` itself."""
        while isinstance(expr, relax.Var):
            value = self._value_of.get(hash(expr))
            if value is None:
                break
            expr = value
        return expr

    def call(self, expr: relax.Expr, *op_names: str) -> relax.Call | None:
        """The call behind ``expr`` when it calls one of the operators ``op_names``."""
        value = self.value(expr)
        if not isinstance(value, relax.Call):
            return None
        op = value.op
        return value if isinstance(op, tvm.ir.Op) and op.name in op_names else None

    @cached_property
    def _operators(self) -> dict[int, str]:
        calls = ((var, self.value(value)) for var, value in self.bound)
        return {
            hash(var): str(call.op.name)
            for var, call in calls
            if isinstance(call, relax.Call) and isinstance(call.op, tvm.ir.Op)
        }

    def operator(self, var: relax.Var) -> str:
        """The operator behind ``var``; "" where there is none."""
        return self._operators.get(hash(var), "")

    @cached_property
    def operators(self) -> frozenset[str]:
        """The names of all operators that the function calls."""
        return frozenset(self._operators.values())

    @cached_property
    def blocks(self) -> Sequence["BoundBlock"] | None:
        """All bindings by block; None where a value has blocks of its own, as an If has."""
        if any(isinstance(value, relax.If | relax.Function) for _, value in self.bound):
            return None
        return [BoundBlock(block) for block in self._func.body.blocks[:]]

    def uses(self, expr: relax.Expr) -> int:
        """How many values, branches and results use the variable ``expr``."""
        return self._uses[hash(expr)]


class BoundBlock:
    """A block of bindings: ``bindings`` has its variables with their values, without casts."""

    def __init__(self, block: relax.BindingBlock) -> None:
        self.block = block
        found = [one for one in block.bindings[:] if isinstance(one, relax.VarBinding)]
        self.bindings = [(one.var, one.value) for one in found]


_views: ContextVar[dict[int, GraphView] | None] = ContextVar("views", default=None)


@contextmanager
def sharing_views() -> Iterator[None]:
    """Inside of it ``view_of`` makes one view of each function, until ``forget_views_except``."""
    if _views.get() is not None:
        yield
        return
    token = _views.set({})
    try:
        yield
    finally:
        _views.reset(token)


def forget_views_except(mod: tvm.IRModule) -> None:
    """Lets go of the functions that ``mod`` does not have, whose weights may be many."""
    known = _views.get()
    if known is not None:
        kept = {hash(func) for func in relax_functions(mod).values()}
        for func in known.keys() - kept:
            del known[func]


def view_of(func: relax.Function) -> GraphView:
    """The view of a function, the same one for passes that leave the function as it is."""
    known = _views.get()
    if known is None:
        return GraphView(func)
    # The view keeps the function, so that no other one gets its hash.
    if hash(func) not in known:
        known[hash(func)] = GraphView(func)
    return known[hash(func)]


def _children(expr: relax.Expr) -> Iterable[relax.Expr]:
    """What ``expr`` uses; a nested function counts what it takes from outside as uses too."""
    if isinstance(expr, relax.Call):
        op, args = expr.op, expr.args[:]
        # The callee may be a nested function.
        return args if isinstance(op, tvm.ir.Op) else (op, *args)
    if isinstance(expr, tvm.ir.GenericConst | relax.ShapeExpr):
        return ()
    if isinstance(expr, relax.Tuple):
        return expr.fields[:]
    if isinstance(expr, relax.TupleGetItem):
        return (expr.tuple_value,)
    if isinstance(expr, relax.If):
        return (expr.cond, expr.true_branch, expr.false_branch)
    if isinstance(expr, relax.Function):
        return (expr.body,)
    if isinstance(expr, relax.SeqExpr):
        # A variable that is bound as it is (an alias, a match_cast) is used by that binding.
        bound = [binding.value for block in expr.blocks[:] for binding in block.bindings[:]]
        return (*bound, expr.body)
    return ()


class BindingRewriter(ABC):
    """Replaces bindings until nothing matches; ``pass_name`` names the pass in the log.

    A function is written anew only if a look over its bindings has found one to replace, and from
    that one on. ``replace`` is asked about each binding once.
    """

    pass_name: str
    # The operators whose calls ``replace`` is given, aliases of them included; None for all values.
    roots: frozenset[str] | None = None
    view: GraphView
    mod: tvm.IRModule
    _walker: "_Walker"

    def start_round(self, mod: tvm.IRModule) -> None:
        """Takes up ``mod``, whose functions are looked at next."""
        self.mod = mod
        self._walker = _Walker(self, mod)

    def start_function(self, func: relax.Function) -> None:
        """Takes up ``func``, whose bindings are given to ``replace`` next; sets ``view``."""
        self.view = view_of(func)

    def has_work(self, func: relax.Function) -> bool:
        """Whether ``func`` is worth a look at its bindings.

        Called ahead of ``start_function``; a function without work is not touched.
        """
        return self.roots is None or not self.roots.isdisjoint(view_of(func).operators)

    def looks_at(self, var: relax.Var) -> bool:
        """Whether the binding of ``var`` is given to ``replace``."""
        return self.roots is None or self.view.operator(var) in self.roots

    @abstractmethod
    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        """The replacement for the binding ``var = value`` (old graph), or None to leave it."""

    def refuse(self, reason: str, *where: relax.Var) -> None:
        """Records that the near match at ``where`` is left alone; returns None."""
        record_refusal(self.pass_name, describe_origin(*where), reason)

    @property
    def builder(self) -> relax.BlockBuilder:
        """The builder of the new module; ``call_te`` on it takes variables of the old graph."""
        return self._walker.builder_

    def bind(self, value: relax.Expr, *origins: relax.Var) -> relax.Var:
        """A new variable bound to ``value`` (old graph) just ahead, with origins of ``origins``.

        Only inside ``replace``, for a part of what it returns that keeps its own origin.
        """
        return self._walker.bind(value, origins[-1], origins_of(*origins))

    def cast(self, value: relax.Var, ty: tvm.ir.Type) -> relax.Var:
        """``value`` (old graph), of which the run checks just ahead that it is of type ``ty``.

        Only inside ``replace``.
        """
        return self._walker.cast(value, ty)

    def reaches(self, expr: relax.Expr) -> bool:
        """Whether ``expr`` may be used where the walk is: no inner value of another block.

        Only inside ``replace``, before such a value is passed to ``bind``.
        """
        return not self._walker.leaves_block(expr)

    def run(self, mod: tvm.IRModule) -> tvm.IRModule:
        """The rewritten module; ``mod`` itself when nothing was rewritten."""
        with sharing_views():
            for _ in range(MAX_ROUNDS):
                changed = self._one_round(mod)
                if changed is None:
                    return mod
                forget_views_except(changed)
                mod = changed
        return mod

    def _one_round(self, mod: tvm.IRModule) -> tvm.IRModule | None:
        self.start_round(mod)
        for global_var, func in relax_functions(mod).items():
            if not self.has_work(func):
                continue
            self.start_function(func)
            new_func = self._walker.rewritten(func)
            if new_func is not None:
                self._walker.builder_.update_func(global_var, new_func)
        if not self._walker.replaced:
            return None
        return relax.transform.DeadCodeElimination()(self._walker.builder_.get())


@dataclass(frozen=True)
class _First:
    """The first binding to write anew: what it is replaced by, and what was bound ahead of it."""

    var: relax.Var
    replacement: Replacement | None
    bound: Sequence[relax.Binding]


class _Scope:
    """Which variables may be used in a block: those of dataflow only where they are bound."""

    def __init__(self, block: relax.BindingBlock | None = None) -> None:
        self._block = block
        self._added: set[int] = set()

    @cached_property
    def _bound(self) -> set[int]:
        if not isinstance(self._block, relax.DataflowBlock):
            return set()
        return {hash(binding.var) for binding in self._block.bindings[:]}

    def add(self, var: relax.Var) -> None:
        """Notes a variable that the block did not have."""
        self._added.add(hash(var))

    @property
    def has_more(self) -> bool:
        """Whether there are variables that the block did not have."""
        return bool(self._added)

    def lacks_part_of(self, value: relax.Expr) -> bool:
        """Whether ``value`` uses a variable of a dataflow block, which only exists inside it."""
        free = relax.analysis.free_vars(value)
        inner = [hash(var) for var in free[:] if isinstance(var, relax.DataflowVar)]
        return any(var not in self._bound and var not in self._added for var in inner)


@mutator
class _Walker(PyExprMutator):
    def __init__(self, rewriter: BindingRewriter, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.rewriter = rewriter
        self.replaced = 0
        # What the look over the function has found, until the walk has come to it.
        self._first: _First | None = None
        self._scope = _Scope()

    def rewritten(self, func: relax.Function) -> relax.Function | None:
        """``func`` with its bindings replaced; None where none is."""
        blocks = self.rewriter.view.blocks
        if blocks is not None:
            self._first = next(
                (one for one in map(self._first_in, blocks) if one is not None), None
            )
            if self._first is None:
                return None
        replaced_before = self.replaced
        new_func = self.visit_expr(func)
        return new_func if self.replaced > replaced_before else None

    def _first_in(self, block: "BoundBlock") -> _First | None:
        """None for nearly all blocks: a pass leaves them as they are."""
        self._scope = _Scope(block.block)
        # What ``replace`` binds is collected in a block of its own.
        if isinstance(block.block, relax.DataflowBlock):
            self.builder_._begin_dataflow_block()
        else:
            self.builder_._begin_binding_block()
        found: tuple[relax.Var, Replacement | None] | None = None
        for var, value in block.bindings:
            if not self.rewriter.looks_at(var):
                continue
            replacement = self.rewriter.replace(var, value)
            if replacement is not None or self._scope.has_more:
                found = var, replacement
                break
        bound = self.builder_._end_block().bindings[:]
        return None if found is None else _First(*found, bound)

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.BindingBlock:
        self._scope = _Scope(block)
        new_block = super().visit_dataflow_block_(block)
        self._scope = _Scope()
        return new_block

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        replacement = self._replacement(binding.var, binding.value)
        if replacement is not None and self.leaves_block(replacement.value):
            self.rewriter.refuse("needs a value from inside another dataflow block", binding.var)
            replacement = None
        if replacement is None:
            super().visit_var_binding_(binding)
            return
        self.replaced += 1
        touched = (*replacement.absorbed, binding.var)
        record_applied(self.rewriter.pass_name, describe_origin(*touched), replacement.what)
        value = self._visit_nested(replacement.value, binding.var, origins_of(*touched))
        new_var = retyped_var(binding.var, value.ty, origins_of(*touched))
        self.builder_.emit_normalized(relax.VarBinding(new_var, value))
        self.set_var_remap(binding.var, new_var)

    def _replacement(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        first = self._first
        if first is not None:
            if not first.var.same_as(var):
                return None
            self._first = None
            for binding in first.bound:
                if isinstance(binding, relax.MatchCast):
                    super().visit_match_cast_(binding)
                else:
                    super().visit_var_binding_(binding)
                self._scope.add(binding.var)
            return first.replacement
        return self.rewriter.replace(var, value) if self.rewriter.looks_at(var) else None

    def _visit_nested(self, expr: relax.Expr, var: relax.Var, names: tuple[str, ...]) -> relax.Expr:
        """Visits ``expr``; calls nested in it get variables like ``var`` with the origin ``names``.

        The block builder would name them itself, and their origin would be lost.
        """
        if isinstance(expr, relax.Call):
            args = [
                self.bind(argument, var, names) if isinstance(argument, relax.Call) else argument
                for argument in expr.args
            ]
            expr = relax.Call(expr.op, args, expr.attrs, expr.ty_args, expr.span)
        return self.builder_.normalize(self.visit_expr(expr))

    def leaves_block(self, value: relax.Expr) -> bool:
        """Whether ``value`` uses a variable of another dataflow block."""
        return self._scope.lacks_part_of(value)

    def bind(self, expr: relax.Expr, var: relax.Var, names: tuple[str, ...]) -> relax.Var:
        """Binds ``expr`` to a new variable that is called after ``var`` and carries ``names``."""
        value = self._visit_nested(expr, var, names)
        # Only a variable of the dataflow block is sure not to leave it, whatever ``var`` is.
        kind = relax.DataflowVar if self.builder_.current_block_is_dataflow() else relax.Var
        inner = kind(f"{var.name}_inner", value.ty, span_of(names))
        self.builder_.emit_normalized(relax.VarBinding(inner, value))
        self._scope.add(inner)
        return inner

    def cast(self, expr: relax.Var, ty: tvm.ir.Type) -> relax.Var:
        """Binds ``expr`` to a new variable of this type, which the run checks."""
        value = self.visit_expr(expr)
        kind = relax.DataflowVar if self.builder_.current_block_is_dataflow() else relax.Var
        inner = kind(f"{expr.name}_cast", ty, expr.span)
        self.builder_.emit_normalized(relax.MatchCast(inner, value, ty))
        self._scope.add(inner)
        return inner
