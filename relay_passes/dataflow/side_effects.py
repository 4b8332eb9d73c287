"""Effects of calls: what may be left out, moved, or computed twice.

LLVM's ``MemoryEffects`` and MLIR's ``MemoryEffectOpInterface``, for Relax: an operator says itself
whether it is pure (``FPurity``), a function has the effects of all that it calls. Random numbers of
imported models are counted, and follow from their node: they are as pure as a sum.
"""

from collections.abc import Iterator
from enum import Flag, auto

import tvm
from tvm import relax

from tvm_ext.relay_passes.spans import all_bindings_of, relax_functions


class Effect(Flag):
    """What a call does besides giving a result."""

    NONE = 0
    # It reads or writes what is neither an operand nor its result, or it prints.
    STATE = auto()
    # Another call with the same operands gives other numbers.
    RANDOM = auto()
    # It may end the run with an error: a size that is not what it must be.
    RAISES = auto()
    # It may never end, as a Loop without a trip count.
    MAY_NOT_END = auto()


_ANYTHING = Effect.STATE | Effect.RANDOM | Effect.RAISES | Effect.MAY_NOT_END
_RAISES = frozenset({"relax.assert_op", "relax.tensor_to_shape"})
# Pure by declaration, and code that only its author knows.
_DECLARED_PURE = frozenset({"relax.call_pure_packed", "relax.call_dps_packed"})


def may_be_removed(effect: Effect) -> bool:
    """Whether a call whose result nothing uses may go. One that may raise has to stay."""
    return not effect & (Effect.STATE | Effect.RANDOM | Effect.RAISES)


def may_be_moved(effect: Effect) -> bool:
    """Whether a call may run earlier or later, or where it did not run before."""
    return effect is Effect.NONE


def may_be_duplicated(effect: Effect) -> bool:
    """Whether a call may run twice, or once in place of twice."""
    return not effect & (Effect.STATE | Effect.RANDOM)


def is_pure_operator(call: relax.Call) -> bool:
    """Whether it calls an operator that has no effects at all."""
    return isinstance(call.op, tvm.ir.Op) and _of_operator(call) in (Effect.NONE, Effect.RAISES)


def side_effects(mod: tvm.IRModule) -> "SideEffects":
    """The effects of all bindings of a module."""
    return SideEffects(mod)


class SideEffects:
    """Effects of functions, found once, and of the bindings in them."""

    def __init__(self, mod: tvm.IRModule) -> None:
        functions = {str(var.name_hint): func for var, func in relax_functions(mod).items()}
        self._calls = {name: set(_called(func)) for name, func in functions.items()}
        self._functions: dict[str, Effect] = {}
        own = {name: self._own(func) for name, func in functions.items()}
        for name in functions:
            reached = self._reached(name)
            effect = own[name]
            for other in reached:
                effect |= own.get(other, _ANYTHING)
            self._functions[name] = effect | (
                Effect.MAY_NOT_END if name in reached else Effect.NONE
            )

    def _own(self, func: relax.Function) -> Effect:
        effect = Effect.NONE
        for binding in all_bindings_of(func):
            value = binding.value
            if not (isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar)):
                effect |= self.of(binding)
        return effect

    def _reached(self, name: str) -> set[str]:
        """All functions that a call of this one may call, itself only if they call it."""
        found: set[str] = set()
        left = list(self._calls[name])
        while left:
            callee = left.pop()
            if callee not in found:
                found.add(callee)
                left += self._calls.get(callee, ())
        return found

    def of_function(self, function: tvm.ir.GlobalVar) -> Effect:
        """What a call of a function of the module may do."""
        return self._functions.get(str(function.name_hint), _ANYTHING)

    def of(self, binding: relax.Binding) -> Effect:
        """What a binding may do besides giving its variable a value."""
        value = binding.value
        if isinstance(binding, relax.MatchCast):
            return Effect.RAISES
        if isinstance(value, relax.If):
            effect = Effect.NONE
            for side in (value.true_branch, value.false_branch):
                for inner in _bindings_of_body(side):
                    effect |= self.of(inner)
            return effect
        return self.of_call(value) if isinstance(value, relax.Call) else Effect.NONE

    def of_call(self, call: relax.Call) -> Effect:
        """What a call of an operator or a function may do."""
        if isinstance(call.op, tvm.ir.GlobalVar):
            return self.of_function(call.op)
        return _of_operator(call) if isinstance(call.op, tvm.ir.Op) else _ANYTHING


def _of_operator(call: relax.Call) -> Effect:
    name = str(call.op.name)
    if name in _RAISES:
        return Effect.RAISES
    if name in _DECLARED_PURE:
        return Effect.RAISES
    return Effect.NONE if call.op.get_attr("FPurity") else _ANYTHING


def _called(func: relax.Function) -> Iterator[str]:
    for binding in all_bindings_of(func):
        value = binding.value
        if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar):
            yield str(value.op.name_hint)


def _bindings_of_body(body: relax.Expr) -> Iterator[relax.Binding]:
    if isinstance(body, relax.SeqExpr):
        for block in body.blocks[:]:
            yield from block.bindings[:]
