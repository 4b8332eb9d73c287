"""How the threads of a block share the rows and steps of a matrix times a vector."""

import math
from dataclasses import dataclass

from tvm_ext.hardware.description import GpuDescription
from tvm_ext.tir_schedules.decisions import Decisions

THREADS = 256
MAX_STEP_THREADS = 128
"""One thread adds up the shares of a row: more of them would wait for it longer than they save."""

SECTOR_BYTES = 32
TRANSFER_BYTES = 64
"""What L2 and the device memory transfer at least: neighbouring threads read as much."""

# Blocks for each multiprocessor below which a block gets fewer rows: down to a transfer, and to a
# sector.
FEW_BLOCKS, VERY_FEW_BLOCKS = 0.75, 0.25

MAX_UNROLLED = 8


@dataclass(frozen=True)
class MatrixVectorProduct:
    """``batch`` matrices of ``rows x steps``, each multiplied with a vector of ``steps``.

    ``depth_last``: whether steps, not rows, are neighbours in memory.
    """

    batch: int
    rows: int
    steps: int
    element_bytes: int
    depth_last: bool


@dataclass(frozen=True)
class ThreadShares:
    """What each thread of a block does.

    Attributes
    ----------
    row_threads, step_threads : int
        Threads along the rows and along the steps; together those of a block.
    row_vector, step_vector : int
        Neighbours that a thread loads at a time; one of them is 1.
    unrolled : int
        Loads of a thread that are in flight together.
    depth_last : bool
        Whether neighbouring threads are along the steps.
    """

    row_threads: int
    step_threads: int
    row_vector: int
    step_vector: int
    unrolled: int
    depth_last: bool

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.row_threads * self.step_threads

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return self.row_threads * self.row_vector

    @property
    def round_steps(self) -> int:
        """Steps that a block takes in one round of its loop."""
        return self.step_threads * self.step_vector * self.unrolled


def decide_shares(
    product: MatrixVectorProduct, vector: int, machine: GpuDescription, decisions: Decisions
) -> ThreadShares:
    """The shares of the threads; ``vector`` neighbours of the matrix are one piece of memory.

    Decisions: ``row_threads``, ``step_threads``, ``unrolled``.
    """
    step_vector = min(vector, _power_above(product.steps)) if product.depth_last else 1
    row_vector = 1 if product.depth_last else min(vector, _power_above(product.rows))
    row_groups = math.ceil(product.rows / row_vector)
    step_groups = math.ceil(product.steps / step_vector)
    row_options = _powers(min(THREADS, _power_above(row_groups)))
    closed = _row_threads(product, row_vector, step_groups, row_options, machine)
    rows = decisions.pick("row_threads", row_options, closed)
    most = min(THREADS // rows, MAX_STEP_THREADS, _power_above(step_groups))
    steps = decisions.pick("step_threads", _powers(most), most)
    rounds = math.ceil(step_groups / steps)
    unrolled = decisions.pick("unrolled", _unrolled_options(rounds), _unrolled(rounds))
    return ThreadShares(rows, steps, row_vector, step_vector, unrolled, product.depth_last)


def _row_threads(
    product: MatrixVectorProduct,
    vector: int,
    step_groups: int,
    options: list[int],
    machine: GpuDescription,
) -> int:
    """As many rows in a block as leave no multiprocessor idle, and as few as fill the transfers."""
    along = 1 if product.depth_last else vector * product.element_bytes
    count = THREADS // machine.warp_size if product.depth_last else machine.warp_size
    limits = ((FEW_BLOCKS, TRANSFER_BYTES), (VERY_FEW_BLOCKS, SECTOR_BYTES))
    for share, nbytes in limits:
        least = 1 if product.depth_last else max(1, nbytes // along)
        while count > least and _blocks(product, count * vector) < share * machine.sms:
            count //= 2
    # Threads that find no steps get rows instead.
    step_threads = min(MAX_STEP_THREADS, _power_above(step_groups))
    while count * step_threads < THREADS and count < options[-1]:
        count *= 2
    return min(count, options[-1])


def _blocks(product: MatrixVectorProduct, rows: int) -> int:
    return product.batch * math.ceil(product.rows / rows)


def _unrolled_options(rounds: int) -> list[int]:
    return [*_powers(min(MAX_UNROLLED, _power_above(rounds))), _unrolled(rounds)]


def _unrolled(rounds: int) -> int:
    """The largest number of loads that divides the rounds, if there is one above 2."""
    divisors = [count for count in range(1, MAX_UNROLLED + 1) if rounds % count == 0]
    return divisors[-1] if divisors[-1] > 2 or rounds <= 2 else MAX_UNROLLED // 2


def _powers(most: int) -> list[int]:
    return [1 << exponent for exponent in range(most.bit_length())]


def _power_above(count: int) -> int:
    return 1 << max(0, count - 1).bit_length()
