"""Contractions as expressions to write code from: what is summed up, and what becomes of it.

Their extents need not be known.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV
from tvm.sym import Analyzer
from tvm.tirx.buffer import buffer_data

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.tir_schedules.analysis.buffer_access import (
    LoopAxis,
    among,
    depends,
    is_conditional,
    is_data_parallel,
    nodes,
    slope,
    static_extent,
)
from tvm_ext.tir_schedules.analysis.contraction import accumulation_of
from tvm_ext.tir_schedules.analysis.loop_nest import substitute
from tvm_ext.tir_schedules.packing import PaddedOperand
from tvm_ext.tir_schedules.statements import noted_exact_arrays, sequence


@dataclass(frozen=True)
class SymbolicContraction:
    """``result[spatial] = finish(start + sum over reduction of product)``.

    Attributes
    ----------
    spatial, reduction : tuple[LoopAxis, ...]
        The loops, without those of one iteration.
    product : Expr
        What one iteration adds.
    start : Expr
        Where the sum starts.
    store : tirx.BufferStore
        Writes a result; in its value, ``total`` stands for the finished sum.
    total : tirx.Var
        See ``store``.
    views : tuple[tuple[Buffer, Buffer], ...]
        Buffers in place of parameters, with two dimensions as one, and those parameters.
    condition : Expr or None
        What must hold for an iteration to add anything; None where each does.
    """

    spatial: tuple[LoopAxis, ...]
    reduction: tuple[LoopAxis, ...]
    product: Any
    start: Any
    store: tirx.BufferStore
    total: tirx.Var
    views: tuple[tuple[Any, Any], ...] = ()
    condition: Any = None

    def with_expressions(self, change: Callable[[Any], Any]) -> "SymbolicContraction":
        """The contraction with ``change`` applied to all expressions over its loops."""
        indices = [change(index) for index in self.store.indices]
        store = tirx.BufferStore(self.store.buffer, change(self.store.value), indices)
        condition = None if self.condition is None else change(self.condition)
        return replace(self, product=change(self.product), store=store, condition=condition)

    def is_decided_by(self, *axes: LoopAxis | None) -> bool:
        """Whether one of these loops is in the condition."""
        variables = [axis.var for axis in axes if axis is not None]
        return self.condition is not None and depends(self.condition, *variables)

    def operands(self) -> list[tvm.ir.Expr]:
        """What the product reads."""
        return nodes(self.product, tvm.ir.TensorLoad)

    def step(self, place: Any, axis: LoopAxis) -> int | None:
        """0 where a load or store does not move with ``axis``, 1 for neighbours, None otherwise."""
        buffer = place.buffer if isinstance(place, tirx.BufferStore) else place.source
        moving = [p for p, index in enumerate(place.indices) if depends(index, axis.var)]
        if not moving:
            return 0
        last = max((p for p, n in enumerate(buffer.shape) if static_extent(n) != 1), default=None)
        if moving != [last]:
            return None
        return 1 if slope(place.indices[last], axis.var) == 1 else None


def require_parameter_of(func: tirx.PrimFunc, dtypes: Sequence[str]) -> None:
    """Raises NotApplicable where no tensor of a kernel is of one of these types.

    Templates for such operands ask it first: to find the contraction takes much longer, and most
    kernels are of float32.
    """
    if not any(str(getattr(p, "dtype", "")) in dtypes for p in func.params):
        raise NotApplicable(f"no tensor is of {' or '.join(dtypes)}")


def symbolic_contraction(
    sch: s_tir.Schedule, anchor: SBlockRV, epilogue: SBlockRV | None, conditional: bool = False
) -> SymbolicContraction:
    """The contraction of ``anchor``, finished as ``epilogue`` does. Raises NotApplicable.

    ``conditional``: whether it may have a condition.
    """
    stmt = sch.get(anchor)
    product, start, condition = _summed(stmt)
    if condition is not None and not conditional:
        raise NotApplicable("some iterations of its sum add nothing")
    kinds = {v.var: v.iter_type == tirx.IterVar.DataPar for v in stmt.iter_vars}
    axes = {
        v.var: LoopAxis(tirx.Var(v.var.name, v.var.ty), v.dom.extent, position)
        for position, v in enumerate(stmt.iter_vars)
    }
    if len({str(axis.var.ty) for axis in axes.values()}) > 1:
        raise NotApplicable("its loops count in different types of integers")
    total = tirx.Var("total", str(start.ty))
    store = tirx.BufferStore(stmt.body.buffer, total, list(stmt.body.indices))
    if epilogue is not None:
        whole = finished(sch.get(epilogue), stmt, total)
        if whole is None:
            raise NotApplicable("what follows the sum reads it in another order")
        store, extents = whole
        axes = {v: replace(a, extent=extents.get(v, a.extent)) for v, a in axes.items()}
    found = SymbolicContraction(
        tuple(axes[v] for v, is_spatial in kinds.items() if is_spatial),
        tuple(axes[v] for v, is_spatial in kinds.items() if not is_spatial),
        product,
        start,
        store,
        total,
        condition=condition,
    )
    names = {v: axis.var for v, axis in axes.items()}
    return _without_single(found.with_expressions(lambda expr: substitute(expr, names)))


def _summed(stmt: s_tir.SBlock) -> tuple[Any, Any, Any]:
    """What a block adds up, where it starts, and the condition of an iteration."""
    operator, product = accumulation_of(stmt) or (None, None)
    if operator is not tirx.Add or any(static_extent(v.dom.min) != 0 for v in stmt.iter_vars):
        raise NotApplicable("its reduction is no sum")
    condition = None
    if is_conditional(product):
        condition, product, otherwise = product.args
        if not isinstance(otherwise, tirx.FloatImm | tirx.IntImm) or otherwise.value != 0:
            raise NotApplicable("it sums up something other than products")
    factors = product.value if isinstance(product, tirx.Cast) else product
    if not isinstance(factors, tirx.Mul):
        raise NotApplicable("it sums up something other than products")
    start = stmt.init.value
    if not isinstance(start, tirx.IntImm | tirx.FloatImm):
        raise NotApplicable("its sums do not start with a number")
    return product, start, condition


def finished(
    stmt: s_tir.SBlock, anchor: s_tir.SBlock, total: tirx.Var
) -> tuple[tirx.BufferStore, dict[Any, Any]] | None:
    """The assignment of an epilogue in the loops of the sum, and what it needs of them.

    None where it reads the sums in another order. ``total`` stands for the sum.
    """
    sums = anchor.body.buffer
    loads = [load for load in nodes(stmt.body, tvm.ir.TensorLoad) if load.source.same_as(sums)]
    if not isinstance(stmt.body, tirx.BufferStore) or not loads:
        return None
    domains = {v.var: v.dom.extent for v in stmt.iter_vars}
    own = {v.var: v.dom.extent for v in anchor.iter_vars}
    names: dict[Any, Any] = {}
    extents: dict[Any, Any] = {}
    for written, read in zip(anchor.body.indices, loads[0].indices, strict=True):
        if written not in own or read not in domains or read in names:
            return None
        if not _is_within(domains[read], own[written]):
            return None
        names[read], extents[written] = written, domains[read]
    others = [v for v in domains if v not in names]
    same = all(tvm_ffi.structural_equal(load, loads[0]) for load in loads)
    if not same or any(static_extent(domains[v]) != 1 for v in others):
        return None
    names |= {v: tirx.const(0, str(v.ty)) for v in others}

    def replaced(load: tvm.ir.TensorLoad) -> tvm.ir.Expr:
        return total if load.source.same_as(sums) else load

    value = tvm_ffi.structural_map(stmt.body.value, (tvm.ir.TensorLoad, replaced))
    indices = [substitute(index, names) for index in stmt.body.indices]
    return tirx.BufferStore(stmt.body.buffer, substitute(value, names), indices), extents


def _is_within(part: tvm.ir.Expr, whole: tvm.ir.Expr) -> bool:
    """Whether an epilogue reads all of the sums along a loop, or known to be fewer (a crop)."""
    few, many = static_extent(part), static_extent(whole)
    if few is not None and many is not None:
        return few <= many
    return Analyzer().can_prove_equal(part, whole)


def _without_single(contraction: SymbolicContraction) -> SymbolicContraction:
    axes = (*contraction.spatial, *contraction.reduction)
    once = {a.var: tirx.const(0, str(a.var.ty)) for a in axes if a.length == 1}
    analyzer = Analyzer()
    changed = contraction.with_expressions(lambda expr: analyzer.simplify(substitute(expr, once)))
    return replace(
        changed,
        spatial=tuple(axis for axis in contraction.spatial if axis.length != 1),
        reduction=tuple(axis for axis in contraction.reduction if axis.length != 1),
    )


def joined(
    contraction: SymbolicContraction, outer: LoopAxis, inner: LoopAxis, params: Sequence[Any]
) -> tuple[SymbolicContraction, LoopAxis] | None:
    """The contraction with two loops as one, and that one; None where addresses do not allow it.

    Every buffer with one of the two has both as neighbouring dimensions, is a parameter and lies in
    memory without gaps: it is looked at as if the two were one dimension.
    """
    axis = LoopAxis(tirx.Var(inner.var.name, inner.var.ty), outer.extent * inner.extent)
    views = list(contraction.views)
    made: list[tuple[Any, int, Any]] = []
    refused: list[Any] = []

    def place(buffer: tirx.Buffer, indices: Sequence[tvm.ir.Expr]) -> tuple[Any, list[Any]]:
        moved = [depends(i, outer.var, inner.var) for i in indices]
        if not any(moved):
            return buffer, list(indices)
        first = moved.index(True)
        plain = moved.count(True) == 2 and indices[first].same_as(outer.var)
        plain = plain and first + 1 < len(indices) and indices[first + 1].same_as(inner.var)
        if not plain or not _is_dense(buffer, first, outer, inner):
            refused.append(buffer)
            return buffer, list(indices)
        source = next((own for view, own in views if view.same_as(buffer)), buffer)
        if not among(source, params):
            refused.append(buffer)
        known = (v for b, dim, v in made if b.same_as(buffer) and dim == first)
        view = next(known, None)
        if view is None:
            shape = [*buffer.shape[:first], axis.extent, *buffer.shape[first + 2 :]]
            view = tirx.decl_buffer(shape, str(buffer.dtype), buffer.name)
            made.append((buffer, first, view))
            views.append((view, source))
        return view, [*indices[:first], axis.var, *indices[first + 2 :]]

    def load(node: tvm.ir.TensorLoad) -> tvm.ir.Expr:
        view, indices = place(node.source, node.indices)
        return node if view.same_as(node.source) else tirx.BufferLoad(view, indices)

    product, value = (
        tvm_ffi.structural_map(expr, (tvm.ir.TensorLoad, load))
        for expr in (contraction.product, contraction.store.value)
    )
    buffer, indices = place(contraction.store.buffer, contraction.store.indices)
    left = [e for e in (product, value) if depends(e, outer.var, inner.var)]
    if refused or left or contraction.is_decided_by(outer, inner):
        return None
    spatial = [axis if a is inner else a for a in contraction.spatial if a is not outer]
    store = tirx.BufferStore(buffer, value, indices)
    changed = replace(
        contraction, spatial=tuple(spatial), product=product, store=store, views=tuple(views)
    )
    return changed, axis


def _is_dense(buffer: tirx.Buffer, first: int, outer: LoopAxis, inner: LoopAxis) -> bool:
    """Whether the two loops pass all of two dimensions, which follow each other in memory."""
    if buffer.strides or static_extent(buffer.elem_offset) not in (None, 0):
        return False
    pairs = zip(buffer.shape[first : first + 2], (outer.extent, inner.extent), strict=True)
    return all(Analyzer().can_prove_equal(size, extent) for size, extent in pairs)


def epilogue_of(sch: s_tir.Schedule, anchor: SBlockRV) -> SBlockRV | None:
    """The only block that reads the sums, if it computes element by element."""
    consumers = sch.get_consumers(anchor)
    if len(consumers) != 1 or not is_data_parallel(sch, consumers[0]):
        return None
    return consumers[0]


def may_repeat(sch: s_tir.Schedule, anchor: SBlockRV, epilogue: SBlockRV) -> bool:
    """Whether an epilogue may take the place of the sums, and be computed twice: it writes a result
    of the kernel, and the sums are none.

    TVM may put an array inside of the kernel into the place of another one that it is computed
    from, and what overlapping tiles repeat would be computed from the result.
    """
    params = sch.mod["main"].params
    results = [among(sch.get(one).writes[0].source, params) for one in (anchor, epilogue)]
    return results == [False, True]


# TVM's name for "the regions that the block says it reads are not to be worked out".
_EXPLICIT_READS = "explicit_read_region"


def with_code(
    sch: s_tir.Schedule,
    code: tirx.Stmt,
    done: Sequence[SBlockRV],
    views: Sequence[tuple[Any, Any]] = (),
    packed: tuple[PaddedOperand, tirx.Buffer] | None = None,
) -> s_tir.Schedule:
    """The kernel with ``code`` in place of the loops around the blocks ``done``, the last at the
    end; ``views``: as in ``SymbolicContraction``; ``packed``: the buffer of a packed parameter.
    """
    func = sch.mod["main"]
    params = list(func.params)
    if packed is not None:
        operand, params[operand.parameter] = packed
        func = operand.noted_on(func)
    root = func.body.block
    replaced = [sch.get(block) for block in done]
    declared = [tirx.DeclBuffer(view, data=buffer_data(own)) for view, own in views]
    # A block that says that it reads all of the kernel's own arrays: from tiles that overlap TVM
    # works out sizes for them that are right, and long.
    loads = nodes(code, tvm.ir.TensorLoad)
    own = [array for array in root.alloc_buffers if any(array.same_as(o.source) for o in loads)]
    reads = [tirx.BufferRegion(array, _whole(array)) for array in own]
    notes = {name: note for each in replaced for name, note in each.annotations.items()}
    notes[_EXPLICIT_READS] = list(range(len(reads)))
    block = s_tir.SBlock([], reads, [], "tiles", sequence([*declared, code]), None, [], [], notes)
    statements = []
    for statement in root.body.seq if isinstance(root.body, tirx.SeqStmt) else [root.body]:
        inside = [realize.block for realize in nodes(statement, s_tir.SBlockRealize)]
        if not any(among(b, replaced) for b in inside):
            statements.append(statement)
        elif any(b.same_as(replaced[-1]) for b in inside):
            # Here all that the last of them reads is there.
            statements.append(s_tir.SBlockRealize([], tirx.const(True, "bool"), block))
    body = sequence(statements)
    used = [s.buffer for s in nodes(body, tirx.BufferStore)]
    arrays = [a for a in root.alloc_buffers if among(a, used)]
    whole = s_tir.SBlock([], [], [], "root", body, None, arrays, [], root.annotations)
    realize = s_tir.SBlockRealize([], tirx.const(True, "bool"), whole)
    func = tirx.PrimFunc(params, realize, func.ret_type, func.attrs)
    return s_tir.Schedule(noted_exact_arrays(func))


def _whole(array: tirx.Buffer) -> list[tvm.ir.Range]:
    return [tvm.ir.Range(0, size) for size in array.shape]
