"""Takes functions of functions apart: the inner one's result waits in a small array.

Written out, every function names its intermediate values. To learn about a name, TVM's simplifier
puts what it stands for in its place: harmless for one function, but the work multiplies with each
that is nested. An array as long as the vector ends that; it is on the stack, and LLVM keeps it in
a register. A function that one store calls twice gets an array as well, and is computed once.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm_ffi import (
    StructuralMutator,
    structural_equal,
    structural_hash,
    structural_map,
    structural_mutate,
    structural_walk,
)

from tvm_ext.tir_schedules.llvm.borders import COMPARISONS
from tvm_ext.tir_schedules.llvm.stack_arrays import stack_array

_CONDITIONAL = "if_then_else"


def with_staged_calls(body: tirx.Stmt, is_function: Callable[[tvm.ir.Call], bool]) -> tirx.Stmt:
    """``body`` in which no call that ``is_function`` has another one among its arguments.

    What is taken out of a branch is computed, and its memory read, only where the branch is taken.
    """
    staged = structural_map(body, (tirx.For, lambda loop: _staged_loop(loop, is_function)))
    return structural_map(staged, (tirx.BufferStore, lambda s: _staged_store(s, is_function)))


def _staged_loop(loop: tirx.For, is_function: Callable[[tvm.ir.Call], bool]) -> tirx.Stmt:
    """A vectorised loop with an array, declared around it, for each inner call."""
    if loop.kind != tirx.ForKind.VECTORIZED:
        return loop
    stage = _Stage(is_function, loop.loop_var - loop.min, loop.extent)
    body = structural_map(loop.body, (tirx.BufferStore, stage.split))
    if not stage.declarations:
        return loop
    vector = tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, None, loop.annotations)
    return tirx.SeqStmt([*stage.declarations, vector])


def _staged_store(store: tirx.BufferStore, is_function: Callable[[tvm.ir.Call], bool]) -> tirx.Stmt:
    """What is left: stores outside of vectorised loops."""
    stage = _Stage(is_function, tirx.const(0, "int32"), tirx.const(1, "int32"))
    split = stage.split(store)
    return tirx.SeqStmt([*stage.declarations, *split.seq]) if stage.declarations else store


class _Stage:
    """The arrays of one loop; ``index`` is the position in them, below ``size``."""

    def __init__(
        self, is_function: Callable[[tvm.ir.Call], bool], index: tirx.Expr, size: tirx.Expr
    ) -> None:
        self.is_function = is_function
        self.index = index
        self.size = size
        # The arrays, to stand before the loop.
        self.declarations: list[tirx.Stmt] = []

    def split(self, store: tirx.BufferStore) -> tirx.Stmt:
        """The store, after one for each function that another one takes."""
        split = _Split(self, store.value)
        if not split.before:
            return store
        last = tirx.BufferStore(store.buffer, split.value, list(store.indices))
        return tirx.SeqStmt([*split.before, last])


@dataclass(frozen=True, eq=False)
class _Condition:
    """What has to hold for a branch to be taken; ``choose`` makes an expression of that branch."""

    holds: tirx.Expr
    choose: Callable[..., tirx.Expr]


@dataclass(frozen=True)
class _Staged:
    """A value that waits in an array, computed where all of ``conditions`` hold."""

    value: tirx.Expr
    conditions: tuple[_Condition, ...]
    load: tirx.Expr


class _Split:
    """One stored value: the stores that go before it, and what is left of it."""

    def __init__(self, stage: _Stage, value: tirx.Expr) -> None:
        self.before: list[tirx.BufferStore] = []
        self._stage = stage
        self._conditions: tuple[_Condition, ...] = ()
        self._staged: list[_Staged] = []
        self._uses = Counter(structural_hash(call) for call in self._functions_below(value))
        self.value = structural_mutate(
            value, [(tvm.ir.Call, self._call), (tirx.Select, self._select)]
        )

    def _call(self, call: tvm.ir.Call, mutator: StructuralMutator) -> tirx.Expr:
        if isinstance(call.op, tvm.ir.Op) and str(call.op.name).endswith(_CONDITIONAL):
            return self._branch(call.args, tirx.if_then_else, mutator)
        changed = mutator.default_mutate(call)
        if not self._stage.is_function(call):
            return changed
        arguments = [
            self._put(a) if self._functions_below(a) or _compares(a) else a for a in changed.args
        ]
        flat = tirx.call_intrin(str(call.ty), call.op, *arguments)
        return self._put(flat) if self._uses[structural_hash(call)] > 1 else flat

    def _select(self, select: tirx.Select, mutator: StructuralMutator) -> tirx.Expr:
        parts = (select.condition, select.true_value, select.false_value)
        return self._branch(parts, tirx.Select, mutator)

    def _branch(
        self, parts: Sequence[tirx.Expr], choose: Any, mutator: StructuralMutator
    ) -> tirx.Expr:
        condition = mutator.mutate(parts[0])
        around = self._conditions
        values = []
        for value, holds in zip(parts[1:], (condition, tirx.Not(condition)), strict=True):
            self._conditions = (*around, _Condition(holds, choose))
            values.append(mutator.mutate(value))
        self._conditions = around
        return choose(condition, *values)

    def _put(self, value: tirx.Expr) -> tirx.Expr:
        for known in self._staged:
            enclosing = self._conditions[: len(known.conditions)]
            if known.conditions == enclosing and structural_equal(known.value, value):
                return known.load
        guarded = value
        for condition in reversed(self._conditions):
            otherwise = tirx.const(0, str(value.ty))
            guarded = condition.choose(condition.holds, guarded, otherwise)
        declarations, index = self._stage.declarations, self._stage.index
        name = f"staged{len(declarations)}"
        array, declaration = stack_array(self._stage.size, str(value.ty), name)
        declarations.append(declaration)
        self.before.append(tirx.BufferStore(array, guarded, [index]))
        load = tirx.BufferLoad(array, [index])
        self._staged.append(_Staged(value, self._conditions, load))
        return load

    def _functions_below(self, value: Any) -> list[tvm.ir.Call]:
        found: list[tvm.ir.Call] = []
        structural_walk(value, (tvm.ir.Call, found.append))
        return [call for call in found if self._stage.is_function(call)]


def _compares(value: Any) -> bool:
    """Whether a comparison is below: TVM's simplifier fails on some of whole vectors."""
    found: list[Any] = []
    structural_walk(value, (COMPARISONS, found.append))
    return bool(found)
