"""Matmul and convolution: multistage tiles in shared memory, multiplied by the tensor cores.

A block of threads computes one tile of results. The operands' tiles come into shared memory by
asynchronous copies, several steps ahead; each warp multiplies what it loads from there. The
finished tile goes through shared memory once more, so that bias, activation and residual are
applied where it is written in whole rows. Products of float32 are added up in registers,
without tensor cores. Few tiles with a long reduction are split along it (split-K).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV
from tvm_ffi import structural_walk

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.hardware.matrix_instructions import (
    THREAD_INSTRUCTIONS,
    WARP_INSTRUCTIONS,
    MatrixInstruction,
)
from tvm_ext.tir_schedules.analysis.buffer_access import (
    access_of_reduction,
    buffer_bytes,
    constant_parameter,
    element_bytes,
    nodes,
    operands_of,
    schedule_of,
    static_extent,
    writer_of,
)
from tvm_ext.tir_schedules.analysis.contraction import factors_of, loops_of_dimensions
from tvm_ext.tir_schedules.cuda.launch import with_nominal_sizes
from tvm_ext.tir_schedules.cuda.matmul.matmul_decision import (
    MAX_BATCH,
    WARP_TILES,
    MatmulProblem,
    MatmulTileSizes,
    decide_tiles,
    rounds_of,
    steps_of_block,
)
from tvm_ext.tir_schedules.cuda.matmul.matmul_form import MatmulAxes, as_matmul, matmul_axes
from tvm_ext.tir_schedules.cuda.matmul.matmul_mainloop import (
    OWN,
    REGISTER_DEPTH,
    REGISTER_TILES,
    schedule_registers,
    schedule_warps,
)
from tvm_ext.tir_schedules.cuda.matmul.shared_tile import (
    VECTOR_BYTES,
    inline_consumers,
    inline_producers,
    schedule_following,
    widest_copy,
)
from tvm_ext.tir_schedules.packing import PaddedOperand
from tvm_ext.tir_schedules.statements import in_root_block, sequence
from tvm_ext.tir_schedules.template import Decisions

# A reduction in parts that blocks of threads add up on their own, and the kernel that adds these.
#
# The parts are added in the order of their numbers, so results do not change from run to run.


VECTOR = 4
"""Partial results that a thread loads at a time, 16 bytes."""

THREADS, COLUMNS = 64, 64
"""Threads of a block, and the most results of a row that they add up: they divide tiles."""

MAX_UNROLLED = 16


def split_reduction(sch: s_tir.Schedule, main: SBlockRV, splits: int) -> tuple[SBlockRV, SBlockRV]:
    """Splits a matmul whose loops are batch, rows, columns and steps.

    Returns the block of the partial products, whose batch is the number of the part with the
    product's own, and the block that adds them up.
    """
    *_, steps = sch.get_loops(main)
    part, _ = sch.split(steps, [splits, None])
    partial = sch.rfactor(part, 0)
    batch, rows, columns, part, steps = sch.get_loops(partial)
    sch.reorder(part, batch, rows, columns, steps)
    sch.fuse(part, batch)
    return partial, main


def schedule_total(sch: s_tir.Schedule, total: SBlockRV) -> None:
    """Adds up partial products where the epilogue is applied to them.

    What cannot be applied there stays a block of its own.
    """
    results = sch.cache_write(total, 0, "local")
    batch, rows, columns, parts = sch.get_loops(total)
    vector = _vector(sch, results)
    lanes = math.gcd(COLUMNS, static_extent(sch.get(columns).extent) or 1) // vector
    row_block, row = sch.split(rows, [None, THREADS // lanes])
    column_block, lane, neighbours = sch.split(columns, [None, lanes, vector])
    sch.reorder(batch, row_block, column_block, row, lane, parts, neighbours)
    sch.bind(sch.fuse(batch, row_block, column_block), "blockIdx.x")
    sch.bind(row, "threadIdx.y")
    sch.bind(lane, "threadIdx.x")
    sch.reverse_compute_at(results, lane)
    inline_consumers(sch, results)
    if vector > 1:
        sch.vectorize(neighbours)
    if (static_extent(sch.get(parts).extent) or 0) <= MAX_UNROLLED:
        sch.unroll(parts)
    start = sch.decompose_reduction(total, parts)
    if vector > 1:
        sch.vectorize(sch.get_loops(start)[-1])
        sch.vectorize(sch.get_loops(results)[-1])


def _vector(sch: s_tir.Schedule, results: SBlockRV) -> int:
    """How many neighbours are written at a time, after all that follows; ``sch`` stays as it is.

    More for a thread would be written one by one, to each sector in pieces.
    """
    trial = sch.copy()
    block = trial.get_sblock(sch.get(results).name_hint)
    inline_consumers(trial, block)
    return math.gcd(VECTOR, static_extent(trial.get(block).writes[0].source.shape[-1]) or 1)


# Constant operands padded to whole tiles while compiling, instead of in every run.
#
# A constant whose rows are no whole pieces of 16 bytes, or no whole tiles, would be copied with
# conditions or in narrow pieces, or by a kernel of its own. Its array is given to the kernel with
# the matmul's axes and zeros at their ends, so that every copy of it is wide and unconditional.


MAX_GROWTH = 2.0
"""Times as large as the array that the padded one may be."""

MAX_GROWTH_OF_WIDE = 1.25
"""The same where copies are wide anyway, and only their conditions are saved."""


@dataclass(frozen=True)
class ConstantOperand:
    """An operand of a matmul that is a constant parameter of the kernel.

    Attributes
    ----------
    source : buffer
        The parameter.
    parameter : int
        Its position.
    order : tuple[int, ...]
        Its axes in the order of the matmul's.
    shape : tuple[int, int, int]
        Sizes of the fused axes: batch, and rows, columns or steps in the order of the tile.
    """

    source: tirx.Buffer
    parameter: int
    order: tuple[int, ...]
    shape: tuple[int, ...]


def constant_operands(
    func: tirx.PrimFunc, block: s_tir.SBlock, axes: MatmulAxes
) -> list[ConstantOperand | None]:
    """For A and B of a matmul the constant that it is; None for others."""
    return [_constant(func, block, axes, operand) for operand in (0, 1)]


def _constant(
    func: tirx.PrimFunc, block: s_tir.SBlock, axes: MatmulAxes, operand: int
) -> ConstantOperand | None:
    region = operands_of(block)[axes.operands[operand]]
    parameter = constant_parameter(func, region.source)
    if parameter is None or _reads(func, region.source) > 1:
        return None
    sizes = [static_extent(size) for size in region.source.shape]
    loops = loops_of_dimensions(region, block)
    groups = axes.order(operand)
    wanted = [axis for group in groups for axis in group]
    # Every axis is a loop's, all of it, and every loop has an axis.
    for size, loop in zip(sizes, loops, strict=True):
        if size == 1:
            continue
        if loop is None or loop not in wanted or size != axes.extents[loop]:
            return None
    moving = [loop for size, loop in zip(sizes, loops, strict=True) if size != 1]
    if sorted(loop for loop in moving if loop is not None) != sorted(wanted):
        return None
    single = [dim for dim, size in enumerate(sizes) if size == 1]
    order = [*single, *(dim for loop in wanted for dim in _dims(loop, loops, sizes))]
    return ConstantOperand(
        region.source, parameter, tuple(order), tuple(axes.size(group) for group in groups)
    )


def _dims(loop: int, loops: Sequence[int | None], sizes: list[int | None]) -> list[int]:
    return [dim for dim, found in enumerate(loops) if found == loop and sizes[dim] != 1]


def _reads(func: tirx.PrimFunc, buffer: tirx.Buffer) -> int:
    return sum(load.source.same_as(buffer) for load in nodes(func.body, tvm.ir.TensorLoad))


def with_padded_constant(
    sch: s_tir.Schedule, main: SBlockRV, constants: Sequence[ConstantOperand | None]
) -> tuple[s_tir.Schedule, SBlockRV]:
    """The matmul, padded to whole tiles, with a constant as a parameter that is padded too.

    ``constants``: of A and B. The same schedule where it is not worth it.
    """
    for operand, constant in enumerate(constants):
        changed = _padded(sch, main, operand, constant) if constant is not None else None
        if changed is not None:
            return changed
    return sch, main


def _padded(
    sch: s_tir.Schedule, main: SBlockRV, operand: int, constant: ConstantOperand
) -> tuple[s_tir.Schedule, SBlockRV] | None:
    name = sch.get(main).name_hint
    trial = sch.copy()
    main = trial.get_sblock(name)
    tile = trial.get(main).reads[operand].source
    padded = tuple(static_extent(size) for size in tile.shape)
    writer = writer_of(trial, main, tile)
    if writer is None or None in padded or str(tile.dtype) != str(constant.source.dtype):
        return None
    inline_producers(trial, writer)
    block = trial.get(writer)
    growth = math.prod(size or 0 for size in padded) / math.prod(constant.shape)
    wide = widest_copy(block) * element_bytes(tile) == VECTOR_BYTES
    if padded == constant.shape and wide:
        return None
    if growth > (MAX_GROWTH_OF_WIDE if wide else MAX_GROWTH):
        return None
    if not all(read.source.same_as(constant.source) for read in block.reads):
        return None
    sizes = tuple(size or 0 for size in padded)
    note = PaddedOperand(constant.parameter, constant.order, constant.shape, sizes)
    changed = s_tir.Schedule(note.noted_on(_as_parameter(trial.mod["main"], constant, tile)))
    return changed, changed.get_sblock(name)


def _as_parameter(
    func: tirx.PrimFunc, constant: ConstantOperand, tile: tirx.Buffer
) -> tirx.PrimFunc:
    """The kernel that gets ``tile`` as an argument instead of writing it."""
    root = func.body.block
    statements = list(root.body.seq) if isinstance(root.body, tirx.SeqStmt) else [root.body]
    kept = [statement for statement in statements if not _writes(statement, tile)]
    arrays = [buffer for buffer in root.alloc_buffers if not buffer.same_as(tile)]
    params = list(func.params)
    params[constant.parameter] = tile
    realized = in_root_block(sequence(kept), arrays, root.annotations)
    return tirx.PrimFunc(params, realized, func.ret_type, func.attrs)


def _writes(statement: tirx.Stmt, buffer: tirx.Buffer) -> bool:
    found: list[bool] = []

    def look(store: tirx.BufferStore) -> None:
        found.append(store.buffer.same_as(buffer))

    structural_walk(statement, (tirx.BufferStore, look), order="pre")
    return any(found)


# Operands whose rows are not aligned, copied to rows that are before they are multiplied.
#
# Asynchronous copies move 4, 8 or 16 aligned bytes. Rows of an odd number of float16 values have
# none, and every element would go through a register, waited for. A kernel that reads the operand
# once and writes it with rows padded to whole tiles is cheaper where a matmul is large.


ASYNCHRONOUS_BYTES = 4
"""The narrowest asynchronous copy."""

# What a block waits for elements that come through registers, for each tile. Estimate.
WAIT_SECONDS = 0.6e-6

MAX_STAGED_GROWTH = 2
"""Times as large as the operand that its copy may be: windows of an image overlap."""

LANES, ROWS, UNROLLED = 32, 8, 8


@dataclass(frozen=True)
class Operands:
    """For each operand of a matmul how it lies in memory.

    Attributes
    ----------
    narrow : tuple[bool, bool]
        Whether it has no aligned pieces that can be copied asynchronously.
    source_bytes : tuple[int, int]
        Bytes of the operand itself.
    staged_bytes : tuple[int, int]
        Bytes of a copy of it with padded rows.
    """

    narrow: tuple[bool, bool]
    source_bytes: tuple[int, int]
    staged_bytes: tuple[int, int]


def padded_operands(sch: s_tir.Schedule, main: SBlockRV) -> Operands:
    """The operands of a matmul that is padded to whole tiles; ``sch`` stays as it is."""
    narrow, source, staged = [], [], []
    for operand in (0, 1):
        trial = sch.copy()
        copy = trial.cache_read(trial.get_sblock(sch.get(main).name_hint), operand, "shared.dyn")
        inline_producers(trial, copy)
        block = trial.get(copy)
        written = block.writes[0].source
        narrow.append(widest_copy(block) * element_bytes(written) < ASYNCHRONOUS_BYTES)
        source.append(sum(buffer_bytes(read.source) for read in block.reads))
        staged.append(buffer_bytes(written))
    return Operands(*(tuple(values) for values in (narrow, source, staged)))  # type: ignore[arg-type]


def decide_staging(
    operands: Operands,
    product: MatmulProblem,
    tiles: MatmulTileSizes,
    machine: CudaDescription,
    decisions: Decisions,
) -> tuple[bool, bool]:
    """Which operands are copied first. Decisions: ``stage_a`` and ``stage_b``, if they are narrow.

    A copy reads and writes the operand once, and costs a launch; without it a block waits for every
    tile.
    """
    chosen = []
    waits = rounds_of(tiles, product, machine) * steps_of_block(tiles, product) * WAIT_SECONDS
    for name, narrow, source, staged in zip(
        ("stage_a", "stage_b"),
        operands.narrow,
        operands.source_bytes,
        operands.staged_bytes,
        strict=True,
    ):
        if not narrow or staged > MAX_STAGED_GROWTH * source:
            chosen.append(False)
            continue
        copied = source + staged
        seconds = copied / machine.bandwidth(copied) + machine.kernel_overhead_us * 1e-6
        chosen.append(bool(decisions.pick(name, (0, 1), int(seconds < waits))))
    return chosen[0], chosen[1]


def stage_operand(sch: s_tir.Schedule, main: SBlockRV, operand: int) -> None:
    """Copies an operand to padded rows in a kernel of its own."""
    block = writer_of(sch, main, sch.get(main).reads[operand].source)
    inline_producers(sch, block)
    *outer, columns = sch.get_loops(block)
    row_block, row = sch.split(sch.fuse(*outer), [None, ROWS])
    tiles = (static_extent(sch.get(columns).extent) or 1) // LANES
    unrolled = math.gcd(UNROLLED, max(1, tiles))
    column_block, element, lane = sch.split(columns, [None, unrolled, LANES])
    sch.reorder(row_block, column_block, row, lane, element)
    sch.bind(sch.fuse(row_block, column_block), "blockIdx.x")
    sch.bind(row, "threadIdx.y")
    sch.bind(lane, "threadIdx.x")
    sch.unroll(element)


@dataclass(frozen=True)
class CudaContraction:
    """Kernels with one contraction of two operands.

    Attributes
    ----------
    tf32 : bool
        Whether products of float32 go to the tensor cores, which take 10 bits of mantissa, even
        where the machine's description does not say so.
    described : bool
        The loops that each matrix instruction stands for, in its place: what a machine without
        tensor cores can run.
    """

    tf32: bool = False
    described: bool = False
    name = "contraction"
    machine_type = CudaDescription

    def apply(
        self, func: tirx.PrimFunc, machine: CudaDescription, decisions: Decisions
    ) -> s_tir.Schedule:
        """See ``Template.apply``. Decisions: those of ``decide_tiles``."""
        nominal = with_nominal_sizes(func)
        sch = s_tir.Schedule(nominal)
        found = self._match(sch, machine.tf32 or self.tf32)
        tiles = decide_tiles(found.product, machine, decisions)
        main = found.main
        if nominal is not func:
            sch = schedule_of(func)
            main = sch.get_sblock(found.name)
            loops = sch.get(main).iter_vars
            if any(static_extent(loops[axis].dom.extent) is None for axis in found.axes.k):
                raise NotApplicable("the number of steps is known in the run only")
            tiles = replace(tiles, splits=1, group=1)
        constants = constant_operands(sch.mod["main"], sch.get(main), found.axes)
        sch, main = as_matmul(sch, main, found.axes, found.instruction.accumulator)
        sch.pad_einsum(main, [1, tiles.rows, tiles.columns, tiles.depth * tiles.splits])
        sch, main = with_padded_constant(sch, main, constants)
        if nominal is func:
            operands = padded_operands(sch, main)
            staged = decide_staging(operands, found.product, tiles, machine, decisions)
            for operand in (0, 1):
                if staged[operand]:
                    stage_operand(sch, main, operand)
        return self._scheduled(sch, main, found, tiles)

    def _match(self, sch: s_tir.Schedule, tf32: bool) -> "MatmulMatch":
        """The kernel's matmul, if it is one that the template takes."""
        access = access_of_reduction(sch)
        main = access.block
        axes = matmul_axes(access, sch.get(main))
        instruction = _instruction(sch.get(main), tf32)
        by_warps = instruction.held == "warp"
        product = MatmulProblem(
            batch=axes.size(axes.batch),
            m=axes.size(axes.m),
            n=axes.size(axes.n),
            k=axes.size(axes.k),
            dtype=instruction.rate,
            element_bytes=access.element_bytes,
            depth=instruction.k if by_warps else REGISTER_DEPTH,
            warp_tiles=WARP_TILES if by_warps else REGISTER_TILES,
            own=0 if by_warps else OWN,
        )
        if min(product.m, product.n, product.k) < 2 or product.batch > MAX_BATCH:
            raise NotApplicable("M, N or K is 1, or the batch is too large")
        return MatmulMatch(main, access.name, axes, instruction, product)

    def _scheduled(
        self, sch: s_tir.Schedule, main: SBlockRV, match: "MatmulMatch", tiles: MatmulTileSizes
    ) -> s_tir.Schedule:
        """The kernel in tiles, and in two kernels where the reduction is split."""
        instruction, total = match.instruction, None
        if tiles.splits > 1:
            main, total = split_reduction(sch, main, tiles.splits)
        if instruction.held == "warp":
            schedule_warps(sch, main, tiles, instruction, match.axes.depth_last, self.described)
        else:
            schedule_registers(sch, main, tiles, match.axes.depth_last, self.described)
        if total is not None:
            schedule_total(sch, total)
        schedule_following(sch)
        return sch


@dataclass(frozen=True)
class MatmulMatch:
    """The block of a matmul, what its loops are, and how it is computed."""

    main: SBlockRV
    name: str
    axes: MatmulAxes
    instruction: MatrixInstruction
    product: MatmulProblem


def _instruction(block: s_tir.SBlock, tf32: bool) -> MatrixInstruction:
    """How the products that a block adds up are computed."""
    loads = factors_of(block)
    if not loads:
        raise NotApplicable("it adds up something other than products of two operands")
    dtypes = {str(load.source.dtype) for load in loads}
    dtype = dtypes.pop()
    if dtypes or dtype not in WARP_INSTRUCTIONS:
        raise NotApplicable(f"there is no instruction for {', '.join(sorted({dtype, *dtypes}))}")
    table = WARP_INSTRUCTIONS if dtype != "float32" or tf32 else THREAD_INSTRUCTIONS
    accumulator, written = table[dtype].accumulator, str(block.writes[0].source.dtype)
    if written not in (accumulator, dtype):
        raise NotApplicable(f"it adds up products of {dtype} in {written}")
    if accumulator == "int32" and written != accumulator:
        raise NotApplicable(f"it adds up products of {dtype} in {written}, which wraps around")
    return table[dtype]
