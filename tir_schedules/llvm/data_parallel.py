"""Loops for kernels in which every element is computed on its own, built from nests."""

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import s_tir, tirx

from tvm_ext.hardware.description import CpuDescription
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions, Numbered
from tvm_ext.tir_schedules.flat_views import FlatViews, nodes
from tvm_ext.tir_schedules.inlining import count_calls, kernel_blocks
from tvm_ext.tir_schedules.llvm.block_decision import BlockDecision, decide_block, lanes_of
from tvm_ext.tir_schedules.llvm.loop_nest import CYCLES_PER_CALL, REGISTERS_PER_VECTOR_LOOP
from tvm_ext.tir_schedules.llvm.nest_code import (
    loop,
    loops_around,
    vector_loops,
    walks_in_steps_of_one,
)
from tvm_ext.tir_schedules.llvm.pieces import (
    Cut,
    Piece,
    cut,
    leaves,
    sharing_loops,
    with_leaves,
    with_own_loops,
)
from tvm_ext.tir_schedules.llvm.tile_code import TileDecision, tile_code
from tvm_ext.tir_schedules.llvm.tile_decision import decide_tiles, keeps_whole
from tvm_ext.tir_schedules.nest import (
    Nest,
    in_order_of_writing,
    joined,
    nest_of,
    with_own_variables,
    without_divisions,
)
from tvm_ext.tir_schedules.statements import sequence
from tvm_ext.tir_schedules.template import NotMine

# Blocks of a kernel about which decisions are asked.
_MOST_ASKED = 3


@dataclass(frozen=True)
class BlockPlan:
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

    blocks: list[BlockPlan]
    views: FlatViews


def plan_blocks(
    sch: s_tir.Schedule, machine: CpuDescription, decisions: Decisions = CLOSED_FORM
) -> KernelPlan | NotMine:
    """Decides for every block of a kernel, of which all is inlined that can be."""
    views = FlatViews()
    nests = []
    for block in kernel_blocks(sch):
        nest = nest_of(sch.get(block), views)
        if nest is None:
            return NotMine("a block is not one assignment with known extents")
        nests.append(nest)
    return KernelPlan(plan_nests(nests, views, sch.mod["main"], machine, decisions), views)


def plan_nests(
    nests: Sequence[Nest],
    views: FlatViews,
    func: tirx.PrimFunc,
    machine: CpuDescription,
    decisions: Decisions = CLOSED_FORM,
    alone: bool = True,
) -> list[BlockPlan]:
    """The plans of blocks of ``func``, ``alone`` if there are no others.

    What is asked has the number of the block in its name, but for the only block of a kernel. The
    small ones of many blocks are decided in closed form: they take little of the time, and a space
    grows with the power of their number.
    """
    by_size = sorted(range(len(nests)), key=lambda i: -nests[i].volume())
    asked: dict[int, Decisions] = {i: Numbered(decisions, i + 1) for i in by_size[:_MOST_ASKED]}
    if alone and len(nests) == 1:
        asked = {0: decisions}
    return [
        plan_block(
            nest, machine, views.may_share_memory(nest.store, func), asked.get(i, CLOSED_FORM)
        )
        for i, nest in enumerate(nests)
    ]


def plan_block(
    nest: Nest, machine: CpuDescription, once: bool = False, decisions: Decisions = CLOSED_FORM
) -> BlockPlan:
    """The plan of one block, of which ``once`` says what ``BlockPlan.once`` does."""
    nest = in_order_of_writing(without_divisions(nest))
    operations = nest.volume() * (1 + CYCLES_PER_CALL * count_calls(nest.store.value))
    pieces = cut(nest, lambda n, axis: keeps_whole(n, axis, machine))
    piece = with_leaves(pieces, joined)
    tiles = decide_tiles(leaves(piece), machine, once, decisions)
    if not tiles:
        piece = with_leaves(sharing_loops(pieces), joined)
    decision = decide_block(piece, tiles, operations, once, machine, decisions)
    return BlockPlan(piece, decision, once)


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
    """The loops of one block, on threads where that was decided."""
    decision = plan.decision
    tiles = iter(decision.tiles.get(i) for i in range(len(leaves(plan.piece))))
    threads = iter(decision.threads)

    def leaf(nest: Nest, cores: int) -> tirx.Stmt:
        lanes = lanes_of(nest, machine)
        return leaf_code(nest, next(tiles), lanes, cores, plan.once, decision.vectors)

    def emit(piece: Piece) -> tirx.Stmt:
        if isinstance(piece, Cut) and not piece.axes:
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
    tile: TileDecision | None,
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
    *outer, inner = nest.axes
    if not outer:
        return loops_around([inner], nest.store, cores)
    return loops_around(outer, loop(inner, nest.store), cores)
