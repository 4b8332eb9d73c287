"""Asks for float32 sums of products of 16-bit types, floats on GPUs and integers on CPUs."""

import math

import numpy as np
import tvm
from tvm import relax, tirx

from tvm_ext.hardware.cpu.description import CpuDescription, current_cpu
from tvm_ext.hardware.cuda.description import current_gpu
from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, Replacement
from tvm_ext.relay_passes.compress_weights import multiplies_bytes
from tvm_ext.relay_passes.dataflow.framework import Solution
from tvm_ext.relay_passes.dataflow.interval import ValueRange, element_type
from tvm_ext.relay_passes.dataflow.value_ranges import value_ranges
from tvm_ext.relay_passes.expressions import (
    constant_value,
    convolution_like,
    numpy_dtype,
    operator_name,
)
from tvm_ext.relay_passes.graph_pass import graph_pass
from tvm_ext.relay_passes.layout_cost import fits_dot_products
from tvm_ext.relay_passes.layout_roles import CONVOLUTIONS
from tvm_ext.relay_passes.zero_point_compensation import EXACT_IN_FLOAT32

_NARROW = ("float16", "bfloat16")


@graph_pass
class AccumulateInFloat32:
    """Sums in float32 what matrix instructions take as it is, and integers where that is exact.

    On a GPU, of float16 or bfloat16 ``a`` and ``b``, and the same for convolutions (on CPUs
    ``MixedPrecision`` does so for bfloat16):

    Before: ``matmul(astype(a, float32), astype(b, float32))``
    After:  ``matmul(a, b, out_dtype="float32")``

    A product of two such numbers is exact in float32, and sums stay in float32: nothing is rounded
    more than before. A constant of float32 whose numbers all are float16 (or bfloat16) counts as a
    cast one: weights that were cast when the model was read.

    On a CPU, of numbers in int16 whose ranges are known, as 8-bit ones less their zero points:

    Before: ``matmul(a, b, out_dtype="int32")``
    After:  ``astype(matmul(astype(a, float32), astype(b, float32)), int32)``

    Where no sum reaches 2**24 that is exact, and CPUs have no faster instruction for int16. Sizes
    that are not summed may be open.

    Leaves alone: operands of two types; constants that would be rounded; GPUs without a rate for
    the type of the operands among their tensor cores' ("tensor_tflops"). Sums of integers that may
    be larger, or that ``ZeroPointCompensation`` gives to an instruction for bytes, or
    ``CompressWeights`` to one for pairs of int16.

    Run after: CanonicalizeBindings, FoldConstantCalls. Run before: ConvBnReluFold, GemmFusion,
    LayoutPlanning.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Returns ``mod`` itself where there is no such product."""
        gpu, cpu = current_gpu(), current_cpu()
        if gpu is not None:
            return _Narrower(tuple(t for t in _NARROW if gpu.has_tensor_rate(t))).run(mod)
        if cpu is None:
            return mod
        return _IntegerSums(cpu).run(mod)


class _Narrower(BindingRewriter):
    pass_name = "AccumulateInFloat32"
    roots = frozenset({"relax.matmul", *CONVOLUTIONS})

    def __init__(self, dtypes: tuple[str, ...]) -> None:
        self.dtypes = dtypes

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        call = self.view.call(value, "relax.matmul", *CONVOLUTIONS)
        if call is None or call is not value or str(var.ty.dtype) != "float32":
            return None
        dtype = next((d for d in map(self._cast_from, call.args) if d), "")
        if dtype not in self.dtypes:
            return None
        operands = [self._as(arg, dtype) for arg in call.args]
        if any(operand is None for operand in operands):
            self.refuse(f"one operand is not {dtype} as the other is", var)
            return None
        name = str(call.op.name).rsplit(".", 1)[-1]
        return Replacement(
            _summed_in_float32(call, *operands), (), f"{name} of {dtype} as it is, without casts"
        )

    def _cast_from(self, operand: relax.Expr) -> str:
        """The narrow type from which an operand was cast; "" for another one."""
        cast = self.view.call(operand, "relax.astype")
        found = str(cast.args[0].ty.dtype) if cast is not None else ""
        return found if found in _NARROW and str(operand.ty.dtype) == "float32" else ""

    def _as(self, operand: relax.Expr, dtype: str) -> relax.Expr | None:
        if self._cast_from(operand) == dtype:
            cast = self.view.call(operand, "relax.astype")
            return cast.args[0]  # type: ignore[union-attr]
        wide = constant_value(self.view, operand)
        if wide is None:
            return None
        with np.errstate(over="ignore"):
            narrow = wide.astype(numpy_dtype(dtype))
        if not np.array_equal(narrow.astype(wide.dtype), wide, equal_nan=True):
            return None
        return relax.const(narrow, dtype)


def _summed_in_float32(call: relax.Call, first: relax.Expr, second: relax.Expr) -> relax.Expr:
    if operator_name(call) == "relax.matmul":
        return relax.op.matmul(first, second, out_dtype="float32")
    return convolution_like(call, first, second, out_dtype="float32")


class _IntegerSums(BindingRewriter):
    pass_name = "AccumulateInFloat32"
    roots = frozenset({"relax.matmul", *CONVOLUTIONS})

    def __init__(self, cpu: CpuDescription) -> None:
        self.cpu = cpu
        self._analysed: tvm.IRModule | None = None
        self._ranges: Solution[ValueRange]

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        call = self.view.call(value, "relax.matmul", *CONVOLUTIONS)
        if call is None or call is not value or str(var.ty.dtype) != "int32":
            return None
        # Ranges take longest to find out.
        if self.cpu.has_dot_products and self._is_for_dot_products(call):
            return None
        if self.cpu.multiplies_pairs_of_int16 and multiplies_bytes(self.view, call) is not None:
            return None
        largest = self._largest_sum(call)
        if largest is None:
            return None
        if largest >= EXACT_IN_FLOAT32:
            limit = f"{EXACT_IN_FLOAT32:.3g}"
            self.refuse(f"a sum may reach {largest:.3g}; float32 is exact below {limit}", var)
            return None
        operands = [self.bind(relax.op.astype(arg, "float32"), var) for arg in call.args]
        total = self.bind(_summed_in_float32(call, *operands), var)
        what = f"no sum of integers is beyond {largest:.3g}: exact in float32"
        return Replacement(relax.op.astype(total, "int32"), (), what)

    def _is_for_dot_products(self, call: relax.Call) -> bool:
        return constant_value(self.view, call.args[1]) is not None and fits_dot_products(call)

    def _largest_sum(self, call: relax.Call) -> float | None:
        """Above the magnitude of all sums; None where the operands may be any numbers."""
        data, weights = call.args
        if str(data.ty.dtype) != "int16" or str(weights.ty.dtype) != "int16":
            return None
        most = self._largest(data)
        if most is None:
            return None
        numbers = constant_value(self.view, weights)
        if numbers is not None:
            axes = self._summed_axes(call, numbers.ndim)
            sums = np.abs(numbers.astype(np.int64)).sum(axis=axes)
            return most * float(sums.max(initial=0))
        others, terms = self._largest(weights), self._terms(call, weights)
        return None if others is None or terms is None else most * others * terms

    def _terms(self, call: relax.Call, weights: relax.Expr) -> int | None:
        """How many products are added up; None where a run decides. Other sizes may be open."""
        if not isinstance(weights.ty.shape, relax.ShapeExpr):
            return None
        sizes = weights.ty.shape.values
        summed = [sizes[axis] for axis in self._summed_axes(call, len(sizes))]
        if not all(isinstance(size, tirx.IntImm) for size in summed):
            return None
        return math.prod(map(int, summed))

    def _summed_axes(self, call: relax.Call, rank: int) -> tuple[int, ...]:
        if operator_name(call) == "relax.matmul":
            return (max(rank - 2, 0),)
        letters = str(call.attrs.kernel_layout)
        return tuple(axis for axis in range(rank) if letters[axis] != "O")

    def _largest(self, operand: relax.Expr) -> float | None:
        """Above the magnitude of all numbers; None where they may be any of their type."""
        if self._analysed is None or not self._analysed.same_as(self.mod):
            self._analysed, self._ranges = self.mod, value_ranges(self.mod)
        found = self._ranges.of(operand)
        kind = element_type(str(operand.ty.dtype))
        if not isinstance(found, ValueRange) or not found.within(kind.low + 1, kind.high - 1):
            return None
        return found.magnitude
