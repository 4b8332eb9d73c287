"""The threads of a block that suppresses boxes, what they share, and where boxes are."""

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx

from tvm_ext.tir_schedules.box_suppression import corners, overlap
from tvm_ext.tir_schedules.cuda.launch import Arrays, ThreadArray, bound, guarded
from tvm_ext.tir_schedules.statements import sequence

THREADS = 256

# Threads that compare a box with those in front of it in its tile: the bits of one number each.
WORDS = 4

INDEX = "int64"

# What a block knows between tiles: boxes that stay so far, and whether there is more to do.
TAKEN, ACTIVE = 0, 1


def number(value: int) -> Any:
    """A constant of the type of the indices."""
    return tirx.const(value, INDEX)


def flag(value: int) -> Any:
    """A constant of the type of bits, flags and places of boxes."""
    return tirx.const(value, "int32")


class SuppressionPlaces:
    """The places of ``boxes`` (see ``Boxes``) in tiles of ``tile``."""

    def __init__(self, boxes: Any, tile: int) -> None:
        self.boxes, self.tile = boxes, tile
        self.bits = tile // WORDS
        self.arrays = Arrays(INDEX)

        def shared(name: str, size: int, dtype: str) -> Any:
            return self.arrays.allocated(name, [size], dtype, "shared")

        self.corners = [shared(f"corner{i}", tile, "float32") for i in range(4)]
        self.index = shared("index", tile, "int32")
        self.alive = shared("alive", tile, "int32")
        self.near = shared("near", tile * WORDS, "int32")
        self.state, self.last = shared("state", 2, "int32"), shared("last", 1, "int32")
        self.hit, self.other = (self.registers(name, 1) for name in ("hit", "other"))
        self.chosen, self.count = self.registers("chosen", WORDS), self.registers("count", 1)
        self.x = self.group = number(0)

    def threads(self, body: Callable[[], tirx.Stmt]) -> tirx.Stmt:
        """``body`` for all threads: what stands between two barriers."""

        def thread(x: Any) -> tirx.Stmt:
            self.x = x
            return body()

        return bound("threadIdx.x", THREADS, INDEX, thread)

    def registers(self, name: str, size: int) -> Any:
        """Flags or places in registers of every thread, for ``own``."""
        return self.arrays.allocated(name, [THREADS, size], "int32", "local")

    def own(self, array: Any) -> ThreadArray:
        """The registers of the thread that is written just now."""
        return ThreadArray(array, (self.x,))

    def first(self, statements: Sequence[tirx.Stmt]) -> tirx.Stmt:
        """What one thread does."""
        return guarded(self.x.equal(number(0)), sequence(statements))

    def set_state(self, place: int, value: Any) -> tirx.Stmt:
        """Changes what the block knows between tiles."""
        return tirx.BufferStore(self.state, value, [number(place)])

    def taken(self) -> Any:
        """How many boxes stay so far."""
        return tirx.BufferLoad(self.state, [number(TAKEN)])

    def option(self, name: str) -> Any:
        """A limit that all blocks have, such as "overlap"."""
        return tirx.BufferLoad(self.boxes.buffers[name], [number(0)])

    def box(self, place: Any) -> list[Any]:
        """A box of the tile."""
        return [tirx.BufferLoad(shared, [place]) for shared in self.corners]

    def is_near(self, first: Sequence[Any], second: Sequence[Any]) -> Any:
        """Whether two boxes overlap by more than they may."""
        return overlap(first, second) > self.option("overlap")

    def corners_of(self, box: Any) -> list[Any]:
        """The corners of a box of the block's batch, from memory."""
        batch = tirx.floordiv(self.group, number(self.boxes.classes))
        at = (batch * number(self.boxes.count) + box.astype(INDEX)) * number(4)
        boxes = self.boxes.buffers["boxes"]
        four = [tirx.BufferLoad(boxes, [at + number(i)]) for i in range(4)]
        return corners(four, self.boxes.centered)

    def kept_at(self, place: Any) -> list[Any]:
        """Where a box that stays is among those of all classes."""
        return [self.group * number(self.boxes.most) + place]
