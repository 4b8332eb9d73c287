"""Elementwise, broadcast and data-movement kernels: each thread computes 16 bytes of the result."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import s_tir, tirx

from tvm_ext.hardware.description import GpuDescription
from tvm_ext.tir_schedules.block_access import static_extent
from tvm_ext.tir_schedules.cuda.element_blocks import element_blocks
from tvm_ext.tir_schedules.cuda.flat_decision import (
    FlatDecision,
    decide_flat,
    digits,
    with_lane,
)
from tvm_ext.tir_schedules.cuda.index_width import in_32_bits
from tvm_ext.tir_schedules.cuda.launch import Arrays, bound, guarded, repeated
from tvm_ext.tir_schedules.cuda.open_elements import open_code
from tvm_ext.tir_schedules.cuda.vector_group import Lanes
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions, Numbered
from tvm_ext.tir_schedules.flat_views import FlatViews, nodes
from tvm_ext.tir_schedules.inlining import inline_blocks, is_data_parallel, kernel_blocks
from tvm_ext.tir_schedules.nest import (
    Nest,
    in_order_of_writing,
    joined,
    nest_of,
    split_axis,
    substitute,
    with_own_variables,
)
from tvm_ext.tir_schedules.statements import sequence
from tvm_ext.tir_schedules.template import Machine, NotMine

Threads = Sequence[tuple[Any, int]]
"""A thread's indices with their extents."""

# Kernels with more blocks than this are asked nothing: their space would be too large.
_MOST_ASKED = 3


class Elementwise:
    """Kernels in which every output element is computed on its own."""

    name = "elementwise"

    def apply(
        self, func: tirx.PrimFunc, machine: Machine, decisions: Decisions = CLOSED_FORM
    ) -> s_tir.Schedule | NotMine:
        """See ``Template.apply``."""
        if not isinstance(machine, GpuDescription):
            return NotMine("the target is not an NVIDIA GPU")
        read = read_nests(func)
        if isinstance(read, NotMine):
            return read
        if read.nests is None:
            return element_blocks(read.schedule, machine, decisions)
        arrays = Arrays(read.index_dtype)
        asked = asked_by_block(read.nests, decisions)
        code = [
            flat_code(decide_flat(nest, machine, ask), arrays)
            for nest, ask in zip(read.nests, asked, strict=True)
        ]
        return s_tir.Schedule(with_arrays(func, read.views, code, arrays))


@dataclass(frozen=True)
class KernelNests:
    """A kernel without reductions, read.

    Attributes
    ----------
    schedule : s_tir.Schedule
        The kernel with its blocks inlined.
    nests : list[Nest] or None
        One for each block that is left, the loops in the order of the result; None when one has
        no such form: several assignments, for one.
    views : FlatViews
        Of the buffers that the nests use.
    """

    schedule: s_tir.Schedule
    nests: list[Nest] | None
    views: FlatViews

    @property
    def index_dtype(self) -> str:
        """The type that loops count in."""
        axes = [axis for nest in self.nests or () for axis in nest.axes]
        return str(axes[0].var.ty) if axes else "int32"


def read_nests(func: tirx.PrimFunc) -> KernelNests | NotMine:
    """The nests of a kernel without reductions."""
    sch = s_tir.Schedule(func)
    if not all(is_data_parallel(sch, block) for block in kernel_blocks(sch)):
        return NotMine("the kernel reduces or scans")
    inline_blocks(sch, repeat=True)
    views = FlatViews(open_sizes=True)
    nests: list[Nest] = []
    for block in kernel_blocks(sch):
        if any(static_extent(v.dom.extent) == 0 for v in sch.get(block).iter_vars):
            # Nothing to compute, and a grid without threads cannot be launched.
            continue
        nest = nest_of(sch.get(block), views)
        if nest is None:
            return KernelNests(sch, None, views)
        nests.append(with_own_variables(joined(in_order_of_writing(nest))))
    return KernelNests(sch, in_32_bits(nests), views)


def asked_by_block(nests: Sequence[Nest], decisions: Decisions) -> list[Decisions]:
    """Who decides for each block: numbered decisions, and the closed form for many blocks."""
    if len(nests) == 1:
        return [decisions]
    if len(nests) > _MOST_ASKED:
        return [CLOSED_FORM] * len(nests)
    return [Numbered(decisions, number + 1) for number in range(len(nests))]


def flat_code(decision: FlatDecision, arrays: Arrays) -> tirx.Stmt:
    """The grid of one block: ``vectors`` groups of ``vector`` elements for each thread.

    The groups of a thread lie along an outer loop where one divides: they share the arithmetic for
    the other loops, and their addresses differ by constants.
    """
    nest, repeats = decision.nest, decision.vectors
    if nest.is_open:
        return open_code(decision, arrays)
    if not nest.axes:
        return _grid(decision, 1, 1, arrays, lambda at, mine: nest.store)
    outer = next((p for p, a in enumerate(nest.axes[:-1]) if a.extent % repeats == 0), None)
    if repeats == 1 or outer is None:
        groups = -(-nest.volume() // decision.vector)

        def single(at: Any, mine: Threads) -> tirx.Stmt:
            return _with_tail(nest, at, decision.vector, arrays, mine)

        return _grid(decision, groups, repeats, arrays, single)
    split = split_axis(nest, outer, repeats)
    # Of an outer loop that is all repeated, only the repetition is left.
    again = outer + (nest.axes[outer].extent > repeats)
    groups = nest.volume() // (decision.vector * repeats)

    def several(at: Any, mine: Threads) -> tirx.Stmt:
        def one(i: Any) -> tirx.Stmt:
            known = {split.axes[again].var: i}
            return _group(split, at, decision.vector, arrays, mine, known)

        return repeated(repeats, arrays.index_dtype, one)

    return _grid(decision, groups, 1, arrays, several)


def _grid(
    decision: FlatDecision,
    groups: int,
    repeats: int,
    arrays: Arrays,
    body: Callable[[Any, Threads], tirx.Stmt],
) -> tirx.Stmt:
    """``body`` for every group, ``repeats`` of them for each thread."""
    dtype, threads = arrays.index_dtype, decision.threads
    blocks = -(-groups // (threads * repeats))

    def block(index: Any) -> tirx.Stmt:
        def thread(t: Any) -> tirx.Stmt:
            def one(i: Any) -> tirx.Stmt:
                at = (index * repeats + i) * threads + t
                whole = blocks * threads * repeats == groups
                inside = None if whole else at < tirx.const(groups, dtype)
                return guarded(inside, body(at, [(t, threads)]))

            return repeated(repeats, dtype, one)

        return bound("threadIdx.x", threads, dtype, thread)

    return bound("blockIdx.x", blocks, dtype, block)


def _with_tail(nest: Nest, at: Any, width: int, arrays: Arrays, threads: Threads) -> tirx.Stmt:
    """Group number ``at``; the last one of a single loop may be a few elements only."""
    vector = _group(nest, at, width, arrays, threads, {})
    tail = nest.axes[-1].extent % width
    if not tail:
        return vector
    dtype = arrays.index_dtype
    last = nest.volume() // width

    def single(i: Any) -> tirx.Stmt:
        return _group(nest, i + tirx.const(last * width, dtype), 1, arrays, threads, {})

    rest = repeated(tail, dtype, single)
    return tirx.IfThenElse(at < tirx.const(last, dtype), vector, rest)


def _group(
    nest: Nest, at: Any, width: int, arrays: Arrays, threads: Threads, known: dict[Any, Any]
) -> tirx.Stmt:
    """Group number ``at`` of the loops without a ``known`` value: ``width`` of the innermost."""
    store, lane, width, ranges = with_lane(nest, width)
    code = Lanes(store, lane, width, ranges).code(arrays, threads)
    open_ranges = [(v, n) for v, n in ranges if not any(v.same_as(k) for k in known)]
    return substitute(code, {**digits(at, open_ranges), **known})


def with_arrays(
    func: tirx.PrimFunc, views: FlatViews, code: Sequence[tirx.Stmt], arrays: Arrays
) -> tirx.PrimFunc:
    """``func`` with other statements, which use flat views of its buffers, and ``arrays``."""
    nothing = [tirx.Evaluate(tirx.const(0, "int32"))]
    body = sequence([*views.declarations(func), *(code or nothing)])
    used = [store.buffer for store in nodes(body, tirx.BufferStore)]
    inside = [a for a in views.allocated(func) if any(a.same_as(buffer) for buffer in used)]
    root = s_tir.SBlock([], [], [], "root", body, None, [*inside, *arrays.buffers])
    return func.with_body(s_tir.SBlockRealize([], tirx.const(True, "bool"), root))
