"""Loops for kernels in which every element is computed on its own, built from nests.

A nest is cut into pieces in each of which every branch goes one way; each piece gets vectors,
threads and, where it is read along another axis than written, tiles transposed in registers.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Union

import tvm
from tvm import s_tir, tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.analysis.buffer_access import (
    LoopAxis,
    buffer_bytes,
    count_calls,
    element_bytes,
)
from tvm_ext.tir_schedules.analysis.loop_nest import (
    Nest,
    in_order_of_writing,
    joined,
    nest_of,
    renamed,
    restricted,
    simplified,
    substitute,
    with_own_variables,
    without_divisions,
)
from tvm_ext.tir_schedules.analysis.sliding_window import WindowKernel
from tvm_ext.tir_schedules.cpu.loop_tables import loops_with_tables
from tvm_ext.tir_schedules.cpu.nest_code import (
    chunks,
    loop,
    loops_around,
    new_axis,
    vector_cut,
    vector_loops,
    walks_in_steps_of_one,
)
from tvm_ext.tir_schedules.cpu.parallel_vectorize import (
    CYCLES_PER_CALL,
    MAX_PIECES,
    REGISTERS_PER_VECTOR_LOOP,
    VECTORS,
    branch_comparisons,
    changes,
    distinct,
    pick_threads,
    worth_threads,
)
from tvm_ext.tir_schedules.cpu.register_transpose import (
    TransposeTileDecision,
    decide_tiles,
    keeps_whole,
    tile_code,
    tile_count,
)
from tvm_ext.tir_schedules.inlining import inlined_blocks
from tvm_ext.tir_schedules.statements import FlatViews, sequence, where_long
from tvm_ext.tir_schedules.template import DEFAULT_DECISIONS, Decisions, NumberedDecisions

# Stretches of a loop are as long as two vectors, or one of these parts of them.
_STRETCHES = (8, 4, 2, 1)
_SHORTEST = 4

# Cuts a nest into pieces, in each of which every branch goes one way.


@dataclass(frozen=True)
class LoopPartition:
    """Pieces one after the other, inside of the loops that they share.

    Attributes
    ----------
    axes : tuple[LoopAxis, ...]
        Loops around all pieces, outermost first.
    parts : tuple[Nest | LoopPartition, ...]
        The pieces; their own loops come inside.
    """

    axes: tuple[LoopAxis, ...]
    parts: tuple["Piece", ...]


Piece = Union[Nest, LoopPartition]  # noqa: UP007  (a string cannot be joined with |)

KeepWhole = Callable[[Nest, int], bool]


def cut(nest: Nest, keep_whole: KeepWhole = lambda nest, axis: False) -> Piece:
    """``nest`` itself when it has no branches to get rid of, or when it would be too many pieces.

    ``keep_whole(nest, axis)`` says that a nest is not to be cut along an axis.
    """
    pieces = _cut(nest, keep_whole, MAX_PIECES)
    return nest if pieces is None else pieces


def leaves(piece: Piece) -> list[Nest]:
    """The nests of a piece, with their own loops only."""
    if isinstance(piece, Nest):
        return [piece]
    return [leaf for part in piece.parts for leaf in leaves(part)]


def _cut(nest: Nest, keep_whole: KeepWhole, budget: int) -> Piece | None:
    found = _first_border(nest)
    if found is None or keep_whole(nest, found[0]):
        return nest
    position, borders = found
    if len(borders) + 1 > budget:
        return None
    starts = (0, *borders)
    ends = (*borders, nest.axes[position].extent)
    parts: list[Piece] = []
    for start, end in zip(starts, ends, strict=True):
        part = _cut(restricted(nest, position, start, end - start), keep_whole, budget)
        if part is None:
            return None
        parts.append(part)
        budget -= len(leaves(part))
    # Loops outside of the one that is cut are still the same in every part.
    return LoopPartition((), tuple(parts)) if budget >= 0 else None


def _first_border(nest: Nest) -> tuple[int, tuple[int, ...]] | None:
    """The outermost axis along which a branch changes, and where."""
    loops = [(axis.var, axis.extent) for axis in nest.axes]
    positions: dict[int, set[int]] = {}
    for comparison in branch_comparisons(nest.store.value):
        found = changes(comparison, loops)
        if found is not None and found[1]:
            positions.setdefault(found[0], set()).update(found[1])
    if not positions:
        return None
    first = min(positions)
    return first, tuple(sorted(positions[first]))


def with_leaves(piece: Piece, change: Callable[[Nest], Nest]) -> Piece:
    """The same pieces, each nest of which is changed."""
    if isinstance(piece, Nest):
        return change(piece)
    return LoopPartition(piece.axes, tuple(with_leaves(part, change) for part in piece.parts))


def with_own_loops(piece: LoopPartition) -> LoopPartition:
    """The same pieces with variables of their own for the loops that they share."""
    axes, names = renamed(piece.axes)

    def moved(nest: Nest) -> Nest:
        return nest.with_expressions(lambda e: substitute(e, names))

    return LoopPartition(axes, tuple(with_leaves(part, moved) for part in piece.parts))


def sharing_loops(piece: Piece) -> Piece:
    """Takes the outer loops that all pieces have in common out of them.

    Rows of the result are then written one after the other, each from all of its pieces.
    """
    if isinstance(piece, Nest):
        return piece
    parts = tuple(sharing_loops(part) for part in piece.parts)
    nests = [part for part in parts if isinstance(part, Nest)]
    if len(nests) < len(parts):
        return LoopPartition(piece.axes, parts)
    count = 0
    while all(len(nest.axes) > count + 1 for nest in nests) and _same(nests, count):
        count += 1
    inner = tuple(Nest(nest.axes[count:], nest.store) for nest in nests)
    return LoopPartition((*piece.axes, *nests[0].axes[:count]), inner)


def _same(nests: list[Nest], position: int) -> bool:
    first = nests[0].axes[position].var
    return all(nest.axes[position].var.same_as(first) for nest in nests)


# How the loops of a block run in which every element is computed on its own.


@dataclass(frozen=True)
class BlockDecision:
    """How the loops of one block run.

    Attributes
    ----------
    tiles : dict[int, TransposeTileDecision]
        For those of its leaves (by position) that are transposed in registers.
    vectors : int
        Registers' worth of elements in the body of a loop over vectors, at most.
    threads : tuple[bool, ...]
        For each of its ``units``, whether it runs on threads.
    """

    tiles: dict[int, TransposeTileDecision]
    vectors: int
    threads: tuple[bool, ...]


def decide_block(
    piece: Piece,
    tiles: dict[int, TransposeTileDecision],
    operations: float,
    once: bool,
    machine: CpuDescription,
    decisions: Decisions,
) -> BlockDecision:
    """The default heuristic: vectors of several registers, and threads where the work is long.

    Asks for ``vectors`` and, where there is more than one iteration to share, ``threads``: 1 is for
    the units with work enough, or for all of them where none has.
    """

    def cuts(registers: int) -> tuple[tuple[tuple[int, int], ...], ...]:
        return tuple(
            vector_cut(nest, lanes_of(nest, machine), once, registers)
            for i, nest in enumerate(leaves(piece))
            if i not in tiles and walks_in_steps_of_one(nest)
        )

    options = distinct(VECTORS, REGISTERS_PER_VECTOR_LOOP, cuts)
    vectors = decisions.pick("vectors", options, REGISTERS_PER_VECTOR_LOOP)
    found = _units(piece, tiles, operations, once, vectors, machine)
    worth = [unit.is_long(machine) and unit.trips() > 1 for unit in found]
    if not pick_threads(decisions, machine, lambda: max(u.trips() for u in found), any(worth)):
        return BlockDecision(tiles, vectors, (False,) * len(worth))
    chosen = worth if any(worth) else [unit.trips() > 1 for unit in found]
    return BlockDecision(tiles, vectors, tuple(chosen))


def units(piece: Piece) -> list[Piece]:
    """The parts of a piece that are handed to threads on their own: those in loops of their own."""
    if isinstance(piece, Nest) or piece.axes:
        return [piece]
    return [unit for part in piece.parts for unit in units(part)]


def lanes_of(piece: Piece, machine: CpuDescription) -> int:
    """Elements that one vector holds of the widest type in the piece."""
    nests = leaves(piece)
    buffers = [nest.store.buffer for nest in nests]
    buffers += [load.source for nest in nests for load in nest.loads()]
    return min(machine.vector_lanes(str(buffer.dtype)) for buffer in buffers)


def moved_bytes(nest: Nest) -> int:
    """What a nest of known extents stores and loads, of each tensor no more than it has."""
    sources = {hash(load.source): load.source for load in nest.loads()}
    buffers = [nest.store.buffer, *sources.values()]
    return sum(min(nest.volume() * element_bytes(one), buffer_bytes(one)) for one in buffers)


@dataclass(frozen=True)
class _Unit:
    """What is handed to threads on its own, with what decides about it."""

    piece: Piece
    tile: TransposeTileDecision | None
    operations: float
    lanes: int
    once: bool
    vectors: int

    def is_long(self, machine: CpuDescription) -> bool:
        """Whether it takes long enough to split over threads."""
        nbytes = sum(moved_bytes(nest) for nest in leaves(self.piece))
        return worth_threads(machine, self.operations, self.lanes, nbytes)

    def trips(self) -> int:
        """Iterations that threads can share, of loops as ``leaf_code`` writes them."""
        nest = self.piece
        if isinstance(nest, LoopPartition):
            return math.prod(axis.extent for axis in nest.axes)
        if self.tile is not None:
            return tile_count(nest, self.tile)
        outer = math.prod(axis.extent for axis in nest.axes[:-1])
        if walks_in_steps_of_one(nest):
            cut = vector_cut(nest, self.lanes, self.once, self.vectors)
            return outer * (-(-nest.axes[-1].extent // cut[0][1]) if len(cut) == 1 else 1)
        return nest.axes[0].extent if len(nest.axes) == 1 else outer


def _units(
    piece: Piece,
    tiles: dict[int, TransposeTileDecision],
    operations: float,
    once: bool,
    vectors: int,
    machine: CpuDescription,
) -> list[_Unit]:
    total = sum(leaf.volume() for leaf in leaves(piece))
    position = 0
    found = []
    for unit in units(piece):
        part = operations if isinstance(unit, LoopPartition) else operations * unit.volume() / total
        lanes = lanes_of(unit, machine)
        found.append(_Unit(unit, tiles.get(position), part, lanes, once, vectors))
        position += len(leaves(unit))
    return found


# Blocks of a kernel about which decisions are asked.
_MOST_ASKED = 3


@dataclass(frozen=True)
class CpuBlockPlan:
    """What is to be done with one block.

    Attributes
    ----------
    piece : Piece
        The block's nest, in pieces without branches.
    decision : BlockDecision
        How its loops run.
    once : bool
        Whether no element may be computed twice.
    """

    piece: Piece
    decision: BlockDecision
    once: bool = False


@dataclass(frozen=True)
class KernelPlan:
    """The plans of a kernel's blocks, and the flat views of its buffers that they use."""

    blocks: list[CpuBlockPlan]
    views: FlatViews


@dataclass(frozen=True)
class BlockPieces:
    """A block's nest in pieces without branches, before anything is decided.

    Attributes
    ----------
    pieces : Piece
        The pieces, each with all axes of its own.
    joined : Piece
        The same, with axes joined that are one run of elements.
    operations : float
        Of the whole block.
    once : bool
        Whether no element may be computed twice.
    """

    pieces: Piece
    joined: Piece
    operations: float
    once: bool

    def volume(self) -> int:
        """Elements that the block computes."""
        return sum(leaf.volume() for leaf in leaves(self.joined))


def plan_blocks(
    func: tirx.PrimFunc, machine: CpuDescription, decisions: Decisions = DEFAULT_DECISIONS
) -> KernelPlan:
    """Decides for every block of a kernel, of which all is inlined that can be."""
    if decisions is DEFAULT_DECISIONS:
        return _plan_by_default(func, machine)
    return _plan(func, machine, decisions)


# Two templates ask for one kernel in turn.
@lru_cache(maxsize=1)
def _plan_by_default(func: tirx.PrimFunc, machine: CpuDescription) -> KernelPlan:
    return _plan(func, machine, DEFAULT_DECISIONS)


def _plan(func: tirx.PrimFunc, machine: CpuDescription, decisions: Decisions) -> KernelPlan:
    blocks, views = _pieces_of(func, machine)
    return KernelPlan(_plans(blocks, machine, decisions, alone=len(blocks) == 1), views)


@lru_cache(maxsize=1)
def _pieces_of(func: tirx.PrimFunc, machine: CpuDescription) -> tuple[list[BlockPieces], FlatViews]:
    views = FlatViews()
    nests = [nest_of(block, views) for block in inlined_blocks(func)]
    known = [nest for nest in nests if nest is not None]
    if len(known) < len(nests):
        raise NotApplicable("a block is not one assignment with known extents")
    return [block_pieces(n, machine, views.may_share_memory(n.store, func)) for n in known], views


def block_pieces(nest: Nest, machine: CpuDescription, once: bool = False) -> BlockPieces:
    """The pieces of one block."""
    nest = in_order_of_writing(without_divisions(nest))
    operations = nest.volume() * (1 + CYCLES_PER_CALL * count_calls(nest.store.value))
    pieces = cut(nest, lambda n, axis: keeps_whole(n, axis, machine))
    return BlockPieces(pieces, with_leaves(pieces, joined), operations, once)


def _plans(
    blocks: Sequence[BlockPieces], machine: CpuDescription, decisions: Decisions, alone: bool
) -> list[CpuBlockPlan]:
    """The plans of blocks, or of one that is ``alone`` in its kernel.

    What is asked has the number of the block in its name, but for the only block of a kernel. The
    small ones of many blocks are decided by default: they take little of the time, and a space
    grows with the power of their number.
    """
    by_size = sorted(range(len(blocks)), key=lambda i: -blocks[i].volume())
    asked: dict[int, Decisions] = {
        i: NumberedDecisions(decisions, i + 1) for i in by_size[:_MOST_ASKED]
    }
    if alone:
        asked = {0: decisions}
    return [
        plan_block(block, machine, asked.get(i, DEFAULT_DECISIONS))
        for i, block in enumerate(blocks)
    ]


def plan_block(
    block: BlockPieces, machine: CpuDescription, decisions: Decisions = DEFAULT_DECISIONS
) -> CpuBlockPlan:
    """The plan of one block."""
    piece, once = block.joined, block.once
    tiles = decide_tiles(leaves(piece), machine, once, decisions)
    if not tiles:
        piece = with_leaves(sharing_loops(block.pieces), joined)
    decision = decide_block(piece, tiles, block.operations, once, machine, decisions)
    return CpuBlockPlan(piece, decision, once)


def scheduled(func: tirx.PrimFunc, plan: KernelPlan, machine: CpuDescription) -> s_tir.Schedule:
    """``func`` with loops as planned."""
    code = [block_code(block, machine) for block in plan.blocks]
    return s_tir.Schedule(plan.views.kernel(func, code))


def block_code(plan: CpuBlockPlan, machine: CpuDescription) -> tirx.Stmt:
    """The loops of one block, on threads where that was decided."""
    decision = plan.decision
    tiles = iter(decision.tiles.get(i) for i in range(len(leaves(plan.piece))))
    threads = iter(decision.threads)

    def leaf(nest: Nest, cores: int) -> tirx.Stmt:
        lanes = lanes_of(nest, machine)
        return leaf_code(nest, next(tiles), lanes, cores, plan.once, decision.vectors)

    def emit(piece: Piece) -> tirx.Stmt:
        if isinstance(piece, LoopPartition) and not piece.axes:
            return sequence([emit(part) for part in piece.parts])
        cores = machine.cores if next(threads) else 1
        if isinstance(piece, Nest):
            return leaf(piece, cores)
        piece = with_own_loops(piece)
        body = sequence([leaf(nest, 1) for nest in leaves(piece)])
        return loops_around(piece.axes, body, cores)

    return emit(plan.piece)


def leaf_code(
    nest: Nest,
    tile: TransposeTileDecision | None,
    lanes: int,
    cores: int,
    once: bool = False,
    registers: int = REGISTERS_PER_VECTOR_LOOP,
) -> tirx.Stmt:
    """The loops of one nest without branches: in tiles, in vectors, or as they are.

    Vectors have ``registers`` times ``lanes`` elements at most. With ``once``, none laps over
    another one.
    """
    nest = with_own_variables(nest)
    if tile is not None:
        outer, body = tile_code(nest, tile)
        return loops_around(outer, body, cores)
    if not nest.axes:
        return nest.store
    if walks_in_steps_of_one(nest):
        parts = vector_loops(nest, lanes, once, registers)
        return sequence([loops_around(outer, body, cores) for outer, body in parts])
    # LLVM vectorises short strides by itself, when it finds a plain loop.
    return loops_with_tables(nest, cores)


def in_stretches(nest: Nest, lanes: int) -> tirx.Stmt:
    """The loops of a nest whose innermost one is symbolic: in stretches of known lengths.

    Each is the code of a nest of that length. The last stretch laps over the one before; a loop
    shorter than a stretch has shorter ones. A nest that reads its own result is left to LLVM.
    """
    nest = with_own_variables(nest)
    *outer, axis = nest.axes
    if any(load.source.same_as(nest.store.buffer) for load in nest.loads()):
        return loops_around(nest.axes, nest.store, 1)
    number = new_axis("stretch", axis.extent, axis.var)
    code = loop(number, _stretch(nest, number.var, 1, lanes))
    for length in [2 * lanes // part for part in _STRETCHES if 2 * lanes >= _SHORTEST * part]:
        number, start = chunks(axis.extent, length, axis.var)
        long = loop(number, _stretch(nest, start, length, lanes))
        code = where_long([axis.extent], length, long, code)
    return loops_around(outer, code, 1)


def _stretch(nest: Nest, start: tvm.ir.Expr, length: int, lanes: int) -> tirx.Stmt:
    """A part of the innermost loop of ``nest``, in which every element is computed once."""
    axis = nest.axes[-1]
    place = new_axis("place", length, axis.var)
    part = nest.with_expressions(lambda e: substitute(e, {axis.var: start + place.var}))
    return leaf_code(simplified(replace(part, axes=(place,))), None, lanes, 1)


# The schedule of a kernel around one window: the window's loops, and the blocks that follow.


def schedule_window(
    kernel: WindowKernel,
    func: tirx.PrimFunc,
    first: tirx.Stmt,
    machine: CpuDescription,
    decisions: Decisions,
) -> s_tir.Schedule:
    """``func`` with ``first`` for the window, followed by the blocks that it leaves.

    Their decisions are numbered; the names without a number are those of the window.
    """
    nests = kernel.later_nests()
    read = kernel.read_func()
    blocks = [
        block_pieces(nest, machine, kernel.views.may_share_memory(nest.store, read))
        for nest in nests
    ]
    later = [block_code(plan, machine) for plan in _plans(blocks, machine, decisions, alone=False)]
    return s_tir.Schedule(kernel.views.kernel(func, [first, *later]))
