"""The kernel of a warpgroup contraction: a producer copies operands by TMA, warpgroups multiply.

Blocks stay on their multiprocessor and take one tile after the other. Operands pass through a
pipeline in shared memory. Copies for the next tile start while the last one is written.

``    copying thread                      multiplying warps
    wait empty[s]; expect full[s]           wait full[s]
    copy A and B to stage s                 multiply from stage s; one group stays under way
                                            arrive at empty[s - 1]``
"""

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.tirx.buffer import buffer_data

from tvm_ext.hardware.matrix_instructions import WARPGROUP_INSTRUCTIONS
from tvm_ext.tir_schedules.cuda.launch import Arrays, alone, bound, guarded
from tvm_ext.tir_schedules.cuda.warp_instructions import in_use
from tvm_ext.tir_schedules.cuda.warpgroup import warpgroup_instructions as hopper
from tvm_ext.tir_schedules.cuda.warpgroup.stream_k import (
    StepRange,
    WarpgroupFixup,
    WarpgroupGemm,
    WarpgroupTileScheduler,
    loop,
)
from tvm_ext.tir_schedules.cuda.warpgroup.tma import SWIZZLED_ROW_BYTES, new_tensor_map
from tvm_ext.tir_schedules.cuda.warpgroup.warpgroup_decision import WarpgroupGemmTiles
from tvm_ext.tir_schedules.cuda.warpgroup.warpgroup_epilogue import (
    ResultPosition,
    WarpgroupEpilogue,
)
from tvm_ext.tir_schedules.cuda.warpgroup.warpgroup_instructions import DTYPES as PACKED
from tvm_ext.tir_schedules.cuda.warpgroup.warpgroup_instructions import pack_columns
from tvm_ext.tir_schedules.cuda.warpgroup.warpgroup_operands import TmaOperand
from tvm_ext.tir_schedules.statements import sequence

# The pipeline in shared memory through which operands pass, and its barriers.
#
# Each stage has the tiles of both operands and two barriers: "full" ends a phase when the copies'
# bytes have come, "empty" when every multiplying warp is done reading: those of all blocks of a
# cluster, since copies of the operand that they share go to all of them.


_WARPS = hopper.WARPGROUP // 32


@dataclass(frozen=True)
class TmaPipeline:
    """Where everything of the pipeline is.

    Attributes
    ----------
    base : tirx.Var
        uint32, where shared memory begins as instructions name it.
    tiles : WarpgroupGemmTiles
        Sizes.
    """

    base: tirx.Var
    tiles: WarpgroupGemmTiles

    def prepared(self) -> list[tirx.Stmt]:
        """What one thread does before all others begin: barriers as they are at first."""
        found = []
        for number in range(self.tiles.stages):
            stage = tirx.const(number, "int32")
            readers = self.tiles.cluster * self.tiles.multiplying * _WARPS
            found.append(hopper.barrier_init(self.barrier("full", stage), 1))
            found.append(hopper.barrier_init(self.barrier("empty", stage), readers))
        return found

    def at(self, step: tvm.ir.Expr) -> tuple[Any, Any, tirx.Stmt]:
        """Stage and parity of its phase at a block's ``step``, an int32, as variables."""
        stage, parity = tirx.Var("stage", "int32"), tirx.Var("parity", "uint32")
        turns = step // self.tiles.stages
        binds = [
            tirx.Bind(stage, step % self.tiles.stages),
            tirx.Bind(parity, (turns % 2).astype("uint32")),
        ]
        return stage, parity, sequence(binds)

    def before(self, stage: tvm.ir.Expr) -> tvm.ir.Expr:
        """The stage of the step before."""
        return (stage + self.tiles.stages - 1) % self.tiles.stages

    def operand(self, stage: tvm.ir.Expr, index: int) -> tvm.ir.Expr:
        """Where the tile of an operand begins in shared memory."""
        size = tirx.const(self.tiles.stage_bytes, "uint32")
        offset = tirx.const(index * self.tiles.first_bytes, "uint32")
        return self.base + stage.astype("uint32") * size + offset

    def barrier(self, kind: str, stage: tvm.ir.Expr) -> tvm.ir.Expr:
        """Where a barrier is: after all stages, the full ones before the empty ones."""
        stages = self.tiles.stages
        first = stages * self.tiles.stage_bytes + (8 * stages if kind == "empty" else 0)
        return self.base + tirx.const(first, "uint32") + stage.astype("uint32") * 8

    def free(self, stage: tvm.ir.Expr, parity: tvm.ir.Expr) -> tirx.Stmt:
        """Waits until ``stage`` may be written, in all blocks that get a part of it."""
        before = tirx.const(1, "uint32") - parity
        barrier = self.barrier("empty", stage)
        return hopper.barrier_wait(barrier, before, of_cluster=self.tiles.cluster > 1)

    def released(self, stage: tvm.ir.Expr, lane: tvm.ir.Expr, condition: tvm.ir.Expr) -> tirx.Stmt:
        """One thread of each warp says that the warp is done with ``stage``.

        In a cluster one for each block: a block's copies also go to the others.
        """
        blocks, barrier = self.tiles.cluster, self.barrier("empty", stage)
        wanted = tirx.LT(lane, tirx.const(blocks, str(lane.ty)))
        if condition is not None:
            wanted = tirx.And(wanted, condition)
        if blocks > 1:
            return hopper.cluster_barrier_arrive(
                barrier, lane.astype("uint32"), wanted.astype("uint32")
            )
        return hopper.barrier_arrive(barrier, wanted.astype("uint32"))


# Registers of a thread that copies and of one that multiplies: multiples of 8, and together for
# three warpgroups no more than the 512 that a multiprocessor has for each of their 128 threads.
# Two warpgroups have more than any of their threads may use without moving them.
_FEW_REGISTERS, _MANY_REGISTERS = 40, 232

_EIGHT_ROWS = 8
"""Of which groups are named by their distance in memory."""


class WarpgroupGemmKernel:
    """Writes the kernel of a matmul: statements, and what they allocate to ``arrays``."""

    def __init__(self, product: WarpgroupGemm, epilogue: WarpgroupEpilogue, arrays: Arrays) -> None:
        self.epilogue = epilogue
        self.product, self.arrays = product, arrays
        self.tiles, self.dtype = product.tiles, arrays.index_dtype
        self.threads = (self.tiles.multiplying + 1) * hopper.WARPGROUP
        self.work = WarpgroupTileScheduler(product, self.dtype)
        self.total = WarpgroupFixup(self.work, epilogue, arrays) if self.work.shared else None
        self.maps = [new_tensor_map(f"map_{name}") for name in "ab"]
        self.shared = arrays.allocated("stages", (self.tiles.shared_bytes,), "uint8", "shared.dyn")
        total = hopper.results_dtype(product.dtype)
        self.results = arrays.allocated("results", (self.tiles.columns // 2,), total, "local")
        self.packed: Any = None
        dtype = str(epilogue.product.dtype)
        if dtype in PACKED and total == "float32" and self.work.whole:
            self.packed = arrays.allocated("packed", (self.tiles.columns // 2,), dtype, "local")
        self.pipeline = TmaPipeline(tirx.Var("base", "uint32"), self.tiles)
        self.rank: Any = None
        """Number of a block in its cluster."""

    def statements(self) -> list[tirx.Stmt]:
        """Tensor maps on the host, the launch, and that of the kernel that adds up parts."""
        host = [made for _, made in self.maps]
        for index, (var, _) in enumerate(self.maps):
            operand, (lines, _) = self.product.operands[index], self._boxes_of(index)
            box = (self.product.step, lines)
            host.append(operand.encoded(var, box[::-1] if operand.across else box))

        def threads(block: tvm.ir.Expr) -> tirx.Stmt:
            return bound("threadIdx.x", self.threads, self.dtype, lambda t: self._block(block, t))

        def blocks(block: tvm.ir.Expr) -> tirx.Stmt:
            def iteration(rank: tvm.ir.Expr) -> tirx.Stmt:
                self.rank = rank
                return threads(block)

            several = self.tiles.cluster > 1
            return bound("clusterCtaIdx.x", 2, self.dtype, iteration) if several else threads(block)

        main = alone(bound("blockIdx.x", self.work.grid, self.dtype, blocks))
        return [*host, main, *([self.total.statement()] if self.total is not None else [])]

    def _boxes_of(self, index: int) -> tuple[int, int]:
        """Rows or columns in a box of an operand, and how many boxes a block brings for a tile.

        Blocks of a cluster have the same columns, of which each brings a part for all of them.
        """
        extent = self.tiles.columns // self.tiles.cluster if index else self.tiles.rows
        lines = self.product.operands[index].lines(extent)
        return lines, extent // lines

    def _block(self, block: tvm.ir.Expr, thread: tvm.ir.Expr) -> tirx.Stmt:
        copying = tirx.LT(thread, self._int(hopper.WARPGROUP))
        copies = [guarded(tirx.EQ(thread, self._int(0)), self._copies(block))]
        products = [self._products(block, thread)]
        if self.tiles.multiplying > 1:
            copies.insert(0, hopper.change_registers(_FEW_REGISTERS, more=False))
            products.insert(0, hopper.change_registers(_MANY_REGISTERS, more=True))
        prepared = [hopper.prefetch_map(var) for var, _ in self.maps] + self.pipeline.prepared()
        used = [operand.buffer for operand in self.product.operands]
        used = [buffer for buffer in used if any(buffer.same_as(b) for b in self.arrays.buffers)]
        prepared += [in_use(buffer_data(buffer)) for buffer in used]
        several = self.tiles.cluster > 1
        ready = (
            hopper.cluster_meet(barriers_are_new=True) if several else hopper.barrier_init_done()
        )
        code = [
            tirx.Bind(self.pipeline.base, hopper.shared_address(buffer_data(self.shared))),
            guarded(tirx.EQ(thread, self._int(0)), sequence(prepared)),
            ready,
            tirx.IfThenElse(copying, sequence(copies), sequence(products)),
        ]
        if several:
            # Others still arrive at this block's barriers.
            code.append(hopper.cluster_meet())
        return sequence(code)

    def _copies(self, block: tvm.ir.Expr) -> tirx.Stmt:
        """What the copying thread does for all tiles of its block."""

        def piece(piece: StepRange) -> tirx.Stmt:
            batch, row, column = self.work.place(piece.tile)
            places = [tirx.Var(name, "int32") for name in ("batch", "row", "column")]
            values = (batch, row * self.tiles.rows, column * self.tiles.columns)
            binds = [tirx.Bind(v, e.astype("int32")) for v, e in zip(places, values, strict=True)]

            def step(k: tvm.ir.Expr) -> tirx.Stmt:
                stage, parity, pipeline = self.pipeline.at(piece.before + k)
                full = self.pipeline.barrier("full", stage)
                found = [
                    pipeline,
                    self.pipeline.free(stage, parity),
                    hopper.barrier_expect(full, self.tiles.stage_bytes),
                ]
                at = (piece.first.astype("int32") + k) * self.product.step
                for index, place in enumerate(places[1:]):
                    found += self._boxes(index, stage, places[0], place, at, full)
                return sequence(found)

            return sequence([*binds, loop(piece.steps.astype("int32"), "int32", step)])

        return self.work.for_each(block, piece)

    def _boxes(
        self,
        index: int,
        stage: tvm.ir.Expr,
        batch: tvm.ir.Expr,
        place: tvm.ir.Expr,
        step: tvm.ir.Expr,
        barrier: tvm.ir.Expr,
    ) -> list[tirx.Stmt]:
        """The copies of an operand's tile: one, or one for some of its rows or columns each."""
        operand, (lines, count) = self.product.operands[index], self._boxes_of(index)
        start = self.pipeline.operand(stage, index)
        shared = index == 1 and self.tiles.cluster > 1
        blocks = (1 << self.tiles.cluster) - 1 if shared else 0
        found = []
        for number in range(count):
            box: Any = tirx.const(number, "int32")
            if shared:
                box = self.rank.astype("int32") * count + number
            to = start + box.astype("uint32") * (lines * self.tiles.row_bytes)
            at = operand.at(batch, place + box * lines, step)
            found.append(hopper.copy_box(to, self.maps[index][0], at, barrier, blocks))
        return found

    def _products(self, block: tvm.ir.Expr, thread: tvm.ir.Expr) -> tirx.Stmt:
        """What a multiplying thread does for all tiles of its block."""
        results = buffer_data(self.results)
        group, lane = thread // hopper.WARPGROUP - 1, thread % 32

        def piece(piece: StepRange) -> tirx.Stmt:
            def step(k: tvm.ir.Expr) -> tirx.Stmt:
                return self._multiplied(piece.before + k, k, group, lane)

            last = piece.before + piece.steps.astype("int32") - 1
            stage, _, pipeline = self.pipeline.at(last)
            return sequence(
                [
                    loop(piece.steps.astype("int32"), "int32", step),
                    pipeline,
                    hopper.finish(0),
                    self.pipeline.released(stage, lane, None),
                    hopper.settle(results, self.tiles.columns, self.product.dtype),
                    *self._written(thread, piece),
                ]
            )

        return self.work.for_each(block, piece)

    def _multiplied(
        self, at: tvm.ir.Expr, k: tvm.ir.Expr, group: tvm.ir.Expr, lane: tvm.ir.Expr
    ) -> tirx.Stmt:
        """One step of the pipeline: four instructions, then the stage before it is free."""
        stage, parity, pipeline = self.pipeline.at(at)
        descriptors = [tirx.Var(f"descriptor_{name}", "uint64") for name in "ab"]
        found = [pipeline, hopper.barrier_wait(self.pipeline.barrier("full", stage), parity)]
        for index, var in enumerate(descriptors):
            start = self.pipeline.operand(stage, index)
            if not index:
                start = start + group.astype("uint32") * hopper.ROWS * self.tiles.row_bytes
            found.append(tirx.Bind(var, self._descriptor(self.product.operands[index], start)))
        found.append(hopper.start())
        first, second = (operand.across for operand in self.product.operands)
        first_dtype, second_dtype = (str(operand.buffer.dtype) for operand in self.product.operands)
        instruction = WARPGROUP_INSTRUCTIONS[first_dtype, second_dtype]
        for part in range(self.tiles.row_bytes // hopper.DEPTH_BYTES):
            a, b = (
                var + tirx.const(part * _advance(transposed), "uint64")
                for var, transposed in zip(descriptors, (first, second), strict=True)
            )
            add = tirx.const(1, "uint32") if part else tirx.NE(k, 0).astype("uint32")
            results, columns = buffer_data(self.results), self.tiles.columns
            across = (first, second)
            found.append(hopper.multiply(results, a, b, add, columns, instruction, across))
        found += [hopper.commit(), hopper.finish(1)]
        before = self.pipeline.before(stage)
        found.append(self.pipeline.released(before, lane, tirx.NE(k, 0)))
        return sequence(found)

    def _descriptor(self, operand: TmaOperand, start: tvm.ir.Expr) -> tvm.ir.Expr:
        """What names an operand's tile at ``start`` to the instructions."""
        if operand.across:
            leading = self.product.step * SWIZZLED_ROW_BYTES
            return hopper.descriptor(start, leading, _EIGHT_ROWS * SWIZZLED_ROW_BYTES)
        row_bytes = self.tiles.row_bytes
        return hopper.descriptor(start, 16, _EIGHT_ROWS * row_bytes, row_bytes)

    def _written(self, thread: tvm.ir.Expr, piece: StepRange) -> list[tirx.Stmt]:
        """What a multiplying thread does with its results."""
        columns, held = self.tiles.columns, self.results
        gathered = hopper.gather_columns(buffer_data(held), columns, self.product.dtype)
        if self.total is not None and piece.part is not None:
            code = self.total.stored(held, piece.part, thread - hopper.WARPGROUP)
            return [gathered, code]
        if self.packed is not None:
            held = self.packed
            places = buffer_data(self.results), buffer_data(held)
            gathered = pack_columns(*places, columns, str(held.dtype))
        names = [tirx.Var(name, self.dtype) for name in ("batch", "row", "column")]
        values = self.work.results_of(piece.tile, thread - hopper.WARPGROUP)

        def result(of: Any, half: Any, place: tvm.ir.Expr) -> tvm.ir.Expr:
            return tirx.BufferLoad(held, [hopper.position(of, half, place)])

        owners = [(thread, self.threads)]
        code = self.epilogue.code(ResultPosition(*names), result, self.arrays, owners)
        return [gathered, *[tirx.Bind(v, e) for v, e in zip(names, values, strict=True)], code]

    def _int(self, value: int) -> tvm.ir.Expr:
        return tirx.const(value, self.dtype)


def _advance(across: bool) -> int:
    """What one instruction's depth adds to a descriptor, in units of 16 bytes."""
    return (hopper.DEPTH * SWIZZLED_ROW_BYTES if across else hopper.DEPTH_BYTES) // 16
