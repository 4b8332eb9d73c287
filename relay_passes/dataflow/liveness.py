"""Liveness: which values the results need, and from where to where each is alive.

What is needed is a backward analysis through tuples and calls: of a function that gives five values
of which its callers use two, three need not be computed. The live range of a value reaches from its
binding to the last one that uses it, in the order in which bindings stand in a function (Appel,
"Modern Compiler Implementation", chapter 10, for code without jumps).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import tvm
from tvm import relax

from tvm_ext.relay_passes.dataflow.framework import (
    BackwardAnalysis,
    Solution,
    State,
    solve_backward,
)
from tvm_ext.relay_passes.dataflow.side_effects import SideEffects, may_be_removed
from tvm_ext.relay_passes.spans import all_bindings_of


def needed(mod: tvm.IRModule) -> Solution[bool]:
    """For every value True if a result of the module depends on it, None if none does."""
    return solve_backward(mod, Needed(mod))


class Needed(BackwardAnalysis[bool]):
    """The analysis. A call that does something besides its result needs its operands."""

    def __init__(self, mod: tvm.IRModule) -> None:
        self._effects = SideEffects(mod)

    def join(self, one: bool, other: bool) -> bool:
        """Needed where one of both says so."""
        return one or other

    def top(self) -> bool:
        """What leaves the module is needed."""
        return True

    def transfer(self, call: relax.Call, result: State, operands: int) -> Sequence[State]:
        """All operands, if the result is needed or the call has to be made."""
        asked = True if _asks(result) or not may_be_removed(self._effects.of_call(call)) else None
        return [asked] * operands

    def condition(self, result: State) -> State:
        """Which branch runs decides the result, and also what effects there are."""
        return True


def _asks(state: State) -> bool:
    if isinstance(state, tuple):
        return any(map(_asks, state))
    return state is not None


@dataclass(frozen=True)
class LiveRange:
    """From the place of the binding to that of the last use; parameters begin at -1.

    ``last`` is the number of bindings for a value that the function returns.
    """

    first: int
    last: int


def live_ranges(func: relax.Function) -> dict[int, LiveRange]:
    """By the hash of each variable of a function; places count its bindings, branches included.

    A value that is a part of another one (a field of a tuple, an alias) keeps that one alive.
    """
    bindings = all_bindings_of(func)
    first = {hash(param): -1 for param in func.params[:]}
    last: dict[int, int] = {}
    for place, binding in enumerate(bindings):
        first[hash(binding.var)] = place
        for used in used_variables(binding.value):
            last[hash(used)] = place
    for result in used_variables(func.body):
        last[hash(result)] = len(bindings)
    for place in reversed(range(len(bindings))):
        binding = bindings[place]
        end = last.setdefault(hash(binding.var), place)
        for source in alias_sources(binding):
            last[hash(source)] = max(last.get(hash(source), place), end)
    return {key: LiveRange(place, last.get(key, place)) for key, place in first.items()}


def alias_sources(binding: relax.Binding) -> list[relax.Var]:
    """The variables whose storage a variable shares: no kernel runs for these bindings."""
    value = binding.value
    if isinstance(value, relax.Var):
        return [value]
    if isinstance(value, relax.Tuple):
        return [var for field in value.fields[:] for var in used_variables(field)]
    if isinstance(value, relax.TupleGetItem):
        return list(used_variables(value.tuple_value))
    if isinstance(value, relax.If):
        sides = (value.true_branch, value.false_branch)
        return [var for side in sides for var in used_variables(side)]
    if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op) and _is_view(value):
        return list(used_variables(value.args[0]))
    return []


def _is_view(call: relax.Call) -> bool:
    return str(call.op.name) in ("relax.reshape", "relax.memory.view")


def used_variables(value: relax.Expr) -> Iterator[relax.Var]:
    """The variables that an expression names itself; of a sequence, those of its result."""
    if isinstance(value, relax.Var):
        yield value
    elif isinstance(value, relax.Function):
        yield from relax.analysis.free_vars(value)
    for part in _parts(value):
        yield from used_variables(part)


def _parts(value: relax.Expr) -> Sequence[relax.Expr]:
    if isinstance(value, relax.Call):
        return (*value.args[:], *([value.op] if isinstance(value.op, relax.Var) else []))
    if isinstance(value, relax.Tuple):
        return list(value.fields[:])
    if isinstance(value, relax.TupleGetItem):
        return [value.tuple_value]
    if isinstance(value, relax.If):
        # What the branches use inside, their own bindings say.
        return [value.cond, value.true_branch, value.false_branch]
    return [value.body] if isinstance(value, relax.SeqExpr) else []
