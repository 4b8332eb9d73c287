"""FakeQuantizationToInteger: matmuls and convolutions of dequantised tensors, in integers."""

from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax

from tvm_ext.hardware.cpu.description import current_cpu
from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, Replacement
from tvm_ext.relay_passes.expressions import constant_value, convolution_like, in_groups
from tvm_ext.relay_passes.graph_pass import graph_pass
from tvm_ext.relay_passes.layout_cost import LAYOUT_NAMES, ChannelLayout, fits_dot_products
from tvm_ext.relay_passes.layout_roles import CONVOLUTIONS, permutation_of
from tvm_ext.relay_passes.zero_point_compensation import (
    EXACT_IN_FLOAT32,
    are_whole,
    centred_integers,
)

# The magnitude of a byte less a zero point of its type.
_LARGEST = 255

# What may be between scaled sums and the division by a scale, and how much of it.
_ELEMENTWISE = tuple(
    f"relax.{name}"
    for name in ("add", "subtract", "multiply", "maximum", "minimum", "clip", "nn.relu")
)
_LONGEST_CHAIN = 8


@graph_pass
class FakeQuantizationToInteger:
    """Multiplies the integers of quantised tensors in place of the numbers that they stand for.

    Before: ``y = matmul((astype(x, float32) - z) * s, (W - w) * r)``     x: uint8 or int8
    After:  ``y = astype(matmul(astype(x, int16) - z, W - w), float32) * (s * r)``    sums in int32

    This is what DequantizeLinear in front of both operands of an operator means to programs that
    have integer arithmetic. The sums are exact; the scales are multiplied once for each result.
    Where such a result is divided by the scale of a QuantizeLinear, it is multiplied by the
    reciprocal, as ONNX Runtime does: a vector division takes as long as ten other operations. At
    the border between two steps that may give the other one.

    Leaves alone: data whose zero point or scale is computed in the run or is not one number;
    weights that are not whole numbers of 8 bits, less a zero point, times a scale for each output,
    which the importer keeps apart from their scale; sums beyond int32, and in groups beyond what
    float32 holds exactly; batches of matrices as weights; other targets. Without groups, also
    convolutions of few output channels or without neighbours to sum, and CPUs without an
    instruction for such sums.

    Run after: import. Run before: FoldConstantCalls, which multiplies weights by their scales;
    AccumulateInFloat32, LayoutPlanning, GroupedConvolution, ZeroPointCompensation.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """The rewritten module; ``mod`` itself when nothing matches."""
        machine = current_cpu()
        return mod if machine is None else _IntegerRewriter(machine.has_dot_products).run(mod)


@dataclass(frozen=True)
class _Weights:
    """``integers * scale``: bytes less a zero point in int16, and a float32 for each output."""

    integers: np.ndarray
    scale: np.ndarray


class _IntegerRewriter(BindingRewriter):
    pass_name = "FakeQuantizationToInteger"
    roots = frozenset({"relax.divide", "relax.matmul", *CONVOLUTIONS})

    def __init__(self, has_dot_products: bool) -> None:
        self.has_dot_products = has_dot_products

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        divided = self.view.call(value, "relax.divide")
        if divided is not None:
            return self._with_reciprocal(divided)
        call = self.view.call(value, "relax.matmul", *CONVOLUTIONS)
        if call is None or str(var.ty.dtype) != "float32":
            return None
        weights = self._weights(call)
        data = None if weights is None else self._data(call.args[0], var)
        if weights is None or data is None:
            return None
        centred, scale = data
        with np.errstate(all="ignore"):
            factor = scale * weights.scale
        is_matmul = call.op.name == "relax.matmul"
        limit = EXACT_IN_FLOAT32 if in_groups(call) else 1 << 31
        if not _are_normal(factor) or _largest_sum(weights.integers, is_matmul) >= limit:
            self.refuse("its scales or sums leave float32 or int32", var)
            return None
        stored = relax.const(weights.integers, "int16")
        if is_matmul:
            total = relax.op.matmul(centred, stored, out_dtype="int32")
        else:
            total = convolution_like(call, centred, stored, out_dtype="int32")
        wide = relax.op.astype(self.bind(total, var), "float32")
        made = relax.op.multiply(wide, relax.const(factor, "float32"))
        return Replacement(made, (), "integers are multiplied")

    def _with_reciprocal(self, call: relax.Call) -> Replacement | None:
        """A division of scaled sums of integers by one stored number, as a multiplication."""
        divisor = constant_value(self.view, call.args[1])
        if divisor is None or divisor.size != 1 or str(divisor.dtype) != "float32":
            return None
        with np.errstate(all="ignore"):
            factor = np.float32(1) / divisor
        if not _are_normal(factor) or not self._is_of_sums(call.args[0], _LONGEST_CHAIN):
            return None
        made = relax.op.multiply(call.args[0], relax.const(factor, "float32"))
        return Replacement(made, (), "multiplied by the reciprocal of a scale")

    def _is_of_sums(self, expr: relax.Expr, steps: int) -> bool:
        """Whether it is computed element by element from sums of integers that were scaled."""
        cast = self.view.call(expr, "relax.astype")
        if cast is not None:
            sums = self.view.call(cast.args[0], "relax.matmul", *CONVOLUTIONS)
            return sums is not None and str(sums.ty.dtype) == "int32"
        call = self.view.call(expr, *_ELEMENTWISE) if steps else None
        return call is not None and any(self._is_of_sums(arg, steps - 1) for arg in call.args[:2])

    def _data(self, expr: relax.Expr, var: relax.Var) -> tuple[relax.Expr, np.float32] | None:
        """The integers less their zero point, in int16, and the scale."""
        scaled = self.view.call(expr, "relax.multiply")
        if scaled is None:
            return None
        integers = centred_integers(self.view, scaled.args[0], "float32")
        if integers is None or integers.axes:
            return None
        x, zero_point = integers.x, integers.zero_point
        if x.ty.ndim != scaled.ty.ndim:
            self.refuse("scale or zero point of the data have more axes than these", var)
            return None
        zero = np.zeros(1) if zero_point is None else constant_value(self.view, zero_point)
        scale = constant_value(self.view, scaled.args[1])
        if zero is None or scale is None or zero.size != 1 or scale.size != 1:
            self.refuse("scale or zero point of the data are not one stored number", var)
            return None
        made: relax.Expr = relax.op.astype(x, "int16")
        if zero.any():
            made = relax.op.subtract(made, relax.const(zero.astype("int16").reshape([]), "int16"))
        return self.bind(made, var), np.float32(scale.item())

    def _is_taken(self, call: relax.Call) -> bool:
        """Whether a CPU's template takes it in integers: see ``ZeroPointCompensation``, and for
        groups ``GroupedConvolution``.
        """
        if call.op.name in CONVOLUTIONS:
            layouts = LAYOUT_NAMES[call.args[0].ty.ndim][ChannelLayout.CHANNELS_FIRST]
            if (str(call.attrs.data_layout), str(call.attrs.kernel_layout)) != layouts:
                return False
        return in_groups(call) or (self.has_dot_products and fits_dot_products(call))

    def _weights(self, call: relax.Call) -> _Weights | None:
        transposed = self.view.call(call.args[1], "relax.permute_dims")
        product = call.args[1] if transposed is None else transposed.args[0]
        product = self.view.call(product, "relax.multiply")
        if product is None:
            return None
        integers, scale = (constant_value(self.view, operand) for operand in product.args)
        if integers is None or scale is None or not self._is_taken(call):
            return None
        scale = scale.reshape((1,) * (integers.ndim - scale.ndim) + scale.shape)
        if transposed is not None:
            axes = permutation_of(transposed)
            integers, scale = integers.transpose(axes), scale.transpose(axes)
        if not are_whole(integers, -_LARGEST, _LARGEST):
            return None
        whole = integers.astype(np.int16)
        output = whole.ndim - 1 if call.op.name == "relax.matmul" else 0
        others = tuple(axis for axis in range(whole.ndim) if axis != output)
        # Bytes less a zero point, of which each output may have its own.
        if scale.size != scale.shape[output] or np.ptp(whole, others).max() > _LARGEST:
            return None
        shape = [1] * whole.ndim
        shape[1] = scale.size
        return _Weights(np.ascontiguousarray(whole), scale.reshape(shape))


def _are_normal(factor: np.ndarray) -> bool:
    """Whether all are finite and have all digits of float32."""
    return bool((np.isfinite(factor) & (np.abs(factor) >= np.finfo(np.float32).tiny)).all())


def _largest_sum(integers: np.ndarray, is_matmul: bool) -> int:
    """Above the magnitude of all sums of products with 8-bit numbers less a zero point."""
    columns = integers if is_matmul else integers.reshape(len(integers), -1).T
    return int((_LARGEST * np.abs(columns.astype(np.int64))).sum(axis=0).max())
