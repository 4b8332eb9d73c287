"""The mainloop of warpgroup attention: a producer that copies by TMA, consumers that multiply.

Shah et al., "FlashAttention-3: Fast and Accurate Attention with Asynchrony and Low-precision"
(2024), algorithm 2: the scores of the next keys and the weighted values of these are under way
at the same time, and while the latter go on the next scores become weights.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import tirx
from tvm.tirx.buffer import buffer_data

from tvm_ext.hardware.matrix_instructions import WARPGROUP_INSTRUCTIONS
from tvm_ext.tir_schedules.cuda.attention.online_softmax import (
    INDEX,
    RowTile,
    ThreadScores,
    fragment_places,
    fragment_register,
    number,
)
from tvm_ext.tir_schedules.cuda.launch import Arrays, guarded, repeated
from tvm_ext.tir_schedules.cuda.warpgroup import warpgroup_instructions as hopper
from tvm_ext.tir_schedules.cuda.warpgroup.tma import SWIZZLED_ROW_BYTES, new_tensor_map
from tvm_ext.tir_schedules.cuda.warpgroup.warpgroup_attention_decision import (
    BOX_ELEMENTS,
    HeadBoxes,
    WarpgroupAttentionLayout,
    WarpgroupAttentionTiles,
    in_pairs,
    row_tiles,
    work_units,
)
from tvm_ext.tir_schedules.operators.attention_problem import AttentionProblem
from tvm_ext.tir_schedules.statements import sequence

# Which tiles of rows a block takes, in which order.


class AttentionTileScheduler(RowTile):
    """The tiles of a block, as statements that bind where each of them is.

    Tiles of a section of heads that share keys are neighbours. In it those with the last rows go
    first: of a causal mask they have most to do. Where blocks last, each takes such a tile and the
    one as far from the first rows in turn: all pairs look at about as many keys.

    Attributes
    ----------
    key_head : Expr
        The head of keys and values of the present tile.
    steps : Expr
        How many tiles of keys its rows look at, at least one.
    """

    tiles: WarpgroupAttentionTiles

    def __init__(self, problem: AttentionProblem, tiles: WarpgroupAttentionTiles, sms: int) -> None:
        super().__init__(problem, tiles)
        self.down = row_tiles(problem, tiles)
        self.pairs = tiles.lasting and in_pairs(problem, tiles)
        self.key_heads = problem.key.size("h")
        self.sharing = problem.heads // self.key_heads
        self.count = work_units(problem, tiles)
        self.grid = min(self.count, sms) if tiles.lasting else self.count
        self.key_head: Any
        self.steps: Any

    def over_tiles(self, block: tvm.ir.Expr, tile: Callable[[Any], tirx.Stmt]) -> tirx.Stmt:
        """``tile`` for each tile of a block, given how many came before."""
        each = 2 if self.pairs else 1

        def iteration(turn: tvm.ir.Expr) -> tirx.Stmt:
            unit = block + tirx.floordiv(turn, number(each)) * number(self.grid)
            second = tirx.floormod(turn, number(2)) == number(1) if self.pairs else None
            return sequence([*self._placed(unit, second), tile(turn)])

        if self.count == self.grid:
            return repeated(each, INDEX, iteration, tirx.ForKind.SERIAL)
        rest = number(self.count + self.grid - 1) - block
        turns = tirx.floordiv(rest, number(self.grid)) * number(each)
        var = tirx.Var("turn", INDEX)
        return tirx.For(var, number(0), turns, tirx.ForKind.SERIAL, iteration(var))

    def _placed(self, unit: tvm.ir.Expr, second: Any) -> list[tirx.Stmt]:
        """Binds the place of a tile, or of the first or second one of a pair."""
        heads = self.problem.batch * self.key_heads
        section = min(self.tiles.section, heads)
        units = self.down // 2 if self.pairs else self.down
        size = number(section * self.sharing * units)
        first = tirx.floordiv(unit, size) * number(section)
        inside = tirx.floormod(unit, size)
        height: Any = number(section)
        if heads % section:
            height = tirx.min(height, number(heads) - first)
        across = height * number(self.sharing)
        which = tirx.floormod(inside, across)
        head = first + tirx.floordiv(which, number(self.sharing))
        key_head = tirx.floormod(head, number(self.key_heads))
        place = tirx.floordiv(inside, across)
        last = number(self.down - 1) - place
        values = {
            "tile": last if second is None else tirx.Select(second, place, last),
            "batch": tirx.floordiv(head, number(self.key_heads)),
            "key_head": key_head,
            "head": key_head * number(self.sharing) + tirx.floormod(which, number(self.sharing)),
        }
        binds = [self._bound(name, value) for name, value in values.items()]
        _, end = self.key_range()
        return [*binds, self._bound("steps", tirx.max(end, number(1)))]

    def _bound(self, name: str, value: tvm.ir.Expr) -> tirx.Stmt:
        var = tirx.Var(name, INDEX)
        setattr(self, name, var)
        return tirx.Bind(var, value)


# The pipeline through which keys and values come, and its barriers.


_WARPS = hopper.WARPGROUP // 32


class WarpgroupAttentionPipeline:
    """Places in shared memory, from ``base`` on, and what threads have passed of the pipeline.

    The query, and every stage of keys and of values, has two barriers: "full" ends a phase when
    the copies' bytes have come, "empty" when every multiplying warp is done reading.
    """

    def __init__(self, layout: WarpgroupAttentionLayout, arrays: Arrays) -> None:
        self.layout = layout
        self.base = tirx.Var("base", "uint32")
        self._passed = arrays.registers("passed", 1, "uint32", ())
        stages = layout.tiles.stages
        # Byte of the first stage, bytes of a stage, number of the first barrier.
        self._places = {
            "query": (0, 0, 0),
            "keys": (layout.keys_start, layout.key_bytes, 2),
            "values": (layout.values_start, layout.value_bytes, 2 + 2 * stages),
        }

    def prepared(self) -> list[tirx.Stmt]:
        """Makes all barriers."""
        arrivals = self.layout.tiles.groups * _WARPS
        found = []
        for what, stages in (("query", 1), ("keys", None), ("values", None)):
            for stage in range(stages or self.layout.tiles.stages):
                at = _unsigned(stage)
                found.append(hopper.barrier_init(self.full(what, at), 1))
                found.append(hopper.barrier_init(self.empty(what, at), arrivals))
        return found

    def full(self, what: str, stage: tvm.ir.Expr) -> tvm.ir.Expr:
        """Where the barrier is that waits for copies."""
        return self._barrier(what, stage, 0)

    def empty(self, what: str, stage: tvm.ir.Expr) -> tvm.ir.Expr:
        """Where the barrier is that waits for readers."""
        return self._barrier(what, stage, 1)

    def start(self, what: str, stage: tvm.ir.Expr) -> tvm.ir.Expr:
        """Where a tile begins."""
        first, size, _ = self._places[what]
        return self.base + _unsigned(first) + stage * _unsigned(size)

    def nothing_passed(self) -> tirx.Stmt:
        """Before the first tile of rows."""
        return self._passed.put(tirx.const(0, "int32"), _unsigned(0))

    def passed(self, steps: tvm.ir.Expr) -> tirx.Stmt:
        """After a tile of rows that looked at so many tiles of keys."""
        zero = tirx.const(0, "int32")
        return self._passed.put(zero, self._passed.at(zero) + steps.astype("uint32"))

    def at(self, step: tvm.ir.Expr) -> tuple[Any, Any, tirx.Stmt]:
        """Stage and parity of a step of the present tile of rows, as variables."""
        stage, parity = tirx.Var("stage", "uint32"), tirx.Var("parity", "uint32")
        place = self._passed.at(tirx.const(0, "int32")) + step.astype("uint32")
        stages = _unsigned(self.layout.tiles.stages)
        binds = [
            tirx.Bind(stage, tirx.truncmod(place, stages)),
            tirx.Bind(parity, tirx.truncmod(tirx.truncdiv(place, stages), _unsigned(2))),
        ]
        return stage, parity, sequence(binds)

    def released(self, what: str, stage: tvm.ir.Expr, lane: tvm.ir.Expr) -> tirx.Stmt:
        """One thread of each warp says that the warp is done reading."""
        first = tirx.EQ(lane, tirx.const(0, "int32"))
        return hopper.barrier_arrive(self.empty(what, stage), first.astype("uint32"))

    def _barrier(self, what: str, stage: tvm.ir.Expr, kind: int) -> tvm.ir.Expr:
        first = self.layout.barriers_start + 8 * (self._places[what][2] + kind)
        return self.base + _unsigned(first) + stage * _unsigned(16)


def flipped(parity: tvm.ir.Expr) -> tvm.ir.Expr:
    """The parity of the phase before."""
    return _unsigned(1) - parity


def _unsigned(value: int) -> tvm.ir.Expr:
    return tirx.const(value, "uint32")


# Writes the results of a multiplying thread to memory, 16 bytes at a time where it can.


_STORE_BYTES = 16
_LANES = 4
"""Lanes that share a row."""

_GATHERED, _PAIR = 8, 2
"""Neighbouring columns that a lane has after an exchange with its neighbours, and before."""


def write_results(products: Any, inside: Sequence[tirx.Expr | None]) -> tirx.Stmt:
    """The statements; ``inside``: for each row of the thread whether it exists.

    ``products``: the ``WarpgroupAttentionMatmuls`` whose results they are.
    """
    width = products.layout.width
    columns = _GATHERED if width % (_GATHERED * _LANES) == 0 else _PAIR
    statements = []
    if columns == _GATHERED:
        statements.append(hopper.gather_columns(buffer_data(products.results.buffer), width))
    for row, exists in enumerate(inside):
        runs = range(width // (columns * _LANES))
        stores = [_run(products, row, run, columns) for run in runs]
        statements.append(guarded(exists, sequence(stores)))
    return sequence(statements)


def _run(products: Any, row: int, run: int, columns: int) -> tirx.Stmt:
    """Neighbouring columns of a row, rounded, then stored."""
    output, width = products.problem.output, products.layout.width
    place = products.rows[row]
    vector = min(columns, _STORE_BYTES // output.element_bytes)
    lane = tirx.floormod(products.lane, number(_LANES))
    column = number(run * columns * _LANES) + lane * number(columns)
    start = output.address(b=place.batch, h=place.head, s=place.query) + column
    statements = []
    for first in range(0, columns, vector):
        held = products.arrays.registers("rounded", vector, output.dtype, ())

        def fill(i: tvm.ir.Expr, first: int = first, held: Any = held) -> tirx.Stmt:
            at = _register(row, run, number(first) + i, columns, width)
            return held.put(i, products.results.at(at).astype(output.dtype))

        def store(i: tvm.ir.Expr, first: int = first, held: Any = held) -> tirx.Stmt:
            return tirx.BufferStore(output.buffer, held.at(i), [start + number(first) + i])

        statements.append(repeated(vector, INDEX, fill))
        statements.append(repeated(vector, INDEX, store, tirx.ForKind.VECTORIZED))
    return sequence(statements)


def _register(row: int, run: int, column: tvm.ir.Expr, columns: int, width: int) -> tvm.ir.Expr:
    if columns == _GATHERED:
        return hopper.position(number(run), number(row), column)
    return fragment_register(number(row), number(run * _PAIR) + column, width)


# Rows of the query of which a thread has a part.
_ROWS = 2
_EIGHT_ROWS = 8 * SWIZZLED_ROW_BYTES

# Of keys and queries depth is along the rows: a descriptor's leading offset is not looked at.
_NO_OFFSET = 16
_UNIT = 16
"""Bytes in which descriptors count."""


class WarpgroupAttentionMatmuls:
    """The statements of one multiplying thread."""

    def __init__(
        self,
        tiles: AttentionTileScheduler,
        pipeline: WarpgroupAttentionPipeline,
        arrays: Arrays,
        thread: tvm.ir.Expr,
    ) -> None:
        self.tiles, self.pipeline, self.layout, self.arrays = (
            tiles,
            pipeline,
            pipeline.layout,
            arrays,
        )
        self.problem, self.cut = tiles.problem, pipeline.layout.tiles
        self.dtype = self.problem.query.dtype
        self.group = tirx.floordiv(thread, number(hopper.WARPGROUP)) - number(1)
        self.lane = tirx.floormod(thread, number(32))
        warp = tirx.floordiv(tirx.floormod(thread, number(hopper.WARPGROUP)), number(32))
        first = self.group * number(hopper.ROWS) + warp * number(16)
        places = fragment_places(_ROWS, self.cut.keys, first, self.lane)
        self.scores = ThreadScores(self.problem, places, False, arrays)
        self.weights = arrays.registers("weights", self.cut.keys // 4, "uint32", ())
        self.results = arrays.registers("results", self.layout.width // 2, "float32", ())

    def statements(self, block: tvm.ir.Expr) -> tirx.Stmt:
        """All products."""
        first = []
        if self.cut.turns:
            # It is the first group's turn: the last one says so.
            last = tirx.EQ(self.group, number(self.cut.groups - 1))
            first.append(guarded(last, hopper.pass_turn(number(0))))
        walk = self.tiles.over_tiles(block, self._tile)
        return sequence([*first, self.pipeline.nothing_passed(), walk])

    def _tile(self, turn: tvm.ir.Expr) -> tirx.Stmt:
        pipeline, tiles = self.pipeline, self.tiles
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
            hopper.barrier_wait(pipeline.full("query", zero), parity),
            self._first_scores(),
            walk,
            pipeline.released("query", zero, self.lane),
            self._last_values(),
            pipeline.passed(tiles.steps),
            self.scores.finish(),
            self.scores.divisors(),
            self._rescale(),
            write_results(self, [inside for _, inside in found]),
        ]
        return sequence(body)

    def _first_scores(self) -> tirx.Stmt:
        stage, parity, binds = self.pipeline.at(number(0))
        return sequence(
            [
                binds,
                hopper.barrier_wait(self.pipeline.full("keys", stage), parity),
                hopper.settle(self._data(self.scores.scores), self.cut.keys),
                hopper.start(),
                *self._score_matmul(stage),
                hopper.finish(0),
                hopper.settle(self._data(self.scores.scores), self.cut.keys),
                self.pipeline.released("keys", stage, self.lane),
                *self._weights(number(0)),
                self._round(),
            ]
        )

    def _step(self, index: tvm.ir.Expr) -> tirx.Stmt:
        """Scores of tile ``index`` + 1, weighted values of tile ``index``."""
        scores, results = self._data(self.scores.scores), self._data(self.results)
        key_stage, key_parity, key_binds = self.pipeline.at(index + number(1))
        stage, parity, binds = self.pipeline.at(index)
        return sequence(
            [
                key_binds,
                binds,
                hopper.barrier_wait(self.pipeline.full("keys", key_stage), key_parity),
                *([hopper.await_turn(self.group)] if self.cut.turns else []),
                hopper.settle(scores, self.cut.keys),
                hopper.settle_weights(self._data(self.weights), self.cut.keys),
                hopper.settle(results, self.layout.width),
                hopper.start(),
                *self._score_matmul(key_stage),
                hopper.barrier_wait(self.pipeline.full("values", stage), parity),
                hopper.start(),
                *self._value_matmul(stage, tirx.NE(index, number(0))),
                *([hopper.pass_turn(self._next_group())] if self.cut.turns else []),
                hopper.finish(1),
                hopper.settle(scores, self.cut.keys),
                self.pipeline.released("keys", key_stage, self.lane),
                *self._weights(index + number(1)),
                self._weighed(key_stage),
                hopper.finish(0),
                hopper.settle(results, self.layout.width),
                hopper.settle_weights(self._data(self.weights), self.cut.keys),
                self.pipeline.released("values", stage, self.lane),
                self._rescale(),
                self._round(),
            ]
        )

    def _last_values(self) -> tirx.Stmt:
        last = self.tiles.steps - number(1)
        results = self._data(self.results)
        stage, parity, binds = self.pipeline.at(last)
        return sequence(
            [
                binds,
                hopper.barrier_wait(self.pipeline.full("values", stage), parity),
                hopper.settle_weights(self._data(self.weights), self.cut.keys),
                hopper.settle(results, self.layout.width),
                hopper.start(),
                *self._value_matmul(stage, tirx.NE(last, number(0))),
                hopper.finish(0),
                hopper.settle(results, self.layout.width),
                self.pipeline.released("values", stage, self.lane),
            ]
        )

    def _score_matmul(self, stage: tvm.ir.Expr) -> list[tirx.Stmt]:
        """Starts the products of queries and keys, as one group."""
        group = self.group.astype("uint32")
        rows = self.pipeline.start("query", tirx.const(0, "uint32")) + group * tirx.const(
            hopper.ROWS * SWIZZLED_ROW_BYTES, "uint32"
        )
        keys = self.pipeline.start("keys", stage)
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
            row = WARPGROUP_INSTRUCTIONS[self.dtype, self.dtype]
            found.append(hopper.multiply(scores, a, b, add, self.cut.keys, row, across))
        return [*found, hopper.commit()]

    def _value_matmul(self, stage: tvm.ir.Expr, add: tvm.ir.Expr) -> list[tirx.Stmt]:
        """Starts the products of weights and values, as one group; ``add`` to what there is."""
        name = tirx.Var("descriptor_values", "uint64")
        start = self.pipeline.start("values", stage)
        found: list[tirx.Stmt] = [
            tirx.Bind(name, hopper.descriptor(start, self.layout.box_bytes, _EIGHT_ROWS))
        ]
        results, weights = self._data(self.results), self._data(self.weights)
        for part in range(self.cut.keys // hopper.DEPTH):
            advance = part * hopper.DEPTH * SWIZZLED_ROW_BYTES // _UNIT
            b = name + tirx.const(advance, "uint64")
            more = tirx.const(1, "uint32") if part else add.astype("uint32")
            first, width = part * hopper.OPERAND_REGISTERS, self.layout.width
            found.append(
                hopper.multiply_registers(results, weights, first, b, more, width, self.dtype)
            )
        return [*found, hopper.commit()]

    def _weights(self, tile: tvm.ir.Expr) -> list[tirx.Stmt]:
        """The scores of a tile of keys become weights."""
        first_key = tile * number(self.cut.keys)
        hides = self.tiles.hides(tile)
        hide = [] if hides is None else [guarded(hides, self.scores.hide(self.rows, first_key))]
        return [*self.scores.mask(self.rows, first_key), *hide, self.scores.update()]

    def _weighed(self, stage: tvm.ir.Expr) -> tirx.Stmt:
        """Has the weights computed before what follows.

        The assembler would rather wait for the results first, and compute the weights when nothing
        is under way. Sums of weights are not below -1, which it does not know: nobody arrives.
        """
        totals, least = self.scores.totals, tirx.const(-1.0, "float32")
        below = [tirx.LT(totals.at(number(row)), least) for row in range(_ROWS)]
        never = tirx.Or(*below).astype("uint32")
        return hopper.barrier_arrive(self.pipeline.empty("keys", stage), never)

    def _round(self) -> tirx.Stmt:
        weights, scores = self._data(self.weights), self._data(self.scores.scores)
        return hopper.round_scores(weights, scores, self.cut.keys, self.dtype)

    def _rescale(self) -> tirx.Stmt:
        """Multiplies every result by the factor of its row."""
        width, statements = self.layout.width, []
        for row in range(_ROWS):

            def iteration(j: tvm.ir.Expr, row: int = row) -> tirx.Stmt:
                at = fragment_register(number(row), j, width)
                factor = self.scores.factors.at(number(row))
                return self.results.put(at, self.results.at(at) * factor)

            statements.append(repeated(width // 4, INDEX, iteration))
        return sequence(statements)

    def _next_group(self) -> tvm.ir.Expr:
        following = self.group + number(1)
        return tirx.Select(following == number(self.cut.groups), number(0), following)

    def _data(self, array: tirx.Buffer) -> tvm.ir.Expr:
        return buffer_data(array.buffer)


# What the copying thread of a block does: query, keys and values to shared memory.


class WarpgroupAttentionLoads:
    """The tensor maps, and the copies of all tiles of a block."""

    def __init__(self, tiles: AttentionTileScheduler, pipeline: WarpgroupAttentionPipeline) -> None:
        self.tiles, self.pipeline, self.layout = tiles, pipeline, pipeline.layout
        problem = tiles.problem
        operands = {"query": problem.query, "keys": problem.key, "values": problem.value}
        self.boxes = {name: HeadBoxes.of(tensor) for name, tensor in operands.items()}
        self.maps = {name: new_tensor_map(f"map_{name}") for name in operands}

    def on_host(self) -> list[tirx.Stmt]:
        """Makes the tensor maps."""
        made = [statement for _, statement in self.maps.values()]
        sizes = {"query": self.tiles.tiles.rows}
        for name, boxes in self.boxes.items():
            positions = sizes.get(name, self.tiles.tiles.keys)
            made.append(boxes.encoded(self.maps[name][0], positions))
        return made

    def prefetched(self) -> list[tirx.Stmt]:
        """Brings the tensor maps near."""
        return [hopper.prefetch_map(var) for var, _ in self.maps.values()]

    def statements(self, block: tvm.ir.Expr) -> tirx.Stmt:
        """All copies."""
        walk = self.tiles.over_tiles(block, self._tile)
        return sequence([self.pipeline.nothing_passed(), walk])

    def _tile(self, turn: tvm.ir.Expr) -> tirx.Stmt:
        tiles, layout = self.tiles, self.layout
        zero = tirx.const(0, "uint32")
        parity = tirx.truncmod(turn.astype("uint32"), tirx.const(2, "uint32"))
        first = tiles.tile * number(tiles.tiles.rows)
        query = self._copied("query", zero, parity, layout.query_bytes, first)
        step, one = tirx.Var("step", INDEX), number(1)
        # A stage of keys is free before one of values: values of a tile come after the next keys.
        both = sequence([self._stage("keys", step + one), self._stage("values", step)])
        walk = tirx.For(step, number(0), tiles.steps - one, tirx.ForKind.SERIAL, both)
        return sequence(
            [
                *query,
                self._stage("keys", number(0)),
                walk,
                self._stage("values", tiles.steps - one),
                self.pipeline.passed(tiles.steps),
            ]
        )

    def _stage(self, name: str, step: tvm.ir.Expr) -> tirx.Stmt:
        """The copies of a tile of keys or values."""
        stage, parity, binds = self.pipeline.at(step)
        nbytes = self.layout.key_bytes if name == "keys" else self.layout.value_bytes
        position = step * number(self.tiles.tiles.keys)
        return sequence([binds, *self._copied(name, stage, parity, nbytes, position)])

    def _copied(
        self, name: str, stage: tvm.ir.Expr, parity: tvm.ir.Expr, nbytes: int, position: tvm.ir.Expr
    ) -> list[tirx.Stmt]:
        """Waits until a stage is free, and starts the copies to it."""
        tiles, pipeline, boxes = self.tiles, self.pipeline, self.boxes[name]
        full = pipeline.full(name, stage)
        found = [
            hopper.barrier_wait(pipeline.empty(name, stage), flipped(parity)),
            hopper.barrier_expect(full, nbytes),
        ]
        head = tiles.head if name == "query" else tiles.key_head
        size = nbytes // boxes.count
        for box in range(boxes.count):
            to = pipeline.start(name, stage) + tirx.const(box * size, "uint32")
            at = boxes.at(box, position, b=tiles.batch, h=head)
            found.append(hopper.copy_box(to, self.maps[name][0], at, full))
        return found
