"""How the loops of a block run in which every element is computed on its own."""

import math
from dataclasses import dataclass
from functools import partial

from tvm_ext.hardware.description import CpuDescription
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions
from tvm_ext.tir_schedules.llvm.knobs import VECTORS, distinct, pick_threads
from tvm_ext.tir_schedules.llvm.loop_nest import REGISTERS_PER_VECTOR_LOOP, worth_threads
from tvm_ext.tir_schedules.llvm.nest import Nest
from tvm_ext.tir_schedules.llvm.nest_code import vector_cut, walks_in_steps_of_one
from tvm_ext.tir_schedules.llvm.pieces import Cut, Piece, leaves
from tvm_ext.tir_schedules.llvm.tile_code import TileDecision, tile_count


@dataclass(frozen=True)
class BlockDecision:
    """How the loops of one block run.

    Attributes
    ----------
    tiles : dict[int, TileDecision]
        For those of its leaves (by position) that are turned in registers.
    vectors : int
        Registers' worth of elements in the body of a loop over vectors, at most.
    threads : tuple[bool, ...]
        For each of its ``units``, whether it runs on threads.
    """

    tiles: dict[int, TileDecision]
    vectors: int
    threads: tuple[bool, ...]


def decide_block(
    piece: Piece,
    tiles: dict[int, TileDecision],
    operations: float,
    once: bool,
    machine: CpuDescription,
    decisions: Decisions = CLOSED_FORM,
) -> BlockDecision:
    """The closed-form choice: vectors of several registers, and threads where the work is long.

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
    position = 0
    shared = []
    for unit in units(piece):
        lanes = lanes_of(unit, machine)
        shared.append(partial(_trips, unit, tiles.get(position), lanes, once, vectors))
        position += len(leaves(unit))
    worth = [
        on_threads and trips() > 1
        for on_threads, trips in zip(
            _worth_threads(piece, operations, machine), shared, strict=True
        )
    ]
    if not pick_threads(decisions, machine, lambda: max(trips() for trips in shared), any(worth)):
        return BlockDecision(tiles, vectors, (False,) * len(worth))
    chosen = worth if any(worth) else [trips() > 1 for trips in shared]
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


def _worth_threads(piece: Piece, operations: float, machine: CpuDescription) -> list[bool]:
    total = sum(leaf.volume() for leaf in leaves(piece))
    found = []
    for unit in units(piece):
        part = operations if isinstance(unit, Cut) else operations * unit.volume() / total
        found.append(worth_threads(machine, part, lanes_of(unit, machine)))
    return found


def _trips(unit: Piece, tile: TileDecision | None, lanes: int, once: bool, vectors: int) -> int:
    """Iterations that threads can share, of loops as ``leaf_code`` writes them."""
    if isinstance(unit, Cut):
        return math.prod(axis.extent for axis in unit.axes)
    if tile is not None:
        return tile_count(unit, tile)
    outer = math.prod(axis.extent for axis in unit.axes[:-1])
    if walks_in_steps_of_one(unit):
        cut = vector_cut(unit, lanes, once, vectors)
        inner = -(-unit.axes[-1].extent // cut[0][1]) if len(cut) == 1 else 1
        return outer * inner
    return unit.axes[0].extent if len(unit.axes) == 1 else outer
