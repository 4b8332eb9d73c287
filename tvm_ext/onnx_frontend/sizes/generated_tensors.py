"""A tensor whose elements follow from where they stand and from sizes, as ``tensor.generate``.

Positions, causal masks and the indices that select all rows of a batch are computed by chains of
Range, Unsqueeze, Expand, comparisons and Concat. Here each such tensor is one expression of its
place, which whoever reads it computes itself, and a kernel makes it where one is needed after all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, te, tirx
from tvm.sym import Analyzer

from tvm_ext.onnx_frontend.sizes.scalar_rules import analyzer_of, variables_of
from tvm_ext.onnx_frontend.sizes.size_values import Element, typed
from tvm_ext.tir_schedules.analysis.loop_nest import substitute


@dataclass(eq=False)
class GeneratedTensor:
    """A tensor as an expression.

    Attributes
    ----------
    dtype : str
        Of ONNX's tensor. Expressions of integers are int64 whatever it is, and in its range.
    sizes : list of int or tirx.Expr
        Its shape.
    axes : list of tirx.Var
        The place of an element, int64, one for each axis.
    element : Element
        A number or an expression of ``axes`` and of symbolic sizes; never None.
    operators : int
        How many operators are in it.
    tensor : relax.Expr, optional
        What the run computes, once something has asked for it.
    """

    dtype: str
    sizes: list[Any]
    axes: list[tirx.Var]
    element: Element
    operators: int = 1
    tensor: relax.Expr | None = None

    @property
    def ty(self) -> relax.TensorType:
        """Its type, as of a tensor in Relax."""
        return relax.TensorType(self.sizes, self.dtype)

    def at(self, places: Sequence[Any]) -> Element:
        """The element at ``places``, expressions of int64."""
        if not isinstance(self.element, tvm.ir.Expr):
            return self.element
        return substitute(self.element, dict(zip(self.axes, places, strict=True)))

    def analyzer(self) -> Analyzer:
        """An analyzer that knows where places can be, and what sizes can be."""
        analyzer = analyzer_of(*self.variables())
        for axis, size in zip(self.axes, self.sizes, strict=True):
            analyzer.bind(axis, tvm.ir.Range(tirx.const(0, "int64"), size))
        return analyzer

    def variables(self) -> list[tirx.Var]:
        """The symbolic sizes in it."""
        found = variables_of(self.element, *self.sizes)
        return [one for one in found if not any(one.same_as(axis) for axis in self.axes)]

    def as_tensor(self, bb: relax.BlockBuilder) -> relax.Expr:
        """What the run computes: a tensor of one number, or one kernel."""
        if self.tensor is None:
            self.tensor = bb.emit(self._filled()) if self._is_uniform() else self._emitted(bb)
        return self.tensor

    def _is_uniform(self) -> bool:
        return not isinstance(self.element, tvm.ir.Expr)

    def _filled(self) -> relax.Expr:
        return relax.op.full(
            relax.ShapeExpr(self.sizes), relax.const(self.element, self.dtype), self.dtype
        )

    def _emitted(self, bb: relax.BlockBuilder) -> relax.Expr:
        variables = self.variables()

        def kernel(given: list[tirx.Var]) -> te.Tensor:
            symbols = dict(zip(variables, given, strict=True))
            shape = [substituted(size, symbols) for size in self.sizes]

            def element(*places: tirx.Var) -> tirx.Expr:
                wide = [place.astype("int64") for place in places]
                return typed(substituted(self.at(wide), symbols), self.dtype)

            return te.compute(shape, element, name="generate")

        return bb.emit_te(kernel, variables, primfunc_name_hint="generate")


def substituted(value: Any, symbols: dict[tirx.Var, Any]) -> Any:
    """A number, or an expression in other symbols."""
    return substitute(value, symbols) if isinstance(value, tvm.ir.Expr) else value
