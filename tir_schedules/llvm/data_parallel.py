"""Loops for kernels in which every element is computed on its own, built from nests."""

from dataclasses import dataclass

from tvm import s_tir, tirx

from tvm_ext.hardware.description import CpuDescription
from tvm_ext.tir_schedules.llvm.flat_views import FlatViews, nodes
from tvm_ext.tir_schedules.llvm.inlining import count_calls, inline_blocks, kernel_blocks
from tvm_ext.tir_schedules.llvm.loop_nest import CYCLES_PER_CALL, worth_threads
from tvm_ext.tir_schedules.llvm.nest import (
    Nest,
    in_order_of_writing,
    joined,
    nest_of,
    with_own_variables,
    without_divisions,
)
from tvm_ext.tir_schedules.llvm.nest_code import (
    loop,
    loops_around,
    sequence,
    vector_loops,
    walks_in_steps_of_one,
)
from tvm_ext.tir_schedules.llvm.pieces import (
    Piece,
    cut,
    leaves,
    sharing_loops,
    with_leaves,
    with_own_loops,
)
from tvm_ext.tir_schedules.llvm.tile_code import TileDecision, tile_code
from tvm_ext.tir_schedules.llvm.tile_decision import decide_tile, keeps_whole
from tvm_ext.tir_schedules.template import NotMine


@dataclass(frozen=True)
class BlockPlan:
    """What is to be done with one block.

    Attributes
    ----------
    piece : Piece
        The block's nest, in pieces without branches.
    tiles : dict[int, TileDecision]
        For those of its leaves (by position) that are turned in registers.
    operations : float
        Vector operations, for the decision about threads.
    once : bool
        Whether no element may be computed twice.
    """

    piece: Piece
    tiles: dict[int, TileDecision]
    operations: float
    once: bool = False


@dataclass(frozen=True)
class KernelPlan:
    """The plans of a kernel's blocks, and the flat views of its buffers that they use."""

    blocks: list[BlockPlan]
    views: FlatViews


def plan_blocks(sch: s_tir.Schedule, machine: CpuDescription) -> KernelPlan | NotMine:
    """Inlines what can be, and decides for every block that is left."""
    views = FlatViews()
    inline_blocks(sch)
    plans = []
    for block in kernel_blocks(sch):
        nest = nest_of(sch.get(block), views)
        if nest is None:
            return NotMine("a block is not one assignment with known extents")
        once = views.may_share_memory(nest.store, sch.mod["main"])
        plans.append(plan_block(nest, machine, once))
    return KernelPlan(plans, views)


def plan_block(nest: Nest, machine: CpuDescription, once: bool = False) -> BlockPlan:
    """The closed-form plan of one block, of which ``once`` says what ``BlockPlan.once`` does."""
    nest = in_order_of_writing(without_divisions(nest))
    operations = nest.volume() * (1 + CYCLES_PER_CALL * count_calls(nest.store.value))
    pieces = cut(nest, lambda n, axis: keeps_whole(n, axis, machine))
    piece = with_leaves(pieces, joined)
    found = {i: decide_tile(leaf, machine) for i, leaf in enumerate(leaves(piece))}
    tiles = {i: tile for i, tile in found.items() if isinstance(tile, TileDecision)}
    if not tiles:
        piece = with_leaves(sharing_loops(pieces), joined)
    return BlockPlan(piece, tiles, operations, once)


def scheduled(func: tirx.PrimFunc, plan: KernelPlan, machine: CpuDescription) -> s_tir.Schedule:
    """``func`` with loops as planned."""
    return with_body(func, plan.views, [block_code(block, machine) for block in plan.blocks])


def with_body(func: tirx.PrimFunc, views: FlatViews, statements: list[tirx.Stmt]) -> s_tir.Schedule:
    """``func`` with other statements, which use flat views of its buffers."""
    body = sequence([*views.declarations(func), *statements])
    used = [store.buffer for store in nodes(body, tirx.BufferStore)]
    arrays = [a for a in views.allocated(func) if any(a.same_as(buffer) for buffer in used)]
    block = s_tir.SBlock([], [], [], "root", body, None, arrays, [], {})
    realize = s_tir.SBlockRealize([], tirx.const(True, "bool"), block)
    return s_tir.Schedule(func.with_body(realize))


def block_code(plan: BlockPlan, machine: CpuDescription) -> tirx.Stmt:
    """The loops of one block, on threads where that pays."""
    total = sum(leaf.volume() for leaf in leaves(plan.piece))
    tiles = iter(plan.tiles.get(i) for i in range(len(leaves(plan.piece))))

    def emit(piece: Piece, cores: int) -> tirx.Stmt:
        if isinstance(piece, Nest):
            part = plan.operations * piece.volume() / total
            lanes = _lanes(piece, machine)
            threads = cores if worth_threads(machine, part, lanes) else 1
            return leaf_code(piece, next(tiles), lanes, threads, plan.once)
        if not piece.axes:
            return sequence([emit(part, cores) for part in piece.parts])
        piece = with_own_loops(piece)
        lanes = min(_lanes(leaf, machine) for leaf in leaves(piece))
        parts = sequence([emit(part, 1) for part in piece.parts])
        threads = cores if worth_threads(machine, plan.operations, lanes) else 1
        return loops_around(piece.axes, parts, threads)

    return emit(plan.piece, machine.cores)


def leaf_code(
    nest: Nest, tile: TileDecision | None, lanes: int, cores: int, once: bool = False
) -> tirx.Stmt:
    """The loops of one nest without branches: in tiles, in vectors, or as they are.

    With ``once``, no vector laps over another one.
    """
    nest = with_own_variables(nest)
    if tile is not None:
        outer, body = tile_code(nest, tile)
        return loops_around(outer, body, cores)
    if not nest.axes:
        return nest.store
    if walks_in_steps_of_one(nest):
        parts = vector_loops(nest, lanes, once)
        return sequence([loops_around(outer, body, cores) for outer, body in parts])
    # LLVM vectorises short strides by itself, when it finds a plain loop.
    *outer, inner = nest.axes
    if not outer:
        return loops_around([inner], nest.store, cores)
    return loops_around(outer, loop(inner, nest.store), cores)


def _lanes(nest: Nest, machine: CpuDescription) -> int:
    """Elements that one vector holds of the widest type in the nest."""
    dtypes = [str(nest.store.buffer.dtype), *(str(load.source.dtype) for load in nest.loads())]
    return min(machine.vector_lanes(dtype) for dtype in dtypes)
