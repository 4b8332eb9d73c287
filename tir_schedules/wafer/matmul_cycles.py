"""Cycles of a product on a mesh in closed form, for many mappings at once.

What the cost function reads from the scheduled loops, in short: in every step a PE computes a tile
while the messages of the next step are under way. Used for defaults only; the tuner asks the cost
function itself.
"""

import math
from dataclasses import dataclass

import numpy as np

from tvm_ext.hardware.mesh_description import MeshDescription

_WORD_BYTES = 4


@dataclass(frozen=True)
class MatmulSizes:
    """Extents of a product.

    Attributes
    ----------
    batch, left, right, summed : int
        Products; rows of the first operand; columns of the second; what is summed.
    right_is_constant : bool
        Whether the second operand is the same in every call.
    dtype : str
        Of the operands.
    element_bytes : int
        Of one of their elements.
    """

    batch: int
    left: int
    right: int
    summed: int
    right_is_constant: bool
    dtype: str
    element_bytes: int


class Tiles:
    """Parts of one PE, for arrays of rows, columns and steps that can be broadcast together.

    Attributes
    ----------
    left, right, summed : np.ndarray
        Extents of one step's tile.
    """

    def __init__(
        self, sizes: MatmulSizes, rows: np.ndarray, columns: np.ndarray, steps: np.ndarray
    ) -> None:
        self.sizes = sizes
        self.rows, self.columns, self.steps = rows, columns, steps
        self.left = _parts(sizes.left, rows)
        self.right = _parts(sizes.right, columns)
        self.summed = _parts(sizes.summed, steps)

    def work(self, machine: MeshDescription) -> np.ndarray:
        """[3, ...] cycles of a step, with instructions along the right, the left, the summed loop.

        A sum along the instruction is a product of two arrays and an addition for each element.
        """
        start = machine.issue_cycles + machine.loop_cycles
        each = machine.element_cycles(self.sizes.dtype) * machine.conflict_factor
        return np.stack(
            [
                self.left * self.summed * (start + each * self.right),
                self.right * self.summed * (start + each * self.left),
                self.left * self.right * (2 * start + (each + machine.scalar_cycles) * self.summed),
            ]
        )

    def words(self) -> tuple[np.ndarray, np.ndarray]:
        """Of a step's tile of the first and of the second operand."""
        width = self.sizes.element_bytes / _WORD_BYTES
        return self.left * self.summed * width, self.right * self.summed * width

    def fits(self, machine: MeshDescription, resident: bool) -> np.ndarray:
        """Whether shards, the result's tile and the messages of two steps are within one PE."""
        sizes = self.sizes
        first = self.left * _parts(sizes.summed, self.columns)
        second = self.right * (sizes.summed if resident else _parts(sizes.summed, self.rows))
        under_way = self.left * self.summed + (0 if resident else self.right * self.summed)
        copies = np.where(self.steps > 1, 2, 1)
        held = first + second + 2 * self.left * self.right + copies * under_way
        return np.asarray(held * sizes.element_bytes <= machine.usable_bytes)


def ring_cycles(sizes: MatmulSizes, machine: MeshDescription, sides: np.ndarray) -> np.ndarray:
    """MeshGEMM on squares of ``sides`` PEs a side; infinite where a tile does not fit."""
    tiles = Tiles(sizes, sides, sides, sides)
    first, second = tiles.words()
    messages = first + second + 2 * machine.transfer_cycles + 2 * machine.hop_cycles
    cycles = _in_steps(tiles, messages, machine)
    return np.where(tiles.fits(machine, resident=False), cycles, math.inf)


def summa_cycles(
    sizes: MatmulSizes,
    machine: MeshDescription,
    rows: np.ndarray,
    columns: np.ndarray,
    steps: np.ndarray,
    resident: bool,
) -> np.ndarray:
    """SUMMA, or its half if the second operand is ``resident``; infinite where it does not fit."""
    tiles = Tiles(sizes, rows, columns, steps)
    first, second = tiles.words()
    along_rows = first + _way(tiles, columns, machine)
    along_columns = second + _way(tiles, rows, machine)
    if resident:
        messages = along_rows + machine.transfer_cycles
    else:
        shared = np.minimum(first, second) + 2 * machine.transfer_cycles
        messages = np.maximum(along_rows, along_columns) + shared
    cycles = _in_steps(tiles, messages, machine)
    return np.where(tiles.fits(machine, resident), cycles, math.inf)


def _way(tiles: Tiles, extent: np.ndarray, machine: MeshDescription) -> np.ndarray:
    """Hops along a line of ``extent`` PEs, and what passing on from sender to sender takes."""
    senders = np.minimum(_parts(tiles.summed, _parts(tiles.sizes.summed, extent)), extent)
    routes = max(1, machine.usable_colours // 2)
    relays = np.maximum(_parts(np.minimum(tiles.steps * senders, extent), routes) - 1, 0)
    return extent * machine.hop_cycles + (relays + senders - 1) * machine.relay_cycles


def _in_steps(tiles: Tiles, messages: np.ndarray, machine: MeshDescription) -> np.ndarray:
    work = tiles.work(machine).min(axis=0)
    return messages + (tiles.steps - 1) * np.maximum(messages, work) + work


def _parts(extent: int | np.ndarray, count: int | np.ndarray) -> np.ndarray:
    return np.asarray(-(-np.asarray(extent) // count))
