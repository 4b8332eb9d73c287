"""Matmuls on a mesh: SUMMA, Cannon's algorithm and MeshGEMM as decisions of a schedule."""

import math
from dataclasses import dataclass

import numpy as np
from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV
from tvm_ffi import structural_map

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.wafer.description import WaferDescription
from tvm_ext.tir_schedules.analysis.buffer_access import (
    constant_parameter,
    element_bytes,
    nodes,
    schedule_of,
)
from tvm_ext.tir_schedules.analysis.loop_nest import substitute
from tvm_ext.tir_schedules.statements import changed_loop
from tvm_ext.tir_schedules.template import Decisions
from tvm_ext.tir_schedules.wafer.annotations import (
    COLUMN,
    COMMUNICATION,
    MESH_AXIS,
    PIPELINE,
    ROW,
    VECTOR,
    Pattern,
)
from tvm_ext.tir_schedules.wafer.contraction import WaferContraction
from tvm_ext.tir_schedules.wafer.mesh_partition import cut_loop, grid_options

# On a loop: the order of its steps, by number.
ORDER = "tvm_ext.step_order"

IN_ORDER = 0
CANNON = 1
INTERLEAVED = 2

# Cycles of a matmul on a mesh by default, for many mappings at once.
#
# What the cost function reads from the scheduled loops, in short: in every step a PE computes a
# tile while the messages of the next step are under way. Used for defaults only; the tuner asks
# the cost function itself.


_WORD_BYTES = 4


@dataclass(frozen=True)
class MatmulSizes:
    """Extents of a matmul.

    Attributes
    ----------
    batch, m, n, k : int
        Matmuls; rows of the first operand; columns of the second; terms of each sum.
    right_is_constant : bool
        Whether the second operand is the same in every call.
    dtype : str
        Of the operands.
    element_bytes : int
        Of one of their elements.
    """

    batch: int
    m: int
    n: int
    k: int
    right_is_constant: bool
    dtype: str
    element_bytes: int


class Tiles:
    """Parts of one PE, for arrays of rows, columns and steps that can be broadcast together.

    Attributes
    ----------
    m, n, k : np.ndarray
        Extents of one step's tile.
    """

    def __init__(
        self, sizes: MatmulSizes, rows: np.ndarray, columns: np.ndarray, steps: np.ndarray
    ) -> None:
        self.sizes = sizes
        self.rows, self.columns, self.steps = rows, columns, steps
        self.m = _parts(sizes.m, rows)
        self.n = _parts(sizes.n, columns)
        self.k = _parts(sizes.k, steps)

    def work(self, machine: WaferDescription) -> np.ndarray:
        """[3, ...] cycles of a step, with instructions along N, along M and along K.

        A sum along the instruction is a product of two arrays and an addition for each element.
        """
        start = machine.issue_cycles + machine.loop_cycles
        each = machine.element_cycles(self.sizes.dtype) * machine.conflict_factor
        return np.stack(
            [
                self.m * self.k * (start + each * self.n),
                self.n * self.k * (start + each * self.m),
                self.m * self.n * (2 * start + (each + machine.scalar_cycles) * self.k),
            ]
        )

    def words(self) -> tuple[np.ndarray, np.ndarray]:
        """Of a step's tile of the first and of the second operand."""
        width = self.sizes.element_bytes / _WORD_BYTES
        return self.m * self.k * width, self.n * self.k * width

    def fits(self, machine: WaferDescription, resident: bool) -> np.ndarray:
        """Whether shards, the result's tile and the messages of two steps are within one PE."""
        sizes = self.sizes
        first = self.m * _parts(sizes.k, self.columns)
        second = self.n * (sizes.k if resident else _parts(sizes.k, self.rows))
        under_way = self.m * self.k + (0 if resident else self.n * self.k)
        copies = np.where(self.steps > 1, 2, 1)
        held = first + second + 2 * self.m * self.n + copies * under_way
        return np.asarray(held * sizes.element_bytes <= machine.usable_bytes)


def ring_cycles(sizes: MatmulSizes, machine: WaferDescription, sides: np.ndarray) -> np.ndarray:
    """MeshGEMM on squares of ``sides`` PEs a side; infinite where a tile does not fit."""
    tiles = Tiles(sizes, sides, sides, sides)
    first, second = tiles.words()
    messages = first + second + 2 * machine.transfer_cycles + 2 * machine.hop_cycles
    cycles = _in_steps(tiles, messages, machine)
    return np.where(tiles.fits(machine, resident=False), cycles, math.inf)


def summa_cycles(
    sizes: MatmulSizes,
    machine: WaferDescription,
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


def _way(tiles: Tiles, extent: np.ndarray, machine: WaferDescription) -> np.ndarray:
    """Hops along a line of ``extent`` PEs, and what passing on from sender to sender takes."""
    senders = np.minimum(_parts(tiles.k, _parts(tiles.sizes.k, extent)), extent)
    routes = max(1, machine.usable_colours // 2)
    relays = np.maximum(_parts(np.minimum(tiles.steps * senders, extent), routes) - 1, 0)
    return extent * machine.hop_cycles + (relays + senders - 1) * machine.relay_cycles


def _in_steps(tiles: Tiles, messages: np.ndarray, machine: WaferDescription) -> np.ndarray:
    work = tiles.work(machine).min(axis=0)
    return messages + (tiles.steps - 1) * np.maximum(messages, work) + work


def _parts(extent: int | np.ndarray, count: int | np.ndarray) -> np.ndarray:
    return np.asarray(-(-np.asarray(extent) // count))


# What may be decided about a matmul on a mesh, and the default heuristic.


SUMMA = 0

# Which loop one vector instruction goes along.
ON_RIGHT, ON_LEFT, ON_SUMMED = 0, 1, 2

# Most grids, and most numbers of steps, that a tuner and the default heuristic choose from.
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
    sizes: MatmulSizes, machine: WaferDescription, decisions: Decisions
) -> MatmulMapping:
    """The decisions of one kernel, each with what the ones before it leave.

    By default, the mapping with the fewest cycles among MeshGEMM on squares of PEs
    (``ring_cycles``), SUMMA, and SUMMA with a constant second operand in place (``summa_cycles``).
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
        rows = decisions.pick("rows", grid_options(sizes.m, most_rows, _GRID_OPTIONS), plan.rows)
        columns = decisions.pick(
            "columns", grid_options(sizes.n, machine.columns, _GRID_OPTIONS), plan.columns
        )
        places = (0, 1) if sizes.right_is_constant else (0,)
        resident = bool(decisions.pick("resident", places, int(plan.resident)))
        most = min(max(rows, columns), sizes.k)
        steps = decisions.pick(
            "steps", grid_options(most, most, _STEP_OPTIONS), min(plan.steps, most)
        )
    overlapped = bool(decisions.pick("overlapped", (0, 1), 1)) if steps > 1 else False
    tiles = Tiles(sizes, *(np.asarray(count) for count in (rows, columns, steps)))
    quickest = int(tiles.work(machine).argmin())
    vector = decisions.pick("vector", (ON_RIGHT, ON_LEFT, ON_SUMMED), quickest)
    return MatmulMapping(groups, rows, columns, algorithm, steps, resident, overlapped, vector)


def _square_options(sizes: MatmulSizes, machine: WaferDescription, most_rows: int) -> list[int]:
    most = min(most_rows, machine.columns, sizes.k)
    longest = max(sizes.m, sizes.n)
    return [option for option in grid_options(longest, most, _GRID_OPTIONS) if option <= most] or [
        1
    ]


def _best_ring(
    sizes: MatmulSizes, machine: WaferDescription, squares: list[int]
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
    sizes: MatmulSizes, machine: WaferDescription, most_rows: int
) -> tuple[_Summa, float]:
    """The best grid and steps for SUMMA and the cycles; all PEs where nothing fits."""
    rows = grid_options(sizes.m, most_rows, _GRID_OPTIONS)
    columns = grid_options(sizes.n, machine.columns, _GRID_OPTIONS)
    most = min(max(rows[-1], columns[-1]), sizes.k)
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


_PATTERNS = {
    SUMMA: (Pattern.MULTICAST_ROW, Pattern.MULTICAST_COLUMN),
    CANNON: (Pattern.SHIFT_ROW, Pattern.SHIFT_COLUMN),
    INTERLEAVED: (Pattern.SHIFT_ROW, Pattern.SHIFT_COLUMN),
}


class WaferMatmul:
    """Matmuls, or batches of them, with what is computed from the result.

    The result stays where it is, a tile in each PE; the operands' tiles move: to all PEs of a row
    or column in each step (SUMMA, R. van de Geijn and J. Watts, 1997), or from neighbour to
    neighbour (Cannon; MeshGEMM, whose ring has neighbours at most two hops apart). A constant
    second operand may stay too, as often as there are rows of PEs.
    """

    name = "wafer matmul"
    machine_type = WaferDescription

    def apply(
        self, func: tirx.PrimFunc, machine: WaferDescription, decisions: Decisions
    ) -> s_tir.Schedule:
        """See ``Template.apply``."""
        sch = schedule_of(func)
        found = WaferContraction.of(sch)
        loops = [found.longest(group) for group in (found.m, found.n, found.k)]
        if None in loops:
            raise NotApplicable("an operand is a vector, or nothing is summed")
        if any(None in dims for dims in found.dims):
            raise NotApplicable("an operand is read by windows")
        left, right, summed = (loop for loop in loops if loop is not None)
        batch = found.longest(found.batch)
        sizes = MatmulSizes(
            batch=found.extents[batch] if batch is not None else 1,
            m=found.extents[left],
            n=found.extents[right],
            k=found.extents[summed],
            right_is_constant=constant_parameter(func, found.buffers[1]) is not None,
            dtype=str(found.buffers[0].dtype),
            element_bytes=element_bytes(found.buffers[0]),
        )
        mapping = decide_matmul(sizes, machine, decisions)
        _schedule(sch, found, (left, right, summed), mapping)
        return sch


def _schedule(
    sch: s_tir.Schedule,
    contraction: WaferContraction,
    loops: tuple[int, int, int],
    mapping: MatmulMapping,
) -> None:
    left, right, summed = loops
    every = list(sch.get_loops(contraction.block))
    batch = contraction.longest(contraction.batch)
    outer: list[LoopRV] = []
    inner_batch: list[LoopRV] = []
    if batch is not None:
        group, rest = cut_loop(sch, every[batch], mapping.groups)
        sch.annotate(group, MESH_AXIS, ROW)
        outer.append(group)
        inner_batch.append(rest)
    i0, i1 = cut_loop(sch, every[left], mapping.rows)
    j0, j1 = cut_loop(sch, every[right], mapping.columns)
    k0, k1 = cut_loop(sch, every[summed], mapping.steps)
    others = [loop for position, loop in enumerate(every) if position not in (*loops, batch)]
    inner = {ON_SUMMED: k1, ON_LEFT: i1, ON_RIGHT: j1}
    vector = inner.pop(mapping.vector)
    sch.reorder(*outer, i0, j0, *inner_batch, k0, *others, *inner.values(), vector)
    sch.annotate(i0, MESH_AXIS, ROW)
    sch.annotate(j0, MESH_AXIS, COLUMN)
    sch.annotate(k0, PIPELINE, 1 + mapping.overlapped)
    sch.annotate(vector, VECTOR, 1)
    if mapping.algorithm != SUMMA:
        sch.annotate(k0, ORDER, mapping.algorithm)
    result = sch.cache_write(contraction.block, 0, "local")
    for number, pattern in enumerate(_PATTERNS[mapping.algorithm]):
        if number == 1 and mapping.resident:
            continue
        tile = sch.cache_read(contraction.block, number, "local")
        sch.compute_at(tile, k0)
        sch.annotate(tile, COMMUNICATION, pattern)
    # What follows the sum is computed where the sum is.
    if contraction.last is not None:
        sch.reverse_compute_inline(contraction.last)
    sch.reverse_compute_at(result, inner_batch[0] if inner_batch else j0)
    sch.decompose_reduction(contraction.block, k0)
    _state_homes(sch, contraction, loops, mapping)


def _state_homes(
    sch: s_tir.Schedule,
    contraction: WaferContraction,
    loops: tuple[int, int, int],
    mapping: MatmulMapping,
) -> None:
    """Operands lie cut in both dimensions, their tiles where the algorithm needs them first."""
    left, right, summed = loops
    batch = contraction.longest(contraction.batch)
    words = (
        {left: f"{ROW}/{mapping.rows}", summed: f"{COLUMN}/{mapping.columns}"},
        {right: f"{COLUMN}/{mapping.columns}"},
    )
    if not mapping.resident:
        words[1][summed] = f"{ROW}/{mapping.rows}"
    if batch is not None:
        for cut in words:
            cut[batch] = f"{ROW}/{mapping.groups}"
    contraction.state_homes(sch, *words)


# Steps whose order differs from PE to PE, so that tiles can be handed on around a ring.
#
# TVM's primitives cannot turn the order of a loop by an amount that depends on other loops, so the
# finished kernel is rewritten: in each step, a PE takes another part of the sum, and each part
# once.


def with_skewed_steps(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` with the steps of its annotated loops in the order that the annotation names.

    CANNON: PE (i, j) begins with part i + j and goes on in order: each part moves to the next PE of
    the row and column, and from the last to the first (L. E. Cannon, "A cellular computer to
    implement the Kalman filter algorithm", 1969). INTERLEAVED: the same on a ring that goes out
    over the even PEs and back over the odd ones, so that no two neighbours of the ring are more
    than two hops apart (C. He et al., "WaferLLM", OSDI 2025, MeshGEMM).
    """
    loops = nodes(func.body, tirx.For)
    # The innermost loop of an axis numbers the PEs of one product.
    lines = {str(one.annotations.get(MESH_AXIS, "")): one.loop_var for one in loops}

    def transposed(loop: tirx.For) -> tirx.For:
        order = int(loop.annotations.get(ORDER, IN_ORDER))
        if order == IN_ORDER:
            return loop
        part = _part(order, loop.loop_var, loop.extent, lines[ROW], lines[COLUMN])
        notes = {key: value for key, value in loop.annotations.items() if key != ORDER}
        body = substitute(loop.body, {loop.loop_var: part})
        return changed_loop(loop, body=body, annotations=notes)

    return func.with_body(structural_map(func.body, (tirx.For, transposed)))


def _part(order: int, step: tirx.Expr, count: tirx.Expr, i: tirx.Expr, j: tirx.Expr) -> tirx.Expr:
    """Which part of the sum PE (i, j) takes in a step."""
    if order == CANNON:
        return tirx.floormod(step + i + j, count)
    place = tirx.floormod(step + _ring_place(i, count) + _ring_place(j, count), count)
    return tirx.Select(2 * place < count, 2 * place, 2 * (count - 1 - place) + 1)


def _ring_place(pe: tirx.Expr, count: tirx.Expr) -> tirx.Expr:
    """Where a PE of a line is on the interleaved ring."""
    half = tirx.floordiv(pe, 2)
    return tirx.Select(tirx.floormod(pe, 2) == 0, half, count - 1 - half)
