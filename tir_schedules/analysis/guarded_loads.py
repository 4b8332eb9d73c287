"""What an expression reads, with the conditions under which it does."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import tvm
import tvm_ffi
from tvm import tirx

from tvm_ext.tir_schedules.analysis.buffer_access import is_conditional, nodes

# What cannot be computed in an index before the kernel runs: other tensors, functions, floating
# point.
_UNKNOWN = (tvm.ir.TensorLoad, tvm.ir.Call, tirx.FloatImm)

_CHILDREN = ("a", "b", "value", "condition", "true_value", "false_value")


class GuardedLoad(NamedTuple):
    """A load, and where it is done at all; None for everywhere."""

    load: tvm.ir.TensorLoad
    condition: tvm.ir.Expr | None = None

    def value(self) -> tvm.ir.Expr:
        """The element, and zero where it may not be read."""
        if self.condition is None:
            return self.load
        return tirx.if_then_else(self.condition, self.load, tirx.const(0, str(self.load.ty)))

    def is_known(self) -> bool:
        """Whether its indices can be computed before the kernel runs."""
        inner = [one for index in self.load.indices for one in nodes(index, *_UNKNOWN)]
        return all(is_conditional(one) for one in inner)


def guarded_loads(value: tvm.ir.Expr, certain: bool = False) -> list[GuardedLoad]:
    """The loads of an expression, in order.

    With ``certain``, loads for an index, and those on the right of a logical operator, are left
    out.
    """
    found: list[GuardedLoad] = []

    def look(node: tvm.ir.Expr, condition: tvm.ir.Expr | None) -> None:
        if is_conditional(node):
            test, first, second = node.args
            look(test, condition)
            look(first, _both(condition, test))
            look(second, _both(condition, tirx.Not(test)))
            return
        if isinstance(node, tvm.ir.TensorLoad):
            found.append(GuardedLoad(node, condition))
        parts = [] if certain and isinstance(node, tvm.ir.TensorLoad) else children(node)
        if certain and isinstance(node, tirx.And | tirx.Or):
            parts = [node.a]
        for part in parts:
            look(part, condition)

    look(value, None)
    return found


def each_element_once(loads: Iterable[GuardedLoad]) -> list[GuardedLoad]:
    """``loads`` with those of one element as one, done where any of them is."""
    found: dict[Any, GuardedLoad] = {}
    for load, condition in loads:
        known = found.get(key := tvm_ffi.StructuralKey(load))
        if known is not None:
            everywhere = condition is None or known.condition is None
            condition = None if everywhere else tirx.Or(known.condition, condition)
        found[key] = GuardedLoad(load, condition)
    return list(found.values())


def _both(left: tvm.ir.Expr | None, right: tvm.ir.Expr) -> tvm.ir.Expr:
    return right if left is None else tirx.And(left, right)


def children(node: tvm.ir.Expr) -> list[tvm.ir.Expr]:
    """The expressions that ``node`` is made of."""
    found = [getattr(node, name, None) for name in _CHILDREN]
    for name in ("indices", "args"):
        # Not "+=": TVM's arrays take that over, and copy the list.
        found.extend(getattr(node, name, None) or ())
    return [child for child in found if isinstance(child, tvm.ir.Expr)]
