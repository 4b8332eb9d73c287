"""A template for kernels of a dynamic batch: that of one item, in a loop over the batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import tvm
from tvm import s_tir, tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.analysis.batch_item import BatchItem, BatchPart, batch_item
from tvm_ext.tir_schedules.analysis.buffer_access import (
    among,
    depends,
    nodes,
    runs_in_any_order,
    static_extent,
)
from tvm_ext.tir_schedules.analysis.loop_nest import substitute
from tvm_ext.tir_schedules.backend import scheduling_of
from tvm_ext.tir_schedules.cpu.thread_choice import over_items, without_choice
from tvm_ext.tir_schedules.packing import packed_annotations, packed_operand
from tvm_ext.tir_schedules.statements import changed_block, changed_loop, in_root_block, sequence
from tvm_ext.tir_schedules.template import DEFAULT_DECISIONS, Decisions, Template

# Elements that an item has, at least, so that a loop over items costs nothing beside them.
LEAST_ELEMENTS = 1024

# See ``BatchLoop.least_uses``.
_WINDOWS = 4


@dataclass(frozen=True)
class BatchLoop:
    """``template`` for kernels of known sizes and, in a loop over a dynamic batch, for its items.

    Kernels with other symbolic sizes it gets as they are.

    Attributes
    ----------
    template : Template
        Asked for the kernel of one item, and for the whole one.
    whole_first : bool
        Whether the loop is for kernels only that it does not take whole, whatever an item's size.
    least_uses : int
        How often the products of an item use each element of what all items share, at least: where
        it is less, it pays to read weights once for the rows of several items. Of sums over
        windows the same for a quarter: their inputs come in short pieces, and are best near.
    """

    template: Template
    whole_first: bool = False
    least_uses: int = 0

    @property
    def name(self) -> str:
        """That of the template."""
        return self.template.name

    @property
    def machine_type(self) -> type[CpuDescription]:
        """See ``Template``."""
        return CpuDescription

    def apply(
        self, func: tirx.PrimFunc, machine: CpuDescription, decisions: Decisions = DEFAULT_DECISIONS
    ) -> s_tir.Schedule:
        """See ``Template.apply``. The decisions are those for one item."""
        item = _item(func)
        if item is None or (self.least_uses and _has_few_uses(item, self.least_uses)):
            return self.template.apply(func, machine, decisions)
        whole, looped = (
            lambda: self.template.apply(func, machine, decisions),
            lambda: _looped(func, item, self._finished(item.func, machine, decisions)),
        )
        if not self.whole_first and _elements(item) >= LEAST_ELEMENTS:
            return looped()
        try:
            return whole()
        except (NotApplicable, s_tir.ScheduleError):
            return looped()

    def _finished(
        self, func: tirx.PrimFunc, machine: CpuDescription, decisions: Decisions
    ) -> s_tir.Schedule:
        """The schedule of an item, after the steps that are for kernels without a loop around."""
        scheduled = self.template.apply(func, machine, decisions)
        finished = scheduled.mod["main"]
        for step in scheduling_of(machine).finishing:
            finished = step(finished, machine)
        return s_tir.Schedule(finished)


@lru_cache(maxsize=3)
def _item(func: tirx.PrimFunc) -> BatchItem | None:
    """The kernel for one item; None for one of known sizes, or with other symbolic ones."""
    try:
        return batch_item(func)
    except NotApplicable:
        return None


def _blocks(item: BatchItem) -> list[s_tir.SBlock]:
    return [realize.block for realize in nodes(item.func.body.block.body, s_tir.SBlockRealize)]


def _elements(item: BatchItem) -> int:
    """Of the largest array that is computed for an item."""
    return max(prod(_extents(block, tirx.IterVar.DataPar)) for block in _blocks(item))


def _has_few_uses(item: BatchItem, least: int) -> bool:
    """Whether sums of an item read elements of what items share less than ``least`` times, or than
    a quarter of that where they are over windows.
    """
    params = zip(item.func.params, item.parts, strict=True)
    shared = [param for param, part in params if part is None]
    for block in _blocks(item):
        if runs_in_any_order(block):
            continue
        steps = [n for n in _extents(block, tirx.IterVar.CommReduce) if n > 1]
        enough = least // _WINDOWS if len(steps) > 1 else least
        if any(among(r.source, shared) and _reuse(block, r) < enough for r in block.reads):
            return True
    return False


def _reuse(block: s_tir.SBlock, read: Any) -> int:
    moving = [v.var for v in block.iter_vars if any(depends(r.min, v.var) for r in read.region)]
    return prod(_extents(block, tirx.IterVar.DataPar, moving))


def _extents(block: s_tir.SBlock, kind: int, without: Sequence[Any] = ()) -> list[int]:
    """Of the loops of one kind, but for those that are left out."""
    return [
        static_extent(one.dom.extent) or 0
        for one in block.iter_vars
        if one.iter_type == kind and not among(one.var, without)
    ]


@dataclass(frozen=True)
class _Turn:
    """One iteration of the loop around an item's statements.

    Attributes
    ----------
    loop : tirx.For
        The loop, with the statements as its body.
    item : Expr
        The number of the item that an iteration computes.
    """

    loop: tirx.For
    item: Any


def _looped(func: tirx.PrimFunc, item: BatchItem, sch: s_tir.Schedule) -> s_tir.Schedule:
    """The schedule of one item for all of ``func``."""
    scheduled = sch.mod["main"]
    root = scheduled.body.block
    turn = _turn(root.body, item.size)
    own = iter(zip(scheduled.params, item.parts, strict=True))
    params: list[Any] = []
    views: list[tirx.Stmt] = []
    for param in func.params:
        tensor, part = (param, None) if param.same_as(item.size) else next(own)
        params.append(tensor if part is None else param)
        if part is not None:
            views.append(_view(param, tensor, part, turn.item))
    inside = changed_block(root, name_hint="item", body=turn.loop.body)
    realize = s_tir.SBlockRealize([], tirx.const(True, "bool"), inside)
    loop = changed_loop(turn.loop, body=sequence([*views, realize]))
    notes = {**root.annotations, **packed_annotations(packed_operand(sch))}
    body = in_root_block(loop, annotations=notes)
    return s_tir.Schedule(tirx.PrimFunc(params, body, func.ret_type, scheduled.attrs))


def _turn(body: tirx.Stmt, size: tirx.Var) -> _Turn:
    """The loop over all items around ``body``, whose threads it takes over where it can."""
    statements = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    work = [one for one in statements if not isinstance(one, tirx.DeclBuffer)]
    zero = tirx.const(0, str(size.ty))
    if len(work) > 1 or not _is_parallel(work[0]):
        item = tirx.Var("item", str(size.ty))
        if any(map(_is_parallel, work)):
            loop = tirx.For(item, zero, size, tirx.ForKind.SERIAL, body)
            return _Turn(over_items(loop), item)
        return _Turn(tirx.For(item, zero, size, tirx.ForKind.PARALLEL, body), item)
    # One loop over the items and over what threads share of each.
    inner = work[0]
    extent = inner.extent.astype(str(size.ty))
    both = tirx.Var("items", str(size.ty))
    place = tirx.floormod(both, extent).astype(str(inner.loop_var.ty))
    shared = substitute(inner.body, {inner.loop_var: place + inner.min})
    body = sequence([shared if one.same_as(inner) else one for one in statements])
    loop = tirx.For(both, zero, size * extent, tirx.ForKind.PARALLEL, body)
    return _Turn(without_choice(loop), tirx.floordiv(both, extent))


def _is_parallel(statement: tirx.Stmt) -> bool:
    is_loop = isinstance(statement, tirx.For)
    return is_loop and tirx.ForKind(statement.kind) == tirx.ForKind.PARALLEL


def _view(whole: tvm.ir.Var, own: tvm.ir.Var, part: BatchPart, item: Any) -> tirx.Stmt:
    """``own`` declared to be what ``whole`` has of ``item``."""
    place: list[Any] = [tirx.const(0, "int64")] * len(whole.shape)
    place[part.axis] = item * tirx.const(part.indices, str(item.ty))
    return tirx.DeclBuffer(own, data=tirx.address_of(tirx.BufferLoad(whole, place)))
