"""Sparse dataflow analyses of Relax modules, forward and backward.

The models are MLIR's ``SparseForwardDataFlowAnalysis`` and ``SparseBackwardDataFlowAnalysis``: an
analysis is a lattice and a transfer function, and the framework finds the least state of every
variable that all bindings agree with (Kildall, "A Unified Approach to Global Program Optimization",
POPL 1973).

The importer writes If as a function for each branch, and Loop as functions that call each other
and, in the end, themselves. So states flow through calls of module functions: a parameter has the
join of all its arguments, and a call has what the function returns. Functions are analysed until
nothing changes; a state that has changed often is widened, so that this ends for lattices of any
height (Cousot and Cousot, "Abstract Interpretation", POPL 1977).

A function is analysed in one walk over its bindings. Variables are known by their hashes, which are
those of their nodes, because TVM takes long to find two variables equal.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeAlias, TypeVar

import tvm
from tvm import relax

from tvm_ext.relay_passes.spans import relax_functions

Element = TypeVar("Element")

# The state of a value: an element, a tuple of states for a tuple, and None where no run has yet
# been found to compute the value. None is the bottom of every lattice.
State: TypeAlias = Any

# A state that changed more often than this is widened from then on.
CHANGES_BEFORE_WIDENING = 3


class Analysis(ABC, Generic[Element]):
    """A lattice of elements. ``join`` is commutative, associative and idempotent."""

    @abstractmethod
    def join(self, one: Element, other: Element) -> Element:
        """The least element that covers both."""

    def widen(self, before: Element, after: Element) -> Element:
        """An element that covers ``after``, of which only few follow each other.

        The default is for lattices without long ascending chains.
        """
        return after


class ForwardAnalysis(Analysis[Element]):
    """What is known of a value when its operands are known."""

    @abstractmethod
    def top(self, ty: tvm.ir.Type) -> Element:
        """What holds for every value of a type that is no tuple."""

    def top_of(self, ty: tvm.ir.Type) -> State:
        """What holds for every value of a type, part by part for a tuple."""
        if isinstance(ty, relax.TupleType):
            return tuple(self.top_of(field) for field in ty.fields[:])
        return self.top(ty)

    def parameter(self, param: relax.Var) -> State:
        """What holds for a parameter of a function that is called from outside."""
        return self.top_of(param.ty)

    def constant(self, value: relax.Expr) -> Element:
        """What holds for a literal: a constant, a number, a shape."""
        return self.top(value.ty)

    @abstractmethod
    def transfer(self, call: relax.Call, operands: Sequence[State]) -> State:
        """What the call of an operator gives; no operand is None.

        For a call that gives a tuple, a tuple of elements. It must be monotone: it may not know
        more of a result when it knows less of the operands.
        """

    def cast(self, element: Element, ty: tvm.ir.Type) -> Element:
        """What holds for a value behind a ``match_cast`` to a type that is no tuple."""
        return element

    def taken(self, condition: Element) -> bool | None:
        """Which branch of an If the condition chooses; None where it may be either."""
        return None


class Solution(Generic[Element]):
    """The states of all variables of a module."""

    def __init__(self, join: "_Joining[Element]") -> None:
        self._states: dict[int, State] = {}
        self._joining = join

    @property
    def analysis(self) -> Any:
        """The analysis that was solved."""
        return self._joining.analysis

    def of(self, expr: relax.Expr) -> State:
        """The state of a variable or literal; None for a variable that no run computes."""
        return self._joining.literal(expr, self._states)

    def results(self, function: tvm.ir.GlobalVar) -> State:
        """What a function of the module returns; None where no run calls it."""
        return self._joining.results.get(str(function.name_hint))


def solve_forward(mod: tvm.IRModule, analysis: ForwardAnalysis[Element]) -> Solution[Element]:
    """The least solution of a forward analysis of all functions that a run may reach."""
    return _ForwardSolver(mod, analysis).solved()


class _Joining(Generic[Element]):
    """Joins of states, element by element, and what functions take and return."""

    def __init__(self, analysis: Analysis[Element]) -> None:
        self.analysis = analysis
        self.parameters: dict[str, list[State]] = {}
        self.results: dict[str, State] = {}
        self._changes: dict[tuple[str, str], int] = {}

    def literal(self, expr: relax.Expr, states: dict[int, State]) -> State:
        """The state of an operand."""
        if isinstance(expr, relax.Var):
            return states.get(hash(expr))
        return None

    def join(self, one: State, other: State) -> State:
        """The join of two states of one type."""
        if one is None or other is None:
            return one if other is None else other
        one, other = _alike(one, other), _alike(other, one)
        if isinstance(one, tuple):
            return tuple(map(self.join, one, other))
        return self.analysis.join(one, other)

    def widen(self, before: State, after: State) -> State:
        """``after``, widened where it differs from ``before``."""
        if before is None or after is None or before == after:
            return after
        if isinstance(before, tuple) and isinstance(after, tuple):
            return tuple(map(self.widen, before, after))
        return self.analysis.widen(before, after)

    def grown(self, name: str, place: str, before: State, more: State) -> State:
        """The join of a function's state with one more, widened if it has changed often."""
        after = self.join(before, more)
        if after == before:
            return before
        count = self._changes[name, place] = self._changes.get((name, place), 0) + 1
        return self.widen(before, after) if count > CHANGES_BEFORE_WIDENING else after


def _alike(state: State, other: State) -> State:
    """``state`` part by part where ``other`` is; an element holds for all parts of a tuple."""
    is_split = isinstance(other, tuple) and not isinstance(state, tuple)
    return (state,) * len(other) if is_split else state


class _Forward(_Joining[Element]):
    analysis: ForwardAnalysis[Element]

    def literal(self, expr: relax.Expr, states: dict[int, State]) -> State:
        if isinstance(expr, relax.Tuple):
            return tuple(self.literal(field, states) for field in expr.fields[:])
        if not isinstance(expr, relax.Var):
            return self.analysis.constant(expr)
        # A symbolic size is a variable too, which nothing binds.
        if isinstance(expr.ty, tvm.ir.PrimType) and hash(expr) not in states:
            return self.analysis.constant(expr)
        return states.get(hash(expr))


class _ForwardSolver(Generic[Element]):
    """Analyses functions as they are called, and again as long as what they take changes."""

    def __init__(self, mod: tvm.IRModule, analysis: ForwardAnalysis[Element]) -> None:
        self.analysis = analysis
        self.flow = _Forward(analysis)
        self.solution: Solution[Element] = Solution(self.flow)
        self.states = self.solution._states
        self.functions = {str(var.name_hint): f for var, f in relax_functions(mod).items()}
        # By function: those that have used its results.
        self.callers: dict[str, set[str]] = {name: set() for name in self.functions}
        self.running: list[str] = []
        self.waiting: dict[str, None] = {}

    def solved(self) -> Solution[Element]:
        """Starts from what can be called from outside."""
        for name in entries(self.functions):
            self._call_from_outside(name)
        while self.waiting:
            name = next(iter(self.waiting))
            self._analyse(name)
        return self.solution

    def _call_from_outside(self, name: str) -> None:
        function = self.functions[name]
        self._enter(name, [self.analysis.parameter(param) for param in function.params[:]])
        if name in self.waiting:
            self._analyse(name)

    def _enter(self, name: str, arguments: Sequence[State]) -> None:
        before = self.flow.parameters.get(name)
        if before is None:
            self.flow.parameters[name] = list(arguments)
            self.waiting[name] = None
            return
        after = [
            self.flow.grown(name, str(place), one, other)
            for place, (one, other) in enumerate(zip(before, arguments, strict=True))
        ]
        if after != before:
            self.flow.parameters[name] = after
            self.waiting[name] = None

    def _analyse(self, name: str) -> None:
        self.waiting.pop(name, None)
        function = self.functions[name]
        for param, state in zip(function.params[:], self.flow.parameters[name], strict=True):
            self.states[hash(param)] = state
        self.running.append(name)
        found = self._body(function.body)
        self.running.pop()
        before = self.flow.results.get(name)
        after = self.flow.grown(name, "results", before, found)
        if after != before:
            self.flow.results[name] = after
            self.waiting.update(dict.fromkeys(self.callers[name]))

    def _body(self, body: relax.Expr) -> State:
        if not isinstance(body, relax.SeqExpr):
            return self.flow.literal(body, self.states)
        for block in body.blocks[:]:
            for binding in block.bindings[:]:
                self.states[hash(binding.var)] = self._bound(binding)
        return self.flow.literal(body.body, self.states)

    def _bound(self, binding: relax.Binding) -> State:
        value = binding.value
        if isinstance(binding, relax.MatchCast):
            return self._cast(self.flow.literal(value, self.states), binding.ty)
        if isinstance(value, relax.Call):
            return self._call(value)
        if isinstance(value, relax.TupleGetItem):
            whole = self.flow.literal(value.tuple_value, self.states)
            # An analysis may know nothing of the parts of a tuple that it was given as one.
            if isinstance(whole, tuple):
                return whole[int(value.index)]
            return None if whole is None else self.analysis.top_of(value.ty)
        if isinstance(value, relax.If):
            return self._branches(value)
        if isinstance(value, relax.Function):
            return self._nested(value)
        return self.flow.literal(value, self.states)

    def _cast(self, state: State, ty: tvm.ir.Type) -> State:
        if state is None:
            return None
        if isinstance(state, tuple) and isinstance(ty, relax.TupleType):
            return tuple(map(self._cast, state, ty.fields[:]))
        return self.analysis.cast(state, ty)

    def _call(self, call: relax.Call) -> State:
        arguments = call.args[:]
        for argument in arguments:
            # Whoever is given a function may call it with anything.
            if isinstance(argument, tvm.ir.GlobalVar) and str(argument.name_hint) in self.functions:
                self._call_from_outside(str(argument.name_hint))
        callee = call.op
        if isinstance(callee, tvm.ir.GlobalVar) and str(callee.name_hint) in self.functions:
            return self._call_function(str(callee.name_hint), arguments)
        if not isinstance(callee, tvm.ir.Op):
            return self.analysis.top_of(call.ty)
        operands = [self._operand(argument) for argument in arguments]
        if any(map(is_unreached, operands)):
            return None
        return self.analysis.transfer(call, operands)

    def _operand(self, argument: relax.Expr) -> State:
        if isinstance(argument, tvm.ir.GlobalVar | relax.ExternFunc):
            return ()
        return self.flow.literal(argument, self.states)

    def _call_function(self, name: str, arguments: Sequence[relax.Expr]) -> State:
        states = [self.flow.literal(argument, self.states) for argument in arguments]
        if any(map(is_unreached, states)):
            return None
        if self.running:
            self.callers[name].add(self.running[-1])
        self._enter(name, states)
        if name in self.waiting and name not in self.running:
            self._analyse(name)
        return self.flow.results.get(name)

    def _branches(self, value: relax.If) -> State:
        condition = self.flow.literal(value.cond, self.states)
        if condition is None:
            return None
        taken = self.analysis.taken(condition)
        sides = [
            self._body(side)
            for side, is_true in ((value.true_branch, True), (value.false_branch, False))
            if taken in (None, is_true)
        ]
        return sides[0] if len(sides) == 1 else self.flow.join(*sides)

    def _nested(self, function: relax.Function) -> State:
        """A closure, which may be called with anything; calls of it give anything of their type."""
        for param in function.params[:]:
            self.states[hash(param)] = self.analysis.top_of(param.ty)
        self._body(function.body)
        return self.analysis.top(function.ty)


def is_unreached(state: State) -> bool:
    """Whether no run computes the value, or a part of the tuple that it is."""
    return state is None or (isinstance(state, tuple) and any(map(is_unreached, state)))


def entries(functions: dict[str, relax.Function]) -> list[str]:
    """Names of the functions that can be called from outside of the module."""
    public = [
        name
        for name, function in functions.items()
        if function.attrs is not None and "global_symbol" in function.attrs
    ]
    return public or list(functions)


# Backward analyses: what is asked of a value follows from what is asked of what uses it.


class BackwardAnalysis(Analysis[Element]):
    """What is asked of operands when it is known what is asked of the result."""

    @abstractmethod
    def top(self) -> Element:
        """What is asked of a value that leaves the module."""

    @abstractmethod
    def transfer(self, call: relax.Call, result: State, operands: int) -> Sequence[State]:
        """What the call of an operator asks of each operand; ``result`` may be None for nothing.

        An element for a tuple asks the same of all its parts.
        """

    @abstractmethod
    def condition(self, result: State) -> State:
        """What an If whose result is asked for asks of its condition."""


def solve_backward(mod: tvm.IRModule, analysis: BackwardAnalysis[Element]) -> Solution[Element]:
    """The least solution of a backward analysis; None for a value that nothing asks for."""
    return _BackwardSolver(mod, analysis).solved()


class _BackwardSolver(Generic[Element]):
    """Analyses functions from their results back, and again when more is asked of them."""

    def __init__(self, mod: tvm.IRModule, analysis: BackwardAnalysis[Element]) -> None:
        self.analysis = analysis
        self.flow: _Joining[Element] = _Joining(analysis)
        self.solution: Solution[Element] = Solution(self.flow)
        self.states = self.solution._states
        self.functions = {str(var.name_hint): f for var, f in relax_functions(mod).items()}
        self.callers: dict[str, set[str]] = {name: set() for name in self.functions}
        self.waiting: dict[str, None] = {}
        self.running = ""

    def solved(self) -> Solution[Element]:
        """Starts from the results of what can be called from outside."""
        for name in entries(self.functions):
            self._ask_of_function(name, self.analysis.top())
        # Bindings that must run whether or not their result is used are asked for in each function.
        self.waiting.update(dict.fromkeys(self.functions))
        while self.waiting:
            self.running = next(iter(self.waiting))
            del self.waiting[self.running]
            self._analyse(self.functions[self.running])
        return self.solution

    def _analyse(self, function: relax.Function) -> None:
        name = self.running
        self._ask_in(function.body, self.flow.results.get(name))
        found = [self.states.get(hash(param)) for param in function.params[:]]
        if found != self.flow.parameters.get(name):
            self.flow.parameters[name] = found
            self.waiting.update(dict.fromkeys(self.callers[name]))

    def _ask_of_function(self, name: str, state: State) -> None:
        before = self.flow.results.get(name)
        after = self.flow.grown(name, "results", before, state)
        if after != before:
            self.flow.results[name] = after
            self.waiting[name] = None

    def _ask(self, expr: relax.Expr, state: State) -> None:
        if state is None:
            return
        if isinstance(expr, relax.Var):
            self.states[hash(expr)] = self.flow.join(self.states.get(hash(expr)), state)
        elif isinstance(expr, relax.Tuple):
            fields = expr.fields[:]
            parts = state if isinstance(state, tuple) else [state] * len(fields)
            for field, part in zip(fields, parts, strict=True):
                self._ask(field, part)

    def _ask_in(self, body: relax.Expr, state: State) -> None:
        if not isinstance(body, relax.SeqExpr):
            self._ask(body, state)
            return
        self._ask(body.body, state)
        for block in body.blocks[::-1]:
            for binding in block.bindings[::-1]:
                self._ask_of_binding(binding.value, self.states.get(hash(binding.var)))

    def _ask_of_binding(self, value: relax.Expr, state: State) -> None:
        if isinstance(value, relax.Call):
            self._ask_of_call(value, state)
        elif isinstance(value, relax.If):
            self._ask(value.cond, self.analysis.condition(state))
            self._ask_in(value.true_branch, state)
            self._ask_in(value.false_branch, state)
        elif isinstance(value, relax.TupleGetItem) and state is not None:
            tuple_type = value.tuple_value.ty
            count = len(tuple_type.fields) if isinstance(tuple_type, relax.TupleType) else 0
            parts = tuple(state if i == int(value.index) else None for i in range(count))
            self._ask(value.tuple_value, parts or state)
        elif isinstance(value, relax.Function):
            # A closure may be called for anything.
            self._ask_in(value.body, self.analysis.top())
        else:
            self._ask(value, state)

    def _ask_of_call(self, call: relax.Call, state: State) -> None:
        arguments, callee = call.args[:], call.op
        for argument in arguments:
            if isinstance(argument, tvm.ir.GlobalVar) and str(argument.name_hint) in self.functions:
                self._ask_of_function(str(argument.name_hint), self.analysis.top())
        if isinstance(callee, tvm.ir.GlobalVar) and str(callee.name_hint) in self.functions:
            name = str(callee.name_hint)
            self.callers[name].add(self.running)
            if state is not None:
                self._ask_of_function(name, state)
            asked = self.flow.parameters.get(name, [None] * len(arguments))
        elif isinstance(callee, tvm.ir.Op):
            asked = list(self.analysis.transfer(call, state, len(arguments)))
        else:
            asked = [self.analysis.top()] * len(arguments)
            self._ask(callee, self.analysis.top())
        for argument, one in zip(arguments, asked, strict=True):
            self._ask(argument, one)
