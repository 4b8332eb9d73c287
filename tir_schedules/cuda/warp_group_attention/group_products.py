"""What a multiplying thread does: scores, weights, and the products with the values.

Shah et al., "FlashAttention-3: Fast and Accurate Attention with Asynchrony and Low-precision"
(2024), algorithm 2: the scores of the next keys and the weighted values of these are under way at
the same time, and while the latter go on the next scores become weights.

``scores = Q K[0]; weights
   for j = 1 ...:  start scores = Q K[j]; start results += weights V[j - 1]
                   await the scores; they become weights
                   await the results; they are rescaled
   results += weights V[last]``
"""

from typing import Any

from tvm import tirx
from tvm.tirx.buffer import buffer_data

from tvm_ext.tir_schedules.cuda.attention.attention_fragments import (
    fragment_places,
    fragment_register,
)
from tvm_ext.tir_schedules.cuda.attention.attention_scores import INDEX, ThreadScores, number
from tvm_ext.tir_schedules.cuda.launch import Arrays, guarded, repeated
from tvm_ext.tir_schedules.cuda.warp_group_attention import group_instructions as own
from tvm_ext.tir_schedules.cuda.warp_group_attention.group_results import write_results
from tvm_ext.tir_schedules.cuda.warp_group_attention.group_ring import GroupRing
from tvm_ext.tir_schedules.cuda.warp_group_attention.group_tiles import GroupTiles
from tvm_ext.tir_schedules.cuda.warp_group_attention.head_boxes import BOX_ELEMENTS
from tvm_ext.tir_schedules.cuda.warp_groups import warp_group_instructions as hopper
from tvm_ext.tir_schedules.cuda.warp_groups.tensor_map import SWIZZLED_ROW_BYTES
from tvm_ext.tir_schedules.statements import sequence

# Rows of the query of which a thread has a part.
_ROWS = 2
_EIGHT_ROWS = 8 * SWIZZLED_ROW_BYTES

# Of keys and queries depth is along the rows: a descriptor's leading offset is not looked at.
_NO_OFFSET = 16
_UNIT = 16
"""Bytes in which descriptors count."""


class GroupProducts:
    """The statements of one multiplying thread."""

    def __init__(self, tiles: GroupTiles, ring: GroupRing, arrays: Arrays, thread: Any) -> None:
        self.tiles, self.ring, self.layout, self.arrays = tiles, ring, ring.layout, arrays
        self.problem, self.cut = tiles.problem, ring.layout.tiles
        self.dtype = self.problem.query.dtype
        self.group = tirx.floordiv(thread, number(hopper.WARP_GROUP)) - number(1)
        self.lane = tirx.floormod(thread, number(32))
        warp = tirx.floordiv(tirx.floormod(thread, number(hopper.WARP_GROUP)), number(32))
        first = self.group * number(hopper.ROWS) + warp * number(16)
        places = fragment_places(_ROWS, self.cut.keys, first, self.lane)
        self.scores = ThreadScores(self.problem, places, False, arrays)
        self.weights = arrays.registers("weights", self.cut.keys // 4, "uint32", ())
        self.results = arrays.registers("results", self.layout.width // 2, "float32", ())

    def statements(self, block: Any) -> tirx.Stmt:
        """All products."""
        first = []
        if self.cut.turns:
            # It is the first group's turn: the last one says so.
            last = tirx.EQ(self.group, number(self.cut.groups - 1))
            first.append(guarded(last, own.pass_turn(number(0))))
        walk = self.tiles.over_tiles(block, self._tile)
        return sequence([*first, self.ring.nothing_passed(), walk])

    def _tile(self, turn: Any) -> tirx.Stmt:
        ring, tiles = self.ring, self.tiles
        zero = tirx.const(0, "uint32")
        parity = tirx.truncmod(turn.astype("uint32"), tirx.const(2, "uint32"))
        found = [tiles.row(self.scores.places.row(number(i))) for i in range(_ROWS)]
        self.rows = [place for place, _ in found]
        index = tirx.Var("step", INDEX)
        walk = tirx.For(
            index, number(0), tiles.steps - number(1), tirx.ForKind.SERIAL, self._step(index)
        )
        body = [
            self.scores.start(),
            hopper.barrier_wait(ring.full("query", zero), parity),
            self._first_scores(),
            walk,
            ring.released("query", zero, self.lane),
            self._last_values(),
            ring.passed(tiles.steps),
            self.scores.finish(),
            self.scores.divisors(),
            self._rescale(),
            write_results(self, [inside for _, inside in found]),
        ]
        return sequence(body)

    def _first_scores(self) -> tirx.Stmt:
        stage, parity, binds = self.ring.at(number(0))
        return sequence(
            [
                binds,
                hopper.barrier_wait(self.ring.full("keys", stage), parity),
                hopper.settle(self._data(self.scores.scores), self.cut.keys),
                hopper.start(),
                *self._score_products(stage),
                hopper.finish(0),
                hopper.settle(self._data(self.scores.scores), self.cut.keys),
                self.ring.released("keys", stage, self.lane),
                *self._weights(number(0)),
                self._round(),
            ]
        )

    def _step(self, index: Any) -> tirx.Stmt:
        """Scores of tile ``index`` + 1, weighted values of tile ``index``."""
        scores, results = self._data(self.scores.scores), self._data(self.results)
        key_stage, key_parity, key_binds = self.ring.at(index + number(1))
        stage, parity, binds = self.ring.at(index)
        return sequence(
            [
                key_binds,
                binds,
                hopper.barrier_wait(self.ring.full("keys", key_stage), key_parity),
                *([own.await_turn(self.group)] if self.cut.turns else []),
                hopper.settle(scores, self.cut.keys),
                own.settle_weights(self._data(self.weights), self.cut.keys),
                hopper.settle(results, self.layout.width),
                hopper.start(),
                *self._score_products(key_stage),
                hopper.barrier_wait(self.ring.full("values", stage), parity),
                hopper.start(),
                *self._value_products(stage, tirx.NE(index, number(0))),
                *([own.pass_turn(self._next_group())] if self.cut.turns else []),
                hopper.finish(1),
                hopper.settle(scores, self.cut.keys),
                self.ring.released("keys", key_stage, self.lane),
                *self._weights(index + number(1)),
                self._weighed(key_stage),
                hopper.finish(0),
                hopper.settle(results, self.layout.width),
                own.settle_weights(self._data(self.weights), self.cut.keys),
                self.ring.released("values", stage, self.lane),
                self._rescale(),
                self._round(),
            ]
        )

    def _last_values(self) -> tirx.Stmt:
        last = self.tiles.steps - number(1)
        results = self._data(self.results)
        stage, parity, binds = self.ring.at(last)
        return sequence(
            [
                binds,
                hopper.barrier_wait(self.ring.full("values", stage), parity),
                own.settle_weights(self._data(self.weights), self.cut.keys),
                hopper.settle(results, self.layout.width),
                hopper.start(),
                *self._value_products(stage, tirx.NE(last, number(0))),
                hopper.finish(0),
                hopper.settle(results, self.layout.width),
                self.ring.released("values", stage, self.lane),
            ]
        )

    def _score_products(self, stage: Any) -> list[tirx.Stmt]:
        """Starts the products of queries and keys, as one group."""
        group = self.group.astype("uint32")
        rows = self.ring.start("query", tirx.const(0, "uint32")) + group * tirx.const(
            hopper.ROWS * SWIZZLED_ROW_BYTES, "uint32"
        )
        keys = self.ring.start("keys", stage)
        names = [tirx.Var(f"descriptor_{name}", "uint64") for name in ("query", "keys")]
        found: list[tirx.Stmt] = [
            tirx.Bind(name, hopper.descriptor(start, _NO_OFFSET, _EIGHT_ROWS))
            for name, start in zip(names, (rows, keys), strict=True)
        ]
        sizes = (self.layout.query_box_bytes, self.layout.box_bytes)
        for part in range(self.layout.depth // hopper.DEPTH):
            box, inside = divmod(part * hopper.DEPTH, BOX_ELEMENTS)
            a, b = (
                name + tirx.const((box * size + inside * 2) // _UNIT, "uint64")
                for name, size in zip(names, sizes, strict=True)
            )
            add = tirx.const(min(part, 1), "uint32")
            scores, across = self._data(self.scores.scores), (False, False)
            found.append(hopper.multiply(scores, a, b, add, self.cut.keys, self.dtype, across))
        return [*found, hopper.commit()]

    def _value_products(self, stage: Any, add: Any) -> list[tirx.Stmt]:
        """Starts the products of weights and values, as one group; ``add`` to what there is."""
        name = tirx.Var("descriptor_values", "uint64")
        start = self.ring.start("values", stage)
        found: list[tirx.Stmt] = [
            tirx.Bind(name, hopper.descriptor(start, self.layout.box_bytes, _EIGHT_ROWS))
        ]
        results, weights = self._data(self.results), self._data(self.weights)
        for part in range(self.cut.keys // hopper.DEPTH):
            advance = part * hopper.DEPTH * SWIZZLED_ROW_BYTES // _UNIT
            b = name + tirx.const(advance, "uint64")
            more = tirx.const(1, "uint32") if part else add.astype("uint32")
            first, width = part * own.OPERAND_REGISTERS, self.layout.width
            found.append(
                own.multiply_registers(results, weights, first, b, more, width, self.dtype)
            )
        return [*found, hopper.commit()]

    def _weights(self, tile: Any) -> list[tirx.Stmt]:
        """The scores of a tile of keys become weights."""
        first_key = tile * number(self.cut.keys)
        hides = self.tiles.hides(tile)
        hide = [] if hides is None else [guarded(hides, self.scores.hide(self.rows, first_key))]
        return [*self.scores.mask(self.rows, first_key), *hide, self.scores.update()]

    def _weighed(self, stage: Any) -> tirx.Stmt:
        """Has the weights computed before what follows.

        The assembler would rather wait for the results first, and compute the weights when nothing
        is under way. Sums of weights are not below -1, which it does not know: nobody arrives.
        """
        totals, least = self.scores.totals, tirx.const(-1.0, "float32")
        below = [tirx.LT(totals.at(number(row)), least) for row in range(_ROWS)]
        never = tirx.Or(*below).astype("uint32")
        return hopper.barrier_arrive(self.ring.empty("keys", stage), never)

    def _round(self) -> tirx.Stmt:
        weights, scores = self._data(self.weights), self._data(self.scores.scores)
        return own.round_scores(weights, scores, self.cut.keys, self.dtype)

    def _rescale(self) -> tirx.Stmt:
        """Multiplies every result by the factor of its row."""
        width, statements = self.layout.width, []
        for row in range(_ROWS):

            def one(j: Any, row: int = row) -> tirx.Stmt:
                at = fragment_register(number(row), j, width)
                factor = self.scores.factors.at(number(row))
                return self.results.put(at, self.results.at(at) * factor)

            statements.append(repeated(width // 4, INDEX, one))
        return sequence(statements)

    def _next_group(self) -> Any:
        following = self.group + number(1)
        return tirx.Select(following == number(self.cut.groups), number(0), following)

    def _data(self, array: Any) -> Any:
        return buffer_data(array.buffer)
