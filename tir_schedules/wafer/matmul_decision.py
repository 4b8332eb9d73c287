"""What may be decided about a product on a mesh, and the closed form."""

from collections.abc import Sequence
from dataclasses import dataclass

from tvm_ext.hardware.mesh_description import MeshDescription
from tvm_ext.tir_schedules.decisions import Decisions
from tvm_ext.tir_schedules.wafer.grid_options import grid_options
from tvm_ext.tir_schedules.wafer.skewed_steps import CANNON, INTERLEAVED

SUMMA = 0

# Which loop one vector instruction goes along.
ON_RIGHT, ON_LEFT, ON_SUMMED = 0, 1, 2

# Bytes of an element, where it is only about what fits.
_ELEMENT_BYTES = 4


@dataclass(frozen=True)
class MatmulSizes:
    """Extents of a product.

    Attributes
    ----------
    batch, left, right, summed : int
        Products; rows of the first operand; columns of the second; what is summed.
    right_is_constant : bool
        Whether the second operand is the same in every call.
    """

    batch: int
    left: int
    right: int
    summed: int
    right_is_constant: bool


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

    In closed form, MeshGEMM on the largest square whose steps still take as long as their messages;
    or, if that takes fewer cycles, all of the sum in one step with a constant second operand in
    place.
    """
    most_groups = min(sizes.batch, machine.rows)
    groups = decisions.pick("groups", grid_options(most_groups, most_groups), most_groups)
    most_rows = machine.rows // groups
    ring = _ring(sizes, machine, most_rows)
    whole = _in_one_step(sizes, machine, groups, most_rows)
    usual = ring
    if whole is not None and _cycles(sizes, whole, machine) < _cycles(sizes, ring, machine):
        usual = whole
    algorithm = decisions.pick("algorithm", (SUMMA, CANNON, INTERLEAVED), usual.algorithm)
    if algorithm != SUMMA:
        options = _square_options(sizes, machine, most_rows)
        rows = columns = steps = decisions.pick("rows", options, ring.rows)
        resident = False
    else:
        plan = whole or _summa(sizes, machine, ring)
        rows = decisions.pick("rows", grid_options(sizes.left, most_rows), plan.rows)
        columns = decisions.pick(
            "columns", grid_options(sizes.right, machine.columns), plan.columns
        )
        places = (0, 1) if sizes.right_is_constant else (0,)
        resident = bool(decisions.pick("resident", places, int(plan.resident)))
        most = min(max(rows, columns), sizes.summed)
        steps = decisions.pick("steps", grid_options(most, most, 8), min(plan.steps, most))
    overlapped = bool(decisions.pick("overlapped", (0, 1), 1)) if steps > 1 else False
    tile = _tile(sizes, rows, columns, steps)
    longest = max((ON_RIGHT, ON_LEFT, ON_SUMMED), key=lambda loop: tile[loop])
    vector = decisions.pick("vector", (ON_RIGHT, ON_LEFT, ON_SUMMED), longest)
    return MatmulMapping(groups, rows, columns, algorithm, steps, resident, overlapped, vector)


def _tile(sizes: MatmulSizes, rows: int, columns: int, steps: int) -> tuple[int, int, int]:
    """Extents of one PE's part of a step, by the loop: right, left, summed."""
    pieces = ((sizes.right, columns), (sizes.left, rows), (sizes.summed, steps))
    right, left, summed = (-(-extent // count) for extent, count in pieces)
    return right, left, summed


def _square_options(sizes: MatmulSizes, machine: MeshDescription, most_rows: int) -> list[int]:
    most = min(most_rows, machine.columns, sizes.summed)
    longest = max(sizes.left, sizes.right)
    return [option for option in grid_options(longest, most) if option <= most] or [1]


def _ring(sizes: MatmulSizes, machine: MeshDescription, most_rows: int) -> MatmulMapping:
    """MeshGEMM with the most PEs a side whose work of a step still takes as long as its messages.

    With more of them, each step waits for messages, and there are as many steps as PEs in a row.
    """
    options = _square_options(sizes, machine, most_rows)
    chosen = options[0]
    for option in options:
        if _work(_tile(sizes, option, option, option), machine) >= 2 * machine.transfer_cycles:
            chosen = option
    return MatmulMapping(1, chosen, chosen, INTERLEAVED, chosen, False, True, ON_LEFT)


def _summa(sizes: MatmulSizes, machine: MeshDescription, ring: MatmulMapping) -> MatmulMapping:
    rows = min(ring.rows, sizes.left)
    columns = min(ring.columns, sizes.right, machine.columns)
    return MatmulMapping(1, rows, columns, SUMMA, max(rows, columns), False, True, ON_LEFT)


def _in_one_step(
    sizes: MatmulSizes, machine: MeshDescription, groups: int, most_rows: int
) -> MatmulMapping | None:
    """As many PEs as there are results for, each with its columns of the second operand."""
    rows, columns = min(sizes.left, most_rows), min(sizes.right, machine.columns)
    right, left, summed = _tile(sizes, rows, columns, 1)
    held = _ELEMENT_BYTES * (summed * (right + 2 * left) + left * right)
    if not sizes.right_is_constant or held > machine.usable_bytes:
        return None
    return MatmulMapping(groups, rows, columns, SUMMA, 1, True, False, ON_SUMMED)


def _work(tile: Sequence[int], machine: MeshDescription) -> float:
    """Cycles of one step, with instructions along the longest loop."""
    *others, longest = sorted(tile)
    start = machine.issue_cycles + machine.loop_cycles
    each = machine.cycles_per_element["float32"] * machine.conflict_factor
    return others[0] * others[1] * (start + each * longest)


def _cycles(sizes: MatmulSizes, mapping: MatmulMapping, machine: MeshDescription) -> float:
    """Cycles of one product."""
    right, left, summed = _tile(sizes, mapping.rows, mapping.columns, mapping.steps)
    work = _work((right, left, summed), machine)
    words = left * summed + (0 if mapping.resident else right * summed)
    messages = (1 if mapping.resident else 2) * machine.transfer_cycles + words
    if mapping.steps == 1:
        return work + messages + mapping.columns
    return mapping.steps * max(work, messages)
