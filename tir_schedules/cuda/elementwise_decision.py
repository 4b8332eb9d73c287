"""How the elements of an assignment are dealt to threads: vectors, loops, threads of a block.

A thread stores up to 16 neighbouring elements at once. What it reads for them may be as many
neighbours, one element for all, or an element for each: then by as many loads, which meet in the
cache of the multiprocessor.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import tirx
from tvm.sym import Analyzer
from tvm_ffi import structural_mutate

from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.tir_schedules.analysis.buffer_access import (
    LoopAxis,
    element_bytes,
    elements,
    nodes,
    slope,
)
from tvm_ext.tir_schedules.analysis.loop_nest import Nest, simplified, store_strides, substitute
from tvm_ext.tir_schedules.cuda.launch import nominal_extent
from tvm_ext.tir_schedules.cuda.vector_group import Lanes, is_vector_type, powers_down
from tvm_ext.tir_schedules.template import DEFAULT_DECISIONS, Decisions

THREADS = (64, 128, 256, 512, 1024)
VECTORS_PER_THREAD = (1, 2, 4, 8)

# Vectors in flight that fill the memory pipeline of a multiprocessor: two for every thread it can
# hold (CUDA C++ Programming Guide, table of technical specifications: 2,048 threads).
_VECTORS_IN_FLIGHT = 2 * 2048

# Bytes of a thread's registers for what it has read: more leave too few threads at a time.
_READ_BYTES = 192

# Bytes of a line of the cache, of which a multiprocessor serves one in a cycle.
_LINE = 128

# Share of the time of a copy that loads of single elements may take in that cache.
_SHARE = 1 / 3


@dataclass(frozen=True)
class FlatDecision:
    """How one block's elements are dealt to threads.

    Attributes
    ----------
    nest : Nest
        The assignment, its innermost loop the one that vectors lie along.
    threads : int
        Threads of a block.
    vector : int
        Neighbouring elements of a vector.
    vectors : int
        Vectors of a thread.
    """

    nest: Nest
    threads: int
    vector: int
    vectors: int


def decide_flat(
    nest: Nest, machine: CudaDescription, decisions: Decisions = DEFAULT_DECISIONS
) -> FlatDecision:
    """Vectors as wide as pays, blocks small enough to occupy the machine."""
    widest = widest_vector(nest, machine)
    forms = {width: form for width in powers_down(widest) if (form := _form(nest, width))}
    paying = [width for width, form in forms.items() if form.pays(machine)]
    vector = decisions.pick("vector", forms, max(paying, default=1))
    form = forms[vector]
    count = -(-nominal_extent(nest.volume()) // vector)
    sizes = [size for size in THREADS if size <= machine.max_threads_per_block]
    occupying = [size for size in sizes if size <= 256 and machine.sms * size <= count]
    threads = decisions.pick("threads", sizes, max(occupying, default=min(sizes)))
    many = [
        n
        for n in (2, 4)
        if count >= n * machine.sms * _VECTORS_IN_FLIGHT and n * form.read_bytes() <= _READ_BYTES
    ]
    options = [n for n in VECTORS_PER_THREAD if n * threads < 2 * count]
    vectors = decisions.pick("vectors", {1, *options}, max(many, default=1))
    return FlatDecision(form.nest, threads, vector, vectors)


def widest_vector(nest: Nest, machine: CudaDescription) -> int:
    """Elements of 16 bytes of the widest type among what is written and read along the result."""
    if not nest.axes or not is_vector_type(nest.store.buffer):
        return 1
    inner = nest.axes[-1].var
    loads = nodes(nest.store.value, tvm.ir.TensorLoad)
    along = [load.source for load in loads if slope(load.indices[0], inner) == 1]
    moved = [nest.store.buffer, *(buffer for buffer in along if is_vector_type(buffer))]
    return min(machine.vector_lanes(str(buffer.dtype)) for buffer in moved)


@dataclass(frozen=True)
class _Form:
    """A nest whose store moves ``width`` elements at once, and what each lane loads on its own."""

    nest: Nest
    width: int
    singles: list[tirx.Expr]

    def pays(self, machine: CudaDescription) -> bool:
        """Whether single loads leave the cache enough time, measured by that of device memory."""
        if self.width == 1 or not self.singles:
            return True
        lines = sum(self._lines(load, machine.warp_size) for load in self.singles) * self.width
        rate = machine.memory_gbs / (machine.sms * machine.clock_ghz)
        return lines <= _SHARE * self._bytes() * machine.warp_size * self.width / rate

    def _lines(self, load: tvm.ir.TensorLoad, threads: int) -> int:
        """Lines of the cache that a warp touches by one load for each of its threads."""
        step = slope(load.indices[0], self.nest.axes[-1].var)
        apart = abs(step) if step else self._share(load)
        span = threads * self.width * element_bytes(load.source) * apart
        return max(1, min(threads, math.ceil(span / _LINE)))

    def _bytes(self) -> float:
        """Bytes of memory that are moved for one element of the result."""
        loads = sum(element_bytes(x.source) * self._share(x) for x in self.nest.loads())
        return float(element_bytes(self.nest.store.buffer) + loads)

    def _share(self, load: tvm.ir.TensorLoad) -> float:
        """Elements of a buffer for one element of the result; at most one is loaded."""
        size = nominal_extent(elements(load.source))
        return min(1.0, size / nominal_extent(self.nest.volume()))

    def read_bytes(self) -> int:
        """Bytes of registers for what a thread reads for one vector."""
        loads = self.nest.loads()
        return sum(min(16, self.width * element_bytes(load.source)) for load in loads)


def _form(nest: Nest, width: int) -> _Form | None:
    """The nest with loops of which the innermost is cut into vectors; None when none can be."""
    if width == 1:
        return _Form(nest, 1, [])
    if not nest.axes:
        return None
    found = _cut(nest, width)
    if found is not None and (found.width == 1 or not found.singles):
        return found
    # Rows that begin anywhere between two vectors: as few loops made one as it takes.
    flat = _joined_for(nest, width)
    return found or (None if flat is None else _cut(flat, width))


def _cut(nest: Nest, width: int) -> _Form | None:
    *outer, inner = nest.axes
    if (outer and not divides(width, inner)) or (not inner.is_symbolic and inner.extent < width):
        return None
    whole = LoopAxis(inner.var, inner.extent // width * width)
    lanes = Lanes(*with_lane(replace(nest, axes=(*outer, whole)), width))
    return _Form(nest, width, lanes.single_loads()) if lanes.stores_vector() else None


def with_lane(
    nest: Nest, width: int
) -> tuple[tirx.BufferStore, tirx.Var, int, list[tuple[tirx.Var, Any]]]:
    """The store in terms of a lane, which is the innermost loop's part within a vector."""
    *outer, inner = nest.axes
    dtype = str(inner.var.ty)
    lane, step = tirx.Var("lane", dtype), tirx.Var("step", dtype)
    value = step * width + lane
    moved = nest.with_expressions(lambda e: substitute(e, {inner.var: value}))
    extents = [(axis.var, axis.extent) for axis in outer]
    steps = inner.extent // width if inner.is_symbolic else max(inner.extent // width, 1)
    return moved.store, lane, width, [*extents, (step, steps)]


def divides(width: int, axis: LoopAxis) -> bool:
    """Whether vectors of ``width`` elements leave no rest of a loop."""
    if not axis.is_symbolic:
        return bool(axis.extent % width == 0)
    known = Analyzer().modular_set(axis.extent)
    return int(known.coeff) % width == 0 and int(known.base) % width == 0


def _joined_for(nest: Nest, width: int) -> Nest | None:
    """The fewest innermost loops as one that ``width`` divides, or all of them with a tail."""
    steps = store_strides(nest)
    dense = 1
    for position in reversed(range(len(nest.axes))):
        axis = nest.axes[position]
        if steps[position] != dense or axis.is_symbolic:
            return None
        dense *= axis.extent
        divides = dense % width == 0 or position == 0
        if position < len(nest.axes) - 1 and divides and dense >= width:
            return _as_one(nest, position, dense)
    return None


def _as_one(nest: Nest, first: int, extent: int) -> Nest:
    """The loops from ``first`` on as one, which runs along the result."""
    inner = nest.axes[first:]
    dtype = str(inner[0].var.ty)
    flat = LoopAxis(tirx.Var("flat", dtype), extent)
    values = digits(flat.var, [(axis.var, axis.extent) for axis in inner])
    start = {axis.var: tirx.const(0, dtype) for axis in inner}
    dense = {axis.var: math.prod(a.extent for a in inner[i + 1 :]) for i, axis in enumerate(inner)}

    def placed(index: tvm.ir.Expr) -> tvm.ir.Expr:
        if all(slope(index, var) == step for var, step in dense.items()):
            return substitute(index, start) + flat.var
        return substitute(index, values)

    def load(node: tvm.ir.TensorLoad, mutator: Any) -> tvm.ir.Expr:
        if nodes(node.indices[0], tvm.ir.TensorLoad):
            return mutator.default_mutate(node)
        return tirx.BufferLoad(node.source, [placed(node.indices[0])])

    value = structural_mutate(nest.store.value, [(tvm.ir.TensorLoad, load)])
    store = tirx.BufferStore(
        nest.store.buffer, substitute(value, values), [placed(nest.store.indices[0])]
    )
    return simplified(Nest((*nest.axes[:first], flat), store))


def digits(value: tvm.ir.Expr, axes: Sequence[tuple[Any, Any]]) -> dict[Any, Any]:
    """The loop variables at iteration ``value`` of all loops together."""
    values: dict[Any, Any] = {}
    for position, (var, extent) in reversed(list(enumerate(axes))):
        dtype = str(var.ty)
        size = tirx.const(extent, dtype) if isinstance(extent, int) else extent.astype(dtype)
        values[var] = tirx.floormod(value, size) if position else value
        value = tirx.floordiv(value, size)
    return values
