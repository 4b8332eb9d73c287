"""Takes functions of functions apart: the inner one's result waits in a small array.

Written out, every function names its intermediate values. To learn about a name, TVM's simplifier
puts what it stands for in its place: harmless for one function, but the work multiplies with each
that is nested. An array as long as the vector ends that; it is on the stack, and LLVM keeps it in
a register. A function that one store calls twice gets an array as well: names must be unique.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import tvm
from tvm import tirx
from tvm_ffi import structural_equal, structural_hash, structural_map, structural_walk

# The name that TVM gives to "leave this small array on the stack".
_ON_STACK = {"disable_lower_tvm_builtin": True}

_CONDITIONAL = "if_then_else"


def with_staged_calls(body: tirx.Stmt, is_function: Callable[[tvm.ir.Call], bool]) -> tirx.Stmt:
    """``body`` in which no call that ``is_function`` has another one among its arguments.

    Calls below a branch stay as they are: their arguments may be read only where it is taken.
    """
    staged = structural_map(body, (tirx.For, lambda loop: _staged_loop(loop, is_function)))
    return structural_map(staged, (tirx.BufferStore, lambda s: _staged_store(s, is_function)))


def _staged_loop(loop: tirx.For, is_function: Callable[[tvm.ir.Call], bool]) -> tirx.Stmt:
    """A vectorised loop with an array, declared around it, for each inner call."""
    if loop.kind != tirx.ForKind.VECTORIZED:
        return loop
    stage = _Stage(is_function, loop.loop_var - loop.min, loop.extent)
    body = structural_map(loop.body, (tirx.BufferStore, stage.split))
    if not stage.arrays:
        return loop
    vector = tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, None, loop.annotations)
    return tirx.SeqStmt([*stage.declarations(), vector])


def _staged_store(store: tirx.BufferStore, is_function: Callable[[tvm.ir.Call], bool]) -> tirx.Stmt:
    """What is left: stores outside of vectorised loops."""
    stage = _Stage(is_function, tirx.const(0, "int32"), tirx.const(1, "int32"))
    split = stage.split(store)
    return tirx.SeqStmt([*stage.declarations(), *split.seq]) if stage.arrays else store


class _Stage:
    """The arrays of one loop; ``index`` is the position in them, below ``size``."""

    def __init__(
        self, is_function: Callable[[tvm.ir.Call], bool], index: tirx.Expr, size: tirx.Expr
    ) -> None:
        self.is_function = is_function
        self.index = index
        self.size = size
        self.arrays: list[Any] = []

    def declarations(self) -> list[tirx.Stmt]:
        """The arrays, to stand before the loop."""
        return [tirx.AllocBuffer(array, annotations=_ON_STACK) for array in self.arrays]

    def split(self, store: tirx.BufferStore) -> tirx.Stmt:
        """The store, after one for each function that another one takes."""
        if _branches(store.value):
            return store
        before: list[tirx.BufferStore] = []

        def staged(call: tvm.ir.Call) -> tvm.ir.Expr:
            if not self.is_function(call) or not any(map(self._calls, call.args)):
                return call
            arguments = [self._put(arg, before) if self._calls(arg) else arg for arg in call.args]
            return tirx.call_intrin(str(call.ty), call.op, *arguments)

        flat = structural_map(store.value, (tvm.ir.Call, staged))
        calls = [call for call in _calls_below(flat) if self.is_function(call)]
        counts = Counter(structural_hash(call) for call in calls)

        def once(call: tvm.ir.Call) -> tvm.ir.Expr:
            return self._put(call, before) if counts[structural_hash(call)] > 1 else call

        value = structural_map(flat, (tvm.ir.Call, once))
        if not before:
            return store
        return tirx.SeqStmt([*before, tirx.BufferStore(store.buffer, value, list(store.indices))])

    def _put(self, value: tirx.Expr, before: list[tirx.BufferStore]) -> tirx.Expr:
        for store in before:
            if structural_equal(store.value, value):
                return tirx.BufferLoad(store.buffer, [self.index])
        array = tirx.decl_buffer((self.size,), str(value.ty), f"staged{len(self.arrays)}")
        self.arrays.append(array)
        before.append(tirx.BufferStore(array, value, [self.index]))
        return tirx.BufferLoad(array, [self.index])

    def _calls(self, value: Any) -> bool:
        """Whether functions are called below an expression."""
        return any(map(self.is_function, _calls_below(value)))


def _branches(value: Any) -> bool:
    return any(
        isinstance(call.op, tvm.ir.Op) and str(call.op.name).endswith(_CONDITIONAL)
        for call in _calls_below(value)
    )


def _calls_below(value: Any) -> list[tvm.ir.Call]:
    found: list[tvm.ir.Call] = []
    structural_walk(value, (tvm.ir.Call, found.append))
    return found
