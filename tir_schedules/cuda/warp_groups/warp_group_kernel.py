"""The kernel of a product by warp groups: one brings operands by bulk copies, two multiply.

Blocks stay on their multiprocessor and take one tile after the other. Operands pass through a ring
of stages in shared memory. Each stage has two barriers: "full" ends a phase when the copies' bytes
have come, "empty" when every multiplying warp is done reading. So copies for the next tile start
while the last one is written.

``    copying thread                      multiplying warps
    wait empty[s]; expect full[s]           wait full[s]
    copy A and B to stage s                 multiply from stage s; one group stays under way
                                            arrive at empty[s - 1]``
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.tirx.buffer import buffer_data

from tvm_ext.tir_schedules.cuda.launch import Arrays, bound, guarded, repeated
from tvm_ext.tir_schedules.cuda.warp_groups import warp_group_instructions as hopper
from tvm_ext.tir_schedules.cuda.warp_groups.group_operands import Operand
from tvm_ext.tir_schedules.cuda.warp_groups.tensor_map import SWIZZLED_ROW_BYTES, new_tensor_map
from tvm_ext.tir_schedules.cuda.warp_groups.warp_group_decision import (
    TILE_ROWS,
    GroupTiles,
)
from tvm_ext.tir_schedules.cuda.warp_groups.warp_group_epilogue import COLUMNS, GroupEpilogue, Place
from tvm_ext.tir_schedules.statements import sequence

MULTIPLYING = TILE_ROWS // hopper.ROWS
"""Warp groups that multiply."""

THREADS = (MULTIPLYING + 1) * hopper.WARP_GROUP
_WARPS = hopper.WARP_GROUP // 32

# Registers of a thread that copies and of one that multiplies: multiples of 8, and together for
# three warp groups no more than the 512 that a multiprocessor has for each of their 128 threads.
_FEW_REGISTERS, _MANY_REGISTERS = 40, 232

_ROW_BYTES = SWIZZLED_ROW_BYTES
_EIGHT_ROWS = 8 * _ROW_BYTES


@dataclass(frozen=True)
class GroupProduct:
    """A product to write a kernel for.

    Attributes
    ----------
    operands : (OperandTensor or ImageTensor, OperandTensor)
        A and B.
    batch, rows, columns, steps : int
        Sizes.
    dtype : str
        Of the operands.
    tiles : GroupTiles
        How it is cut.
    blocks : int
        Blocks of threads that fit on the GPU at a time.
    """

    operands: tuple[Operand, Operand]
    batch: int
    rows: int
    columns: int
    steps: int
    dtype: str
    tiles: GroupTiles
    blocks: int

    @property
    def step(self) -> int:
        """Steps of the reduction for one of the ring: the elements of a swizzled row."""
        return _ROW_BYTES * 8 // tvm.DataType(self.dtype).bits

    @property
    def rounds(self) -> int:
        """Steps of the ring for one tile."""
        return math.ceil(self.steps / self.step)


class GroupKernel:
    """Writes the kernel of a product: statements, and what they allocate to ``arrays``."""

    def __init__(self, product: GroupProduct, epilogue: GroupEpilogue, arrays: Arrays) -> None:
        self.epilogue = epilogue
        self.product, self.arrays = product, arrays
        self.tiles, self.dtype = product.tiles, arrays.index_dtype
        self.down = math.ceil(product.rows / TILE_ROWS)
        self.along = math.ceil(product.columns / product.tiles.columns)
        self.count = product.batch * self.down * self.along
        self.grid = min(self.count, product.blocks)
        self.maps = [new_tensor_map(f"map_{name}") for name in "ab"]
        self.shared = arrays.allocated("stages", (self.tiles.shared_bytes,), "uint8", "shared.dyn")
        total = hopper.results_dtype(product.dtype)
        self.results = arrays.allocated("results", (self.tiles.columns // 2,), total, "local")
        self.base = tirx.Var("base", "uint32")

    def statements(self) -> list[tirx.Stmt]:
        """Tensor maps on the host, and the launch."""
        host = [made for _, made in self.maps]
        for (var, _), operand, extent in zip(
            self.maps, self.product.operands, (TILE_ROWS, self.tiles.columns), strict=True
        ):
            row = self.product.step
            box = (row, row if operand.across else operand.lines(extent))
            host.append(operand.encoded(var, box))

        def threads(block: Any) -> tirx.Stmt:
            return bound("threadIdx.x", THREADS, self.dtype, lambda t: self._block(block, t))

        return [*host, bound("blockIdx.x", self.grid, self.dtype, threads)]

    def _block(self, block: Any, thread: Any) -> tirx.Stmt:
        copying = tirx.LT(thread, self._int(hopper.WARP_GROUP))
        copies = sequence(
            [
                hopper.change_registers(_FEW_REGISTERS, more=False),
                guarded(tirx.EQ(thread, self._int(0)), self._copies(block)),
            ]
        )
        products = sequence(
            [
                hopper.change_registers(_MANY_REGISTERS, more=True),
                self._products(block, thread),
            ]
        )
        first = guarded(tirx.EQ(thread, self._int(0)), self._prepared())
        address = hopper.shared_address(buffer_data(self.shared))
        return sequence(
            [
                tirx.Bind(self.base, address),
                first,
                hopper.barrier_init_done(),
                tirx.IfThenElse(copying, copies, products),
            ]
        )

    def _prepared(self) -> tirx.Stmt:
        """What one thread does before all others begin."""
        found = [hopper.prefetch_map(var) for var, _ in self.maps]
        for stage in range(self.tiles.stages):
            at = tirx.const(stage, "int32")
            found.append(hopper.barrier_init(self._barrier("full", at), 1))
            found.append(hopper.barrier_init(self._barrier("empty", at), MULTIPLYING * _WARPS))
        return sequence(found)

    def _copies(self, block: Any) -> tirx.Stmt:
        """What the copying thread does for all tiles of its block."""

        def tile(number: Any) -> tirx.Stmt:
            batch, row, column = self._tile(block, number)
            places = [tirx.Var(name, "int32") for name in ("batch", "row", "column")]
            values = (batch, row * TILE_ROWS, column * self.tiles.columns)
            binds = [tirx.Bind(v, e.astype("int32")) for v, e in zip(places, values, strict=True)]

            def step(k: Any) -> tirx.Stmt:
                stage, parity, ring = self._ring(number, k)
                full = self._barrier("full", stage)
                found = [
                    ring,
                    hopper.barrier_wait(self._barrier("empty", stage), _flipped(parity)),
                    hopper.barrier_expect(full, self.tiles.stage_bytes),
                ]
                for index, place in enumerate(places[1:]):
                    found += self._boxes(
                        index, stage, places[0], place, k * self.product.step, full
                    )
                return sequence(found)

            return sequence([*binds, _serial(self.product.rounds, "int32", step)])

        return self._over_tiles(block, tile)

    def _boxes(
        self, index: int, stage: Any, batch: Any, place: Any, step: Any, barrier: Any
    ) -> list[tirx.Stmt]:
        """The copies of an operand's tile: one, or one for some of its rows or columns each."""
        operand = self.product.operands[index]
        extent = self.tiles.columns if index else TILE_ROWS
        start = self._stage(stage, index)
        width = operand.lines(extent)
        return [
            hopper.copy_box(
                start + tirx.const(box * width * _ROW_BYTES, "uint32"),
                self.maps[index][0],
                operand.at(batch, place + box * width, step),
                barrier,
            )
            for box in range(extent // width)
        ]

    def _products(self, block: Any, thread: Any) -> tirx.Stmt:
        """What a multiplying thread does for all tiles of its block."""
        results = buffer_data(self.results)
        group = thread // hopper.WARP_GROUP - 1
        lane = thread % 32

        def tile(number: Any) -> tirx.Stmt:
            def step(k: Any) -> tirx.Stmt:
                return self._multiplied(number, k, group, lane)

            stage, _, ring = self._ring(number, tirx.const(self.product.rounds - 1, "int32"))
            return sequence(
                [
                    _serial(self.product.rounds, "int32", step),
                    ring,
                    hopper.finish(0),
                    self._released(stage, lane, None),
                    hopper.settle(results, self.tiles.columns, self.product.dtype),
                    hopper.gather_columns(results, self.tiles.columns, self.product.dtype),
                    self._written(block, thread, number),
                ]
            )

        return self._over_tiles(block, tile)

    def _multiplied(self, number: Any, k: Any, group: Any, lane: Any) -> tirx.Stmt:
        """One step of the ring: four instructions, then the stage before it is free."""
        stage, parity, ring = self._ring(number, k)
        descriptors = [tirx.Var(f"descriptor_{name}", "uint64") for name in "ab"]
        found = [ring, hopper.barrier_wait(self._barrier("full", stage), parity)]
        for index, var in enumerate(descriptors):
            start = self._stage(stage, index)
            if not index:
                start = start + group.astype("uint32") * hopper.ROWS * _ROW_BYTES
            leading = self.product.step * _ROW_BYTES if self.product.operands[index].across else 16
            found.append(tirx.Bind(var, hopper.descriptor(start, leading, _EIGHT_ROWS)))
        found.append(hopper.start())
        first, second = (operand.across for operand in self.product.operands)
        first_dtype, second_dtype = (str(operand.buffer.dtype) for operand in self.product.operands)
        for part in range(_ROW_BYTES // hopper.DEPTH_BYTES):
            a, b = (
                var + tirx.const(part * _advance(turned), "uint64")
                for var, turned in zip(descriptors, (first, second), strict=True)
            )
            add = tirx.const(1, "uint32") if part else tirx.NE(k, 0).astype("uint32")
            results, columns = buffer_data(self.results), self.tiles.columns
            across = (first, second)
            found.append(
                hopper.multiply(results, a, b, add, columns, (first_dtype, second_dtype), across)
            )
        found += [hopper.commit(), hopper.finish(1)]
        before = (stage + self.tiles.stages - 1) % self.tiles.stages
        found.append(self._released(before, lane, tirx.NE(k, 0)))
        return sequence(found)

    def _released(self, stage: Any, lane: Any, condition: Any) -> tirx.Stmt:
        """One thread of each warp says that the warp is done with ``stage``."""
        wanted = tirx.EQ(lane, self._int(0))
        if condition is not None:
            wanted = tirx.And(wanted, condition)
        return hopper.barrier_arrive(self._barrier("empty", stage), wanted.astype("uint32"))

    def _written(self, block: Any, thread: Any, number: Any) -> tirx.Stmt:
        """The epilogue of a multiplying thread's results."""
        batch, row, column = self._tile(block, number)
        group, lane = thread // hopper.WARP_GROUP - 1, thread % 32
        in_tile = group * hopper.ROWS + thread % hopper.WARP_GROUP // 32 * 16 + lane // 4
        names = [tirx.Var(name, self.dtype) for name in ("batch", "row", "column")]
        first = column * self.tiles.columns + lane % 4 * COLUMNS
        values = (batch, row * TILE_ROWS + in_tile, first)

        def result(of: Any, half: Any, place: Any) -> Any:
            return tirx.BufferLoad(self.results, [hopper.position(of, half, place)])

        code = self.epilogue.code(Place(*names), result, self.arrays, [(thread, THREADS)])
        return sequence([*[tirx.Bind(v, e) for v, e in zip(names, values, strict=True)], code])

    def _over_tiles(self, block: Any, tile: Callable[[Any], tirx.Stmt]) -> tirx.Stmt:
        rest = self._int(self.count + self.grid - 1) - block
        turns = rest // self._int(self.grid) if self.count > self.grid else self._int(1)
        return _serial(turns, self.dtype, tile)

    def _tile(self, block: Any, number: Any) -> tuple[Any, Any, Any]:
        """Batch, row and column, counted in tiles, of the ``number``-th tile of a block."""
        index = block + number * self.grid
        batch, index = index // (self.down * self.along), index % (self.down * self.along)
        rows = self.tiles.group
        first = index // (rows * self.along) * rows
        inside = index % (rows * self.along)
        height: Any = self._int(rows)
        if self.down % rows:
            height = tirx.Min(height, self._int(self.down) - first)
        return batch, first + inside % height, inside // height

    def _ring(self, number: Any, k: Any) -> tuple[Any, Any, tirx.Stmt]:
        """Stage of the ring and parity of its phase at step ``k`` of a tile, as variables."""
        stage, parity = tirx.Var("stage", "int32"), tirx.Var("parity", "uint32")
        at = number.astype("int32") * self.product.rounds + k
        return (
            stage,
            parity,
            sequence(
                [
                    tirx.Bind(stage, at % self.tiles.stages),
                    tirx.Bind(parity, (at // self.tiles.stages % 2).astype("uint32")),
                ]
            ),
        )

    def _stage(self, stage: Any, index: int) -> Any:
        """Where the tile of an operand begins in shared memory."""
        size = tirx.const(self.tiles.stage_bytes, "uint32")
        offset = tirx.const(index * TILE_ROWS * _ROW_BYTES, "uint32")
        return self.base + stage.astype("uint32") * size + offset

    def _barrier(self, kind: str, stage: Any) -> Any:
        """Where a barrier is: after all stages, the full ones before the empty ones."""
        stages = self.tiles.stages
        first = stages * self.tiles.stage_bytes + (8 * stages if kind == "empty" else 0)
        return self.base + tirx.const(first, "uint32") + stage.astype("uint32") * 8

    def _int(self, value: int) -> Any:
        return tirx.const(value, self.dtype)


def _advance(across: bool) -> int:
    """What one instruction's depth adds to a descriptor, in units of 16 bytes."""
    return (hopper.DEPTH * _ROW_BYTES if across else hopper.DEPTH_BYTES) // 16


def _flipped(parity: Any) -> Any:
    return tirx.const(1, "uint32") - parity


def _serial(extent: Any, dtype: str, body: Callable[[Any], tirx.Stmt]) -> tirx.Stmt:
    """A loop that is not written out, even if it runs once: it scopes its variables."""
    if isinstance(extent, int):
        return repeated(extent, dtype, body, tirx.ForKind.SERIAL)
    var = tirx.Var("turn", dtype)
    return tirx.For(var, tirx.const(0, dtype), extent, tirx.ForKind.SERIAL, body(var))
