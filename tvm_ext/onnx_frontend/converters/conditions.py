"""Comparisons and Not where sizes of the model decide them, and where only the run can.

TVM's Equal compares expressions by how they are written, so that "is this size 1" is False for
every size with a name, whatever the run brings. Its comparisons take no single size with a name.
Its Not leaves constants to the run, so that an If behind it keeps both branches.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.sym import Analyzer

from tvm_ext.hardware.tvm_compat import OnnxOpConverter
from tvm_ext.onnx_frontend.converters.runtime_sizes import is_size, sizes_as_tensor
from tvm_ext.onnx_frontend.converters.traits import Shapes, takes_shapes

_Compare = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class _Relation:
    """A relation of numbers, of sizes and of tensors, and its contrary of sizes."""

    numbers: _Compare
    sizes: _Compare
    contrary: _Compare
    tensors: _Compare


@takes_shapes(Shapes.AMONG_THEMSELVES)
class _Comparison(OnnxOpConverter):
    """A constant where the compiler can tell the result for every run."""

    relation: _Relation

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        first, second = inputs[0], inputs[1]
        if _is_constant(first) and _is_constant(second):
            found = cls.relation.numbers(first.value.numpy(), second.value.numpy())
            return relax.const(found, "bool")
        a, b = _elements(first), _elements(second)
        if a is not None and b is not None:
            known = _decided(cls.relation, a, b)
            if known is not None:
                return relax.const(known, "bool")
        return cls.relation.tensors(_as_tensor(bb, first), _as_tensor(bb, second))


class Equal(_Comparison):
    """Elementwise ``a == b``."""

    relation = _Relation(np.equal, tirx.EQ, tirx.NE, relax.op.equal)


class Greater(_Comparison):
    """Elementwise ``a > b``."""

    relation = _Relation(np.greater, tirx.GT, tirx.LE, relax.op.greater)


class GreaterOrEqual(_Comparison):
    """Elementwise ``a >= b``."""

    relation = _Relation(np.greater_equal, tirx.GE, tirx.LT, relax.op.greater_equal)


class Less(_Comparison):
    """Elementwise ``a < b``."""

    relation = _Relation(np.less, tirx.LT, tirx.GE, relax.op.less)


class LessOrEqual(_Comparison):
    """Elementwise ``a <= b``."""

    relation = _Relation(np.less_equal, tirx.LE, tirx.GT, relax.op.less_equal)


class Not(OnnxOpConverter):
    """Of a constant a constant, else TVM's operator."""

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        if _is_constant(inputs[0]):
            return relax.const(np.logical_not(inputs[0].value.numpy()), "bool")
        return relax.op.logical_not(inputs[0])


def _decided(relation: _Relation, first: np.ndarray, second: np.ndarray) -> np.ndarray | None:
    """Whether it holds for each pair of elements; None when that differs from run to run."""
    pairs = np.broadcast(first, second)
    found = np.empty(pairs.shape, bool)
    for place, (a, b) in enumerate(pairs):
        analyzer = _of_sizes(a, b)
        if analyzer.can_prove(relation.sizes(a, b)):
            found.flat[place] = True
        elif analyzer.can_prove(relation.contrary(a, b)):
            found.flat[place] = False
        else:
            return None
    return found


def _of_sizes(*values: tirx.Expr) -> Analyzer:
    """An analyzer that knows that sizes are not negative."""
    analyzer = Analyzer()
    for variable in relax.analysis.tir_vars_in_type(relax.ShapeType(list(values))):
        bound = analyzer.const_int_bound(variable)
        analyzer.update(variable, type(bound)(0, bound.POS_INF))
    return analyzer


def _elements(value: Any) -> np.ndarray | None:
    """Shapes, sizes and constant integers as an array of expressions; None for all else."""
    if isinstance(value, relax.ShapeExpr):
        return _array(list(value.values), (len(value.values),))
    if is_size(value):
        return _array([value], ())
    if _is_constant(value) and np.issubdtype(value.value.numpy().dtype, np.integer):
        numbers = value.value.numpy()
        return _array([tirx.const(int(n), "int64") for n in numbers.flat], numbers.shape)
    return None


def _array(values: list[tirx.Expr], shape: tuple[int, ...]) -> np.ndarray:
    found = np.empty(len(values), object)
    for place, value in enumerate(values):
        found[place] = value
    return found.reshape(shape)


def _as_tensor(bb: relax.BlockBuilder, value: Any) -> relax.Expr:
    is_shape = isinstance(value, relax.ShapeExpr) or is_size(value)
    return sizes_as_tensor(bb, value) if is_shape else value


def _is_constant(value: Any) -> bool:
    return isinstance(value, tvm.ir.GenericConst)


CONDITIONS: dict[str, Any] = {
    "Equal": Equal,
    "Greater": Greater,
    "GreaterOrEqual": GreaterOrEqual,
    "Less": Less,
    "LessOrEqual": LessOrEqual,
    "Not": Not,
}
