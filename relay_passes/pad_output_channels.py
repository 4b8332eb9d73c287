"""Rounds output channels up to whole vectors where they would leave lanes empty."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import tvm
from tvm import relax, te, topi
from tvm.ir import GenericConst

from tvm_ext.hardware.cpu.description import CpuDescription, current_cpu
from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, Replacement
from tvm_ext.relay_passes.expressions import item_shape, static_shape
from tvm_ext.relay_passes.gemm_epilogue import ATTRIBUTE, GemmCompute, cropped
from tvm_ext.relay_passes.graph_pass import graph_pass
from tvm_ext.relay_passes.layout_roles import CONVOLUTIONS

# How much of the vector lanes' use must be won: below, the crop at the end costs as much.
LEAST_GAIN = 1.2

# Time of register tiles that are one vector wide by that of tiles of two, for the same columns:
# measured on products of 197 rows with 1008 and 1024 columns.
SINGLE_VECTOR_COST = 1.1

# Rows of a product by which the work to add zeros to a weight that is no constant is shared.
LEAST_ROWS = 16

# Computes the result from the operands of a product.
_Compute: TypeAlias = Callable[..., te.Tensor]


@graph_pass
class PadOutputChannels:
    """Computes more output channels of convolutions and products than asked for, to fill vectors.

    Before: ``conv2d(x, W)`` with 243 output channels, which no whole vectors divide
    After:  one kernel that convolves with ``W`` padded by zeros to 256 channels at compile time,
            and writes the first 243

    It pays where the share of useful lanes grows, see ``lane_use``, and where a large weight can be
    read in order then. Products that GemmFusion made a
    function of are padded as well.

    A product of two matrices that are no constants gets the zeros in the kernel.

    Leaves alone: convolutions whose weights are not constant; products of a few rows with such;
    channels-first layouts, where the width fills the vectors; grouped convolutions; counts that
    fill vectors well enough; targets without vectors of a fixed length.

    Run after: LayoutPlanning, GemmFusion. Run before: LegalizeOps.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Returns ``mod`` itself when nothing gains."""
        machine = current_cpu()
        return mod if machine is None else _ChannelPadder(machine).run(mod)


def lane_use(channels: int, lanes: int) -> tuple[float, float]:
    """Share of useful vector lanes for ``channels`` as they are, and padded to whole vectors.

    As they are, the columns of a tile are a divisor, up to two vectors long. They take an
    instruction for each whole vector, and one for each power of two in the rest. Behind a vector
    LLVM takes no single column: with 17 a product of 197 rows took ten times as long as with 32.
    """
    divisors = [n for n in range(1, min(channels, 2 * lanes) + 1) if channels % n == 0]
    divisors = [n for n in divisors if n <= lanes or n % 2 == 0]
    useful = max(n / (n // lanes + (n % lanes).bit_count()) for n in divisors)
    padded = -(-channels // lanes) * lanes
    return useful / lanes, channels / padded


def whole_vectors(channels: int, lanes: int) -> int:
    """``channels`` rounded up to vectors, or to pairs of vectors where that takes less time.

    A register tile two vectors wide uses each value that it broadcasts twice.
    """
    single, pairs = (-(-channels // size) * size for size in (lanes, 2 * lanes))
    return pairs if pairs <= SINGLE_VECTOR_COST * single else single


class _ChannelPadder(BindingRewriter):
    pass_name = "PadOutputChannels"
    roots = frozenset({"relax.call_tir", "relax.matmul", *CONVOLUTIONS})

    def __init__(self, machine: CpuDescription) -> None:
        self.machine = machine
        self._widened: dict[tuple[int, int], tuple[relax.Expr, relax.Expr]] = {}

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op):
            return None
        product = _linear_of(value, self.mod)
        if product is None:
            return None
        channels = product.channels
        if not channels:
            return None
        lanes = self.machine.vector_lanes(str(var.ty.dtype))
        now, padded = lane_use(channels, lanes)
        is_read_across = self._is_read_across(product, lanes)
        if padded < LEAST_GAIN * now and not is_read_across:
            return None
        if not isinstance(var.ty.shape, relax.ShapeExpr):
            self.refuse("its shape is not known", var)
            return None
        pairs = -(-channels // (2 * lanes)) * 2 * lanes
        whole = pairs if is_read_across else whole_vectors(channels, lanes)
        extra = whole - channels
        compute, inputs = product.narrowed, list(product.inputs)
        if product.constant_rows:
            inputs[1] = self._wide(inputs[1], extra)
        elif product.widened is not None:
            compute = product.widened(extra)
        else:
            return None
        replacement = self.builder.call_te(
            compute, *inputs, primfunc_name_hint=f"{product.name}_padded"
        )
        what = f"{channels} output channels computed as {whole}: " + (
            "the weight is packed by tiles, and read in order"
            if is_read_across
            else f"{100 * channels / whole:.0f} % of the vector lanes useful instead of "
            f"{100 * now:.0f} %"
        )
        return Replacement(replacement, (), what)

    def _is_read_across(self, product: "_LinearCall", lanes: int) -> bool:
        """Whether a product of open size would read a weight from memory in short pieces of rows.

        Its tiles are two vectors wide, and a weight is packed by tiles where they divide it. One
        of 512 x 50,000 was read at 9 GB/s for one row, and packed, at 23 GB/s.
        """
        is_open = product.constant_rows and static_shape(product.inputs[0]) is None
        return (
            is_open
            and product.channels % (2 * lanes) > 0
            and product.inputs[1].value.numpy().nbytes > self.machine.l2_bytes
        )

    def _wide(self, weight: relax.Expr, extra: int) -> relax.Expr:
        """``weight`` with ``extra`` channels of zeros, once for all that share it."""
        key = hash(weight), extra
        if key not in self._widened:
            array = weight.value.numpy()
            wide = np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, extra)])
            # The original is kept for its identity.
            self._widened[key] = weight, relax.const(wide, str(array.dtype))
        return self._widened[key][1]


@dataclass(frozen=True)
class _LinearCall:
    """What has output channels: its operands, the weight second.

    ``narrowed`` computes ``channels`` of them from a weight that has more; ``widened(n)`` from the
    weight as it is, with ``n`` channels of zeros added in the kernel, where that may pay.
    """

    name: str
    inputs: tuple[relax.Expr, ...]
    channels: int
    narrowed: _Compute
    widened: Callable[[int], _Compute] | None = None

    @property
    def constant_rows(self) -> bool:
        """Whether the weight is constant, and its channels are the last axis in memory."""
        weight = self.inputs[1]
        return isinstance(weight, GenericConst) and int(weight.ty.shape[-1]) == self.channels


def _linear_of(call: relax.Call, mod: tvm.IRModule) -> _LinearCall | None:
    name = str(call.op.name)
    if name in CONVOLUTIONS:
        return _convolution(call)
    if name == "relax.matmul":
        kernel = GemmCompute(False, False, str(call.ty.dtype))
        return _gemm(kernel, "matmul", tuple(call.args))
    if name == "relax.call_tir":
        attrs = mod[call.args[0]].attrs
        if attrs is not None and ATTRIBUTE in attrs:
            kernel = GemmCompute.from_attribute(str(attrs[ATTRIBUTE]))
            # Sizes follow the tensors where no tensor has them as they are.
            tensors = [arg for arg in call.args[1].fields if isinstance(arg.ty, relax.TensorType)]
            return _gemm(kernel, str(call.args[0].name_hint), tuple(tensors))
    return None


def _gemm(kernel: GemmCompute, name: str, inputs: tuple[relax.Expr, ...]) -> _LinearCall | None:
    """A matmul; one of a vector has no rows to share what is added to the weight."""
    left, right = (item_shape(expr) for expr in inputs[:2])
    if right is None or len(right) < 2 or inputs[0].ty.ndim < 2:
        return None
    channels = right[-2 if kernel.transpose_b else -1]
    narrowed = replace(kernel, columns=channels).compute

    def widened(extra: int) -> _Compute:
        return replace(kernel, columns=channels, extra_columns=extra).compute

    rows = left[-1 if kernel.transpose_a else -2] if left is not None else 0
    return _LinearCall(name, inputs, channels, narrowed, widened if rows >= LEAST_ROWS else None)


def _convolution(call: relax.Call) -> _LinearCall | None:
    attrs: Any = call.attrs
    weight = static_shape(call.args[1])
    data_layout, kernel_layout = str(attrs.data_layout), str(attrs.kernel_layout)
    channels_last = data_layout.endswith("C") and kernel_layout.endswith("O")
    if int(attrs.groups) != 1 or not channels_last or str(attrs.out_layout) != data_layout:
        return None
    if weight is None:
        return None

    def compute(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        product = topi.nn.conv(
            x,
            w,
            _integers(attrs.strides),
            _integers(attrs.padding),
            _integers(attrs.dilation),
            1,
            data_layout,
            kernel_layout,
            str(call.ty.dtype),
        )
        return cropped(product, weight[-1])

    name = str(call.op.name).rsplit(".", 1)[-1]
    return _LinearCall(name, tuple(call.args), weight[-1], compute)


def _integers(values: Sequence[Any]) -> list[int]:
    return [int(value) for value in values]
