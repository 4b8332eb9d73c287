"""Loops whose iterations do not depend on one another, found in loops written by hand.

Iterations are independent when every buffer that they write is cut into parts, one for each
iteration: some index of all accesses is ``step * variable + rest``, and no rest reaches the next
step. (R. Allen, K. Kennedy, "Optimizing Compilers for Modern Architectures", section 3.3: the
strong SIV test, here with windows in place of single elements.)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.sym import Analyzer, detect_linear_equation

from tvm_ext.tir_schedules.block_access import static_extent
from tvm_ext.tir_schedules.flat_views import nodes
from tvm_ext.tir_schedules.nest import substitute

# Accesses of one buffer that are compared with one another; the number of pairs is its square.
_MOST_ACCESSES = 48


@dataclass(frozen=True)
class Accesses:
    """What a statement does to memory that others see as well.

    Attributes
    ----------
    written : list of (buffer, list of indices)
        Each buffer that it stores to, with the indices of all its stores and loads.
    inner : dict of Var to For
        The loops inside of it by their variables.
    """

    written: list[tuple[Any, list[list[Any]]]]
    inner: dict[Any, tirx.For]


def accesses_of(body: tirx.Stmt) -> Accesses | None:
    """The accesses of ``body``; None where a call may touch memory in other ways."""
    if _has_unknown_effects(body):
        return None
    own = [stmt.buffer for stmt in nodes(body, tirx.AllocBuffer)]
    written: list[tuple[Any, list[list[Any]]]] = []
    for store in nodes(body, tirx.BufferStore):
        if any(store.buffer.same_as(buffer) for buffer in own):
            continue
        _indices_of(written, store.buffer).append(list(store.indices))
    for load in nodes(body, tvm.ir.TensorLoad):
        found = next((where for buffer, where in written if buffer.same_as(load.source)), None)
        if found is not None:
            found.append(list(load.indices))
    return Accesses(written, {loop.loop_var: loop for loop in nodes(body, tirx.For)})


def independent(var: Any, accesses: Accesses | None) -> bool:
    """Whether the iterations of the loop over ``var`` may run in any order, and at once."""
    if accesses is None:
        return False
    return all(_is_cut(indices, var, accesses) for _, indices in accesses.written)


def _has_unknown_effects(body: tirx.Stmt) -> bool:
    calls = [stmt for stmt in nodes(body, tirx.Evaluate) if isinstance(stmt.value, tvm.ir.Call)]
    aliases = nodes(body, tirx.DeclBuffer)
    return bool(calls or aliases or buffers_as_arguments(body))


def buffers_as_arguments(body: Any) -> list[Any]:
    """Calls that are handed a buffer, or a part of one, rather than its elements."""
    found = []
    for call in nodes(body, tvm.ir.Call):
        for argument in call.args:
            if isinstance(argument, tvm.ir.Var) and isinstance(argument.ty, tirx.BufferType):
                found.append(call)
    return found


def _indices_of(written: list[tuple[Any, list[list[Any]]]], buffer: Any) -> list[list[Any]]:
    for other, indices in written:
        if other.same_as(buffer):
            return indices
    written.append((buffer, []))
    return written[-1][1]


def _is_cut(indices: Sequence[list[Any]], var: Any, accesses: Accesses) -> bool:
    if len(indices) > _MOST_ACCESSES:
        return False
    return any(
        _is_cut_along([index[dimension] for index in indices], var, accesses)
        for dimension in range(len(indices[0]))
    )


def _is_cut_along(indices: Sequence[Any], var: Any, accesses: Accesses) -> bool:
    """Whether all of ``indices`` are windows of one step that do not meet."""
    steps, rests = [], []
    for index in indices:
        linear = detect_linear_equation(index, [var])
        step = static_extent(linear[0]) if len(linear) == 2 else None
        if not step or nodes(linear[1], tvm.ir.TensorLoad):
            return False
        steps.append(abs(step))
        rests.append(linear[1])
    if len(set(steps)) > 1:
        return False
    return all(_within(a, b, steps[0], accesses) for a in rests for b in rests)


def _within(left: Any, right: Any, step: int, accesses: Accesses) -> bool:
    """Whether two rests, each at any iteration of the inner loops, differ by less than a step."""
    analyzer = Analyzer()
    others: dict[Any, Any] = {}
    for var, loop in accesses.inner.items():
        copy = tirx.Var(var.name, str(var.ty))
        others[var] = copy
        for each in (var, copy):
            # The range of a loop that counts to another's variable is left open.
            if static_extent(loop.extent) is not None and static_extent(loop.min) is not None:
                analyzer.bind(each, tvm.ir.Range.from_min_extent(loop.min, loop.extent))
    bound = analyzer.const_int_bound(analyzer.simplify(left - substitute(right, others)))
    return -step < bound.min_value and bound.max_value < step
