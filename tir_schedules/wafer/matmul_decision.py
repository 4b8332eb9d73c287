"""What may be decided about a product on a mesh, and the closed form."""

import math
from dataclasses import dataclass

import numpy as np

from tvm_ext.hardware.mesh_description import MeshDescription
from tvm_ext.tir_schedules.decisions import Decisions
from tvm_ext.tir_schedules.wafer.grid_options import grid_options
from tvm_ext.tir_schedules.wafer.matmul_cycles import (
    MatmulSizes,
    Tiles,
    ring_cycles,
    summa_cycles,
)
from tvm_ext.tir_schedules.wafer.skewed_steps import CANNON, INTERLEAVED

SUMMA = 0

# Which loop one vector instruction goes along.
ON_RIGHT, ON_LEFT, ON_SUMMED = 0, 1, 2

# Most grids, and most numbers of steps, that a tuner and the closed form choose from.
_GRID_OPTIONS = 24
_STEP_OPTIONS = 16


@dataclass(frozen=True)
class MatmulMapping:
    """What was decided.

    Attributes
    ----------
    groups : int
        Products of a batch side by side, each on PEs of its own: groups of rows.
    rows, columns : int
        PEs of one product.
    algorithm : int
        SUMMA, CANNON or INTERLEAVED (MeshGEMM).
    steps : int
        Parts of the sum, one after the other.
    resident : bool
        Whether each PE holds all that it needs of the second operand, a constant, so that only the
        first one moves.
    overlapped : bool
        Whether messages are under way while PEs compute.
    vector : int
        ON_RIGHT, ON_LEFT or ON_SUMMED.
    """

    groups: int
    rows: int
    columns: int
    algorithm: int
    steps: int
    resident: bool
    overlapped: bool
    vector: int


def decide_matmul(
    sizes: MatmulSizes, machine: MeshDescription, decisions: Decisions
) -> MatmulMapping:
    """The decisions of one kernel, each with what the ones before it leave.

    In closed form, the mapping with the fewest cycles by ``matmul_cycles`` among MeshGEMM on
    squares of PEs, SUMMA, and SUMMA with a constant second operand in place.
    """
    most_groups = min(sizes.batch, machine.rows)
    groups = decisions.pick("groups", grid_options(most_groups, most_groups), most_groups)
    most_rows = machine.rows // groups
    squares = _square_options(sizes, machine, most_rows)
    ring, ring_time = _best_ring(sizes, machine, squares)
    plan, plan_time = _best_summa(sizes, machine, most_rows)
    usual = INTERLEAVED if ring_time <= plan_time else SUMMA
    algorithm = decisions.pick("algorithm", (SUMMA, CANNON, INTERLEAVED), usual)
    if algorithm != SUMMA:
        rows = columns = steps = decisions.pick("rows", squares, ring)
        resident = False
    else:
        rows = decisions.pick("rows", grid_options(sizes.left, most_rows, _GRID_OPTIONS), plan.rows)
        columns = decisions.pick(
            "columns", grid_options(sizes.right, machine.columns, _GRID_OPTIONS), plan.columns
        )
        places = (0, 1) if sizes.right_is_constant else (0,)
        resident = bool(decisions.pick("resident", places, int(plan.resident)))
        most = min(max(rows, columns), sizes.summed)
        steps = decisions.pick(
            "steps", grid_options(most, most, _STEP_OPTIONS), min(plan.steps, most)
        )
    overlapped = bool(decisions.pick("overlapped", (0, 1), 1)) if steps > 1 else False
    tiles = Tiles(sizes, *(np.asarray(count) for count in (rows, columns, steps)))
    quickest = int(tiles.work(machine).argmin())
    vector = decisions.pick("vector", (ON_RIGHT, ON_LEFT, ON_SUMMED), quickest)
    return MatmulMapping(groups, rows, columns, algorithm, steps, resident, overlapped, vector)


def _square_options(sizes: MatmulSizes, machine: MeshDescription, most_rows: int) -> list[int]:
    most = min(most_rows, machine.columns, sizes.summed)
    longest = max(sizes.left, sizes.right)
    return [option for option in grid_options(longest, most, _GRID_OPTIONS) if option <= most] or [
        1
    ]


def _best_ring(
    sizes: MatmulSizes, machine: MeshDescription, squares: list[int]
) -> tuple[int, float]:
    """The side of the best square for MeshGEMM and its cycles; the largest where none fits."""
    cycles = ring_cycles(sizes, machine, np.array(squares))
    best = int(cycles.argmin())
    if not math.isfinite(cycles[best]):
        return squares[-1], math.inf
    return squares[best], float(cycles[best])


@dataclass(frozen=True)
class _Summa:
    rows: int
    columns: int
    steps: int
    resident: bool


def _best_summa(
    sizes: MatmulSizes, machine: MeshDescription, most_rows: int
) -> tuple[_Summa, float]:
    """The best grid and steps for SUMMA and the cycles; all PEs where nothing fits."""
    rows = grid_options(sizes.left, most_rows, _GRID_OPTIONS)
    columns = grid_options(sizes.right, machine.columns, _GRID_OPTIONS)
    most = min(max(rows[-1], columns[-1]), sizes.summed)
    steps = grid_options(most, most, _STEP_OPTIONS)
    grid_rows, grid_columns, grid_steps = np.ix_(rows, columns, steps)
    found, least = _Summa(rows[-1], columns[-1], steps[-1], False), math.inf
    for resident in (False, True)[: 1 + sizes.right_is_constant]:
        cycles = summa_cycles(sizes, machine, grid_rows, grid_columns, grid_steps, resident)
        place = np.unravel_index(int(cycles.argmin()), cycles.shape)
        if cycles[place] < least:
            row, column, step = (int(number) for number in place)
            found = _Summa(rows[row], columns[column], steps[step], resident)
            least = float(cycles[place])
    return found, least
