"""CombineParallelMatmul: query, key and value of attention as one product."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.ir import GenericConst

from tvm_ext.hardware.cpu.description import current_cpu
from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, Replacement, view_of
from tvm_ext.relay_passes.expressions import operator_name, same_extents
from tvm_ext.relay_passes.gemm_epilogue import Surroundings
from tvm_ext.relay_passes.graph_pass import INJECTIVE, graph_pass
from tvm_ext.relay_passes.spans import bindings_of

ATTENTION_ATTRIBUTE = "tvm_ext.attention"
"""Of functions that AttentionFusion made."""

HEADS_ATTRIBUTE = "tvm_ext.heads"
"""Of functions that copy heads out of the columns of a tensor: their size, the order of the axes,
and the first column, as JSON."""


@graph_pass
class CombineParallelMatmul:
    """Computes products of one input with several constant weights as one product.

    Before: ``q = matmul(x, Wq) + bq``, ``k = matmul(x, Wk) + bk``, each reshaped and transposed
            into heads, as Keras does it with the bias added to the heads and with axes of an
            extent of 1; or both of them fields of one ``split``, or slices of one tensor
    After:  ``qk = matmul(x, concat(Wq, Wk)) + concat(bq, bk)``; a kernel for each of ``q`` and
            ``k`` reads its columns of ``qk`` as heads, in place of the transpose

    The input is read once, and one large product has fewer tiles at its edges than several small
    ones. The heads are copied anyway, so that no further kernel takes the result apart. That is
    what TVM's pass of this name would need, which does not look at what reads the products.

    Leaves alone: products whose result is read otherwise, as another kernel would have to take the
    combined result apart; weights that are not constants, such as quantised ones, or that other
    products use as well; biases that are not constants; heads of symbolic number or size.

    Run after: GemmFusion, AttentionFusion. Run before: LegalizeOps.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """The rewritten module; ``mod`` itself when nothing matches."""
        return _SplitReader().run(_Combiner().run(mod))


@dataclass(frozen=True)
class _Heads:
    """How heads lie in the columns of a tensor, which has ``lead`` in front of them.

    ``number`` heads of ``size`` columns each begin at column ``first``; ``axes`` is the order in
    which the result has the axes ``(*lead, number, size)``.
    """

    lead: tuple[Any, ...]
    number: int
    size: int
    axes: tuple[int, ...]
    first: int = 0

    @property
    def columns(self) -> int:
        """All columns of these heads."""
        return self.number * self.size

    def to_attribute(self) -> str:
        """What a kernel that copies heads has in its attribute."""
        named = {"size": self.size, "axes": self.axes, "first": self.first}
        return json.dumps(named)

    def compute(self, x: te.Tensor) -> te.Tensor:
        """The tensor expression, which copies the heads out of ``x``."""
        extents = [*x.shape[:-1], self.number, self.size]

        def element(*index: tirx.Var) -> Any:
            *lead, head, column = [index[self.axes.index(axis)] for axis in range(len(extents))]
            return x(*lead, head * self.size + column + self.first)

        return te.compute([extents[axis] for axis in self.axes], element, "heads")


@dataclass(frozen=True)
class _Transposed:
    """What a transpose makes heads of.

    ``passed`` are the variables between ``source`` and it, ``bias`` has a number for each column
    and is None where none is added to the heads.
    """

    source: relax.Var
    heads: _Heads
    passed: tuple[relax.Var, ...]
    bias: GenericConst | None


@dataclass(frozen=True)
class _Product:
    """One product with what follows it, up to ``end``, the transpose into heads.

    ``passed`` are the variables from the product to the one before ``end``.
    """

    end: relax.Var
    passed: tuple[relax.Var, ...]
    x: relax.Var
    weight: GenericConst
    bias: GenericConst | None
    dtype: str
    heads: _Heads

    def is_parallel(self, other: "_Product") -> bool:
        """Whether both can be computed as one."""
        return (
            self.x.same_as(other.x)
            and self.dtype == other.dtype
            and str(self.weight.ty.dtype) == str(other.weight.ty.dtype)
            and same_extents(self.heads.lead, other.heads.lead)
            and str(self.passed[0].ty.dtype) == str(other.passed[0].ty.dtype)
        )


class _HeadRewriter(BindingRewriter):
    """Reads transposes into heads."""

    pass_name = "CombineParallelMatmul"
    roots = frozenset({"relax.permute_dims", "relax.reshape", "relax.add"})

    def start_function(self, func: relax.Function) -> None:
        super().start_function(func)
        self._operands = _attention_operands(func, self.mod)

    def _heads(self, end: relax.Var, value: relax.Expr) -> _Transposed | None:
        """What ``end``, bound to ``value``, has the heads of: a transpose of a reshape that makes
        heads, or without one what an attention reads.
        """
        # Another name of a transpose is none.
        is_call = isinstance(value, relax.Call)
        transpose = self.view.call(value, "relax.permute_dims") if is_call else None
        if transpose is not None and isinstance(transpose.args[0], relax.Var):
            inner, axes = transpose.args[0], transpose.attrs.axes
            rank, passed = inner.ty.ndim, [inner]
            order = list(reversed(range(rank)) if axes is None else (int(a) % rank for a in axes))
        elif is_call and hash(end) in self._operands and self.view.uses(end) == 1:
            inner, passed = end, []
            rank = end.ty.ndim
            order = list(range(rank))
        else:
            return None
        if (expand := self.view.call(inner, "relax.expand_dims")) is not None:
            added = {int(axis) % rank for axis in expand.attrs.axis}
            kept = [axis for axis in range(rank) if axis not in added]
            order = [kept.index(axis) for axis in order if axis not in added]
            inner = expand.args[0]
            passed.insert(0, inner)
        bias, add = None, self.view.call(inner, "relax.add")
        if add is not None:
            pair = _value_and_constant_of_heads(add)
            if pair is None:
                return None
            inner, bias = pair
            passed.insert(0, inner)
        # What an attention reads itself is replaced, not passed.
        passed = [one for one in passed if not one.same_as(end)]
        reshape = self.view.call(inner, "relax.reshape")
        if reshape is None or any(self.view.uses(one) > 1 for one in passed):
            return None
        extents, source = inner.ty.shape, reshape.args[0]
        if not isinstance(extents, relax.ShapeExpr) or len(extents) < 3:
            return None
        *lead, number, size = extents
        if not all(isinstance(n, tirx.IntImm) for n in (number, size)):
            return None
        if _last_extent(source) != int(number) * int(size) or self.view.uses(source) > 1:
            return None
        heads = _Heads(tuple(lead), int(number), int(size), tuple(order))
        return _Transposed(source, heads, tuple(passed), bias)

    def _copied(self, heads: _Heads, source: relax.Var) -> relax.Call:
        return self.builder.call_te(
            heads.compute,
            source,
            primfunc_name_hint="heads",
            primfunc_attrs={"op_pattern": INJECTIVE, HEADS_ATTRIBUTE: heads.to_attribute()},
        )


def _attention_operands(func: relax.Function, mod: tvm.IRModule) -> set[int]:
    """Hashes of the variables that attention on a CPU reads, in any order of axes."""
    if current_cpu() is None:
        return set()
    return {
        hash(operand)
        for binding in bindings_of(func)
        if operator_name(binding.value) == "relax.call_tir"
        and ATTENTION_ATTRIBUTE in (mod[binding.value.args[0]].attrs or {})
        for operand in list(binding.value.args[1].fields)[:3]
        if isinstance(operand, relax.Var)
    }


def _last_extent(expr: relax.Expr) -> int | None:
    shape = expr.ty.shape if isinstance(expr.ty, relax.TensorType) else None
    if not isinstance(shape, relax.ShapeExpr) or not len(shape):
        return None
    return int(shape[-1]) if isinstance(shape[-1], tirx.IntImm) else None


class _Combiner(_HeadRewriter):
    """Several products of one input."""

    def has_work(self, func: relax.Function) -> bool:
        """Whether there may be heads of a product."""
        return view_of(func).operators >= {"relax.reshape", "relax.matmul"}

    def start_function(self, func: relax.Function) -> None:
        super().start_function(func)
        self._around = Surroundings(self.view, self.refuse)
        found = [self._product(one.var, one.value) for one in bindings_of(func)]
        self._groups = _groups([product for product in found if product is not None])
        self._combined: dict[int, relax.Var] = {}

    def _product(self, end: relax.Var, value: relax.Expr) -> _Product | None:
        read = self._heads(end, value)
        if read is None:
            return None
        expr, heads, bias = read.source, read.heads, read.bias
        passed = [expr]
        cast = self.view.call(expr, "relax.astype")
        if cast is not None:
            if bias is not None:
                return None
            passed.insert(0, cast.args[0])
        added = self.view.call(passed[0], "relax.add")
        if added is not None:
            pair = _value_and_row(added, heads.columns)
            if pair is None or bias is not None:
                return None
            bias = pair[1]
            passed.insert(0, pair[0])
        call = self.view.call(passed[0], "relax.matmul")
        if call is None or any(self.view.uses(var) > 1 for var in passed):
            return None
        x, weight = call.args
        is_weight = isinstance(weight, GenericConst) and weight.ty.ndim == 2
        if not is_weight or not isinstance(x, relax.Var) or self._around.shared(weight):
            return None
        passed += read.passed
        return _Product(end, tuple(passed), x, weight, bias, str(expr.ty.dtype), heads)

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        group = next((g for g in self._groups if any(p.end.same_as(var) for p in g)), None)
        if group is None:
            return None
        key = hash(group[0].end)
        if key not in self._combined:
            if not self.reaches(group[0].x):
                return None
            self._combined[key] = self._product_of_all(group, var)
        first = 0
        for product in group:
            if product.end.same_as(var):
                heads = replace(product.heads, first=first)
                made: relax.Expr = self._copied(heads, self._combined[key])
                if var.ty.ndim != len(heads.axes):
                    made = relax.op.reshape(self.bind(made, var), var.ty.shape)
                return Replacement(made, (), f"one of {len(group)} products computed as one")
            first += product.heads.columns
        return None

    def _product_of_all(self, group: Sequence[_Product], var: relax.Var) -> relax.Var:
        """The product, with the bias and the cast that follow each of them."""
        one = group[0]
        names = [v for product in group for v in product.passed]
        weights = np.concatenate([product.weight.value.numpy() for product in group], axis=1)
        weight = relax.const(weights, str(one.weight.ty.dtype))
        dtype = str(one.passed[0].ty.dtype)
        out_dtype = None if dtype == str(one.x.ty.dtype) else dtype
        result = self.bind(relax.op.matmul(one.x, weight, out_dtype=out_dtype), *names)
        if any(product.bias is not None for product in group):
            bias = relax.const(np.concatenate([_row(product) for product in group]), dtype)
            result = self.bind(relax.op.add(result, bias), *names)
        if one.dtype != dtype:
            result = self.bind(relax.op.astype(result, one.dtype), *names)
        if not same_extents(result.ty.shape.values[:-1], one.heads.lead):
            shape = [*one.heads.lead, weights.shape[1]]
            result = self.bind(relax.op.reshape(result, shape), *names)
        return result


def _groups(products: Sequence[_Product]) -> list[list[_Product]]:
    """Those that can be computed as one, in the order of the graph; two at least."""
    groups: list[list[_Product]] = []
    for product in products:
        group = next((g for g in groups if g[0].is_parallel(product)), None)
        if group is None:
            groups.append([product])
        else:
            group.append(product)
    return [group for group in groups if len(group) > 1]


def _value_and_row(add: relax.Call, columns: int) -> tuple[relax.Expr, GenericConst] | None:
    """The sum as a value and a constant with a number for each column."""
    for value, other in (add.args, reversed(add.args)):
        if not isinstance(other, GenericConst) or isinstance(value, GenericConst):
            continue
        shape = other.value.numpy().shape
        if shape and shape[-1] == columns == prod(shape) and len(shape) <= value.ty.ndim:
            return value, other
    return None


def _value_and_constant_of_heads(add: relax.Call) -> tuple[relax.Expr, GenericConst] | None:
    """The sum as a value and a constant with a number for each column of each head."""
    for value, other in (add.args, reversed(add.args)):
        if not isinstance(other, GenericConst) or not isinstance(value, relax.Var):
            continue
        if not isinstance(value.ty.shape, relax.ShapeExpr) or value.ty.ndim < 2:
            return None
        shape, heads = list(other.value.numpy().shape), list(value.ty.shape)[-2:]
        known = all(isinstance(extent, tirx.IntImm) for extent in heads)
        if known and shape[-2:] == [int(extent) for extent in heads]:
            is_row = prod(shape) == prod(shape[-2:]) and len(shape) <= value.ty.ndim
            return (value, other) if is_row else None
    return None


def _row(product: _Product) -> np.ndarray:
    """The bias of a product, zeros where it has none."""
    if product.bias is not None:
        return product.bias.value.numpy().reshape(-1)
    weight = product.weight.value.numpy()
    return np.zeros(weight.shape[1], weight.dtype)


_SLICE = "relax.strided_slice"


def _single_integer(listed: relax.Expr) -> int | None:
    """The number of a list of one; None where it has several, or a run decides it."""
    if not isinstance(listed, relax.Tuple) or len(listed.fields) != 1:
        return None
    (number,) = listed.fields
    return int(number) if isinstance(number, int | tirx.IntImm) else None


class _SplitReader(_HeadRewriter):
    """Columns of a split or a slice that only become heads: these are read of what was cut."""

    def has_work(self, func: relax.Function) -> bool:
        """Whether there may be heads of a split or a slice."""
        operators = view_of(func).operators
        return "relax.reshape" in operators and bool(operators & {"relax.split", _SLICE})

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        read = self._plain_heads(var, value)
        cut = None if read is None else self._field(read.source) or self._slice(read.source)
        if read is None or cut is None:
            return None
        source, first = cut
        is_whole = isinstance(source, relax.Var) and _last_extent(source) is not None
        if not is_whole or not self.reaches(source):
            return None
        if not same_extents(source.ty.shape.values[:-1], read.heads.lead):
            return None
        made = self._copied(replace(read.heads, first=first), source)
        absorbed = (read.source, *read.passed)
        return Replacement(made, absorbed, "columns read of the whole that they were cut from")

    def _field(self, part: relax.Var) -> tuple[relax.Expr, int] | None:
        """What was split, and the first column of a field that are all heads."""
        field = self.view.bindings().get(part)
        if not isinstance(field, relax.TupleGetItem):
            return None
        split = self.view.call(field.tuple_value, "relax.split")
        if split is None or not self._all_heads(field.tuple_value):
            return None
        widths = [_last_extent(relax.Var("field", one)) for one in split.ty.fields]
        rank = split.args[0].ty.ndim
        if int(split.attrs.axis) % rank != rank - 1 or None in widths:
            return None
        return split.args[0], sum(int(width or 0) for width in widths[: field.index])

    def _slice(self, part: relax.Var) -> tuple[relax.Expr, int] | None:
        """What neighbouring columns were sliced from, and the first of them."""
        call = self.view.call(part, _SLICE)
        if call is None or not isinstance(call.args[1], relax.Tuple):
            return None
        source, *lists = call.args
        columns = _last_extent(source)
        numbers = [_single_integer(one) for one in (*lists[:2], *lists[3:4])]
        axis, begin = numbers[:2]
        if columns is None or axis is None or begin is None or numbers[2:] not in ([], [1]):
            return None
        if axis % source.ty.ndim != source.ty.ndim - 1:
            return None
        return source, min(max(begin + columns * (begin < 0), 0), columns)

    def _plain_heads(self, end: relax.Var, value: relax.Expr) -> _Transposed | None:
        """Those that a reshape alone makes, with a transpose behind it or without."""
        read = self._heads(end, value)
        if read is None or read.bias is not None or len(read.passed) > 1:
            return None
        return read

    def _all_heads(self, fields: relax.Expr) -> bool:
        """Whether each field in use becomes heads: a split that is left has them all as results."""
        bindings = self.view.bindings()
        taken = {
            hash(var)
            for var, value in bindings.items()
            if isinstance(value, relax.TupleGetItem) and value.tuple_value.same_as(fields)
        }
        made = [self._plain_heads(var, value) for var, value in bindings.items()]
        return taken == {hash(one.source) for one in made if one and hash(one.source) in taken}
