"""Attention on CPUs: a few rows of scores in L1, never the whole matrix of them.

A task takes the keys of one head. It copies them transposed, so that the scores of a row of the
query with neighbouring keys fill vectors, and the values next to each other. Then tiles of rows
pass: their scores, masked; the maximum of each row; the exponentials and their sum; and the product
with the values, whose sums stay in registers. Keys that are too many for L1 and L2 come in parts,
with a running maximum and a running sum for each row (Milakov and Gimelshein, "Online normalizer
calculation for softmax", arXiv:1805.02867; Dao et al., "FlashAttention", arXiv:2205.14135).
"""

import math
from dataclasses import replace
from typing import Any

import tvm
from tvm import s_tir, tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.cpu.attention.attention_tiles import (
    FLOAT,
    AttentionTiles,
    count_of,
    even_parts,
    extent_of,
    is_none,
)
from tvm_ext.tir_schedules.cpu.attention.few_rows import FEW_ROWS, FewRows, few_row_tiles
from tvm_ext.tir_schedules.cpu.attention.keys_and_values import KeysAndValues
from tvm_ext.tir_schedules.cpu.attention.row_tiles import RowBlock
from tvm_ext.tir_schedules.cpu.parallel_vectorize import pick_threads, worth_threads
from tvm_ext.tir_schedules.cpu.register_blocking import vector_registers
from tvm_ext.tir_schedules.cpu.vector_math.rewrite import noted_exponents_below_zero
from tvm_ext.tir_schedules.operators.attention_problem import AttentionProblem, read_problem
from tvm_ext.tir_schedules.operators.recurrence import loop, number
from tvm_ext.tir_schedules.statements import FlatViews, sequence, where_long
from tvm_ext.tir_schedules.template import DEFAULT_DECISIONS, Decisions

# Of the operands and the result.
_TYPES = (FLOAT, "float16")


class CpuAttention:
    """The functions that AttentionFusion makes."""

    name = "attention"
    machine_type = CpuDescription

    def apply(
        self, func: tirx.PrimFunc, machine: CpuDescription, decisions: Decisions = DEFAULT_DECISIONS
    ) -> s_tir.Schedule:
        """See ``Template.apply``."""
        views = FlatViews(symbolic_sizes=True)
        problem = read_problem(func, views)
        tiles = decide_attention(problem, machine, decisions)
        kernel = views.kernel(func, [attention_code(problem, tiles)])
        # From each score a higher one is taken first.
        return s_tir.Schedule(noted_exponents_below_zero(kernel))


def refusal(func: tirx.PrimFunc, machine: CpuDescription) -> str:
    """Why there is no kernel for a fused attention; empty when there is one."""
    try:
        decide_attention(read_problem(func, FlatViews(symbolic_sizes=True)), machine)
    except NotApplicable as refused:
        return refused.reason
    return ""


# Decisions.

# Bytes of scores that a tile of rows has in L1, beside a few keys and values that pass.
_SHARE_OF_L1 = 0.5
# Of keys and values of which all rows of a block pass, in L2.
_SHARE_OF_L2 = 0.4
_ROWS_OF_BLOCK = 64


# Rows and keys that are assumed where a run decides them.
_POSITIONS_GUESSED = 128


def decide_attention(
    problem: AttentionProblem, machine: CpuDescription, decisions: Decisions = DEFAULT_DECISIONS
) -> AttentionTiles:
    """By default tiles that fill the registers, and keys that fit into the caches.

    Asks for ``rows``, ``columns``, ``keys``, ``parts`` and ``threads``. Raises NotApplicable.
    """
    for dtype in (problem.query.dtype, problem.output.dtype):
        if dtype not in _TYPES:
            raise NotApplicable(f"a tensor is of {dtype}, not of {' or '.join(_TYPES)}")
    queries, keys = (_known(n, _POSITIONS_GUESSED) for n in (problem.queries, problem.keys))
    lanes = machine.vector_lanes(FLOAT)
    if lanes == 1:
        raise NotApplicable("the machine has no vectors")
    free = vector_registers(machine)
    widths = [n * lanes for n in (1, 2, 4)]
    columns = decisions.pick(
        "columns", widths, widths[-1] if free >= _MANY_REGISTERS else widths[1]
    )
    # Beside the sums, a vector for each column of the other operand and one for a row's element.
    most = min(max(1, (free - 1) // (columns // lanes) - 1), queries)
    default = _rows(queries, most) if isinstance(problem.queries, int) else most
    rows = decisions.pick("rows", range(1, most + 1), default)
    together = _decide_keys(problem, machine, rows, columns, decisions)
    is_known = isinstance(problem.queries, int) and isinstance(problem.keys, int)
    is_whole = is_known and together == problem.keys
    block = rows if is_whole else rows * max(1, _ROWS_OF_BLOCK // rows)
    heads = _known(problem.batch, 1) * problem.heads // problem.group
    blocks = math.ceil(queries / block)
    operations = heads * problem.group * queries * keys * (problem.depth + problem.width)
    # Of symbolic sizes a run decides whether threads are worth it.
    is_long = worth_threads(machine, operations, lanes) or is_symbolic(problem)
    threads = pick_threads(decisions, machine, lambda: heads * blocks, is_long)
    most_parts = min(machine.cores, blocks) if threads else 1
    parts = decisions.pick("parts", range(1, most_parts + 1), even_parts(heads, blocks, most_parts))
    is_dense = problem.value.stride("s") == problem.width and problem.width % lanes == 0
    packs_values = not is_dense or problem.value.dtype != FLOAT
    tiles = AttentionTiles(lanes, rows, columns, together, block, parts, packs_values, threads)
    is_few = not isinstance(problem.queries, int) or problem.queries < FEW_ROWS
    return replace(tiles, few=few_row_tiles(problem, machine, tiles)) if is_few else tiles


# As AVX-512 and NEON have; others have half of them.
_MANY_REGISTERS = 32


def _known(size: Any, otherwise: int) -> int:
    return size if isinstance(size, int) else otherwise


def is_symbolic(problem: AttentionProblem) -> bool:
    """Whether a run decides the batch, or how many queries or keys there are."""
    sizes = (problem.batch, problem.queries, problem.keys)
    return not all(isinstance(size, int) for size in sizes)


def _rows(queries: int, most: int) -> int:
    """Rows of a tile, with which all tiles load the fewest vectors of the other operand."""

    def cost(rows: int) -> tuple[int, int]:
        whole, left = divmod(queries, rows)
        return whole * (rows + 1) + (left + 1 if left else 0), -rows

    return min(range(1, most + 1), key=cost)


def _decide_keys(
    problem: AttentionProblem,
    machine: CpuDescription,
    rows: int,
    columns: int,
    decisions: Decisions,
) -> int:
    """Keys that are taken together."""
    in_l1 = int(_SHARE_OF_L1 * machine.l1d_bytes) // (4 * rows)
    in_l2 = int(_SHARE_OF_L2 * machine.l2_bytes) // (4 * (problem.depth + problem.width))
    most = columns * max(1, min(in_l1, in_l2) // columns)
    sizes = [columns * 2**i for i in range(1, 12)]
    if not isinstance(problem.keys, int):
        return decisions.pick("keys", sizes, most)
    # All keys at once save what a running maximum costs, and may take the caches a little over.
    default = problem.keys if problem.keys <= 2 * most else most
    fewer = [size for size in sizes if size < problem.keys]
    return decisions.pick("keys", [*fewer, problem.keys], default)


# Code.


def attention_code(problem: AttentionProblem, tiles: AttentionTiles) -> tirx.Stmt:
    """The code for as many rows as there are, or for many and for few where a run decides that."""
    few = None if tiles.few is None else FewRows(problem, tiles.few).statement()
    if few is not None and isinstance(problem.queries, int):
        return few
    many = _many_rows(problem, tiles)
    return many if few is None else where_long([problem.queries], FEW_ROWS, many, few)


def _many_rows(problem: AttentionProblem, tiles: AttentionTiles) -> tirx.Stmt:
    """All tasks: a head of keys with a part of the rows of each head of queries that uses it."""
    heads = problem.heads // problem.group
    kind = tirx.ForKind.PARALLEL if tiles.threads else tirx.ForKind.SERIAL

    def task(place: tvm.ir.Expr) -> tirx.Stmt:
        parts = number(tiles.parts)
        head, part = tirx.FloorDiv(place, parts), tirx.FloorMod(place, parts)
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
        self.held = KeysAndValues(problem, tiles, batch, head)

    def statements(self) -> list[tirx.Stmt]:
        """The rows of all heads of queries."""
        group = self.problem.group

        def rows_of(one: Any) -> tirx.Stmt:
            return self._rows(self.head * number(group) + one, self.tiles)

        return [*self.held.statements(), loop(group, rows_of)]

    def _rows(self, head: Any, tiles: AttentionTiles) -> tirx.Stmt:
        """The rows of this part, of one head of queries: whole blocks, then what is left."""
        queries = self.problem.queries
        each = count_of(count_of(queries, tiles.block), tiles.parts)
        first = self.part * extent_of(each) if tiles.parts > 1 else number(0)
        if not isinstance(queries, int):
            blocks, left = count_of(queries, tiles.block), 0
        else:
            blocks, left = queries // tiles.block, queries % tiles.block
        count = blocks if tiles.parts == 1 else tirx.min(extent_of(each), extent_of(blocks) - first)

        def block(place: Any) -> tirx.Stmt:
            start = (first + place) * number(tiles.block)
            return RowBlock(self.held, tiles, head, start, tiles.block).statement()

        found = [] if is_none(blocks) else [loop(count, block)]
        if left:
            last = RowBlock(self.held, tiles, head, number(blocks * tiles.block), left).statement()
            is_last = tirx.EQ(self.part, number(tiles.parts - 1))
            found.append(last if tiles.parts == 1 else tirx.IfThenElse(is_last, last, None))
        return sequence(found)
