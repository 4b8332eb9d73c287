"""A Relax function as the steps that the memory planner orders, and the function of other steps.

The function is one ahead of ``CallTIRRewrite``, whose calls name their results and write to nothing
else. Calls of kernels are steps that may change places and run again. What only gives a value
another name (a reshape, a tuple, a field of it) is no step, and is written ahead of the first step
that uses the name. Anything else stays where it is, as a barrier.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import tvm
import tvm_ffi
from tvm import relax

from tvm_ext.memory_planner.program import KernelTraits, Program, Step
from tvm_ext.relay_passes.dataflow.liveness import used_variables
from tvm_ext.relay_passes.expressions import operator_name
from tvm_ext.relay_passes.spans import origins_of, span_of

# Operators whose result is their first operand's memory.
_VIEWS = ("relax.reshape", "relax.memory.view", "relax.memory.ensure_zero_offset")

# The values that a variable may name; of a tuple, those of each field.
_Named: TypeAlias = frozenset[int] | tuple["_Named", ...]
_NOTHING: frozenset[int] = frozenset()

TraitsOf: TypeAlias = Callable[[relax.Call], KernelTraits]
BytesOf: TypeAlias = Callable[[tvm.ir.Type], int]


@dataclass
class FunctionSteps:
    """A function and its program.

    Attributes
    ----------
    func : relax.Function
        The function.
    program : Program
        Its steps; ``source`` of each is a position in ``bindings``.
    bindings : list of relax.Binding
        Those that are steps.
    names : dict of relax.Var to relax.Binding
        Those that give a value another name.
    """

    func: relax.Function
    program: Program
    bindings: list[relax.Binding]
    names: dict[relax.Var, relax.Binding]

    def written(self, program: Program) -> tuple[relax.Function, dict[relax.Var, relax.Var]]:
        """The function that runs these steps of it, and for each new variable that of the step."""
        return _Writer(self).written(program)


def function_steps(
    func: relax.Function,
    kernels: Mapping[tvm.ir.GlobalVar, object],
    traits_of: TraitsOf,
    bytes_of: BytesOf,
    alignment: int,
    has_views: bool,
    donated: Mapping[relax.Var, int],
) -> FunctionSteps:
    """Reads a function; ``kernels`` are those whose calls are steps.

    ``bytes_of`` gives the bytes of a tensor of the type, 0 where the plan has no place for it.
    ``donated`` has the places of results by the parameters whose memory they may have.
    """
    reader = _Reader(kernels, traits_of, bytes_of)
    given = {place: reader.parameter(param) for param, place in donated.items()}
    returned = reader.sequence(func.body)
    reader.outside.update(_flat(returned))
    steps = reader.steps
    if isinstance(returned, tuple):
        results = {one: given[n] for n in given for one in _flat(returned[n])}
        steps = [_overwriting(step, results) for step in steps]
    program = Program(
        tuple(steps),
        tuple(reader.sizes),
        frozenset(reader.outside),
        alignment,
        has_views,
    )
    return FunctionSteps(func, program, reader.bindings, reader.names)


def _overwriting(step: Step, params: Mapping[int, int]) -> Step:
    """The step, with the parameters whose memory its results may have of those that it reads."""
    own = (params[one] for one in step.results if one in params)
    found = tuple(one for one in own if one in step.arguments)
    return replace(step, overwrites=found) if found else step


@dataclass
class _Reader:
    """Collects the steps of a function, binding by binding."""

    kernels: Mapping[tvm.ir.GlobalVar, object]
    traits_of: TraitsOf
    bytes_of: BytesOf
    steps: list[Step] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    outside: set[int] = field(default_factory=set)
    bindings: list[relax.Binding] = field(default_factory=list)
    names: dict[relax.Var, relax.Binding] = field(default_factory=dict)
    _named: dict[relax.Var, _Named] = field(default_factory=dict)

    def parameter(self, param: relax.Var) -> int:
        """The value of a parameter, which is not in the arena."""
        value = self._new(0)
        self.outside.add(value)
        self._named[param] = frozenset([value])
        return value

    def sequence(self, body: relax.Expr) -> _Named:
        """Reads a body; what its result may name."""
        if not isinstance(body, relax.SeqExpr):
            return self._names_of(body)
        for block in body.blocks[:]:
            for binding in block.bindings[:]:
                self._read(binding)
        return self._names_of(body.body)

    def _read(self, binding: relax.Binding) -> None:
        value = binding.value
        if isinstance(binding, relax.VarBinding) and _is_name(value):
            self.names[binding.var] = binding
            self._named[binding.var] = self._names_of(value)
        elif isinstance(binding, relax.VarBinding) and is_kernel_call(value, self.kernels):
            self._call(binding)
        elif isinstance(value, relax.If):
            self._branches(binding)
        else:
            self._barrier(binding)

    def _call(self, binding: relax.VarBinding) -> None:
        call = binding.value
        types = result_types(call)
        results = tuple(self._new(self.bytes_of(ty)) for ty in types)
        is_tuple = isinstance(call.ty_args[0], relax.TupleType)
        found = tuple(frozenset([one]) for one in results)
        self._named[binding.var] = found if is_tuple else found[0]
        self._add(binding, self._arguments(call.args[1].fields[:]), results, self.traits_of(call))

    def _branches(self, binding: relax.Binding) -> None:
        """An If is a step that needs what the larger of its branches needs at a time."""
        inside = []
        for side in (binding.value.true_branch, binding.value.false_branch):
            # What is computed outside of a branch is no value of its program.
            reader = _Reader(self.kernels, self.traits_of, self.bytes_of)
            reader.sequence(side)
            inside.append(Program(tuple(reader.steps), tuple(reader.sizes)).peak)
        # What the branches compute is alive behind them too, as long as the result is.
        result = self._new(self.bytes_of(binding.var.ty))
        used = self._used(binding.value)
        self._named[binding.var] = frozenset([result, *(one for one in used if one is not None)])
        self._add(binding, used, (result,), workspace=max(inside))

    def _barrier(self, binding: relax.Binding) -> None:
        used = self._used(binding.value)
        self._named[binding.var] = _NOTHING
        if isinstance(binding, relax.MatchCast):
            self._named[binding.var] = self._names_of(binding.value)
        else:
            # What it may keep, or give back under another name.
            self.outside.update(one for one in used if one is not None)
        self._add(binding, used, ())

    def _add(
        self,
        binding: relax.Binding,
        arguments: tuple[int | None, ...],
        results: tuple[int, ...],
        kernel: KernelTraits | None = None,
        workspace: int = 0,
    ) -> None:
        is_barrier = kernel is None
        self.steps.append(
            Step(len(self.bindings), arguments, results, kernel, workspace, is_barrier)
        )
        self.bindings.append(binding)

    def _new(self, size: int) -> int:
        self.sizes.append(size)
        return len(self.sizes) - 1

    def _arguments(self, values: list[relax.Expr]) -> tuple[int | None, ...]:
        """The value that each argument is; those that are one of several come behind all."""
        found: list[int | None] = []
        several: list[int] = []
        for value in values:
            named = list(_flat(self._names_of(value)))
            found.append(named[0] if len(named) == 1 else None)
            several += named if len(named) > 1 else []
        return (*found, *several)

    def _used(self, value: relax.Expr) -> tuple[int | None, ...]:
        used = (self._named.get(variable, _NOTHING) for variable in _uses(value))
        return tuple(dict.fromkeys(one for named in used for one in _flat(named)))

    def _names_of(self, value: relax.Expr) -> _Named:
        if isinstance(value, relax.Var):
            return self._named.get(value, _NOTHING)
        if isinstance(value, relax.Tuple):
            return tuple(self._names_of(one) for one in value.fields[:])
        if isinstance(value, relax.TupleGetItem):
            whole = self._names_of(value.tuple_value)
            return whole[value.index] if isinstance(whole, tuple) else whole
        if operator_name(value) in _VIEWS:
            return self._names_of(value.args[0])
        return _NOTHING


def is_kernel_call(value: relax.Expr, kernels: Mapping[tvm.ir.GlobalVar, object]) -> bool:
    """Whether a value is what a call of a kernel computes, without a size as its argument."""
    return (
        operator_name(value) == "relax.call_tir"
        and len(value.args) == 2
        and value.args[0] in kernels
        and isinstance(value.args[1], relax.Tuple)
    )


def result_types(call: relax.Call) -> list[tvm.ir.Type]:
    """The types of the results of a kernel call."""
    ty = call.ty_args[0]
    return list(ty.fields) if isinstance(ty, relax.TupleType) else [ty]


def _is_name(value: relax.Expr) -> bool:
    names = (relax.Var, relax.Tuple, relax.TupleGetItem)
    return isinstance(value, names) or operator_name(value) in _VIEWS


def _uses(value: relax.Expr) -> Iterator[relax.Var]:
    """The variables that an expression uses, those that its branches use included."""
    if isinstance(value, relax.If):
        yield from relax.analysis.free_vars(value)
    else:
        yield from used_variables(value)


def _flat(named: _Named) -> Iterator[int]:
    if isinstance(named, frozenset):
        yield from named
        return
    for one in named:
        yield from _flat(one)


class _Writer:
    """Writes a function with its steps in another order, some of them several times."""

    def __init__(self, steps: FunctionSteps) -> None:
        self._steps = steps
        self._given = {step.source: step for step in steps.program.steps}
        self._bindings: list[relax.Binding] = []
        self._present: set[relax.Var] = set()
        self._others: dict[tuple[relax.Var, ...], relax.Var] = {}
        # The variable of the step that computes each value, and that of the step it was read from.
        self._variables: dict[int, relax.Var] = {}
        self._copied: dict[relax.Var, relax.Var] = {}

    def written(self, program: Program) -> tuple[relax.Function, dict[relax.Var, relax.Var]]:
        """The function, and for each variable of a copy that of the step as it was read."""
        func = self._steps.func
        for step in program.steps:
            self._write(step)
        result = self._resolved(func.body.body, {})
        body = relax.SeqExpr([relax.BindingBlock(self._bindings)], result)
        changed = relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)
        return changed, self._copied

    def _write(self, step: Step) -> None:
        binding = self._steps.bindings[step.source]
        given = self._given[step.source]
        changed = {
            self._own_variable(old): self._variables[new]
            for old, new in zip(given.arguments, step.arguments, strict=True)
            if old is not None and new is not None and old != new
        }
        value = self._resolved(binding.value, changed)
        variable = binding.var
        if step.results != given.results:
            names = origins_of(variable)
            variable = relax.Var(variable.name, variable.ty, span_of(names))
            self._copied[variable] = binding.var
        self._variables.update(dict.fromkeys(step.results, variable))
        if isinstance(binding, relax.MatchCast):
            self._bindings.append(relax.MatchCast(variable, value, binding.ty))
        else:
            self._bindings.append(relax.VarBinding(variable, value))

    def _own_variable(self, value: int) -> relax.Var:
        """The variable of the step that computes a value of the function as it was read."""
        maker = self._steps.program.steps[self._steps.program.makers[value]]
        return self._steps.bindings[maker.source].var

    def _resolved(self, value: relax.Expr, changed: Mapping[relax.Var, relax.Var]) -> relax.Expr:
        """A value with the names that it uses written, and other variables in place of some."""
        found = {
            variable: self._variable(variable, changed) for variable in dict.fromkeys(_uses(value))
        }
        others = {old: new for old, new in found.items() if not old.same_as(new)}
        if not others:
            return value
        return tvm_ffi.structural_map(value, (tvm.ir.Var, lambda one: others.get(one, one)))

    def _variable(self, variable: relax.Var, changed: Mapping[relax.Var, relax.Var]) -> relax.Var:
        """The variable to use in place of one, written first where it is another name."""
        binding = self._steps.names.get(variable)
        if binding is None:
            return changed.get(variable, variable)
        used = list(dict.fromkeys(used_variables(binding.value)))
        parts = tuple(self._variable(one, changed) for one in used)
        if all(one.same_as(part) for one, part in zip(used, parts, strict=True)):
            if variable not in self._present:
                self._present.add(variable)
                self._bindings.append(binding)
            return variable
        key = (variable, *parts)
        if key not in self._others:
            value = self._resolved(binding.value, changed)
            other = relax.Var(variable.name, variable.ty, variable.span)
            self._bindings.append(relax.VarBinding(other, value))
            self._others[key] = other
        return self._others[key]
