"""Matrix times vector: bound by the bandwidth at which the matrix is read, once.

The floor is the matrix's bytes over the memory's rate. Every thread loads pieces of 16 bytes of
the matrix, several at a time, and adds up its share of the steps in registers. What the threads
of a block have of one result is added through shared memory, in the order of the threads, and
bias and activation are applied where it is written.
"""

import math
from dataclasses import dataclass, replace

from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.hardware.matrix_instructions import WARP_INSTRUCTIONS
from tvm_ext.tir_schedules.analysis.buffer_access import (
    BlockAccess,
    access_of_reduction,
    element_bytes,
    schedule_of,
)
from tvm_ext.tir_schedules.analysis.contraction import factors_of
from tvm_ext.tir_schedules.cuda.matmul.matmul_decision import MAX_BATCH
from tvm_ext.tir_schedules.cuda.matmul.matmul_form import MatmulAxes, as_matmul, matmul_axes
from tvm_ext.tir_schedules.cuda.matmul.shared_tile import (
    inline_consumers,
    inline_producers,
    schedule_following,
    widest_copy,
)
from tvm_ext.tir_schedules.cuda.vector_group import power_above, powers_up
from tvm_ext.tir_schedules.template import Decisions

# How the threads of a block share the rows and steps of a matrix times a vector.


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
class GemvProblem:
    """``batch`` matrices of ``m x k``, each multiplied with a vector of ``k`` elements.

    ``depth_last``: whether elements along K, not along M, are neighbours in memory.
    """

    batch: int
    m: int
    k: int
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
    product: GemvProblem, vector: int, machine: CudaDescription, decisions: Decisions
) -> ThreadShares:
    """The shares of the threads; ``vector`` neighbours of the matrix are one piece of memory.

    Decisions: ``row_threads``, ``step_threads``, ``unrolled``.
    """
    step_vector = min(vector, power_above(product.k)) if product.depth_last else 1
    row_vector = 1 if product.depth_last else min(vector, power_above(product.m))
    row_groups = math.ceil(product.m / row_vector)
    step_groups = math.ceil(product.k / step_vector)
    row_options = powers_up(min(THREADS, power_above(row_groups)))
    closed = _row_threads(product, row_vector, step_groups, row_options, machine)
    rows = decisions.pick("row_threads", row_options, closed)
    most = min(THREADS // rows, MAX_STEP_THREADS, power_above(step_groups))
    steps = decisions.pick("step_threads", powers_up(most), most)
    rounds = math.ceil(step_groups / steps)
    options = [*powers_up(min(MAX_UNROLLED, power_above(rounds))), _unrolled(rounds)]
    unrolled = decisions.pick("unrolled", options, _unrolled(rounds))
    return ThreadShares(rows, steps, row_vector, step_vector, unrolled, product.depth_last)


def _row_threads(
    product: GemvProblem,
    vector: int,
    step_groups: int,
    options: list[int],
    machine: CudaDescription,
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
    step_threads = min(MAX_STEP_THREADS, power_above(step_groups))
    while count * step_threads < THREADS and count < options[-1]:
        count *= 2
    return min(count, options[-1])


def _blocks(product: GemvProblem, rows: int) -> int:
    return product.batch * math.ceil(product.m / rows)


def _unrolled(rounds: int) -> int:
    """The largest number of loads that divides the rounds, if there is one above 2."""
    divisors = [count for count in range(1, MAX_UNROLLED + 1) if rounds % count == 0]
    return divisors[-1] if divisors[-1] > 2 or rounds <= 2 else MAX_UNROLLED // 2


SHARED_VECTOR = 2
"""Sums that a thread writes to shared memory at a time."""

_ACCUMULATORS = {dtype: row.accumulator for dtype, row in WARP_INSTRUCTIONS.items()}
_ACCUMULATORS |= {dtype: dtype for dtype in ("float64", "int32", "int64")}


@dataclass(frozen=True)
class Gemv:
    """Kernels with one contraction of two operands, one of which has a single row."""

    name = "gemv"
    machine_type = CudaDescription

    def apply(
        self, func: tirx.PrimFunc, machine: CudaDescription, decisions: Decisions
    ) -> s_tir.Schedule:
        """See ``Template.apply``. Decisions: those of ``decide_shares``."""
        sch = schedule_of(func)
        access = access_of_reduction(sch)
        main = access.block
        axes = _matrix_first(access, sch.get(main))
        accumulator = _accumulator(sch.get(main))
        product = GemvProblem(
            batch=axes.size(axes.batch),
            m=axes.size(axes.m),
            k=axes.size(axes.k),
            element_bytes=element_bytes(factors_of(sch.get(main))[axes.operands[0]].source),
            depth_last=axes.depth_last[0],
        )
        if product.batch > MAX_BATCH:
            raise NotApplicable(f"its batch is {product.batch}; expected at most {MAX_BATCH}")
        if product.batch * product.m == 1:
            raise NotApplicable("it is one contraction, a row to reduce")
        sch, main = as_matmul(sch, main, axes, accumulator)
        shares = decide_shares(product, _vector(sch, main), machine, decisions)
        return _scheduled(sch, main, shares)


def _matrix_first(access: BlockAccess, block: s_tir.SBlock) -> MatmulAxes:
    """The axes with the matrix as first operand, whose rows are those of the result."""
    axes = matmul_axes(access, block)
    if min(axes.size(axes.m), axes.size(axes.n)) > 1:
        raise NotApplicable("it has several rows and several columns")
    if axes.size(axes.k) < 2:
        raise NotApplicable("it has a single step")
    if axes.size(axes.n) > 1:
        axes = axes.swapped()
    strides = access.read_strides[axes.operands[0]]
    neighbours = [a for a, stride in enumerate(strides) if stride == 1 and access.extents[a] > 1]
    if any(axis in axes.batch for axis in neighbours):
        raise NotApplicable("neighbours of an operand belong to different matmuls of the batch")
    steps = sorted(axes.k, key=lambda axis: -abs(strides[axis] or 1 << 60))
    return replace(axes, k=tuple(steps))


def _accumulator(block: s_tir.SBlock) -> str:
    """The type in which the products of a block are added up."""
    loads = factors_of(block)
    if not loads:
        raise NotApplicable("it adds up something other than products of two operands")
    dtypes = sorted({str(load.source.dtype) for load in loads})
    accumulator, written = _ACCUMULATORS.get(dtypes[0]), str(block.writes[0].source.dtype)
    if len(dtypes) > 1 or accumulator is None:
        raise NotApplicable(f"it multiplies {', '.join(dtypes)}")
    if written not in (accumulator, dtypes[0]) or (written != accumulator == "int32"):
        raise NotApplicable(f"it adds up products of {dtypes[0]} in {written}")
    return accumulator


def _vector(sch: s_tir.Schedule, main: SBlockRV) -> int:
    """Neighbours of the matrix that are one aligned piece of memory."""
    trial = sch.copy()
    copy = trial.cache_read(trial.get_sblock(sch.get(main).name_hint), 0, "local")
    inline_producers(trial, copy)
    return widest_copy(trial.get(copy))


def _scheduled(sch: s_tir.Schedule, main: SBlockRV, shares: ThreadShares) -> s_tir.Schedule:
    sch.pad_einsum(main, [1, shares.rows, 1, shares.round_steps])
    *_, steps = sch.get_loops(main)
    factors = [None, shares.unrolled, shares.step_threads, shares.step_vector]
    rounds, unrolled, group, vector = sch.split(steps, factors)
    partial = sch.rfactor(group, 0)
    batch, row, column, rounds, unrolled, group, vector = sch.get_loops(partial)
    row_block, row_thread, row_vector = sch.split(
        row, [None, shares.row_threads, shares.row_vector]
    )
    threads = (row_thread, group) if shares.depth_last else (group, row_thread)
    own = (rounds, unrolled, row_vector, vector)
    sch.reorder(batch, column, row_block, *threads, *own)
    sch.bind(sch.fuse(batch, column), "blockIdx.y")
    sch.bind(row_block, "blockIdx.x")
    thread = sch.fuse(*threads)
    sch.bind(thread, "threadIdx.x")
    _load(sch, partial, unrolled, shares)
    kept = sch.cache_write(partial, 0, "local")
    sch.set_scope(kept, 0, "shared")
    sch.reverse_compute_at(kept, thread)
    if shares.row_vector > 1:
        rest, lanes = sch.split(
            sch.get_loops(kept)[-1], [None, min(shares.row_vector, SHARED_VECTOR)]
        )
        sch.unroll(rest)
        sch.vectorize(lanes)
    for loop in (unrolled, row_vector, vector):
        sch.unroll(loop)
    sch.decompose_reduction(partial, rounds)
    _added_up(sch, main, row_block, shares)
    return sch


def _load(sch: s_tir.Schedule, partial: SBlockRV, at: LoopRV, shares: ThreadShares) -> None:
    """Loads what one round of a thread needs, in wide accesses where there are neighbours."""
    for operand in (0, 1):
        copy = sch.cache_read(partial, operand, "local")
        sch.compute_at(copy, at)
        inline_producers(sch, copy)
        neighbours = shares.step_vector if shares.depth_last else shares.row_vector
        if neighbours == 1 or (operand == 1 and not shares.depth_last):
            continue
        *_, last = sch.get_loops(copy)
        rest, lanes = sch.split(last, [None, min(neighbours, widest_copy(sch.get(copy)))])
        sch.unroll(rest)
        sch.vectorize(lanes)


def _added_up(
    sch: s_tir.Schedule, total: SBlockRV, row_block: LoopRV, shares: ThreadShares
) -> None:
    """Adds up the threads' shares of each row, and applies to the sum what follows."""
    results = sch.cache_write(total, 0, "local")
    sch.reverse_compute_at(total, row_block)
    sch.reverse_compute_at(results, row_block)
    inline_consumers(sch, results)
    inner = sch.get_loops(total)[2:]
    _by_threads(sch, results, shares)
    thread = _by_threads(sch, total, shares)
    if shares.step_threads > 1:
        sch.reorder(thread, inner[0])
        sch.decompose_reduction(total, inner[0])
    schedule_following(sch)


def _by_threads(sch: s_tir.Schedule, block: SBlockRV, shares: ThreadShares) -> LoopRV:
    """Gives each row of a block's results to a thread; returns the loop over the threads."""
    row = sch.get_loops(block)[-1] if shares.rows > 1 else sch.add_unit_loop(block)
    _, thread = sch.split(row, [None, shares.threads])
    sch.bind(thread, "threadIdx.x")
    return thread
