"""How the loops of a block run in which every element is computed on its own."""

import math
from dataclasses import dataclass

from tvm_ext.hardware.description import CpuDescription
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions
from tvm_ext.tir_schedules.llvm.knobs import VECTORS, distinct, pick_threads
from tvm_ext.tir_schedules.llvm.loop_nest import REGISTERS_PER_VECTOR_LOOP, worth_threads
from tvm_ext.tir_schedules.llvm.nest_code import vector_cut, walks_in_steps_of_one
from tvm_ext.tir_schedules.llvm.pieces import Cut, Piece, leaves
from tvm_ext.tir_schedules.llvm.tile_code import TileDecision, tile_count
from tvm_ext.tir_schedules.nest import Nest


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


@dataclass(frozen=True)
class _Unit:
    """What is handed to threads on its own, with what decides about it."""

    piece: Piece
    tile: TileDecision | None
    operations: float
    lanes: int
    once: bool
    vectors: int

    def is_long(self, machine: CpuDescription) -> bool:
        """Whether it takes long enough to split over threads."""
        return worth_threads(machine, self.operations, self.lanes)

    def trips(self) -> int:
        """Iterations that threads can share, of loops as ``leaf_code`` writes them."""
        nest = self.piece
        if isinstance(nest, Cut):
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
    tiles: dict[int, TileDecision],
    operations: float,
    once: bool,
    vectors: int,
    machine: CpuDescription,
) -> list[_Unit]:
    total = sum(leaf.volume() for leaf in leaves(piece))
    position = 0
    found = []
    for unit in units(piece):
        part = operations if isinstance(unit, Cut) else operations * unit.volume() / total
        lanes = lanes_of(unit, machine)
        found.append(_Unit(unit, tiles.get(position), part, lanes, once, vectors))
        position += len(leaves(unit))
    return found
