"""FuseBlockIntegerMatmul: rows rounded in blocks times weights of 4 bits, by products of bytes."""

from dataclasses import dataclass, replace

import numpy as np
import tvm
from tvm import relax

from tvm_ext.hardware.cpu.description import CpuDescription, current_cpu
from tvm_ext.passes.attention_operands import extents, uniform_value
from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, GraphView, Replacement
from tvm_ext.relay_passes.expressions import constant_value
from tvm_ext.relay_passes.fuse_dequantize_matmul import NarrowWeights, narrow_weights
from tvm_ext.relay_passes.graph_pass import graph_pass
from tvm_ext.relay_passes.last_position_only import LAST
from tvm_ext.tir_schedules.cpu.block_integer_matmul import dot_product_of_bytes, panel_of
from tvm_ext.tir_schedules.operators.block_integers import (
    ATTRIBUTE,
    LARGEST,
    SMALLEST,
    BlockIntegers,
)

# The integers of a block are of as many values.
_VALUES = 16


@graph_pass
class FuseBlockIntegerMatmul:
    """Makes a product whose rows are rounded in blocks one function of bytes.

    Before: ``m = max(abs(x), block); r = round(x * (127 / m)) * (m / 127); y = matmul(r, W)``
    After:  ``y = call_tir(block_integers, (x, P))``    P: the integers of ``W`` and their scales

    This is MatMulNBits with ``accuracy_level`` 4, as exporters for CPUs write it. ONNX says of the
    level that it is the least: where a machine has no instruction for products of bytes, and for
    weights that this does not fit, the rounding is dropped, so that ``y = matmul(x, W)``. Products
    of the same rows, as those for query, key and value, become one with slices of its result.

    Leaves alone: what is rounded in another way, or read by something else than products.

    Run after: CanonicalizeBindings, LastPositionOnly. Run before: FuseDequantizeMatmul.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """The rewritten module; ``mod`` itself when nothing matches."""
        return _Joiner().run(_Rewriter(current_cpu()).run(mod))


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
        depth, columns = integers.shape
        compute = BlockIntegers(depth, columns, weights.block, panel, zero)
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


@dataclass(frozen=True)
class _Product:
    """A product of rows and words, as the pass makes it."""

    rows: relax.Expr
    words: np.ndarray
    compute: BlockIntegers

    def fits(self, other: "_Product") -> bool:
        """Whether the columns of both can be those of one product."""
        alike = replace(self.compute, columns=other.compute.columns) == other.compute
        whole = all(one.columns % one.panel == 0 for one in (self.compute, other.compute))
        return alike and whole and self.rows.same_as(other.rows)


class _Joiner(BindingRewriter):
    """One product for several of the same rows: these are rounded once, and threads start once."""

    pass_name = "FuseBlockIntegerMatmul"
    roots = frozenset({"relax.call_tir"})

    def start_function(self, func: relax.Function) -> None:
        super().start_function(func)
        # By the hash of each result: its product, and the results that it can be joined with.
        self._products: dict[int, _Product] = {}
        self._groups: list[list[relax.Var]] = []
        for var, _ in self.view.bound:
            product = self._product(var)
            if product is None:
                continue
            self._products[hash(var)] = product
            known = (group for group in self._groups if self._first_of(group).fits(product))
            group = next(known, None)
            if group is None:
                self._groups.append([var])
            else:
                group.append(var)
        # By the hash of each result: the joined result, and the column that it starts at.
        self._joined: dict[int, tuple[relax.Var, int]] = {}

    def _first_of(self, group: list[relax.Var]) -> _Product:
        return self._products[hash(group[0])]

    def _product(self, var: relax.Var) -> _Product | None:
        call = self.view.call(var, "relax.call_tir")
        if call is None or not isinstance(call.args[0], tvm.ir.GlobalVar):
            return None
        attributes = self.mod[call.args[0]].attrs or {}
        if ATTRIBUTE not in attributes:
            return None
        words = constant_value(self.view, call.args[1].fields[-1])
        if words is None:
            return None
        compute = BlockIntegers.from_attribute(str(attributes[ATTRIBUTE]))
        return _Product(call.args[1].fields[0], words, compute)

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        group = next((g for g in self._groups if any(one.same_as(var) for one in g)), [])
        if len(group) < 2:
            return None
        if hash(var) not in self._joined and group[0].same_as(var):
            self._join(group)
        if hash(var) not in self._joined or not self.reaches(self._joined[hash(var)][0]):
            return None
        joined, start = self._joined[hash(var)]
        end = start + self._products[hash(var)].compute.columns
        part = relax.op.strided_slice(joined, [var.ty.ndim - 1], [start], [end])
        return Replacement(part, (), f"one of {len(group)} products computed as one")

    def _join(self, group: list[relax.Var]) -> None:
        products = [self._products[hash(var)] for var in group]
        first = products[0]
        columns = [product.compute.columns for product in products]
        compute = replace(first.compute, columns=sum(columns))
        words = relax.const(np.concatenate([product.words for product in products]), "uint32")
        shape = list(first.rows.ty.shape.values)
        kernel = self.builder.add_func(compute.function(shape), "block_integers")
        ty = relax.TensorType([*shape[:-1], compute.columns], "float32")
        joined = self.bind(relax.call_tir(kernel, relax.Tuple([first.rows, words]), ty), *group)
        starts = np.cumsum([0, *columns]).tolist()
        for var, start in zip(group, starts, strict=False):
            self._joined[hash(var)] = joined, start


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
