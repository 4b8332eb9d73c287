"""ActivationLookupTables: what is computed from one number of 8 bits is looked up."""

from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm_ffi import structural_equal

from tvm_ext.hardware.cpu.description import current_cpu
from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, Replacement
from tvm_ext.relay_passes.expressions import constant_value
from tvm_ext.relay_passes.graph_pass import BROADCAST, graph_pass

_BYTES = ("uint8", "int8")
_NUMBERS = 256

# Instructions for a vector of results, about.
_COSTS = {
    **dict.fromkeys(("astype", "add", "subtract", "multiply", "maximum", "minimum", "negative"), 1),
    **dict.fromkeys(("abs", "floor", "ceil", "nn.relu", "nn.leakyrelu"), 1),
    **dict.fromkeys(("clip", "round"), 2),
    **dict.fromkeys(("divide", "sqrt"), 16),
    **dict.fromkeys(("exp", "log", "sigmoid", "tanh", "erf", "nn.silu", "nn.gelu"), 24),
    "power": 48,
}
_OPERATORS = {f"relax.{name}": cost for name, cost in _COSTS.items()}

# The same of a look-up: one permutation of a table in registers, or a load for each lane.
_LOOK_UP, _LOOK_UP_EACH = 12, 64


@graph_pass
class ActivationLookupTables:
    """Takes the results of operators on quantised numbers from a table of 256.

    Before: ``y = astype(clip(round(sigmoid((astype(x, float32) - z) * s) / r), 0, 255), uint8)``
    After:  ``y = table[x]``        x: uint8 or int8, y: uint8 or int8

    All that is between: QuantizeLinear and DequantizeLinear in the middle of an activation that an
    exporter wrote as several operators (SiLU, hard swish, GELU), each of which ONNX Runtime
    computes for itself. The numbers are those of the operators, bit by bit.

    Leaves alone: chains that take less time than a look-up; operands that are no scalars; other
    targets than CPUs.

    Run after: LayoutPlanning. Run before: FoldConstantCalls, which computes the tables;
    ZeroPointCompensation.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """The rewritten module; ``mod`` itself when nothing matches."""
        machine = current_cpu()
        if machine is None:
            return mod
        has_permutation = "avx512vbmi" in machine.features
        return _TableRewriter(_LOOK_UP if has_permutation else _LOOK_UP_EACH).run(mod)


class _TableRewriter(BindingRewriter):
    pass_name = "ActivationLookupTables"
    roots = frozenset({"relax.astype"})

    def __init__(self, least: int) -> None:
        self._least = least
        self._roots: dict[int, relax.Var] = {}

    def start_function(self, func: relax.Function) -> None:
        super().start_function(func)
        self._roots = {}

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        call = self.view.call(value, "relax.astype")
        if call is None or str(var.ty.dtype) not in _BYTES:
            return None
        root = self._root(var)
        if root.same_as(var) or not self.reaches(root):
            return None
        if self._cost(var, root, set()) < self._least:
            return None
        table = self._at_every_number(var, root, {}, var)

        def look_up(numbers: te.Tensor, results: te.Tensor) -> te.Tensor:
            def each(*place: tirx.Var) -> tvm.ir.Expr:
                number = tirx.reinterpret("uint8", numbers(*place))
                return results(tirx.Cast("int32", number))

            return te.compute(numbers.shape, each, "look_up")

        attrs = {"op_pattern": BROADCAST}
        made = self.builder.call_te(look_up, root, table, primfunc_attrs=attrs)
        return Replacement(made, (), "looked up in a table")

    def _root(self, var: relax.Var) -> relax.Var:
        """The tensor of bytes whose elements alone decide those of ``var``; itself where there is
        no other.
        """
        known = self._roots.get(hash(var))
        if known is None:
            sources = self._sources(self.view.value(var), set())
            roots = {hash(root): root for root in map(self._root, sources or ())}
            (known,) = roots.values() if len(roots) == 1 else (var,)
            if not structural_equal(known.ty.shape, var.ty.shape):
                known = var
            self._roots[hash(var)] = known
        return known

    def _sources(self, value: relax.Expr, seen: set[int]) -> list[relax.Var] | None:
        """The tensors of bytes that a value is computed from, element by element; None where there
        is something else.
        """
        call = self.view.call(value, *_OPERATORS)
        if call is None:
            return None
        found: list[relax.Var] = []
        for arg in call.args:
            if self._is_scalar(arg) or hash(arg) in seen:
                continue
            seen.add(hash(arg))
            if isinstance(arg, relax.Var) and str(getattr(arg.ty, "dtype", "")) in _BYTES:
                found.append(arg)
                continue
            more = self._sources(arg, seen)
            if more is None:
                return None
            found += more
        return found

    def _is_scalar(self, arg: relax.Expr) -> bool:
        """Whether an operand is one number: an attribute, or a stored tensor of one element."""
        if not isinstance(arg.ty, relax.TensorType):
            return True
        number = constant_value(self.view, arg)
        return number is not None and number.size == 1

    def _cost(self, var: relax.Expr, root: relax.Var, seen: set[int]) -> int:
        if self._is_scalar(var) or var.same_as(root) or hash(var) in seen:
            return 0
        seen.add(hash(var))
        # One of the operators, as ``_sources`` has found.
        call: Any = self.view.value(var)
        return _OPERATORS[call.op.name] + sum(self._cost(arg, root, seen) for arg in call.args)

    def _at_every_number(
        self, expr: relax.Expr, root: relax.Var, made: dict[int, relax.Expr], origin: relax.Var
    ) -> relax.Expr:
        """What ``expr`` is for each value that an element of ``root`` may have, by its bits."""
        if not isinstance(expr.ty, relax.TensorType):
            return expr
        number = constant_value(self.view, expr)
        if number is not None:
            return relax.const(number.reshape(()), str(expr.ty.dtype))
        if expr.same_as(root):
            numbers = np.arange(_NUMBERS, dtype=np.uint8).view(str(root.ty.dtype))
            return relax.const(numbers, str(root.ty.dtype))
        if hash(expr) not in made:
            call: Any = self.view.value(expr)
            args = [self._at_every_number(arg, root, made, origin) for arg in call.args]
            made[hash(expr)] = self.bind(relax.Call(call.op, args, call.attrs), origin)
        return made[hash(expr)]
