"""Sums of tiles whose steps several blocks share: what a block leaves, and what adds it up.

A block writes all results of a part, as float32 or int32, 8 neighbouring columns of a thread as two
vectors and neighbouring threads side by side. A second kernel has a thread for each 8 columns; it
adds the parts of their tile in the order of steps and does what follows the product.
"""

import itertools
from typing import Any

from tvm import tirx

from tvm_ext.tir_schedules.cuda.launch import Arrays, bound, repeated
from tvm_ext.tir_schedules.cuda.warp_groups import warp_group_instructions as hopper
from tvm_ext.tir_schedules.cuda.warp_groups.warp_group_epilogue import (
    COLUMNS,
    GROUP_COLUMNS,
    GroupEpilogue,
    Place,
)
from tvm_ext.tir_schedules.cuda.warp_groups.warp_group_work import GroupWork, loop
from tvm_ext.tir_schedules.statements import sequence

_VECTOR = 4
"""Neighbouring results of 4 bytes that are stored at once, 16 bytes."""

_HALVES = 2
_PLACES = (_HALVES, COLUMNS // _VECTOR)
"""Halves of a thread's rows, and vectors of its columns."""


class GroupTotal:
    """Writes and adds up the parts of ``work``; their array goes to ``arrays``."""

    def __init__(self, work: GroupWork, epilogue: GroupEpilogue, arrays: Arrays) -> None:
        self.work, self.epilogue, self.arrays = work, epilogue, arrays
        self.dtype = arrays.index_dtype
        self.total = hopper.results_dtype(work.product.dtype)
        tiles = work.product.tiles
        self.groups = tiles.columns // GROUP_COLUMNS
        self.threads = tiles.multiplying * hopper.WARP_GROUP
        size = work.parts * tiles.rows * tiles.columns
        self.partial = arrays.allocated("partial", (size,), self.total, "global")

    def stored(self, results: Any, part: Any, thread: Any) -> tirx.Stmt:
        """Writes ``results`` of a multiplying thread to where they are of ``part``."""
        owners = [(thread, self.threads)]
        held = self.arrays.registers("held", _VECTOR, self.total, owners)
        found = []
        for group, half, vector in itertools.product(*map(range, (self.groups, *_PLACES))):
            start = self._start(part, group, half, vector, thread)
            first = vector * _VECTOR
            for lane in range(_VECTOR):
                place = hopper.position(group, half, first + lane)
                found.append(held.put(self._int(lane), tirx.BufferLoad(results, [place])))

            def put(lane: Any, start: Any = start) -> Any:
                return tirx.BufferStore(self.partial, held.at(lane), [start + lane])

            found.append(self._vectors(put))
        return sequence(found)

    def statement(self) -> tirx.Stmt:
        """The kernel that adds up parts and does what follows."""
        turned = self.work.shared * self.groups * _HALVES * self.work.product.tiles.multiplying
        threads = hopper.WARP_GROUP
        return bound(
            "blockIdx.x",
            turned,
            self.dtype,
            lambda b: bound("threadIdx.x", threads, self.dtype, lambda t: self._added(b, t)),
        )

    def _added(self, block: Any, thread: Any) -> tirx.Stmt:
        """The sum of 8 columns."""
        multiplying, depth = self.work.product.tiles.multiplying, self.work.product.depth
        names = [tirx.Var(name, self.dtype) for name in ("upper", "group", "tile", "number")]
        half, group, tile, number = names
        rest = block // multiplying
        values = (
            rest % _HALVES,
            rest // _HALVES % self.groups,
            rest // (_HALVES * self.groups),
            block % multiplying * hopper.WARP_GROUP + thread,
        )
        owners = [(thread, hopper.WARP_GROUP)]
        sums = self.arrays.registers("sums", COLUMNS, self.total, owners)
        stack, rank = tile // self.work.cluster, tile % self.work.cluster
        first, last = (self.work.owner(stack * depth + step) for step in (0, depth - 1))

        def start(column: Any) -> tirx.Stmt:
            return sums.put(column, tirx.const(0, self.total))

        def part(turn: Any) -> tirx.Stmt:
            place = self.work.part(first + turn, stack, rank)
            return self._part_added(sums, place, group, half, number)

        corner = [tirx.Var(name, self.dtype) for name in ("batch", "row", "column")]
        places = self.work.results_of(tile + self.work.whole, number)
        binds = zip((*names, *corner), (*values, *places), strict=True)
        written = self.epilogue.row(
            Place(*corner), group, half, lambda _, __, column: sums.at(column), self.arrays, owners
        )
        return sequence(
            [
                *[tirx.Bind(var, value) for var, value in binds],
                repeated(COLUMNS, self.dtype, start),
                loop(last - first + 1, self.dtype, part),
                written,
            ]
        )

    def _part_added(self, sums: Any, part: Any, group: Any, half: Any, number: Any) -> tirx.Stmt:
        found = []
        for vector in range(COLUMNS // _VECTOR):
            start = self._start(part, group, half, vector, number)

            def add(lane: Any, start: Any = start, first: int = vector * _VECTOR) -> tirx.Stmt:
                more = tirx.BufferLoad(self.partial, [start + lane])
                return sums.put(first + lane, sums.at(first + lane) + more)

            found.append(self._vectors(add))
        return sequence(found)

    def _int(self, value: int) -> Any:
        return tirx.const(value, self.dtype)

    def _vectors(self, body: Any) -> tirx.Stmt:
        return repeated(_VECTOR, self.dtype, body, tirx.ForKind.VECTORIZED)

    def _start(self, part: Any, group: Any, half: Any, vector: int, thread: Any) -> Any:
        """Where a vector of a thread's results begins."""
        row = (part * self.groups + group) * _HALVES + half
        return ((row * (COLUMNS // _VECTOR) + vector) * self.threads + thread) * _VECTOR
