"""Kernels that read along one axis and write along another: transposed in shared memory.

A square tile is read along the axis in which its elements are neighbours in the input, and written
along the axis in which they are neighbours in the result. Rows of the tile are padded, so that
threads that walk down a column use different banks.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.tir_schedules.analysis.buffer_access import element_bytes, nodes, slope
from tvm_ext.tir_schedules.analysis.guarded_loads import (
    GuardedLoad,
    each_element_once,
    guarded_loads,
)
from tvm_ext.tir_schedules.analysis.loop_nest import (
    Nest,
    in_order_of_writing,
    joined,
    substitute,
    with_own_variables,
    without_divisions,
)
from tvm_ext.tir_schedules.cuda.elementwise import asked_by_block, flat_code, read_nests
from tvm_ext.tir_schedules.cuda.elementwise_decision import decide_flat
from tvm_ext.tir_schedules.cuda.launch import Arrays, bound, guarded, repeated
from tvm_ext.tir_schedules.cuda.vector_group import same_load
from tvm_ext.tir_schedules.statements import sequence
from tvm_ext.tir_schedules.template import Decisions

TILES = (16, 32, 64)
_MOST_THREADS = 256

# Shorter axes leave most of a tile empty; the caches serve them as well.
_SHORTEST_AXIS = 8

# Bytes of a bank of shared memory (CUDA C++ Programming Guide, shared memory).
_BANK_BYTES = 4


@dataclass(frozen=True)
class SharedTranspose:
    """What of a nest goes through shared memory.

    Attributes
    ----------
    read_axis, write_axis : int
        Positions of the axes along which the loads, and the result, are contiguous.
    loads : list of GuardedLoad
        What is transposed, each element once, where the result needs it.
    """

    read_axis: int
    write_axis: int
    loads: list[GuardedLoad]


class CudaTranspose:
    """Kernels without a reduction, some input of which is read across."""

    name = "transpose"
    machine_type = CudaDescription

    def apply(
        self, func: tirx.PrimFunc, machine: CudaDescription, decisions: Decisions
    ) -> s_tir.Schedule:
        """See ``Template.apply``."""
        read = read_nests(func)
        if read.nests is None or any(nest.is_symbolic for nest in read.nests):
            raise NotApplicable("a block is not one assignment with known extents")
        split = [_in_digits(nest) for nest in read.nests]
        turns = [shared_transpose_of(nest) for nest in split]
        if not any(turns):
            raise NotApplicable(
                "every buffer is read along the axis along which the result is written"
            )
        arrays = Arrays(read.index_dtype)
        code = []
        for plain, nest, turn, asked in zip(
            read.nests, split, turns, asked_by_block(read.nests, decisions), strict=True
        ):
            if turn is None:
                code.append(flat_code(decide_flat(plain, machine, asked), arrays))
            else:
                code.append(_transposed(nest, turn, machine, asked, arrays))
        return s_tir.Schedule(read.views.kernel(func, code, arrays.buffers))


def _in_digits(nest: Nest) -> Nest:
    return with_own_variables(joined(in_order_of_writing(without_divisions(nest))))


def shared_transpose_of(nest: Nest) -> SharedTranspose | None:
    """What of ``nest`` is read across; None when nothing is, or an axis is short."""
    if len(nest.axes) < 2:
        return None
    write = len(nest.axes) - 1
    if slope(nest.store.indices[0], nest.axes[write].var) != 1:
        return None
    found: dict[int, list[GuardedLoad]] = {}
    for one in guarded_loads(nest.store.value, certain=True):
        across = _read_axis(nest, one.load, write)
        # What the data decide is not known when the tile is loaded.
        by_data = one.condition is not None and nodes(one.condition, tvm.ir.TensorLoad)
        if across is not None and not by_data:
            found.setdefault(across, []).append(one)
    if len(found) != 1:
        return None
    ((read, loads),) = found.items()
    short = min(nest.axes[read].extent, nest.axes[write].extent) < _SHORTEST_AXIS
    return None if short else SharedTranspose(read, write, each_element_once(loads))


def _read_axis(nest: Nest, load: tvm.ir.TensorLoad, write: int) -> int | None:
    """The axis along which a load is contiguous, when it is not along the result's."""
    steps = [slope(load.indices[0], axis.var) for axis in nest.axes]
    if steps[write] in (None, 0, 1):
        return None
    return next((i for i, step in enumerate(steps) if step == 1 and i != write), None)


def _transposed(
    nest: Nest,
    turn: SharedTranspose,
    machine: CudaDescription,
    decisions: Decisions,
    arrays: Arrays,
) -> tirx.Stmt:
    """The grid of one block, a tile for each block of threads."""
    sizes = [element_bytes(one.load.source) for one in turn.loads]
    fitting = [
        tile
        for tile in TILES
        if sum(tile * (tile + _padding(b)) * b for b in sizes) <= machine.shared_memory_bytes
    ]
    if not fitting:
        return flat_code(decide_flat(nest, machine), arrays)
    default = 64 if max(sizes) <= 2 and 64 in fitting else min(32, max(fitting))
    tile = decisions.pick("tile", fitting, default)
    rows = [n for n in (4, 8, 16) if n <= tile and n * tile <= machine.max_threads_per_block]
    deep = decisions.pick("rows", rows, max(n for n in rows if n * tile <= _MOST_THREADS))
    return _Tiles(nest, turn, tile, deep, arrays).grid()


class _Tiles:
    """The loops of a nest over square tiles, ``deep`` rows of which are handled at once."""

    def __init__(
        self, nest: Nest, turn: SharedTranspose, tile: int, deep: int, arrays: Arrays
    ) -> None:
        self.nest, self.turn, self.tile, self.deep = nest, turn, tile, deep
        self.dtype = arrays.index_dtype
        self.read, self.write = nest.axes[turn.read_axis], nest.axes[turn.write_axis]
        self.across = -(-self.read.extent // tile)
        self.along = -(-self.write.extent // tile)
        transposed = (turn.read_axis, turn.write_axis)
        self.others = [axis for i, axis in enumerate(nest.axes) if i not in transposed]
        self.shared = []
        for load, _ in turn.loads:
            size = tile * (tile + _padding(element_bytes(load.source)))
            dtype = str(load.source.dtype)
            name = f"{load.source.name}_tile"
            self.shared.append(arrays.allocated(name, (size,), dtype, "shared"))

    def grid(self) -> tirx.Stmt:
        """A block of threads for each tile."""
        count = self.across * self.along * math.prod(axis.extent for axis in self.others)
        return bound("blockIdx.x", count, self.dtype, self._block)

    def _block(self, index: tvm.ir.Expr) -> tirx.Stmt:
        values: dict[Any, Any] = {}
        along, left = index % self.along, index // self.along
        across, left = left % self.across, left // self.across
        for axis in reversed(self.others):
            size = tirx.const(axis.extent, self.dtype)
            values[axis.var], left = left % size, left // size
        read, write = (self.read, across), (self.write, along)
        return sequence(
            [
                self._over_tile(read, write, lambda at, y, x: self._load({**values, **at}, y, x)),
                self._over_tile(write, read, lambda at, y, x: self._store({**values, **at}, y, x)),
            ]
        )

    def _over_tile(self, first: Any, second: Any, body: Any) -> tirx.Stmt:
        """``body`` with the axis of ``first`` along threadIdx.x and ``second``'s down the tile."""

        def iteration(y: tvm.ir.Expr, x: tvm.ir.Expr) -> tirx.Stmt:
            at = {}
            inside = None
            for (axis, number), place in ((first, x), (second, y)):
                at[axis.var] = number * self.tile + place
                if axis.extent % self.tile:
                    test = at[axis.var] < tirx.const(axis.extent, self.dtype)
                    inside = test if inside is None else tirx.And(inside, test)
            return guarded(inside, body(at, y, x))

        def row(ty: tvm.ir.Expr) -> tirx.Stmt:
            def thread(tx: tvm.ir.Expr) -> tirx.Stmt:
                steps = self.tile // self.deep
                return repeated(steps, self.dtype, lambda i: iteration(i * self.deep + ty, tx))

            return bound("threadIdx.x", self.tile, self.dtype, thread)

        return bound("threadIdx.y", self.deep, self.dtype, row)

    def _load(self, at: dict[Any, Any], y: tvm.ir.Expr, x: tvm.ir.Expr) -> tirx.Stmt:
        return sequence(
            [
                tirx.BufferStore(held, substitute(one.value(), at), [_place(held, self.tile, y, x)])
                for held, one in zip(self.shared, self.turn.loads, strict=True)
            ]
        )

    def _store(self, at: dict[Any, Any], y: tvm.ir.Expr, x: tvm.ir.Expr) -> tirx.Stmt:
        store = self.nest.store
        loads = [one.load for one in self.turn.loads]
        value = _from_tiles(store.value, loads, self.shared, self.tile, x, y)
        indices = [substitute(index, at) for index in store.indices]
        return tirx.BufferStore(store.buffer, substitute(value, at), indices)


def _padding(size: int) -> int:
    """Elements after each row of a tile: one bank."""
    return max(1, _BANK_BYTES // size)


def _place(shared: tirx.Buffer, tile: int, y: tvm.ir.Expr, x: tvm.ir.Expr) -> tvm.ir.Expr:
    """Where an element of a tile is: in one dimension, from which TVM takes no padding away."""
    return y * (tile + _padding(element_bytes(shared))) + x


def _from_tiles(
    value: tvm.ir.Expr,
    loads: Sequence[tvm.ir.TensorLoad],
    shared: Sequence[tirx.Buffer],
    tile: int,
    y: tvm.ir.Expr,
    x: tvm.ir.Expr,
) -> tvm.ir.Expr:
    def replaced(load: tvm.ir.TensorLoad, mutator: Any) -> tvm.ir.Expr:
        for other, held in zip(loads, shared, strict=True):
            if same_load(load, other):
                return tirx.BufferLoad(held, [_place(held, tile, y, x)])
        return mutator.default_mutate(load)

    return tvm_ffi.structural_mutate(value, [(tvm.ir.TensorLoad, replaced)])
