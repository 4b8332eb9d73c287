"""Elementwise, broadcast and data-movement kernels: each thread computes 16 bytes of the result."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx

from tvm_ext.hardware.description import GpuDescription
from tvm_ext.tir_schedules.block_access import static_extent
from tvm_ext.tir_schedules.cuda.launch import Arrays, bound, guarded, repeated
from tvm_ext.tir_schedules.cuda.symbolic_elementwise import symbolic_elementwise
from tvm_ext.tir_schedules.cuda.vector_group import Lanes, vector_widths
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions, Numbered
from tvm_ext.tir_schedules.flat_views import FlatViews, nodes
from tvm_ext.tir_schedules.inlining import inline_blocks, is_data_parallel, kernel_blocks
from tvm_ext.tir_schedules.nest import (
    Axis,
    Nest,
    in_order_of_writing,
    joined,
    nest_of,
    substitute,
    with_own_variables,
)
from tvm_ext.tir_schedules.statements import sequence
from tvm_ext.tir_schedules.template import Machine, NotMine

THREADS = (64, 128, 256, 512, 1024)
VECTORS_PER_THREAD = (1, 2, 4, 8)

# Kernels with more blocks than this are asked nothing: their space would be too large.
_MOST_ASKED = 3

# Vectors in flight that fill the memory pipeline of a multiprocessor: two for every thread it can
# hold (CUDA C++ Programming Guide, table of technical specifications: 2,048 threads).
_VECTORS_IN_FLIGHT = 2 * 2048


@dataclass(frozen=True)
class FlatDecision:
    """How one block's elements are dealt to threads.

    Attributes
    ----------
    threads : int
        Threads of a block.
    vector : int
        Neighbouring elements of a vector.
    vectors : int
        Vectors of a thread.
    """

    threads: int
    vector: int
    vectors: int


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
            return symbolic_elementwise(read.schedule, machine, decisions)
        arrays = Arrays(read.index_dtype)
        asked = asked_by_block(read.nests, decisions)
        code = [
            flat_code(nest, decide_flat(nest, machine, ask), arrays)
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
        no such form: symbolic sizes, for one.
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
    views = FlatViews()
    nests: list[Nest] = []
    for block in kernel_blocks(sch):
        if any(static_extent(v.dom.extent) == 0 for v in sch.get(block).iter_vars):
            # Nothing to compute, and a grid without threads cannot be launched.
            continue
        nest = nest_of(sch.get(block), views)
        if nest is None:
            return KernelNests(sch, None, views)
        nests.append(with_own_variables(joined(in_order_of_writing(nest))))
    return KernelNests(sch, nests, views)


def asked_by_block(nests: Sequence[Nest], decisions: Decisions) -> list[Decisions]:
    """Who decides for each block: numbered decisions, and the closed form for many blocks."""
    if len(nests) == 1:
        return [decisions]
    if len(nests) > _MOST_ASKED:
        return [CLOSED_FORM] * len(nests)
    return [Numbered(decisions, number + 1) for number in range(len(nests))]


def decide_flat(
    nest: Nest, machine: GpuDescription, decisions: Decisions = CLOSED_FORM
) -> FlatDecision:
    """16 bytes of the widest type for a thread, blocks small enough to occupy the machine."""
    widths = [width for width in vector_widths(nest.store, machine) if fits(nest, width)]
    vector = decisions.pick("vector", widths, widths[0])
    count = -(-nest.volume() // vector)
    sizes = [size for size in THREADS if size <= machine.max_threads_per_block]
    occupying = [size for size in sizes if size <= 256 and machine.sms * size <= count]
    threads = decisions.pick("threads", sizes, max(occupying, default=min(sizes)))
    many = [n for n in (2, 4) if count >= n * machine.sms * _VECTORS_IN_FLIGHT]
    # Each vector needs registers for all that is read; more are worth it for little only.
    loads = len(nodes(nest.store.value, tvm.ir.TensorLoad))
    default = max(many, default=1) if loads <= 2 else 1
    options = [n for n in VECTORS_PER_THREAD if n * threads < 2 * count]
    return FlatDecision(threads, vector, decisions.pick("vectors", {1, *options}, default))


def fits(nest: Nest, width: int) -> bool:
    """Whether vectors of ``width`` elements tile the innermost loop and never straddle 16 bytes."""
    if width == 1:
        return True
    if not nest.axes:
        return False
    *outer, inner = nest.axes
    if inner.extent % width and (outer or inner.extent < width):
        return False
    whole = Axis(inner.var, inner.extent // width * width)
    store, lane, ranges = _with_lane(Nest((*outer, whole), nest.store), width)
    return Lanes(store, lane, width, ranges).fits()


def flat_code(nest: Nest, decision: FlatDecision, arrays: Arrays) -> tirx.Stmt:
    """The grid of one block: ``vectors`` groups of ``vector`` elements for each thread."""
    dtype = arrays.index_dtype
    width = decision.vector
    inner = nest.axes[-1].extent if nest.axes else 1
    tail = inner % width
    volume = nest.volume()
    groups = -(-volume // width)
    threads, repeats = decision.threads, decision.vectors
    blocks = -(-groups // (threads * repeats))

    def group(thread: Any, at: Any) -> tirx.Stmt:
        mine = [(thread, threads)]
        if not nest.axes:
            return nest.store
        if not tail:
            return _group(nest, at, width, arrays, mine)
        vector = _group(nest, at, width, arrays, mine)
        first = (groups - 1) * width

        def single(i: Any) -> tirx.Stmt:
            return _group(nest, i + tirx.const(first, dtype), 1, arrays, mine)

        rest = repeated(tail, dtype, single)
        return tirx.IfThenElse(at < tirx.const(groups - 1, dtype), vector, rest)

    def block(index: Any) -> tirx.Stmt:
        def thread(t: Any) -> tirx.Stmt:
            def one(i: Any) -> tirx.Stmt:
                at = (index * repeats + i) * threads + t
                whole = blocks * threads * repeats == groups
                inside = None if whole else at < tirx.const(groups, dtype)
                return guarded(inside, group(t, at))

            return repeated(repeats, dtype, one)

        return bound("threadIdx.x", threads, dtype, thread)

    return bound("blockIdx.x", blocks, dtype, block)


def _group(
    nest: Nest, at: Any, width: int, arrays: Arrays, threads: Sequence[tuple[Any, int]]
) -> tirx.Stmt:
    """Group number ``at``: the elements of ``width`` iterations of the innermost loop."""
    store, lane, ranges = _with_lane(nest, width)
    code = Lanes(store, lane, width, ranges).code(arrays, threads)
    values: dict[Any, Any] = {}
    left = at
    for position, (var, extent) in reversed(list(enumerate(ranges))):
        values[var] = tirx.floormod(left, tirx.const(extent, arrays.index_dtype))
        if position == 0:
            values[var] = left
        left = tirx.floordiv(left, tirx.const(extent, arrays.index_dtype))
    return substitute(code, values)


def _with_lane(
    nest: Nest, width: int
) -> tuple[tirx.BufferStore, tirx.Var, list[tuple[tirx.Var, int]]]:
    """The store in terms of a lane, which is the innermost loop's part within a vector."""
    *outer, inner = nest.axes
    dtype = str(inner.var.ty)
    lane, step = tirx.Var("lane", dtype), tirx.Var("step", dtype)
    value = step * width + lane
    moved = nest.with_expressions(lambda e: substitute(e, {inner.var: value}))
    extents = [(axis.var, axis.extent) for axis in outer]
    return moved.store, lane, [*extents, (step, max(inner.extent // width, 1))]


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
