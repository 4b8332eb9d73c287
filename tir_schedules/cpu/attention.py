"""Attention on CPUs: a few rows of scores in L1, never the whole matrix of them.

A task takes the keys of one head. It copies them transposed, so that the scores of a row of the
query with neighbouring keys fill vectors, and the values next to each other. Then tiles of rows
pass: their scores, masked; the maximum of each row; the exponentials and their sum; and the product
with the values, whose sums stay in registers. Keys that are too many for L1 and L2 come in parts,
with a running maximum and a running sum for each row (Milakov and Gimelshein, "Online normalizer
calculation for softmax", arXiv:1805.02867; Dao et al., "FlashAttention", arXiv:2205.14135).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.cpu.parallel_vectorize import pick_threads, worth_threads
from tvm_ext.tir_schedules.cpu.register_blocking import vector_registers
from tvm_ext.tir_schedules.cpu.register_transpose import transposed
from tvm_ext.tir_schedules.operators.attention import masked_score
from tvm_ext.tir_schedules.operators.attention_problem import (
    AttentionProblem,
    read_problem,
)
from tvm_ext.tir_schedules.operators.recurrence import loop, number
from tvm_ext.tir_schedules.statements import FlatViews, sequence, stack_array
from tvm_ext.tir_schedules.template import DEFAULT_DECISIONS, Decisions

# Of the scores and of all sums; of the operands and the result.
_FLOAT = "float32"
_TYPES = (_FLOAT, "float16")


@dataclass(frozen=True)
class AttentionTiles:
    """How the loops of an attention are cut.

    Attributes
    ----------
    lanes : int
        Elements of a vector.
    rows : int
        Rows of the query that pass together.
    columns : int
        Sums of a row that are in registers: of scores, and of the result.
    keys : int
        Keys whose scores are in L1 together; all of them, or a multiple of ``columns``.
    block : int
        Rows that pass before the next keys come, a multiple of ``rows``; where all keys are
        together, it is ``rows``.
    parts : int
        Tasks that share the rows of a head.
    packs_values : bool
        Whether the values are copied next to each other.
    threads : bool
        Whether threads share the tasks.
    """

    lanes: int
    rows: int
    columns: int
    keys: int
    block: int
    parts: int
    packs_values: bool
    threads: bool


class CpuAttention:
    """The functions that AttentionFusion makes."""

    name = "attention"
    machine_type = CpuDescription

    def apply(
        self, func: tirx.PrimFunc, machine: CpuDescription, decisions: Decisions = DEFAULT_DECISIONS
    ) -> s_tir.Schedule:
        """See ``Template.apply``."""
        views = FlatViews()
        problem = read_problem(func, views)
        tiles = decide_attention(problem, machine, decisions)
        return s_tir.Schedule(views.kernel(func, [attention_code(problem, tiles)]))


def refusal(func: tirx.PrimFunc, machine: CpuDescription) -> str:
    """Why there is no kernel for a fused attention; empty when there is one."""
    try:
        decide_attention(read_problem(func, FlatViews()), machine)
    except NotApplicable as refused:
        return refused.reason
    return ""


# Decisions.

# Bytes of scores that a tile of rows has in L1, beside a few keys and values that pass.
_SHARE_OF_L1 = 0.5
# Of keys and values of which all rows of a block pass, in L2.
_SHARE_OF_L2 = 0.4
# Of fewer rows a copy of the keys takes longer than what it saves.
_LEAST_ROWS = 4
_ROWS_OF_BLOCK = 64


def decide_attention(
    problem: AttentionProblem, machine: CpuDescription, decisions: Decisions = DEFAULT_DECISIONS
) -> AttentionTiles:
    """By default tiles that fill the registers, and keys that fit into the caches.

    Asks for ``rows``, ``columns``, ``keys``, ``parts`` and ``threads``. Raises NotApplicable.
    """
    for dtype in (problem.query.dtype, problem.output.dtype):
        if dtype not in _TYPES:
            raise NotApplicable(f"a tensor is of {dtype}, not of {' or '.join(_TYPES)}")
    if problem.queries < _LEAST_ROWS:
        raise NotApplicable(f"{problem.queries} rows of queries do not pay for a copy of the keys")
    lanes = machine.vector_lanes(_FLOAT)
    if lanes < 2:
        raise NotApplicable("the machine has no vectors")
    free = vector_registers(machine)
    widths = [n * lanes for n in (1, 2, 4)]
    columns = decisions.pick("columns", widths, widths[-1] if free > 16 else widths[1])
    # Beside the sums, a vector for each column of the other operand and one for a row's element.
    most = max(1, (free - 1) // (columns // lanes) - 1)
    rows = decisions.pick("rows", range(1, min(most, problem.queries) + 1), _rows(problem, most))
    keys = _decide_keys(problem, machine, rows, columns, decisions)
    whole = keys == problem.keys
    block = rows if whole else rows * max(1, _ROWS_OF_BLOCK // rows)
    heads = problem.batch * problem.heads // problem.group
    blocks = -(-problem.queries // block)
    operations = problem.batch * problem.heads * problem.queries * problem.keys
    operations *= problem.depth + problem.width
    is_long = worth_threads(machine, operations, lanes)
    threads = pick_threads(decisions, machine, lambda: heads * blocks, is_long)
    most_parts = min(machine.cores, blocks) if threads else 1
    parts = decisions.pick("parts", range(1, most_parts + 1), _parts(heads, blocks, most_parts))
    is_dense = problem.value.stride("s") == problem.width and problem.width % lanes == 0
    is_dense &= problem.value.dtype == _FLOAT
    return AttentionTiles(lanes, rows, columns, keys, block, parts, not is_dense, threads)


def _rows(problem: AttentionProblem, most: int) -> int:
    """Rows of a tile, with which all tiles load the fewest vectors of the other operand."""

    def cost(rows: int) -> tuple[int, int]:
        whole, left = divmod(problem.queries, rows)
        return whole * (rows + 1) + (left + 1 if left else 0), -rows

    return min(range(1, min(most, problem.queries) + 1), key=cost)


def _decide_keys(
    problem: AttentionProblem,
    machine: CpuDescription,
    rows: int,
    columns: int,
    decisions: Decisions,
) -> int:
    in_l1 = int(_SHARE_OF_L1 * machine.l1d_bytes) // (4 * rows)
    in_l2 = int(_SHARE_OF_L2 * machine.l2_bytes) // (4 * (problem.depth + problem.width))
    least = columns * max(1, min(in_l1, in_l2) // columns)
    options = [n for n in (columns * 2**i for i in range(1, 12)) if n < problem.keys]
    # All keys at once save what a running maximum costs, and may take the caches a little over.
    default = problem.keys if problem.keys <= 2 * least else least
    return decisions.pick("keys", [*options, problem.keys], default)


def _parts(heads: int, blocks: int, cores: int) -> int:
    """The fewest parts of the rows of a head with which no core waits long for another."""

    def share(parts: int) -> float:
        return -(-heads * parts // cores) * (-(-blocks // parts)) / blocks

    counts = range(1, min(cores, blocks) + 1)
    best = min(map(share, counts))
    return next(parts for parts in counts if share(parts) <= 1.1 * best)


# Code.


def attention_code(problem: AttentionProblem, tiles: AttentionTiles) -> tirx.Stmt:
    """All tasks: a head of keys with a part of the rows of each head of queries that uses it."""
    heads = problem.heads // problem.group
    kind = tirx.ForKind.PARALLEL if tiles.threads else tirx.ForKind.SERIAL

    def task(place: tvm.ir.Expr) -> tirx.Stmt:
        head, part = (
            tirx.FloorDiv(place, number(tiles.parts)),
            tirx.FloorMod(place, number(tiles.parts)),
        )
        batch, own = tirx.FloorDiv(head, number(heads)), tirx.FloorMod(head, number(heads))
        names = [tirx.Var(name, "int64") for name in ("batch", "head", "part")]
        binds = [tirx.Bind(v, e) for v, e in zip(names, (batch, own, part), strict=True)]
        return sequence([*binds, *_Task(problem, tiles, *names).statements()])

    return loop(problem.batch * heads * tiles.parts, task, kind)


class _Task:
    """One head of keys and values, and a part of the rows that use it."""

    def __init__(
        self, problem: AttentionProblem, tiles: AttentionTiles, batch: Any, head: Any, part: Any
    ) -> None:
        self.problem, self.tiles = problem, tiles
        self.batch, self.head, self.part = batch, head, part
        padded_keys = tiles.columns * -(-problem.keys // tiles.columns)
        self.padded_width = tiles.lanes * -(-problem.width // tiles.lanes)
        self.keys = _array(problem.depth * padded_keys, "keys")
        self.values = _array(problem.keys * self.padded_width, "values")

    def statements(self) -> list[tirx.Stmt]:
        """The copies, then all heads of queries."""
        copies = [tirx.AllocBuffer(self.keys), self._copied_keys()]
        if self.tiles.packs_values:
            copies += [tirx.AllocBuffer(self.values), self._copied_values()]
        group = self.problem.group
        return [*copies, loop(group, lambda one: self._rows(self.head * number(group) + one))]

    def key_place(self, step: Any, first: Any, lane: Any) -> Any:
        """Where an element of a key is in the copy, which has tiles of columns one after the other.

        ``first`` is the first key of a tile, and ``lane`` counts from it.
        """
        return first * number(self.problem.depth) + step * number(self.tiles.columns) + lane

    def _key_place(self, step: Any, key: Any) -> Any:
        """The same for any key."""
        columns = number(self.tiles.columns)
        lane = tirx.FloorMod(key, columns)
        return self.key_place(step, key - lane, lane)

    def value(self, key: Any, column: Any) -> Any:
        """An element of a value."""
        if self.tiles.packs_values:
            return _at(self.values, key * number(self.padded_width) + column)
        place = self.problem.value.address(b=self.batch, h=self.head, s=key, d=column)
        return _at(self.problem.value.buffer, place)

    def _copied_keys(self) -> tirx.Stmt:
        """Transposed in registers, in squares; elements that fill none one by one."""
        problem, size = self.problem, self.tiles.lanes
        while size > 1 and (problem.depth % size or problem.keys < size):
            size //= 2
        if size == 1:
            return loop(
                problem.keys, lambda key: loop(problem.depth, lambda d: self._copied_key(key, d))
            )
        whole = problem.keys // size
        squares = loop(
            whole,
            lambda i: loop(problem.depth // size, lambda j: self._square(i * size, j * size, size)),
        )
        left = problem.keys - whole * size
        if not left:
            return squares
        rest = loop(
            left, lambda i: loop(problem.depth, lambda d: self._copied_key(i + whole * size, d))
        )
        return sequence([squares, rest])

    def _copied_key(self, key: Any, step: Any) -> tirx.Stmt:
        source = self.problem.key
        place = source.address(b=self.batch, h=self.head, s=key, d=step)
        return tirx.BufferStore(
            self.keys, _wide(source.buffer, place), [self._key_place(step, key)]
        )

    def _square(self, key: Any, step: Any, size: int) -> tirx.Stmt:
        source, binds = self.problem.key, []

        def name(value: Any) -> Any:
            binds.append(tirx.Bind(tirx.Var("vector", value.ty), value))
            return binds[-1].var

        def vector(row: int) -> Any:
            start = source.address(b=self.batch, h=self.head, s=key + number(row), d=step)
            return name(_wide(source.buffer, _ramp(start, size)))

        columns = transposed([vector(row) for row in range(size)], size, name)
        stores = [
            tirx.BufferStore(
                self.keys, column, [_ramp(self._key_place(step + number(i), key), size)]
            )
            for i, column in enumerate(columns)
        ]
        return sequence([*binds, *stores])

    def _copied_values(self) -> tirx.Stmt:
        source = self.problem.value
        zero = tirx.const(0, _FLOAT)

        def row(key: Any) -> tirx.Stmt:
            def element(column: Any, held: Any) -> tirx.Stmt:
                return tirx.BufferStore(
                    self.values, held, [key * number(self.padded_width) + column]
                )

            def copied(column: Any) -> tirx.Stmt:
                place = source.address(b=self.batch, h=self.head, s=key, d=column)
                return element(column, _wide(source.buffer, place))

            filled = _lanes(self.problem.width, self.padded_width, lambda n: element(n, zero))
            return sequence([*_lanes(0, self.problem.width, copied), *filled])

        return loop(self.problem.keys, row)

    def _rows(self, head: Any) -> tirx.Stmt:
        """The rows of this part, of one head of queries: whole blocks, then what is left."""
        tiles, queries = self.tiles, self.problem.queries
        blocks, left = divmod(queries, tiles.block)
        each = math.ceil(math.ceil(queries / tiles.block) / tiles.parts)
        first = self.part * number(each)
        count = (
            number(blocks) if tiles.parts == 1 else tirx.min(number(each), number(blocks) - first)
        )

        def block(place: Any) -> tirx.Stmt:
            return _Rows(self, head, (first + place) * number(tiles.block), tiles.block).statement()

        found = [loop(count, block)] if blocks else []
        if left:
            last = _Rows(self, head, number(blocks * tiles.block), left).statement()
            is_last = tirx.EQ(self.part, number(tiles.parts - 1))
            found.append(last if tiles.parts == 1 else tirx.IfThenElse(is_last, last, None))
        return sequence(found)


class _Rows:
    """A block of rows: all keys at once, or one part of them after the other."""

    def __init__(self, task: _Task, head: Any, first: Any, count: int) -> None:
        self.task, self.head, self.first, self.count = task, head, first, count
        self.problem, self.tiles = task.problem, task.tiles
        self.is_online = self.tiles.keys < self.problem.keys
        # Of each row: the maximum and the sum so far, and the result before it is divided.
        self.highest, self.totals = (_array(count, name) for name in ("highest", "totals"))
        self.results = _array(count * task.padded_width, "results")

    def statement(self) -> tirx.Stmt:
        """All of it."""
        if not self.is_online:
            return self._tiles(number(0), self.problem.keys)
        kept = (self.highest, self.totals, self.results)
        declared = [tirx.AllocBuffer(array) for array in kept]
        lowest = tirx.const(-math.inf, _FLOAT)
        start = [
            *_filled(self.highest, lowest),
            *_filled(self.totals, 0),
            *_filled(self.results, 0),
        ]
        whole, left = divmod(self.problem.keys, self.tiles.keys)
        parts = [loop(whole, lambda i: self._seen(i * number(self.tiles.keys), self.tiles.keys))]
        if left:
            parts.append(self._seen(number(whole * self.tiles.keys), left))
        return sequence([*declared, *start, *parts, self._tiles_finished()])

    def _seen(self, first_key: Any, keys: int) -> tirx.Stmt:
        """A part of the keys, unless no row sees it."""
        code = self._tiles(first_key, keys)
        causal = self.problem.compute.causal
        if causal is None:
            return code
        last_row = self.first + number(self.count - 1)
        return tirx.IfThenElse(first_key <= last_row + number(causal), code, None)

    def _each_tile(self, code: Callable[[Any, int], tirx.Stmt]) -> tirx.Stmt:
        whole, left = divmod(self.count, self.tiles.rows)
        found = [loop(whole, lambda i: code(i * number(self.tiles.rows), self.tiles.rows))]
        if not whole:
            found = []
        if left:
            found.append(code(number(whole * self.tiles.rows), left))
        return sequence(found)

    def _tiles(self, first_key: Any, keys: int) -> tirx.Stmt:
        return self._each_tile(
            lambda place, rows: _Tile(self, place, rows, first_key, keys).statement()
        )

    def _tiles_finished(self) -> tirx.Stmt:
        return self._each_tile(lambda place, rows: self._finished(place, rows))

    def _finished(self, place: Any, rows: int) -> tirx.Stmt:
        found: list[tirx.Stmt] = []
        for row in range(rows):
            at = place + number(row)
            start = at * number(self.task.padded_width)
            found += self.stored(
                at,
                lambda n, start=start: _at(self.results, start + n),
                0,
                self.problem.width,
                _at(self.totals, at),
                _at(self.highest, at),
            )
        return sequence(found)

    def stored(
        self, row: Any, sums: Callable[[Any], Any], start: int, end: int, total: Any, highest: Any
    ) -> list[tirx.Stmt]:
        """The result of a row, of which ``sums`` are to be divided, from one column to another."""
        output, compute = self.problem.output, self.problem.compute
        zero = tirx.const(0, _FLOAT)
        lowest = tirx.min_value(_FLOAT)

        def store(column: Any) -> tirx.Stmt:
            value = sums(column) / total
            if compute.zero_rows:
                value = tirx.Select(highest < lowest, zero, value)
            query = self.first + row
            place = output.address(b=self.task.batch, h=self.head, s=query, d=column)
            return tirx.BufferStore(output.buffer, value.astype(output.dtype), [place])

        return _lanes(start, end, store)


class _Tile:
    """Some rows with some keys."""

    def __init__(self, rows: _Rows, place: Any, count: int, first_key: Any, keys: int) -> None:
        self.rows, self.place, self.count = rows, place, count
        self.first_key, self.keys = first_key, keys
        self.task, self.problem, self.tiles = rows.task, rows.problem, rows.tiles
        self.lanes = self.tiles.lanes
        self.padded = self.lanes * -(-keys // self.lanes)
        self.scores = _array(count * self.padded, "scores")
        self.queries = _array(count * self.problem.depth, "queries")
        self.partial = _power_of_two(min(self.tiles.columns, self.padded))

    def statement(self) -> tirx.Stmt:
        """All of it."""
        each = [self._softmax(row) for row in range(self.count)]
        steps: list[tirx.Stmt] = [*self._widened_queries(), tirx.AllocBuffer(self.scores)]
        steps.append(self._scores())
        for row in each:
            steps += row.statements
        return sequence([*steps, *self._products(each)])

    def _widened_queries(self) -> list[tirx.Stmt]:
        """A copy of queries of a narrow type."""
        if self.problem.query.dtype == _FLOAT:
            return []
        depth = self.problem.depth

        def copied(row: int, d: Any) -> tirx.Stmt:
            return tirx.BufferStore(self.queries, self._query(row, d), [number(row * depth) + d])

        return [
            tirx.AllocBuffer(self.queries),
            *(
                statement
                for row in range(self.count)
                for statement in _lanes(0, depth, lambda d, row=row: copied(row, d))
            ),
        ]

    def _query(self, row: int, d: Any) -> Any:
        """An element of a query, as it is given."""
        query = self.problem.query
        place = query.address(b=self.task.batch, h=self.rows.head, s=self._position(row), d=d)
        return _wide(query.buffer, place)

    def _scores(self) -> tirx.Stmt:
        columns = self.tiles.columns
        whole, left = divmod(self.keys, columns)
        found = (
            [loop(whole, lambda i: self._score_tile(i * number(columns), columns))] if whole else []
        )
        if left:
            found.append(self._score_tile(number(whole * columns), left))
        return sequence(found)

    def _score_tile(self, first: Any, wanted: int) -> tirx.Stmt:
        """Products of the tile's rows with neighbouring keys, masked; ``wanted`` of them."""
        columns = self.lanes * -(-wanted // self.lanes)
        arrays = [stack_array(number(columns), _FLOAT, "sums") for _ in range(self.count)]
        sums = [array for array, _ in arrays]
        is_copied = self.problem.query.dtype != _FLOAT
        depth = self.problem.depth

        def step(d: Any) -> tirx.Stmt:
            found: list[tirx.Stmt] = []
            for row, array in enumerate(sums):
                copied = _at(self.queries, number(row * depth) + d)
                element = copied if is_copied else self._query(row, d)

                def add(n: Any, array: Any = array, element: Any = element) -> tirx.Stmt:
                    key = _at(self.task.keys, self.task.key_place(d, self.first_key + first, n))
                    return tirx.BufferStore(array, _at(array, n) + element * key, [n])

                found.append(_vector(columns, add))
            return sequence(found)

        start = [_vector(columns, _store(array, tirx.const(0, _FLOAT))) for array in sums]
        found = [*(declared for _, declared in arrays), *start, loop(depth, step)]
        for row, array in enumerate(sums):
            found += self._masked(row, array, first, wanted, columns)
        return sequence(found)

    def _masked(
        self, row: int, sums: Any, first: Any, wanted: int, columns: int
    ) -> list[tirx.Stmt]:
        def store(n: Any, value: Any) -> tirx.Stmt:
            return tirx.BufferStore(self.scores, value, [number(row * self.padded) + first + n])

        def masked(n: Any) -> tirx.Stmt:
            key = self.first_key + first + n
            return store(n, self._masked_score(_at(sums, n), self._position(row), key))

        below = tirx.const(-math.inf, _FLOAT)
        return [
            *_lanes(0, wanted, masked),
            *_lanes(wanted, columns, lambda n: store(n, below)),
        ]

    def _masked_score(self, score: Any, query: Any, key: Any) -> Any:
        compute = self.problem.compute
        score = score * tirx.const(compute.scale, _FLOAT)
        place = {"b": self.task.batch, "h": self.rows.head, "q": query, "k": key}
        for tensor, mask in zip(self.problem.masks, compute.masks, strict=True):
            at = tensor.address(**{letter: place[letter] for letter in tensor.axes})
            score = masked_score(score, _at(tensor.buffer, at), mask)
        if compute.causal is None:
            return score
        below = tirx.const(-math.inf, _FLOAT)
        return tirx.Select(key <= query + number(compute.causal), score, below)

    def _position(self, row: int) -> Any:
        return self.rows.first + self.place + number(row)

    def _softmax(self, row: int) -> "_RowSoftmax":
        return _RowSoftmax(self, row)

    def _products(self, each: Sequence["_RowSoftmax"]) -> Iterator[tirx.Stmt]:
        """The weights times the values, some columns of the result after the others."""
        width = self.task.padded_width
        for start in range(0, width, self.tiles.columns):
            columns = min(self.tiles.columns, width - start)
            yield self._product_tile(each, start, columns)

    def _product_tile(self, each: Sequence["_RowSoftmax"], start: int, columns: int) -> tirx.Stmt:
        arrays = [stack_array(number(columns), _FLOAT, "sums") for _ in range(self.count)]
        found = [declared for _, declared in arrays]
        for (array, _), row in zip(arrays, each, strict=True):
            found.append(_vector(columns, _store(array, lambda n, row=row: row.before(start, n))))

        def step(key: Any) -> tirx.Stmt:
            stores: list[tirx.Stmt] = []
            for row, (array, _) in enumerate(arrays):
                weight = _at(self.scores, number(row * self.padded) + key)

                def add(n: Any, array: Any = array, weight: Any = weight) -> tirx.Stmt:
                    value = self.task.value(self.first_key + key, number(start) + n)
                    return tirx.BufferStore(array, _at(array, n) + weight * value, [n])

                stores.append(_vector(columns, add))
            return sequence(stores)

        found.append(loop(self.keys, step))
        for (array, _), row in zip(arrays, each, strict=True):
            found += row.kept(array, start, columns)
        return sequence(found)


class _RowSoftmax:
    """The weights of a row of a tile, not yet divided by their sum, in place of its scores."""

    def __init__(self, tile: _Tile, row: int) -> None:
        self.tile, self.row = tile, row
        self.rows = tile.rows
        self.size = tile.partial
        self.place = tile.place + number(row)
        self.partial, declared = stack_array(number(self.size), _FLOAT, "partial")
        # Highest score, factor for what was added before, sum.
        self.facts, facts = stack_array(number(3), _FLOAT, "facts")
        self.statements = [declared, facts, *self._highest(), *self._weights()]

    @property
    def highest(self) -> Any:
        """Of all keys so far."""
        return _at(self.facts, number(0))

    @property
    def factor(self) -> Any:
        """By which what was added before changes."""
        return _at(self.facts, number(1))

    @property
    def total(self) -> Any:
        """The sum of the weights so far."""
        return _at(self.facts, number(2))

    def _highest(self) -> list[tirx.Stmt]:
        found = [_vector(self.size, _store(self.partial, tirx.const(-math.inf, _FLOAT)))]
        found += self._over_scores(lambda n, score: tirx.max(_at(self.partial, n), score))
        found += _halved(self.partial, self.size, tirx.max)
        first = _at(self.partial, number(0))
        if not self.rows.is_online:
            return [*found, tirx.BufferStore(self.facts, first, [number(0)])]
        before = _at(self.rows.highest, self.place)
        highest = tirx.Var("highest", _FLOAT)
        # Without a key that is seen, the exponents are of minus infinity, not of NaN.
        none, zero = tirx.const(-math.inf, _FLOAT), tirx.const(0, _FLOAT)
        seen = tirx.Select(tirx.EQ(highest, none), zero, highest)
        return [
            *found,
            tirx.Bind(highest, tirx.max(first, before)),
            tirx.BufferStore(self.facts, seen, [number(0)]),
            tirx.BufferStore(self.facts, tirx.exp(before - seen), [number(1)]),
            tirx.BufferStore(self.rows.highest, highest, [self.place]),
        ]

    def _weights(self) -> list[tirx.Stmt]:
        scores = self.tile.scores

        def weight(n: Any, place: Any) -> list[tirx.Stmt]:
            value = tirx.exp(_at(scores, place) - self.highest)
            return [
                tirx.BufferStore(scores, value, [place]),
                tirx.BufferStore(self.partial, _at(self.partial, n) + _at(scores, place), [n]),
            ]

        found = [_vector(self.size, _store(self.partial, tirx.const(0, _FLOAT)))]
        found += self._in_vectors(weight)
        found += _halved(self.partial, self.size, lambda a, b: a + b)
        first = _at(self.partial, number(0))
        if not self.rows.is_online:
            return [*found, tirx.BufferStore(self.facts, first, [number(2)])]
        total = _at(self.rows.totals, self.place) * self.factor + first
        return [*found, tirx.BufferStore(self.rows.totals, total, [self.place])]

    def _over_scores(self, combine: Callable[[Any, Any], Any]) -> list[tirx.Stmt]:
        def part(n: Any, place: Any) -> list[tirx.Stmt]:
            value = combine(n, _at(self.tile.scores, place))
            return [tirx.BufferStore(self.partial, value, [n])]

        return self._in_vectors(part)

    def _in_vectors(self, body: Callable[[Any, Any], list[tirx.Stmt]]) -> list[tirx.Stmt]:
        """``body`` for the lanes of the partial results and the places of all scores of the row."""
        whole, left = divmod(self.tile.padded, self.size)
        start = number(self.row * self.tile.padded)

        def vectors(first: Any, width: int) -> tirx.Stmt:
            found = []
            for index in range(len(body(number(0), number(0)))):
                found.append(_vector(width, lambda n, i=index: body(n, start + first + n)[i]))
            return sequence(found)

        found = [loop(whole, lambda i: vectors(i * number(self.size), self.size))] if whole else []
        place = whole * self.size
        while left:
            width = _power_of_two(left)
            found.append(vectors(number(place), width))
            place, left = place + width, left - width
        return found

    def before(self, start: int, n: Any) -> Any:
        """What the sums of a column of the result begin with."""
        if not self.rows.is_online:
            return tirx.const(0, _FLOAT)
        return _at(self.rows.results, self._result(start, n)) * self.factor

    def kept(self, sums: Any, start: int, columns: int) -> list[tirx.Stmt]:
        """Where the sums of some columns go."""
        if self.rows.is_online:
            return [
                _vector(
                    columns,
                    lambda n: tirx.BufferStore(
                        self.rows.results, _at(sums, n), [self._result(start, n)]
                    ),
                )
            ]
        end = min(start + columns, self.tile.problem.width)
        return self.rows.stored(
            self.place,
            lambda column: _at(sums, column - number(start)),
            start,
            end,
            self.total,
            self.highest,
        )

    def _result(self, start: int, n: Any) -> Any:
        return self.place * number(self.tile.task.padded_width) + number(start) + n


# Arrays and vectors.


def _array(size: int, name: str) -> Any:
    return tirx.decl_buffer([number(size)], _FLOAT, name)


def _at(array: Any, place: Any) -> Any:
    return tirx.BufferLoad(array, [place])


def _wide(array: Any, place: Any) -> Any:
    """An element of an operand, as the sums are."""
    element = _at(array, place)
    return (
        element
        if str(array.dtype) == _FLOAT
        else element.astype(
            f"{_FLOAT}x{int(place.ty.dtype.lanes)}" if isinstance(place, tirx.Ramp) else _FLOAT
        )
    )


def _ramp(start: Any, size: int) -> Any:
    return tirx.Ramp(start, tirx.const(1, str(start.ty)), size)


def _store(array: Any, value: Any) -> Callable[[Any], tirx.Stmt]:
    def store(n: Any) -> tirx.Stmt:
        return tirx.BufferStore(array, value(n) if callable(value) else value, [n])

    return store


def _vector(width: int, body: Callable[[Any], tirx.Stmt]) -> tirx.Stmt:
    """``body`` for each number below ``width``, at once."""
    if width == 1:
        return body(number(0))
    lane = tirx.Var("lane", "int64")
    return tirx.For(lane, number(0), number(width), tirx.ForKind.VECTORIZED, body(lane))


def _lanes(start: int, end: int, body: Callable[[Any], tirx.Stmt]) -> list[tirx.Stmt]:
    """``body`` for each number from ``start`` to before ``end``, in vectors of powers of two."""
    found = []
    while start < end:
        width = min(_power_of_two(end - start), _WIDEST)
        found.append(_vector(width, lambda n, first=start: body(number(first) + n)))
        start += width
    return found


_WIDEST = 64


def _power_of_two(size: int) -> int:
    """The largest that is at most ``size``."""
    return 1 << (size.bit_length() - 1)


def _filled(array: Any, value: Any) -> list[tirx.Stmt]:
    constant = tirx.const(value, _FLOAT) if isinstance(value, int) else value
    size = int(array.shape[0])
    return _lanes(0, size, _store(array, constant))


def _halved(array: Any, size: int, combine: Callable[[Any, Any], Any]) -> list[tirx.Stmt]:
    """The first of ``size`` partial results becomes that of all."""
    found = []
    while size > 1:
        size //= 2
        found.append(
            _vector(
                size,
                lambda n, half=size: tirx.BufferStore(
                    array, combine(_at(array, n), _at(array, n + number(half))), [n]
                ),
            )
        )
    return found
