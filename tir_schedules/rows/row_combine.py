"""How two partial results of a reduction become one."""

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import tirx
from tvm_ffi import structural_equal, structural_mutate

from tvm_ext.tir_schedules.rows.row_kernel import Axis, RowBlock, buffer_key

Values = Sequence[tvm.ir.Expr]
Combine = Callable[[Values, Values], list[tvm.ir.Expr]]

_COMMUTATIVE = (tirx.Add, tirx.Mul, tirx.Max, tirx.Min, tirx.And, tirx.Or)


def combine_of(block: RowBlock) -> Combine | None:
    """A function of two lists of partial results, one value for each store of ``block``.

    Known are results that each accumulate on their own (sums, maxima), and results that are picked
    together by comparing (argmax); None for anything else.
    """
    operations = [_operation(block, number) for number in range(len(block.stores))]
    if all(operation is not None for operation in operations):
        return lambda left, right: [
            operation(a, b)
            for operation, a, b in zip(operations, left, right, strict=True)
            if operation is not None
        ]
    return _picking(block)


def accumulated(value: Any, buffers: Sequence[tvm.ir.Var], values: Values) -> Any:
    """``value`` with other accumulators: loads of ``buffers`` become ``values``."""
    by_key = {buffer_key(b): new for b, new in zip(buffers, values, strict=True)}

    def load(node: tvm.ir.TensorLoad, mutator: Any) -> Any:
        new = by_key.get(buffer_key(node.source))
        return mutator.default_mutate(node) if new is None else new

    return structural_mutate(value, [(tvm.ir.TensorLoad, load)])


def _operation(block: RowBlock, number: int) -> Callable[[Any, Any], Any] | None:
    """The operator of ``acc = acc + x`` and the like, when only this accumulator is in it."""
    value = block.stores[number].value
    if not isinstance(value, _COMMUTATIVE):
        return None
    keys = [buffer_key(store.buffer) for store in block.stores]
    sides = [_accumulators(side, keys) for side in (value.a, value.b)]
    own = {keys[number]}
    for accumulator, other in ((0, 1), (1, 0)):
        side = (value.a, value.b)[accumulator]
        if isinstance(side, tvm.ir.TensorLoad) and sides[accumulator] == own and not sides[other]:
            return type(value)
    return None


def _accumulators(expr: Any, keys: list[int]) -> set[int]:
    return {buffer_key(v) for v in tirx.analysis.undefined_vars(expr)} & set(keys)


def _picking(block: RowBlock) -> Combine | None:
    """``acc = select(better(acc, new), acc, new)``, each result by the same kind of comparison."""
    values = [store.value for store in block.stores]
    if not all(isinstance(value, tirx.Select) for value in values):
        return None
    buffers = [store.buffer for store in block.stores]
    keys = [buffer_key(buffer) for buffer in buffers]
    for value, key in zip(values, keys, strict=True):
        kept = value.true_value
        if not isinstance(kept, tvm.ir.TensorLoad) or buffer_key(kept.source) != key:
            return None
    candidates = [value.false_value for value in values]
    if any(_accumulators(candidate, keys) for candidate in candidates):
        return None

    def combine(left: Values, right: Values) -> list[tvm.ir.Expr]:
        return [accumulated(_replaced(value, candidates, right), buffers, left) for value in values]

    placeholders = [tirx.Var(f"other{i}", str(c.ty)) for i, c in enumerate(candidates)]
    left_over = [combine(placeholders, placeholders)[i] for i in range(len(values))]
    return None if _depends_on(left_over, block.columns) else combine


def _replaced(value: Any, old: Values, new: Values) -> Any:
    def visit(node: Any, mutator: Any) -> Any:
        for candidate, replacement in zip(old, new, strict=True):
            if structural_equal(node, candidate):
                return replacement
        return mutator.default_mutate(node)

    return structural_mutate(value, [(tvm.ir.Expr, visit)])


def _depends_on(exprs: Values, axes: Sequence[Axis]) -> bool:
    keys = {buffer_key(axis.var) for axis in axes}
    return any(buffer_key(v) in keys for expr in exprs for v in tirx.analysis.undefined_vars(expr))
