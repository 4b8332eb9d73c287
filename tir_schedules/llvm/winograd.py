"""Winograd convolution: both transforms and the products of a few tiles while they are in cache.

The kernel consists of blocks that are annotated with their part in the algorithm: input_tile,
input_rows, input_transform, products, output_rows, output; elementwise blocks may follow.
"""

from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvm_ext.hardware.description import CpuDescription
from tvm_ext.tir_schedules.block_access import access_of, operands_of, static_extent
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions
from tvm_ext.tir_schedules.inlining import inline_blocks, is_data_parallel, kernel_blocks
from tvm_ext.tir_schedules.llvm.loop_nest import flatten, parallelize, vector_length
from tvm_ext.tir_schedules.llvm.register_tile import schedule_beside
from tvm_ext.tir_schedules.llvm.winograd_decision import (
    WinogradDecision,
    WinogradShape,
    decide_winograd,
)
from tvm_ext.tir_schedules.packing import pack_operand
from tvm_ext.tir_schedules.template import Machine, NotMine

STAGE_ANNOTATION = "tvm_ext.winograd"
# Sides of a tile of outputs.
TILE_ANNOTATION = "tvm_ext.winograd_tile"
STAGES = (
    "input_tile",
    "input_rows",
    "input_transform",
    "products",
    "output_rows",
    "output",
)


class Winograd:
    """Kernels made of the stages of Winograd's convolution."""

    name = "winograd"

    def apply(
        self, func: tirx.PrimFunc, machine: Machine, decisions: Decisions = CLOSED_FORM
    ) -> s_tir.Schedule | NotMine:
        """See ``Template.apply``.

        Decisions: those of ``decide_winograd``, and ``threads``; where each stage handles all tiles
        ``threads`` is for the products, ``input_threads`` and ``output_threads`` for the others.
        """
        if not isinstance(machine, CpuDescription):
            return NotMine("the target is not a CPU")
        sch = s_tir.Schedule(func)
        stages = _stages(sch)
        if sorted(stages) != sorted(STAGES):
            return NotMine("its blocks are not the stages of a Winograd convolution")
        inline_blocks(sch, keep=lambda block: STAGE_ANNOTATION in sch.get(block).annotations)
        shape = _shape(sch, stages["products"])
        if shape is None:
            return NotMine("a loop has a symbolic extent")
        _Scheduler(sch, machine, shape, decisions).run(stages)
        return sch


def _stages(sch: s_tir.Schedule) -> dict[str, SBlockRV]:
    annotations = [(block, sch.get(block).annotations) for block in kernel_blocks(sch)]
    return {
        str(noted[STAGE_ANNOTATION]): block
        for block, noted in annotations
        if STAGE_ANNOTATION in noted
    }


def _shape(sch: s_tir.Schedule, products: SBlockRV) -> WinogradShape | None:
    access = access_of(sch, products)
    if access is None:
        return None
    down, across, images, rows, columns, outputs, inputs = access.extents
    return WinogradShape(down * across, images, rows, columns, inputs, outputs)


class _Scheduler:
    """Schedules one kernel; the methods go backwards, from the output to the input."""

    def __init__(
        self,
        sch: s_tir.Schedule,
        machine: CpuDescription,
        shape: WinogradShape,
        decisions: Decisions,
    ) -> None:
        self.sch = sch
        self.machine = machine
        self.decisions = decisions
        self.decision: WinogradDecision = decide_winograd(shape, machine, decisions)
        self.lanes = machine.vector_lanes("float32")
        self.work = shape.positions * shape.tiles * shape.inputs * shape.outputs
        self.transform_work = shape.positions * shape.tiles * (shape.inputs + shape.outputs)

    def run(self, stages: dict[str, SBlockRV]) -> None:
        """Writes the schedule."""
        last = self._last_block(stages["output"])
        others = [
            block
            for block in kernel_blocks(self.sch)
            if not any(self._same(block, known) for known in (*stages.values(), last))
        ]
        block_loop = self._output(last, stages)
        self._products(stages["products"], block_loop)
        self._input(stages, block_loop)
        for block in others:
            schedule_beside(self.sch, block, self.machine)

    def _same(self, one: SBlockRV, other: SBlockRV) -> bool:
        return bool(self.sch.get(one).same_as(self.sch.get(other)))

    def _last_block(self, output: SBlockRV) -> SBlockRV:
        """The elementwise block that ends the kernel when it goes the way of the output."""
        consumers = self.sch.get_consumers(output)
        if len(consumers) != 1 or not is_data_parallel(self.sch, consumers[0]):
            return output
        access, own = access_of(self.sch, consumers[0]), access_of(self.sch, output)
        if access is None or own is None or access.extents != own.extents:
            return output
        written = self.sch.get(output).writes[0].source
        stmt = self.sch.get(consumers[0])
        position = next(
            i for i, read in enumerate(operands_of(stmt)) if read.source.same_as(written)
        )
        in_order = access.read_strides[position] == access.write_strides == own.write_strides
        return consumers[0] if in_order else output

    def _output(self, last: SBlockRV, stages: dict[str, SBlockRV]) -> LoopRV | None:
        """Loops over blocks of tiles around the output; returns the one that holds a block."""
        sch, decision = self.sch, self.decision
        image, height, width, channel = sch.get_loops(last)
        high, wide = (int(side) for side in sch.get(stages["output"]).annotations[TILE_ANNOTATION])
        tile_row, y = sch.split(height, [None, high])
        tile_column, x = sch.split(width, [None, wide])
        down, across = decision.blocks or (1, 1)
        block_row, tile_row = sch.split(tile_row, [None, down])
        block_column, tile_column = sch.split(tile_column, [None, across])
        extent = static_extent(sch.get(channel).extent) or 1
        channel, vector = sch.split(channel, [None, vector_length(extent, self.lanes, 1)])
        sch.reorder(image, block_row, block_column, tile_row, tile_column, channel, y, x, vector)
        flatten(sch, [y, x, vector])
        blocks = sch.fuse(image, block_row, block_column)
        if not self._same(last, stages["output"]):
            sch.compute_at(stages["output"], channel, preserve_unit_loops=True)
            flatten(sch, list(sch.get_loops(stages["output"]))[-4:])
        sch.compute_at(stages["output_rows"], channel, preserve_unit_loops=True)
        flatten(sch, list(sch.get_loops(stages["output_rows"]))[-6:])
        if decision.blocks is None:
            self._threads([blocks], self.transform_work, "output_threads")
            return None
        self._threads([blocks], self.work)
        return blocks

    def _threads(self, loops: list[LoopRV], work: int, name: str = "threads") -> None:
        parallelize(self.sch, loops, self.machine, work, self.lanes, self.decisions, name)

    def _products(self, products: SBlockRV, block_loop: LoopRV | None) -> None:
        sch, (down, across) = self.sch, self.decision.rows
        pack_operand(sch, products, 1, 5, self.decision.columns)
        # The accumulators are a buffer of their own, which becomes registers.
        copy = sch.cache_write(products, 0, "global")
        if block_loop is not None:
            sch.compute_at(copy, block_loop, preserve_unit_loops=True)
        i, j, image, tile_row, tile_column, channel = sch.get_loops(copy)[-6:]
        channel, vector = sch.split(channel, [None, self.decision.columns])
        tile_row, row = sch.split(tile_row, [None, down])
        tile_column, column = sch.split(tile_column, [None, across])
        sch.reorder(i, j, channel, image, tile_row, tile_column, row, column, vector)
        sch.compute_at(products, tile_column, preserve_unit_loops=True)
        flatten(sch, [row, column, vector])
        *tile, depth = sch.get_loops(products)[-7:]
        sch.reorder(*tile[:2], depth, *tile[2:])
        flatten(sch, tile[2:])
        if block_loop is None:
            self._threads([i, j, channel], self.work)
        start = sch.decompose_reduction(products, depth)
        flatten(sch, list(sch.get_loops(start))[-6:])

    def _input(self, stages: dict[str, SBlockRV], block_loop: LoopRV | None) -> None:
        sch = self.sch
        transform = stages["input_transform"]
        if block_loop is not None:
            sch.compute_at(transform, block_loop, preserve_unit_loops=True)
        i, j, image, tile_row, tile_column, channel = sch.get_loops(transform)[-6:]
        extent = static_extent(sch.get(channel).extent) or 1
        channel, vector = sch.split(channel, [None, vector_length(extent, self.lanes, 1)])
        sch.reorder(image, tile_row, tile_column, channel, i, j, vector)
        flatten(sch, [i, j, vector])
        rows = stages["input_rows"]
        sch.compute_at(rows, channel, preserve_unit_loops=True)
        *outer, i, j, vector = sch.get_loops(rows)[-6:]
        sch.reorder(*outer, j, i, vector)
        # A column of the tile at a time: six vectors, which stay in registers.
        sch.compute_at(stages["input_tile"], j, preserve_unit_loops=True)
        flatten(sch, [*outer, j, i, vector])
        flatten(sch, list(sch.get_loops(stages["input_tile"]))[-6:])
        if block_loop is None:
            outer = [image, tile_row, tile_column, channel]
            self._threads(outer, self.transform_work, "input_threads")
