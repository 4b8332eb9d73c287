"""From where to where each allocated buffer of a function is needed, branches and calls included.

Behind ``CallTIRRewrite`` every intermediate value is an allocation that a kernel writes to. Other
variables are names of it: of the whole (a reshape, a cast to a shape, the result of a branch) or
within a tuple. Which allocations a variable may name is found forwards, binding by binding; an
allocation is needed up to the last binding that uses one of its names.

The branches of an If stand one after the other in the order of places, so that what only one of
them needs may share its memory with what only the other one needs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import tvm
from tvm import relax, tirx

from tvm_ext.relay_passes.dataflow.liveness import used_variables
from tvm_ext.relay_passes.expressions import operator_name
from tvm_ext.relay_passes.spans import relax_bindings, relax_functions

ALLOCATION = "relax.builtin.alloc_tensor"
# Operators whose result is their first operand's memory.
_VIEWS = ("relax.reshape", "relax.memory.view", "relax.memory.ensure_zero_offset")

# The allocations that a variable may name; of a tuple, those of each field.
_Named: TypeAlias = frozenset[relax.Var] | tuple["_Named", ...]
_NOTHING: frozenset[relax.Var] = frozenset()
# Stands for memory that none of the function's allocations made: a parameter, a constant, what a
# call gives. A variable that may name it, and one allocation, is not surely that allocation.
_OTHER = relax.Var("other", relax.AnyType())
_OTHERS = frozenset([_OTHER])


@dataclass
class BufferLifetimes:
    """The allocations of a function.

    Attributes
    ----------
    first, last : dict of relax.Var to int
        By the variable of an allocation, the places of its binding and of its last use.
    escaped : set of relax.Var
        Allocations that may be needed after the function has ended, or that a packed function has
        been given, which may keep them.
    places : dict of relax.Var to int
        Of each binding, by its variable.
    used : dict of relax.Var to int
        By the variable of an allocation, the place of its first use.
    names : dict of relax.Var to names
        Which allocations each variable may name.
    """

    first: dict[relax.Var, int] = field(default_factory=dict)
    last: dict[relax.Var, int] = field(default_factory=dict)
    escaped: set[relax.Var] = field(default_factory=set)
    places: dict[relax.Var, int] = field(default_factory=dict)
    used: dict[relax.Var, int] = field(default_factory=dict)
    names: "dict[relax.Var, _Named]" = field(default_factory=dict)

    def named(self, value: relax.Expr) -> set[relax.Var]:
        """The allocations that a value may name; one alone is surely what it is."""
        return {
            buffer
            for variable in used_variables(value)
            for buffer in _flat(self.names.get(variable, _NOTHING))
        }


def buffer_lifetimes(
    mod: tvm.IRModule, donated: Mapping[tvm.ir.GlobalVar, Sequence[relax.Var]] | None = None
) -> dict[tvm.ir.GlobalVar, BufferLifetimes]:
    """The lifetimes of the allocations of every Relax function of a module.

    ``donated`` are parameters whose memory counts as allocated ahead of the function's start.
    """
    given = donated or {}
    kernels = {var for var, func in mod.functions.items() if isinstance(func, tirx.PrimFunc)}
    keeps = any(_is_packed(binding.value) for binding in relax_bindings(mod))
    return {
        var: _Walk(kernels, keeps).of(func, given.get(var, ()))
        for var, func in relax_functions(mod).items()
    }


def is_view(value: relax.Expr) -> bool:
    """Whether a value is the memory of its first operand, by another name."""
    return operator_name(value) in _VIEWS


def _is_packed(value: relax.Expr) -> bool:
    """Whether a value is a call of something that may keep the tensors that it is given."""
    if not isinstance(value, relax.Call) or next(used_variables(value), None) is None:
        return False
    return isinstance(value.op, relax.ExternFunc) or operator_name(value) in _CALLS_PACKED


def _has_tensors(ty: tvm.ir.Type) -> bool:
    return not isinstance(ty, relax.ShapeType | tvm.ir.PrimType)


_CALLS_PACKED = ("relax.call_builtin_with_ctx", "relax.call_pure_packed", "relax.invoke_closure")


class _Walk:
    """Over one function; ``keeps`` is whether functions that it calls may keep what they get."""

    def __init__(self, kernels: set[tvm.ir.GlobalVar], keeps: bool) -> None:
        self._kernels, self._keeps = kernels, keeps
        self._place = 0
        self._found = BufferLifetimes()
        self._named = self._found.names

    def of(self, func: relax.Function, donated: Sequence[relax.Var]) -> BufferLifetimes:
        for param in donated:
            self._named[param] = frozenset([param])
            self._found.first[param] = self._found.last[param] = self._found.used[param] = 0
        self._found.escaped.update(_flat(self._sequence(func.body)))
        return self._found

    def _sequence(self, body: relax.Expr) -> _Named:
        if not isinstance(body, relax.SeqExpr):
            return self._names(body)
        for block in body.blocks[:]:
            for binding in block.bindings[:]:
                self._bind(binding)
        return self._names(body.body)

    def _bind(self, binding: relax.Binding) -> None:
        self._place += 1
        value = binding.value
        if isinstance(value, relax.If):
            named = self._branches(value)
        elif operator_name(value) == ALLOCATION:
            named = frozenset([binding.var])
            self._found.first[binding.var] = self._place
        else:
            named = self._names(value) if _has_tensors(binding.var.ty) else _NOTHING
            self._use(*used_variables(value))
        self._named[binding.var] = named
        self._found.places[binding.var] = self._place
        for buffer in _flat(named):
            self._found.last[buffer] = self._place

    def _branches(self, branch: relax.If) -> _Named:
        self._use(*used_variables(branch.cond))
        results = [self._sequence(side) for side in (branch.true_branch, branch.false_branch)]
        self._place += 1
        return _joined(*results)

    def _use(self, *variables: relax.Var) -> None:
        for variable in variables:
            for buffer in _flat(self._named.get(variable, _NOTHING)):
                self._found.last[buffer] = self._place
                self._found.used.setdefault(buffer, self._place)

    def _names(self, value: relax.Expr) -> _Named:
        """What a value may be another name of."""
        if isinstance(value, relax.Var):
            return self._named.get(value, _OTHERS)
        if isinstance(value, relax.Tuple):
            return tuple(self._names(one) for one in value.fields[:])
        if isinstance(value, relax.TupleGetItem):
            whole = self._names(value.tuple_value)
            return whole[value.index] if isinstance(whole, tuple) else whole
        if isinstance(value, relax.Call):
            return self._of_call(value)
        given = frozenset(self._all_of(value)) | _OTHERS
        # A function that captures a buffer may be called anywhere.
        self._found.escaped.update(given)
        return given

    def _of_call(self, call: relax.Call) -> _Named:
        if call.op in self._kernels:
            return _NOTHING
        if is_view(call):
            return self._names(call.args[0])
        given = frozenset(self._all_of(call)) | _OTHERS
        called = isinstance(call.op, tvm.ir.GlobalVar)
        if _is_packed(call) or (called and self._keeps) or isinstance(call.op, relax.Var):
            self._found.escaped.update(given)
        return given

    def _all_of(self, value: relax.Expr) -> Iterator[relax.Var]:
        for variable in used_variables(value):
            yield from _flat(self._named.get(variable, _NOTHING))


def _flat(named: _Named) -> Iterator[relax.Var]:
    if isinstance(named, frozenset):
        yield from named
        return
    for one in named:
        yield from _flat(one)


def _joined(one: _Named, other: _Named) -> _Named:
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        return tuple(map(_joined, one, other))
    return frozenset(_flat(one)) | frozenset(_flat(other))
