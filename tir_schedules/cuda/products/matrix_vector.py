"""Matrix times vector: bound by the bandwidth at which the matrix is read, once.

The floor is the matrix's bytes over the memory's rate. Every thread loads pieces of 16 bytes of the
matrix, several at a time, and adds up its share of the steps in registers. What the threads of a
block have of one result is added through shared memory, in the order of the threads, and bias and
activation are applied where it is written.
"""

from dataclasses import dataclass, replace

from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvm_ext.hardware.description import GpuDescription
from tvm_ext.tir_schedules.block_access import BlockAccess, element_bytes
from tvm_ext.tir_schedules.cuda.products.contraction_decision import MAX_BATCH
from tvm_ext.tir_schedules.cuda.products.following_kernels import schedule_following
from tvm_ext.tir_schedules.cuda.products.matrix_vector_decision import (
    MatrixVectorProduct,
    ThreadShares,
    decide_shares,
)
from tvm_ext.tir_schedules.cuda.products.product_axes import ProductAxes, loads_of, product_axes
from tvm_ext.tir_schedules.cuda.products.product_form import (
    ACCUMULATORS,
    access_of_reduction,
    as_product,
    only_reduction,
)
from tvm_ext.tir_schedules.cuda.products.shared_tile import (
    inline_consumers,
    inline_producers,
    widest_copy,
)
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions
from tvm_ext.tir_schedules.template import Machine, NotMine

SHARED_VECTOR = 2
"""Sums that a thread writes to shared memory at a time."""

_ACCUMULATORS = {**ACCUMULATORS, "float64": "float64", "int32": "int32", "int64": "int64"}


@dataclass(frozen=True)
class MatrixVector:
    """Kernels with one sum of products of two operands, one of which has a single row."""

    name = "matrix vector"

    def apply(
        self, func: tirx.PrimFunc, machine: Machine, decisions: Decisions = CLOSED_FORM
    ) -> s_tir.Schedule | NotMine:
        """See ``Template.apply``. Decisions: those of ``decide_shares``."""
        if not isinstance(machine, GpuDescription):
            return NotMine("the target is not a GPU")
        sch = s_tir.Schedule(func)
        main = only_reduction(sch)
        if isinstance(main, NotMine):
            return main
        access = access_of_reduction(sch, main)
        if isinstance(access, NotMine):
            return access
        axes = _matrix_first(access, sch.get(main))
        if isinstance(axes, NotMine):
            return axes
        accumulator = _accumulator(sch.get(main))
        if isinstance(accumulator, NotMine):
            return accumulator
        product = MatrixVectorProduct(
            batch=axes.size(axes.batch),
            rows=axes.size(axes.rows),
            steps=axes.size(axes.steps),
            element_bytes=element_bytes(loads_of(sch.get(main))[axes.operands[0]].source),
            depth_last=axes.depth_last[0],
        )
        if product.batch > MAX_BATCH:
            return NotMine(f"it has {product.batch} products; expected at most {MAX_BATCH}")
        if product.batch * product.rows == 1:
            return NotMine("it is one sum of products, a row to reduce")
        sch, main = as_product(sch, main, axes, accumulator)
        shares = decide_shares(product, _vector(sch, main), machine, decisions)
        return _scheduled(sch, main, shares)


def _matrix_first(access: BlockAccess, block: s_tir.SBlock) -> ProductAxes | NotMine:
    """The axes with the matrix as first operand, whose rows are those of the result."""
    axes = product_axes(access, block)
    if isinstance(axes, NotMine):
        return axes
    if min(axes.size(axes.rows), axes.size(axes.columns)) > 1:
        return NotMine("it has several rows and several columns")
    if axes.size(axes.steps) < 2:
        return NotMine("it has a single step")
    if axes.size(axes.columns) > 1:
        axes = replace(
            axes,
            rows=axes.columns,
            columns=(),
            operands=(axes.operands[1], axes.operands[0]),
            depth_last=(axes.depth_last[1], axes.depth_last[0]),
        )
    strides = access.read_strides[axes.operands[0]]
    neighbours = [a for a, stride in enumerate(strides) if stride == 1 and access.extents[a] > 1]
    if any(axis in axes.batch for axis in neighbours):
        return NotMine("neighbours of an operand belong to different products")
    steps = sorted(axes.steps, key=lambda axis: -abs(strides[axis] or 1 << 60))
    return replace(axes, steps=tuple(steps))


def _accumulator(block: s_tir.SBlock) -> str | NotMine:
    """The type in which the products of a block are added up."""
    loads = loads_of(block)
    if not loads:
        return NotMine("it adds up something other than products of two operands")
    dtypes = sorted({str(load.source.dtype) for load in loads})
    accumulator, written = _ACCUMULATORS.get(dtypes[0]), str(block.writes[0].source.dtype)
    if len(dtypes) > 1 or accumulator is None:
        return NotMine(f"it multiplies {', '.join(dtypes)}")
    if written not in (accumulator, dtypes[0]) or (written != accumulator == "int32"):
        return NotMine(f"it adds up products of {dtypes[0]} in {written}")
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
