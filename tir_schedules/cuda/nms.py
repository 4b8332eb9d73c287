"""NonMaxSuppression on a GPU: a block of threads for each batch and class.

Boxes are taken by falling score in tiles. Of a tile, every box is compared with all that stayed
before, by a warp, and with those in front of it in the tile, by some threads; one thread then
goes over the tile in order, with one comparison of bits a box. A block ends at the first tile
whose last score is below the threshold, or when as many boxes stay as may.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.tir_schedules.analysis.buffer_access import is_compact, static_extent
from tvm_ext.tir_schedules.cuda.device_code import without_offsets
from tvm_ext.tir_schedules.cuda.launch import (
    Arrays,
    ThreadArray,
    ThreadLine,
    bound,
    guarded,
    repeated,
    warp_barrier,
)
from tvm_ext.tir_schedules.cuda.warp_instructions import (
    ALL_LANES,
    block_barrier,
    without_added_barriers,
)
from tvm_ext.tir_schedules.operators.non_max_suppression import corners, nms_of, overlap
from tvm_ext.tir_schedules.statements import FlatViews, sequence
from tvm_ext.tir_schedules.template import Decisions

# The threads of a thread block of NMS, what they share, and where boxes are.


THREADS = 256

# Threads that compare a box with those in front of it in its tile: the bits of one number each.
WORDS = 4

INDEX = "int64"

# What a block knows between tiles: boxes that stay so far, and whether there is more to do.
TAKEN, ACTIVE = 0, 1


def number(value: int) -> tvm.ir.Expr:
    """A constant of the type of the indices."""
    return tirx.const(value, INDEX)


def flag(value: int) -> tvm.ir.Expr:
    """A constant of the type of bits, flags and places of boxes."""
    return tirx.const(value, "int32")


class NMSThreads(ThreadLine):
    """The places of ``boxes`` (see ``NMSProblem``) in tiles of ``tile``."""

    def __init__(self, boxes: Any, tile: int) -> None:
        super().__init__(THREADS, Arrays(INDEX))
        self.boxes, self.tile = boxes, tile
        self.bits = tile // WORDS

        def shared(name: str, size: int, dtype: str) -> tirx.Buffer:
            return self.arrays.allocated(name, [size], dtype, "shared")

        self.corners = [shared(f"corner{i}", tile, "float32") for i in range(4)]
        self.index = shared("index", tile, "int32")
        self.alive = shared("alive", tile, "int32")
        self.near = shared("near", tile * WORDS, "int32")
        self.state, self.last = shared("state", 2, "int32"), shared("last", 1, "int32")
        self.hit, self.other = (self.registers(name, 1) for name in ("hit", "other"))
        self.chosen, self.count = self.registers("chosen", WORDS), self.registers("count", 1)
        self.group = number(0)

    def registers(self, name: str, size: int) -> tirx.Buffer:
        """Flags or places in registers of every thread, for ``own``."""
        return self.arrays.allocated(name, [THREADS, size], "int32", "local")

    def own(self, array: tirx.Buffer) -> ThreadArray:
        """The registers of the thread that is written just now."""
        return ThreadArray(array, (self.x,))

    def first(self, statements: Sequence[tirx.Stmt]) -> tirx.Stmt:
        """What one thread does."""
        return guarded(self.x.equal(number(0)), sequence(statements))

    def set_state(self, place: int, value: tvm.ir.Expr) -> tirx.Stmt:
        """Changes what the block knows between tiles."""
        return tirx.BufferStore(self.state, value, [number(place)])

    def taken(self) -> tvm.ir.Expr:
        """How many boxes stay so far."""
        return tirx.BufferLoad(self.state, [number(TAKEN)])

    def option(self, name: str) -> tvm.ir.Expr:
        """A limit that all blocks have, such as "overlap"."""
        return tirx.BufferLoad(self.boxes.buffers[name], [number(0)])

    def box(self, place: tvm.ir.Expr) -> list[tvm.ir.Expr]:
        """A box of the tile."""
        return [tirx.BufferLoad(shared, [place]) for shared in self.corners]

    def is_near(self, first: Sequence[tvm.ir.Expr], second: Sequence[tvm.ir.Expr]) -> tvm.ir.Expr:
        """Whether two boxes overlap by more than they may."""
        return overlap(first, second) > self.option("overlap")

    def corners_of(self, box: tvm.ir.Expr) -> list[tvm.ir.Expr]:
        """The corners of a box of the block's batch, from memory."""
        batch = tirx.floordiv(self.group, number(self.boxes.classes))
        at = (batch * number(self.boxes.count) + box.astype(INDEX)) * number(4)
        boxes = self.boxes.buffers["boxes"]
        four = [tirx.BufferLoad(boxes, [at + number(i)]) for i in range(4)]
        return corners(four, self.boxes.centered)

    def kept_at(self, place: tvm.ir.Expr) -> list[tvm.ir.Expr]:
        """Where a box that stays is among those of all classes."""
        return [self.group * number(self.boxes.most) + place]


# Writes NMS for a block of threads of each batch and class.


_WARP = 32
_EVERYONE = tirx.const(ALL_LANES, "uint32")
_SERIAL = tirx.ForKind.SERIAL


class NMSCode(NMSThreads):
    """The statements under a launch of one block for each batch and class."""

    def write(self) -> tirx.Stmt:
        """The grid."""

        def block(group: tvm.ir.Expr) -> tirx.Stmt:
            self.group = group
            tiles = -(-self.boxes.count // self.tile)
            wait = block_barrier("shared")

            def iteration(tile: tvm.ir.Expr) -> tirx.Stmt:
                goes_on = tirx.BufferLoad(self.state, [number(ACTIVE)]).equal(flag(1))
                return tirx.IfThenElse(goes_on, sequence(self._tile(tile)), None)

            return without_added_barriers(
                sequence(
                    [
                        self.threads(self._begin),
                        wait,
                        repeated(tiles, INDEX, iteration, _SERIAL),
                        self.threads(self._end),
                    ]
                )
            )

        return bound("blockIdx.x", self.boxes.groups, INDEX, block)

    def _begin(self) -> tirx.Stmt:
        return self.first([self.set_state(TAKEN, flag(0)), self.set_state(ACTIVE, flag(1))])

    def _end(self) -> tirx.Stmt:
        taken = self.taken().astype("int64")
        return self.first([tirx.BufferStore(self.boxes.buffers["taken"], taken, [self.group])])

    def _tile(self, tile: tvm.ir.Expr) -> list[tirx.Stmt]:
        wait = block_barrier("shared")
        turns = -(-self.tile // (THREADS // _WARP))
        return [
            self.threads(lambda: self._load(tile)),
            wait,
            self.threads(self._compare_within),
            repeated(turns, INDEX, lambda turn: sequence(self._compare_with_kept(turn)), _SERIAL),
            wait,
            self.threads(self._choose),
            wait,
        ]

    def _load(self, tile: tvm.ir.Expr) -> tirx.Stmt:
        """A box by each of the first threads, and whether its score is high enough."""
        boxes, buffers = self.boxes, self.boxes.buffers
        rank = tile * number(self.tile) + self.x
        place = self.group * number(boxes.count)
        box = tirx.BufferLoad(buffers["order"], [place + rank])
        score = tirx.BufferLoad(buffers["scores"], [place + _long(box)])
        enough = (score > self.option("threshold")).astype("int32")
        here = [self.x]
        found = [
            tirx.BufferStore(self.index, box, here),
            tirx.BufferStore(self.alive, enough, here),
            *(
                tirx.BufferStore(shared, value, here)
                for shared, value in zip(self.corners, self.corners_of(box), strict=True)
            ),
        ]
        zero = tirx.const(0, "float32")
        none = [
            tirx.BufferStore(self.index, flag(0), here),
            tirx.BufferStore(self.alive, flag(0), here),
            *(tirx.BufferStore(shared, zero, here) for shared in self.corners),
        ]
        inside = rank < number(boxes.count)
        there = tirx.IfThenElse(inside, sequence(found), sequence(none))
        # Scores fall: behind a last one that is too low there is none.
        value = tirx.if_then_else(inside, enough, flag(0))
        last = tirx.BufferStore(self.last, value, [number(0)])
        ends = guarded(self.x.equal(number(self.tile - 1)), last)
        return guarded(self.x < number(self.tile), sequence([there, ends]))

    def _compare_within(self) -> tirx.Stmt:
        """A box of the tile with some of those in front of it: one bit for each."""
        hit, zero = self.own(self.hit), number(0)

        def some(_: tvm.ir.Expr, item: tvm.ir.Expr) -> tirx.Stmt:
            box, word = tirx.floordiv(item, number(WORDS)), tirx.floormod(item, number(WORDS))

            def iteration(bit: tvm.ir.Expr) -> tirx.Stmt:
                other = word * number(self.bits) + bit
                near = self.is_near(self.box(box), self.box(other))
                added = tirx.bitwise_or(hit.at(zero), flag(1) << bit.astype("int32"))
                return guarded(tirx.And(other < box, near), hit.put(zero, added))

            return sequence(
                [
                    hit.put(zero, flag(0)),
                    repeated(self.bits, INDEX, iteration, _SERIAL),
                    tirx.BufferStore(self.near, hit.at(zero), [item]),
                ]
            )

        return self.dealt(self.tile * WORDS, some, _SERIAL)

    def _compare_with_kept(self, turn: tvm.ir.Expr) -> list[tirx.Stmt]:
        """One box of the tile by each warp, with all that stayed before."""
        zero = number(0)

        def place() -> tvm.ir.Expr:
            warp = tirx.floordiv(self.x, number(_WARP))
            return turn * number(THREADS // _WARP) + warp

        def compare() -> tirx.Stmt:
            hit, lane = self.own(self.hit), tirx.floormod(self.x, number(_WARP))
            rest = _long(self.taken()) + number(_WARP - 1) - lane

            def iteration(i: tvm.ir.Expr) -> tirx.Stmt:
                at = self.kept_at(i * number(_WARP) + lane)
                stayed = self.corners_of(tirx.BufferLoad(self.boxes.buffers["kept"], at))
                return guarded(self.is_near(self.box(place()), stayed), hit.put(zero, flag(1)))

            i = tirx.Var("i", INDEX)
            walk = tirx.For(i, zero, tirx.floordiv(rest, number(_WARP)), _SERIAL, iteration(i))
            alive = tirx.BufferLoad(self.alive, [place()]).equal(flag(1))
            return sequence([hit.put(zero, flag(0)), guarded(alive, walk), warp_barrier()])

        def exchange(step: int) -> Callable[[], tirx.Stmt]:
            def body() -> tirx.Stmt:
                value = self.own(self.hit).at(zero)
                moved = tirx.op.tvm_warp_shuffle_xor(_EVERYONE, value, step, _WARP, _WARP)
                return self.own(self.other).put(zero, moved)

            return body

        def fold() -> tirx.Stmt:
            hit = self.own(self.hit)
            either = tirx.bitwise_or(hit.at(zero), self.own(self.other).at(zero))
            return hit.put(zero, either)

        def remove() -> tirx.Stmt:
            first = tirx.floormod(self.x, number(_WARP)).equal(zero)
            hit = self.own(self.hit).at(zero).equal(flag(1))
            away = tirx.BufferStore(self.alive, flag(0), [place()])
            return guarded(tirx.And(first, hit), away)

        statements = [self.threads(compare)]
        for step in (16, 8, 4, 2, 1):
            statements += [self.threads(exchange(step)), self.threads(fold)]
        return [*statements, self.threads(remove)]

    def _choose(self) -> tirx.Stmt:
        """Goes over the tile in order: what is near none that stays, stays."""
        zero = number(0)
        count, chosen = self.own(self.count), self.own(self.chosen)
        limit = self.option("limit")
        free = tirx.And(
            count.at(zero).astype("int64") < limit, count.at(zero) < flag(self.boxes.most)
        )
        clear = [chosen.put(number(word), flag(0)) for word in range(WORDS)]
        words = [self._choose_of_word(word, free) for word in range(WORDS)]
        more = tirx.And(free, tirx.BufferLoad(self.last, [zero]).equal(flag(1)))
        return self.first(
            [
                count.put(zero, self.taken()),
                *clear,
                *words,
                self.set_state(TAKEN, count.at(zero)),
                self.set_state(ACTIVE, more.astype("int32")),
            ]
        )

    def _choose_of_word(self, word: int, free: tvm.ir.Expr) -> tirx.Stmt:
        """The boxes of a tile whose bits are in one number."""
        zero = number(0)
        count, chosen = self.own(self.count), self.own(self.chosen)

        def iteration(bit: tvm.ir.Expr) -> tirx.Stmt:
            box = number(word * self.bits) + bit
            bits: Any = flag(0)
            for other in range(word + 1):
                near = tirx.BufferLoad(self.near, [box * number(WORDS) + number(other)])
                bits = tirx.bitwise_or(bits, tirx.bitwise_and(near, chosen.at(number(other))))
            alive = tirx.BufferLoad(self.alive, [box]).equal(flag(1))
            stays = tirx.And(tirx.And(alive, bits.equal(flag(0))), free)
            taken = count.at(zero).astype(INDEX)
            marked = tirx.bitwise_or(chosen.at(number(word)), flag(1) << bit.astype("int32"))
            place, found = self.kept_at(taken), tirx.BufferLoad(self.index, [box])
            stores = [
                tirx.BufferStore(self.boxes.buffers["kept"], found, place),
                chosen.put(number(word), marked),
                count.put(zero, count.at(zero) + flag(1)),
            ]
            return guarded(stays, sequence(stores))

        return repeated(self.bits, INDEX, iteration, _SERIAL)


def _long(value: tvm.ir.Expr) -> tvm.ir.Expr:
    return value.astype(INDEX)


@dataclass(frozen=True)
class NMSProblem:
    """An NMS of known sizes.

    Attributes
    ----------
    buffers : dict of str to buffer
        Flat views of the parameters by name; see ``PARAMETERS``.
    classes, count, most : int
        Classes of a batch, boxes of a batch, and how many of a class can stay.
    groups : int
        Batches times classes.
    centered : bool
        Whether boxes are given by centers.
    """

    buffers: dict[str, Any]
    classes: int
    count: int
    most: int
    groups: int
    centered: bool


class NMS:
    """Greedy non-maximum suppression of boxes."""

    name = "nms"
    machine_type = CudaDescription

    def apply(
        self, func: tirx.PrimFunc, machine: CudaDescription, decisions: Decisions
    ) -> s_tir.Schedule:
        """See ``Template.apply``."""
        func = without_offsets(func)
        found = nms_of(func)
        if found is None:
            raise NotApplicable("the kernel is no NMS")
        named, centered = found
        if not all(is_compact(param) for param in named.values()):
            raise NotApplicable("a number of boxes is known in the run only")
        batches, classes, count = (static_extent(size) or 0 for size in named["scores"].shape)
        most = static_extent(named["kept"].shape[-1]) or 0
        if not batches * classes * count * most:
            raise NotApplicable("there are no boxes, or none may stay")
        views = FlatViews()
        buffers = {name: views.of(param) for name, param in named.items()}
        boxes = NMSProblem(buffers, classes, count, most, batches * classes, centered)
        tile = decisions.pick("tile", (32, 64, 128), 64)
        code = NMSCode(boxes, tile)
        return s_tir.Schedule(views.kernel(func, [code.write()], code.arrays.buffers))
