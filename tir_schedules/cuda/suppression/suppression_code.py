"""Writes the suppression of boxes for a block of threads of each batch and class."""

from collections.abc import Callable
from typing import Any

from tvm import tirx

from tvm_ext.tir_schedules.cuda.launch import bound, guarded, repeated, warp_barrier
from tvm_ext.tir_schedules.cuda.suppression.suppression_places import (
    ACTIVE,
    INDEX,
    TAKEN,
    THREADS,
    WORDS,
    SuppressionPlaces,
    flag,
    number,
)
from tvm_ext.tir_schedules.cuda.warp_code import ALL_LANES, block_barrier, without_added_barriers
from tvm_ext.tir_schedules.statements import sequence

_WARP = 32
_EVERYONE = tirx.const(ALL_LANES, "uint32")
_SERIAL = tirx.ForKind.SERIAL


class SuppressionCode(SuppressionPlaces):
    """The statements under a launch of one block for each batch and class."""

    def write(self) -> tirx.Stmt:
        """The grid."""

        def block(group: Any) -> tirx.Stmt:
            self.group = group
            tiles = -(-self.boxes.count // self.tile)
            wait = block_barrier("shared")

            def one(tile: Any) -> tirx.Stmt:
                goes_on = tirx.BufferLoad(self.state, [number(ACTIVE)]).equal(flag(1))
                return tirx.IfThenElse(goes_on, sequence(self._tile(tile)), None)

            return without_added_barriers(
                sequence(
                    [
                        self.threads(self._begin),
                        wait,
                        repeated(tiles, INDEX, one, _SERIAL),
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

    def _tile(self, tile: Any) -> list[tirx.Stmt]:
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

    def _load(self, tile: Any) -> tirx.Stmt:
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

        def some(turn: Any) -> tirx.Stmt:
            item = turn * number(THREADS) + self.x
            box, word = tirx.floordiv(item, number(WORDS)), tirx.floormod(item, number(WORDS))

            def one(bit: Any) -> tirx.Stmt:
                other = word * number(self.bits) + bit
                near = self.is_near(self.box(box), self.box(other))
                added = tirx.bitwise_or(hit.at(zero), flag(1) << bit.astype("int32"))
                return guarded(tirx.And(other < box, near), hit.put(zero, added))

            compared = sequence(
                [
                    hit.put(zero, flag(0)),
                    repeated(self.bits, INDEX, one, _SERIAL),
                    tirx.BufferStore(self.near, hit.at(zero), [item]),
                ]
            )
            items = self.tile * WORDS
            inside = None if items % THREADS == 0 else item < number(items)
            return guarded(inside, compared)

        return repeated(-(-self.tile * WORDS // THREADS), INDEX, some, _SERIAL)

    def _compare_with_kept(self, turn: Any) -> list[tirx.Stmt]:
        """One box of the tile by each warp, with all that stayed before."""
        zero = number(0)

        def place() -> Any:
            warp = tirx.floordiv(self.x, number(_WARP))
            return turn * number(THREADS // _WARP) + warp

        def compare() -> tirx.Stmt:
            hit, lane = self.own(self.hit), tirx.floormod(self.x, number(_WARP))
            rest = _long(self.taken()) + number(_WARP - 1) - lane

            def one(i: Any) -> tirx.Stmt:
                at = self.kept_at(i * number(_WARP) + lane)
                stayed = self.corners_of(tirx.BufferLoad(self.boxes.buffers["kept"], at))
                return guarded(self.is_near(self.box(place()), stayed), hit.put(zero, flag(1)))

            i = tirx.Var("i", INDEX)
            walk = tirx.For(i, zero, tirx.floordiv(rest, number(_WARP)), _SERIAL, one(i))
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

    def _choose_of_word(self, word: int, free: Any) -> tirx.Stmt:
        """The boxes of a tile whose bits are in one number."""
        zero = number(0)
        count, chosen = self.own(self.count), self.own(self.chosen)

        def one(bit: Any) -> tirx.Stmt:
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

        return repeated(self.bits, INDEX, one, _SERIAL)


def _long(value: Any) -> Any:
    return value.astype(INDEX)
