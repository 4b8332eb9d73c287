"""What a block reads, with the conditions under which it does."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from tvm_ext.tir_schedules.flat_views import nodes

CONDITIONAL = tvm.ir.Op.get("prim.if_then_else")


@dataclass(frozen=True)
class GuardedLoad:
    """Elements of a tensor.

    Attributes
    ----------
    load : TensorLoad
        One of them.
    condition : Expr or None
        Where it is evaluated at all; None for everywhere.
    """

    load: Any
    condition: Any = None

    def value(self) -> Any:
        """The element, and zero where it may not be read."""
        if self.condition is None:
            return self.load
        return tirx.if_then_else(self.condition, self.load, tirx.const(0, str(self.load.ty)))

    def is_known(self) -> bool:
        """Whether its indices can be computed before the kernel runs."""
        inner = [one for index in self.load.indices for one in nodes(index, *_UNKNOWN)]
        return all(isinstance(one, tvm.ir.Call) and one.op.same_as(CONDITIONAL) for one in inner)


# What the analysis cannot evaluate in an index: other tensors, functions, floating point.
_UNKNOWN = (tvm.ir.TensorLoad, tvm.ir.Call, tirx.FloatImm)


def guarded_loads(value: Any) -> list[GuardedLoad]:
    """All loads of an expression, each element once; those that indices depend on as well."""
    reader = _Reader()
    tvm_ffi.structural_mutate(value, [(tvm.ir.Expr, reader.visit)])
    return list(reader.found.values())


class _Reader:
    """Goes through an expression and keeps the condition of the branch that it is in."""

    def __init__(self) -> None:
        self.found: dict[Any, GuardedLoad] = {}
        self._condition: Any = None

    def visit(self, node: Any, mutator: Any) -> Any:
        """Reads what is below ``node``, which stays as it is."""
        if isinstance(node, tvm.ir.Call) and node.op.same_as(CONDITIONAL):
            test, then, otherwise = node.args
            mutator.mutate(test)
            self._branch(test, then, mutator)
            self._branch(tirx.Not(test), otherwise, mutator)
            return node
        if isinstance(node, tvm.ir.TensorLoad):
            self._add(node)
        mutator.default_mutate(node)
        return node

    def _branch(self, condition: Any, value: Any, mutator: Any) -> None:
        before = self._condition
        self._condition = condition if before is None else tirx.And(before, condition)
        mutator.mutate(value)
        self._condition = before

    def _add(self, load: Any) -> None:
        key = tvm_ffi.StructuralKey(load)
        condition = self._condition
        known = self.found.get(key)
        if known is not None:
            everywhere = condition is None or known.condition is None
            condition = None if everywhere else tirx.Or(known.condition, condition)
        self.found[key] = GuardedLoad(load, condition)


def with_loads(value: Any, replaced: Mapping[Any, Any]) -> Any:
    """``value`` with other expressions in the place of loads, by their structural keys."""

    def visit(node: Any, mutator: Any) -> Any:
        if isinstance(node, tvm.ir.TensorLoad) and tvm_ffi.StructuralKey(node) in replaced:
            return replaced[tvm_ffi.StructuralKey(node)]
        return mutator.default_mutate(node)

    return tvm_ffi.structural_mutate(value, [(tvm.ir.Expr, visit)])
