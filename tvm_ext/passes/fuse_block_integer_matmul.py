"""FuseBlockIntegerMatmul: rows rounded in blocks times weights of 4 bits, by products of bytes."""

from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax

from tvm_ext.hardware.cpu.description import CpuDescription, current_cpu
from tvm_ext.passes.attention_operands import extents, uniform_value
from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, GraphView, Replacement
from tvm_ext.relay_passes.fuse_dequantize_matmul import NarrowWeights, narrow_weights
from tvm_ext.relay_passes.graph_pass import graph_pass
from tvm_ext.relay_passes.last_position_only import LAST
from tvm_ext.tir_schedules.cpu.block_integer_matmul import dot_product_of_bytes, panel_of
from tvm_ext.tir_schedules.operators.block_integers import LARGEST, SMALLEST, BlockIntegers

# The integers of a block are of as many values.
_VALUES = 16


@graph_pass
class FuseBlockIntegerMatmul:
    """Makes a product whose rows are rounded in blocks one function of bytes.

    Before: ``m = max(abs(x), block); r = round(x * (127 / m)) * (m / 127); y = matmul(r, W)``
    After:  ``y = call_tir(block_integers, (x, P))``    P: the integers of ``W`` and their scales

    This is MatMulNBits with ``accuracy_level`` 4, as exporters for CPUs write it. ONNX says of the
    level that it is the least: where a machine has no instruction for products of bytes, and for
    weights that this does not fit, the rounding is dropped, so that ``y = matmul(x, W)``.

    Leaves alone: what is rounded in another way, or read by something else than products.

    Run after: CanonicalizeBindings, LastPositionOnly. Run before: FuseDequantizeMatmul.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """The rewritten module; ``mod`` itself when nothing matches."""
        return _Rewriter(current_cpu()).run(mod)


@dataclass(frozen=True)
class _Rounded:
    """Rows of which each ``block`` elements are rounded together."""

    rows: relax.Expr
    block: int


class _Rewriter(BindingRewriter):
    pass_name = "FuseBlockIntegerMatmul"
    roots = frozenset({"relax.matmul"})

    def __init__(self, machine: CpuDescription | None) -> None:
        self.machine = machine

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        call = self.view.call(value, "relax.matmul")
        rounded = None if call is None else self._rounded(var, call.args[0])
        if call is None or rounded is None:
            return None
        plain = relax.op.matmul(rounded.rows, call.args[1], call.attrs.out_dtype)
        dropped = Replacement(plain, (), "rows are not rounded")
        if self.machine is None or dot_product_of_bytes(self.machine) is None:
            return dropped
        weights = narrow_weights(self.view, call.args[1])
        if weights is None or weights.block != rounded.block:
            return dropped
        shifted = _shifted(weights)
        if shifted is None:
            return dropped
        integers, zeros, zero = shifted
        panel = panel_of(self.machine)
        compute = BlockIntegers(*integers.shape, weights.block, panel, zero)
        words = relax.const(compute.packed(integers, zeros, weights.scale), "uint32")
        func = compute.function(list(rounded.rows.ty.shape.values))
        kernel = self.builder.add_func(func, "block_integers")
        made = relax.call_tir(kernel, relax.Tuple([rounded.rows, words]), var.ty)
        return Replacement(made, (), f"products of bytes in blocks of {weights.block}")

    def _rounded(self, var: relax.Var, data: relax.Expr) -> _Rounded | None:
        """The rows that were rounded, of which LastPositionOnly may have taken the last."""
        last = self.view.call(data, "relax.call_tir")
        if last is None or not str(last.args[0].name_hint).startswith(LAST):
            return _rounded(self.view, data)
        (source,) = last.args[1].fields
        rounded = _rounded(self.view, source)
        if rounded is None or (extents(source) or [])[-1] != (extents(data) or [])[-1]:
            return None
        taken = relax.call_tir(last.args[0], relax.Tuple([rounded.rows]), data.ty)
        return _Rounded(self.bind(taken, var), rounded.block)


def _shifted(weights: NarrowWeights) -> tuple[np.ndarray, np.ndarray, int | None] | None:
    """The integers from 0 to 15, what each block's were less by, and that where all are equal."""
    depth, columns = weights.integers.shape
    cut = weights.integers.astype(np.int32).reshape(-1, weights.block, columns)
    low, high = np.minimum(cut.min(axis=1), 0), cut.max(axis=1)
    middle = _VALUES // 2
    zero = None
    if low.min() >= -middle and high.max() < middle:
        low, zero = np.full_like(low, -middle), middle
    if (high - low).max() >= _VALUES or low.min() <= -_VALUES:
        return None
    return (cut - low[:, None]).reshape(depth, columns), -low, zero


def _rounded(view: GraphView, expr: relax.Expr) -> _Rounded | None:
    """The rows behind a rounding in blocks, as the frontend writes it."""
    whole = view.call(expr, "relax.reshape")
    product = None if whole is None else view.call(whole.args[0], "relax.multiply")
    numbers = None if product is None else view.call(product.args[0], "relax.round")
    scaled = None if numbers is None else view.call(numbers.args[0], "relax.multiply")
    if product is None or scaled is None:
        return None
    cut = view.call(scaled.args[0], "relax.reshape")
    factor = view.call(scaled.args[1], "relax.divide")
    step = view.call(product.args[1], "relax.multiply")
    if cut is None or factor is None or step is None:
        return None
    most = view.call(factor.args[1], "relax.maximum")
    if most is None or not most.args[0].same_as(step.args[0]):
        return None
    given = (factor.args[0], most.args[1], step.args[1])
    wanted = (LARGEST, SMALLEST, 1 / LARGEST)
    found = [uniform_value(view, one) for one in given]
    if any(n is None or not np.isclose(n, w, atol=0) for n, w in zip(found, wanted, strict=True)):
        return None
    if not _is_largest(view, step.args[0], scaled.args[0]):
        return None
    block = extents(scaled.args[0])
    if extents(cut.args[0]) != extents(expr) or block is None:
        return None
    return _Rounded(cut.args[0], int(block[-1]))


def _is_largest(view: GraphView, expr: relax.Expr, blocks: relax.Expr) -> bool:
    """Whether ``expr`` has the largest magnitude of each of the blocks."""
    call = view.call(expr, "relax.max", "relax.call_tir")
    if call is None:
        return False
    if call.op.name == "relax.call_tir":
        if not str(call.args[0].name_hint).startswith("max"):
            return False
        source = call.args[1].fields[0]
    else:
        source = call.args[0]
    magnitudes = view.call(source, "relax.abs")
    return magnitudes is not None and magnitudes.args[0].same_as(blocks)
