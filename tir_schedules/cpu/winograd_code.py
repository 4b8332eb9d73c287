"""Code of a Winograd convolution of images whose size may be one that a run decides.

All tiles of all images are counted in a row and cut into blocks, each of which passes through the
stages while it is in cache: the transform of its inputs, a matmul for each position of a tile, and
the transform of its outputs with what follows. Tiles whose inputs or outputs are all inside of the
image have code without conditions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV
from tvm.sym import Analyzer

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.analysis.buffer_access import (
    is_conditional,
    nodes,
    static_extent,
)
from tvm_ext.tir_schedules.analysis.loop_nest import substitute
from tvm_ext.tir_schedules.cpu.nest_code import FlatPlaces
from tvm_ext.tir_schedules.cpu.prefetch import prefetches_along
from tvm_ext.tir_schedules.cpu.register_blocking import ENOUGH_ACCUMULATORS
from tvm_ext.tir_schedules.cpu.symbolic_contraction import epilogue_of, finished, may_repeat
from tvm_ext.tir_schedules.cpu.thread_choice import without_choice
from tvm_ext.tir_schedules.statements import FlatViews, sequence, stack_array, through_memory

# Lanes of a vector and columns of a register tile are fewer.
_WIDEST = 64

_INDEX = "int64"


@dataclass(frozen=True)
class WinogradImage:
    """The stages of a convolution, and its sizes that are known.

    Attributes
    ----------
    stages : dict[str, SBlock]
        By what their annotation says.
    tile : tuple[int, int]
        Outputs of a tile, rows and columns.
    sides : tuple[int, int]
        Inputs of a tile.
    inputs, products, outputs : int
        Channels; ``products`` as computed, ``outputs`` of these are wanted.
    store : tirx.BufferStore
        Writes a result at the loops of the output stage; ``total`` stands for what that computes.
    total : tirx.Var
        See ``store``.
    """

    stages: dict[str, s_tir.SBlock]
    tile: tuple[int, int]
    sides: tuple[int, int]
    inputs: int
    products: int
    outputs: int
    store: tirx.BufferStore
    total: tirx.Var

    @property
    def tile_counts(self) -> list[int | None]:
        """Images, rows and columns of tiles; None for what a run decides."""
        extents = [static_extent(v.dom.extent) for v in self.stages["output"].iter_vars[:3]]
        steps = (1, *self.tile)
        return [
            None if extent is None else -(-extent // step)
            for extent, step in zip(extents, steps, strict=True)
        ]


@dataclass(frozen=True)
class WinogradDecision:
    """How the work is cut.

    Attributes
    ----------
    columns, rows : int
        Output channels and tiles of a register tile of products.
    block_tiles : int
        Tiles that pass through all stages together, at most.
    streamed : bool
        Whether the weights come from beyond L2, for each block of tiles anew.
    threads : bool
        Whether threads share the work.
    """

    columns: int
    rows: int
    block_tiles: int
    streamed: bool
    threads: bool


def winograd_image(
    sch: s_tir.Schedule, stages: dict[str, SBlockRV], tile: tuple[int, int]
) -> tuple[WinogradImage, list[SBlockRV]]:
    """What code is written for, and the blocks that it does. Raises NotApplicable."""
    blocks = {name: sch.get(block) for name, block in stages.items()}
    if any(static_extent(v.dom.min) != 0 for stmt in blocks.values() for v in stmt.iter_vars):
        raise NotApplicable("a loop does not start at zero")
    if any(str(v.var.ty) != _INDEX for v in blocks["output"].iter_vars[1:3]):
        raise NotApplicable("a loop does not count in int64, as those of a model do")
    sizes = [static_extent(v.dom.extent) for v in blocks["products"].iter_vars]
    high, wide, products, inputs = sizes[0], sizes[1], sizes[5], sizes[6]
    output = blocks["output"]
    outputs = static_extent(output.iter_vars[-1].dom.extent)
    if not (high and wide and products and inputs and outputs):
        raise NotApplicable("the number of channels is not known")
    total = tirx.Var("total", str(output.body.buffer.dtype))
    store = tirx.BufferStore(output.body.buffer, total, list(output.body.indices))
    done = list(stages.values())
    epilogue = epilogue_of(sch, stages["output"])
    whole = None
    if epilogue is not None and may_repeat(sch, stages["output"], epilogue):
        whole = finished(sch.get(epilogue), output, total)
    if whole is not None and _same_extents(whole[1], output):
        store = whole[0]
        done.append(epilogue)
    sides = (high, wide)
    return WinogradImage(blocks, tile, sides, inputs, products, outputs, store, total), done


def _same_extents(extents: dict[Any, Any], output: s_tir.SBlock) -> bool:
    own = {v.var: v.dom.extent for v in output.iter_vars}
    return all(Analyzer().can_prove_equal(extent, own[var]) for var, extent in extents.items())


def winograd_code(
    image: WinogradImage,
    decision: WinogradDecision,
    machine: CpuDescription,
    params: Sequence[Any],
) -> tuple[tirx.Stmt, Sequence[tuple[Any, Any]]]:
    """The loops of all stages, and flat views of parameters that these use, with the parameters."""
    code = _Code(image, decision, machine, params)
    statement = code.statement()
    return statement, [(view, own) for own, view in code.views.pairs]


class _Code:
    """Writes the code for one convolution."""

    def __init__(
        self,
        image: WinogradImage,
        decision: WinogradDecision,
        machine: CpuDescription,
        params: Sequence[Any],
    ) -> None:
        self.image = image
        self.decision = decision
        self.params = params
        self.views = FlatViews(symbolic_sizes=True)
        self.cores = machine.cores
        self.dtype = str(image.total.ty)
        lanes = machine.vector_lanes(self.dtype)
        # What hides how long an addition takes: fewer tiles are left for it.
        vectors = max(decision.columns // lanes, 1)
        few = max(decision.rows // 2, -(-ENOUGH_ACCUMULATORS // vectors))
        self.few_rows = min(few, decision.rows)
        self.parallel = tirx.ForKind.PARALLEL if decision.threads else tirx.ForKind.SERIAL
        # Weights that no L2 holds are read once for all threads, not by each of them.
        self.shared = decision.threads and decision.streamed
        self.block = decision.block_tiles
        self.lanes = {count: _lanes_for(count, lanes) for count in (image.inputs, image.outputs)}
        positions = image.sides[0] * image.sides[1]
        sizes = (positions * self.block * count for count in (image.inputs, image.products))
        # In a scope of its own, so that TVM does not lay small arrays into the same memory.
        self.transformed, self.summed = (
            tirx.decl_buffer((size,), self.dtype, name, scope="local")
            for size, name in zip(sizes, ("transformed", "summed"), strict=True)
        )

    def statement(self) -> tirx.Stmt:
        """All blocks of tiles."""
        batch, tile_rows, tile_columns = self._extents()
        tiles, blocks, length = (tirx.Var(n, _INDEX) for n in ("tiles", "blocks", "length"))
        first, here = tirx.Var("first", _INDEX), tirx.Var("here", _INDEX)
        number = tirx.Var("block", _INDEX)
        extents = (tile_rows, tile_columns)
        body = sequence(
            [
                *through_memory(first, number * length),
                *through_memory(here, tirx.max(tirx.min(length, tiles - first), _number(0))),
                tirx.AllocBuffer(self.transformed),
                tirx.AllocBuffer(self.summed),
                self._each_tile(first, here, extents, self._input),
                self._products(here),
                self._each_tile(first, here, extents, self._output),
            ]
        )
        kind = tirx.ForKind.SERIAL if self.shared else self.parallel
        return sequence(
            [
                *through_memory(tiles, batch * tile_rows * tile_columns),
                *through_memory(blocks, tirx.max(self._blocks(tiles), _number(1))),
                *through_memory(length, _quotient(tiles, blocks)),
                _loop(number, blocks, body, kind),
            ]
        )

    def _blocks(self, tiles: Any) -> Any:
        """As many as the threads can share out evenly, but none of few tiles."""
        count = _quotient(tiles, self.block)
        if self.shared or self.parallel == tirx.ForKind.SERIAL:
            return count
        even = _quotient(count, self.cores) * self.cores
        return tirx.max(tirx.min(even, _quotient(tiles, self.few_rows)), count)

    def _extents(self) -> list[Any]:
        """Images, and rows and columns of tiles of one.

        From the sizes of the output: the input's stages may have them by what these are computed
        from.
        """
        images, *sides = (_wide(v.dom.extent) for v in self.image.stages["output"].iter_vars[:3])
        tiles = (_quotient(side, step) for side, step in zip(sides, self.image.tile, strict=True))
        return [images, *tiles]

    def _each_tile(
        self,
        first: Any,
        here: Any,
        extents: tuple[Any, Any],
        code: Callable[[Any, Sequence[Any]], tirx.Stmt],
    ) -> tirx.Stmt:
        """``code`` for each tile of a block: its number there, and its image, row and column."""
        tile = tirx.Var("tile", _INDEX)
        line, image, row, column = (
            tirx.Var(name, _INDEX) for name in ("line", "image", "row", "column")
        )
        rows, columns = extents
        place = first + tile
        binds = [
            *through_memory(line, tirx.truncdiv(place, tirx.max(columns, _number(1)))),
            *through_memory(column, place - line * columns),
            *through_memory(image, tirx.truncdiv(line, tirx.max(rows, _number(1)))),
            *through_memory(row, line - image * rows),
        ]
        kind = self.parallel if self.shared else tirx.ForKind.SERIAL
        return _loop(tile, here, sequence([*binds, code(tile, (image, row, column))]), kind)

    # The transform of the inputs.

    def _input(self, tile: Any, place: Sequence[Any]) -> tirx.Stmt:
        high, wide = self.image.sides
        lanes = self.lanes[self.image.inputs]
        channel, bind, around = _vectors(self.image.inputs, lanes)
        inside, _ = self._loaded(place, 0, 0, channel)
        last, _ = self._loaded(place, high - 1, wide - 1, channel)

        def element(i: Any, j: Any, lane: Any) -> Any:
            return self._loaded(place, i, j, channel + lane)[1]

        flat = FlatPlaces(element, self.params, self.views)
        copy, declaration = stack_array(high * wide * lanes, self.dtype, "copy")

        def put(i: Any, j: Any, value: Callable[[Any, Any, Any], Any]) -> tirx.Stmt:
            start = (i * wide + j) * lanes
            return _vector(
                lanes, lambda lane: tirx.BufferStore(copy, value(i, j, lane), [start + lane])
            )

        def at_border(i: Any, j: Any) -> tirx.Stmt:
            here, _ = self._loaded(place, i, j, channel)
            zero = tirx.const(0.0, self.dtype)
            return _choice(here, put(i, j, flat.at), put(i, j, lambda *_: zero))

        copied = _each_place(
            self.image.sides,
            tirx.And(inside, last),
            lambda i, j: put(i, j, flat.at),
            at_border,
        )
        transformed = self._transform(tile, place, channel, copy)
        return around(sequence([*bind, *flat.statements, declaration, copied, *transformed]))

    def _loaded(self, place: Sequence[Any], i: Any, j: Any, channel: Any) -> tuple[Any, Any]:
        """Whether an input of a tile is inside of the image, and what it is there."""
        stage = self.image.stages["input_tile"]
        whole = stage.body.value
        # Before numbers stand for places: a condition that these deny is simplified away.
        parts = whole.args[:2] if is_conditional(whole) else (tirx.const(True, "bool"), whole)
        at = [*place, _number(i), _number(j), channel]
        inside, value = (_at(stage, at, part) for part in parts)
        return inside, value

    def _transform(
        self, tile: Any, place: Sequence[Any], channel: Any, copy: Any
    ) -> list[tirx.Stmt]:
        """A column of a tile at a time, then row by row into the block's array."""
        high, wide = self.image.sides
        lanes = self.lanes[self.image.inputs]
        loaded, down = (
            _Registers(lanes, self.dtype, "loaded"),
            _Registers(lanes, self.dtype, "down"),
        )
        statements: list[tirx.Stmt] = []
        names = [self.image.stages[name].body.buffer for name in ("input_tile", "input_rows")]
        for j in range(wide):
            for i in range(high):
                at = _number((i * wide + j) * lanes)
                statements.append(loaded.store((i, j), partial(_lane_of, copy, at)))
            for i in range(high):
                value = self._stage("input_rows", [*place, i, j, channel])
                computed = partial(loaded.read, value, names[0], (3, 4))
                statements.append(down.store((i, j), computed))
        for i in range(high):
            for j in range(wide):
                value = self._stage("input_transform", [i, j, *place, channel])
                to = ((i * wide + j) * self.block + tile) * self.image.inputs + channel

                def put(lane: Any, v: Any = value, to: Any = to) -> tirx.Stmt:
                    found = down.read(v, names[1], (3, 4), lane)
                    return tirx.BufferStore(self.transformed, found, [to + lane])

                statements.append(_vector(lanes, put))
        return [*loaded.declarations(), *down.declarations(), *statements]

    def _stage(self, name: str, values: Sequence[Any]) -> Any:
        return _at(self.image.stages[name], [_number(value) for value in values])

    # The matmuls.

    def _products(self, here: Any) -> tirx.Stmt:
        """For each position of a tile: tiles and input channels by channels."""
        high, wide = self.image.sides
        place, i, j = (tirx.Var(name, _INDEX) for name in ("place", "i", "j"))
        few = self.few_rows
        beyond = tirx.max(here - few, _number(0))
        groups = tirx.truncdiv(beyond + (self.decision.rows - 1), _number(self.decision.rows))
        group, rest, column = (tirx.Var(n, _INDEX) for n in ("group", "rest", "columns"))
        channel = column * self.decision.columns
        # The last of them may compute some that no tile has: the array holds them.
        left = tirx.max(tirx.min(here - groups * self.decision.rows, _number(1)), _number(0))
        full = self._register_tile(i, j, group * self.decision.rows, channel, self.decision.rows)
        part = self._register_tile(i, j, groups * self.decision.rows + rest, channel, few)
        body = sequence([_loop(group, groups, full), _loop(rest, left, part)])
        count = self.image.products // self.decision.columns
        position = tirx.Var("position", _INDEX)
        divisions = [
            tirx.Bind(position, tirx.truncdiv(place, _number(count))),
            tirx.Bind(column, tirx.truncmod(place, _number(count))),
            tirx.Bind(i, tirx.truncdiv(position, _number(wide))),
            tirx.Bind(j, tirx.truncmod(position, _number(wide))),
        ]
        kind = self.parallel if self.shared else tirx.ForKind.SERIAL
        return _loop(place, _number(high * wide * count), sequence([*divisions, body]), kind)

    def _register_tile(self, i: Any, j: Any, first: Any, channel: Any, rows: int) -> tirx.Stmt:
        image, lanes = self.image, self.decision.columns
        sums = _Registers(lanes, self.dtype, "sums")
        depth = tirx.Var("depth", _INDEX)
        start = tirx.Var("start", _INDEX)
        position = (i * image.sides[1] + j) * self.block
        product = image.stages["products"]
        source = image.stages["input_transform"].body.buffer
        (weights,) = [
            load
            for load in nodes(product.body.value, tvm.ir.TensorLoad)
            if not load.source.same_as(source) and not load.source.same_as(product.body.buffer)
        ]
        vars_ = [v.var for v in product.iter_vars]

        def zero(lane: Any) -> Any:
            return tirx.const(0.0, self.dtype)

        def weight(lane: Any) -> Any:
            at = [i, j, *([_number(0)] * 3), channel + lane, depth]
            return _simplified(substitute(weights, dict(zip(vars_, at, strict=True))))

        def added(row: int) -> Callable[[Any], Any]:
            def value(lane: Any) -> Any:
                read = tirx.BufferLoad(
                    self.transformed, [(position + start + row) * image.inputs + depth]
                )
                return sums.load((row, 0), lane) + read * weight(lane)

            return value

        def put(row: int) -> Callable[[Any], Any]:
            to = (position + start + row) * image.products + channel
            return lambda lane: tirx.BufferStore(
                self.summed, sums.load((row, 0), lane), [to + lane]
            )

        numbers = range(rows)
        first_weight = weight(_number(0))
        ahead = (
            prefetches_along(first_weight.source, list(first_weight.indices), lanes)
            if self.decision.streamed
            else []
        )
        starts = [sums.store((row, 0), zero) for row in numbers]
        steps = sequence([*ahead, *(sums.store((row, 0), added(row)) for row in numbers)])
        ends = [_vector(lanes, put(row)) for row in numbers]
        loop = _loop(depth, _number(image.inputs), steps)
        return sequence([tirx.Bind(start, first), *sums.declarations(), *starts, loop, *ends])

    # The transform of the outputs.

    def _output(self, tile: Any, place: Sequence[Any]) -> tirx.Stmt:
        """Sums of a tile to its outputs, vector of channels by vector."""
        image = self.image
        lanes = self.lanes[image.outputs]
        channel, bind, around = _vectors(image.outputs, lanes)
        high, wide = image.tile
        inputs_high, inputs_wide = image.sides
        read, down = _Registers(lanes, self.dtype, "read"), _Registers(lanes, self.dtype, "down")
        statements: list[tirx.Stmt] = []
        products = image.stages["products"].body.buffer
        for j in range(inputs_wide):
            for i in range(inputs_high):
                at = ((i * inputs_wide + j) * self.block + tile) * image.products + channel
                statements.append(read.store((i, j), partial(_lane_of, self.summed, at)))
            for y in range(high):
                value = self._stage("output_rows", [*place, y, j, channel])
                computed = partial(read.read, value, products, (0, 1))
                statements.append(down.store((y, j), computed))
        declarations = [*read.declarations(), *down.declarations()]
        rows, columns = (_wide(v.dom.extent) for v in image.stages["output"].iter_vars[1:3])
        top, left = place[1] * high, place[2] * wide
        flat = FlatPlaces(self._store(place, channel), self.params, self.views)
        results, declaration = stack_array(high * wide * lanes, self.dtype, "results")
        for y in range(high):
            for x in range(wide):
                statements.append(self._summed(results, y, x, down))

        def put(y: Any, x: Any) -> tirx.Stmt:
            return self._finished(flat, results, y, x)

        def at_border(y: Any, x: Any) -> tirx.Stmt:
            return _choice(tirx.And(top + y < rows, left + x < columns), put(y, x), None)

        is_whole = tirx.And(top + (high - 1) < rows, left + (wide - 1) < columns)
        stored = _each_place(image.tile, is_whole, put, at_border)
        made = [*declarations, declaration, *statements]
        return around(sequence([*bind, *flat.statements, *made, stored]))

    def _store(
        self, place: Sequence[Any], channel: Any
    ) -> Callable[[Any, Any, Any], tirx.BufferStore]:
        """What writes an output of a tile, by its row and column there."""
        image = self.image
        n, h, w, k = (v.var for v in image.stages["output"].iter_vars)
        high, wide = image.tile

        def store(y: Any, x: Any, lane: Any) -> tirx.BufferStore:
            at = {n: place[0], h: place[1] * high + y, w: place[2] * wide + x, k: channel + lane}
            indices = [substitute(index, at) for index in image.store.indices]
            value = substitute(image.store.value, at)
            return tirx.BufferStore(image.store.buffer, value, indices)

        return store

    def _summed(self, results: Any, y: int, x: int, down: "_Registers") -> tirx.Stmt:
        """One output of a tile, as the transform has it."""
        output = self.image.stages["output"]
        rows_of = self.image.stages["output_rows"].body.buffer
        _, h, w, _ = (v.var for v in output.iter_vars)
        # The stage chooses by what is left of a division, which numbers alone can answer.
        value = _simplified(substitute(output.body.value, {h: _number(y), w: _number(x)}))
        lanes = self.lanes[self.image.outputs]
        start = _number((y * self.image.tile[1] + x) * lanes)

        def put(lane: Any) -> tirx.Stmt:
            found = down.read(value, rows_of, (3, 4), lane)
            return tirx.BufferStore(results, found, [start + lane])

        return _vector(lanes, put)

    def _finished(self, flat: "FlatPlaces", results: Any, y: Any, x: Any) -> tirx.Stmt:
        """One output of a tile, with what follows, stored."""
        lanes = self.lanes[self.image.outputs]
        start = (y * self.image.tile[1] + x) * lanes

        def put(lane: Any) -> tirx.Stmt:
            store = flat.at(y, x, lane)
            found = tirx.BufferLoad(results, [start + lane])
            result = substitute(store.value, {self.image.total: found})
            return tirx.BufferStore(store.buffer, result, list(store.indices))

        return _vector(lanes, put)


class _Registers:
    """Vectors by two numbers, each an array of its own, which LLVM keeps in a register."""

    def __init__(self, lanes: int, dtype: str, name: str) -> None:
        self.lanes, self.dtype, self.name = lanes, dtype, name
        self.made: dict[tuple[int, int], tuple[Any, tirx.Stmt]] = {}

    def declarations(self) -> list[tirx.Stmt]:
        """Of all that was stored to."""
        return [declaration for _, declaration in self.made.values()]

    def store(self, key: tuple[int, int], value: Callable[[Any], Any]) -> tirx.Stmt:
        """Sets one to what ``value`` says of each lane."""
        if key not in self.made:
            self.made[key] = stack_array(self.lanes, self.dtype, self.name)
        array, _ = self.made[key]
        return _vector(self.lanes, lambda lane: tirx.BufferStore(array, value(lane), [lane]))

    def load(self, key: tuple[int, int], lane: Any) -> Any:
        """A lane of one."""
        return tirx.BufferLoad(self.made[key][0], [lane])

    def read(self, value: Any, buffer: Any, keys: tuple[int, int], lane: Any) -> Any:
        """``value`` with one in place of each load of ``buffer``, whose indices ``keys`` tell
        which.
        """

        def replaced(load: tvm.ir.TensorLoad) -> Any:
            if not load.source.same_as(buffer):
                return load
            first, second = (static_extent(load.indices[key]) for key in keys)
            if first is None or second is None:
                raise NotApplicable("a transform reads places that no number tells")
            return self.load((first, second), lane)

        return tvm_ffi.structural_map(value, (tvm.ir.TensorLoad, replaced))


def _at(stmt: s_tir.SBlock, values: Sequence[Any], part: Any = None) -> Any:
    """What a block computes at one place, or a part of that."""
    names = (v.var for v in stmt.iter_vars)
    whole = stmt.body.value if part is None else part
    return _simplified(substitute(whole, dict(zip(names, values, strict=True))))


def _simplified(value: Any) -> Any:
    analyzer = Analyzer()
    for var in tirx.analysis.undefined_vars(value):
        if var.name == "lane":
            analyzer.bind(var, tvm.ir.Range(0, _WIDEST))
    return analyzer.simplify(value)


def _lanes_for(count: int, lanes: int) -> int:
    """The longest vector, a power of two, that ``count`` elements fill."""
    return min(lanes, 1 << (count.bit_length() - 1))


def _vectors(count: int, lanes: int) -> tuple[Any, list[tirx.Stmt], Callable[[Any], tirx.Stmt]]:
    """The first channel of a vector, what binds it, and the loop over vectors around a body.

    The last vector starts earlier where they are no multiple: it repeats what another has done.
    """
    number, channel = tirx.Var("vector", _INDEX), tirx.Var("channel", _INDEX)
    first: Any = number * lanes
    if count % lanes:
        first = tirx.min(first, _number(count - lanes))
    turns = _number(-(-count // lanes))
    return channel, through_memory(channel, first), lambda body: _loop(number, turns, body)


def _lane_of(array: Any, first: Any, lane: Any) -> Any:
    return tirx.BufferLoad(array, [first + lane])


def _choice(condition: Any, then: tirx.Stmt, otherwise: tirx.Stmt | None) -> tirx.Stmt:
    """A branch whose condition goes through memory as well."""
    flag = tirx.Var("flag", "bool")
    return sequence([*through_memory(flag, condition), tirx.IfThenElse(flag, then, otherwise)])


def _vector(lanes: int, statement: Callable[[Any], tirx.Stmt]) -> tirx.Stmt:
    if lanes == 1:
        return statement(_number(0))
    lane = tirx.Var("lane", _INDEX)
    return _loop(lane, _number(lanes), statement(lane), tirx.ForKind.VECTORIZED)


def _each_place(
    sides: tuple[int, int],
    is_whole: Any,
    whole: Callable[[Any, Any], tirx.Stmt],
    at_border: Callable[[Any, Any], tirx.Stmt],
) -> tirx.Stmt:
    """A statement for each place of a tile: a row written out where the tile is whole."""
    high, wide = (_number(side) for side in sides)
    line, row, column = (tirx.Var(name, _INDEX) for name in ("line", "row", "column"))
    written = sequence([whole(line, _number(number)) for number in range(sides[1])])
    border = _loop(column, wide, at_border(row, column))
    return _choice(is_whole, _loop(line, high, written), _loop(row, high, border))


def _loop(
    var: Any, extent: Any, body: tirx.Stmt, kind: tirx.ForKind = tirx.ForKind.SERIAL
) -> tirx.Stmt:
    loop = tirx.For(var, _number(0), extent, kind, body)
    return without_choice(loop) if kind == tirx.ForKind.PARALLEL else loop


def _quotient(value: Any, divisor: Any) -> Any:
    """Rounded up, of sizes that are never negative."""
    divisor = _number(divisor)
    return tirx.truncdiv(value + (divisor - 1), divisor)


def _number(value: Any) -> Any:
    return tirx.const(value, _INDEX) if isinstance(value, int) else value


def _wide(value: Any) -> Any:
    return value if str(value.ty) == _INDEX else tirx.Cast(_INDEX, value)
