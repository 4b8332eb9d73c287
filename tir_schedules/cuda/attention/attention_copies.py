"""What an attention kernel copies to shared memory: rows of the query, keys and values."""

import math
from typing import Any

from tvm import tirx

from tvm_ext.tir_schedules.cuda.attention.attention_problem import NamedTensor
from tvm_ext.tir_schedules.cuda.attention.attention_rows import AttentionRows
from tvm_ext.tir_schedules.cuda.attention.attention_scores import INDEX, number
from tvm_ext.tir_schedules.cuda.attention.attention_shape import WARP
from tvm_ext.tir_schedules.cuda.launch import guarded, repeated
from tvm_ext.tir_schedules.cuda.warp_code import commit_copies, copy_asynchronously
from tvm_ext.tir_schedules.statements import sequence

_COPY_BYTES = 16
_LEAST_COPY_BYTES = 4
_MOST_UNROLLED = 16


class AttentionCopies(AttentionRows):
    """The copies of a block: all of its threads take part."""

    shared: Any

    def stage(self, tile: Any) -> Any:
        """Where the stage of a tile of keys begins in shared memory."""
        place = tirx.floormod(tile, number(self.tiles.stages))
        return number(self.layout.stages_start) + place * number(self.layout.stage_size)

    def fill_padding(self) -> list[tirx.Stmt]:
        """Zeros behind queries and keys whose size is no multiple of an instruction's."""
        depth, layout, tiles = self.problem.depth, self.layout, self.tiles
        columns = layout.depth - depth
        if not columns:
            return []
        places = [(0, tiles.rows)]
        for stage in range(tiles.stages):
            places.append((layout.stages_start + stage * layout.stage_size, tiles.keys))
        zero = tirx.const(0.0, self.problem.query.dtype)
        statements = []
        for start, rows in places:

            def one(at: Any, start: int = start) -> tirx.Stmt:
                row, column = tirx.floordiv(at, number(columns)), tirx.floormod(at, number(columns))
                address = number(start + depth) + row * number(layout.key_stride) + column
                return tirx.BufferStore(self.shared, zero, [address])

            statements.append(self._by_all_threads(rows * columns, one))
        return statements

    def copy_rows(self) -> tirx.Stmt:
        """The rows of the query."""

        def address(row: Any) -> Any:
            place, _ = self.row(row)
            return self.problem.query.address(b=place.batch, h=place.head, s=place.query)

        stride, rows = self.layout.key_stride, self.tiles.rows
        return self._copy(self.problem.query, address, number(0), stride, rows)

    def copy_keys(self, tile: Any) -> tirx.Stmt:
        """Keys and values of a tile, to its stage."""
        problem, tiles, layout = self.problem, self.tiles, self.layout
        head = self.head
        if not tiles.packed and problem.group > 1:
            head = tirx.floordiv(self.head, number(problem.group))
        start = self.stage(tile)
        values = start + number(tiles.keys * layout.key_stride)
        statements = []
        for tensor, to, stride in (
            (problem.key, start, layout.key_stride),
            (problem.value, values, layout.value_stride),
        ):

            def address(row: Any, tensor: NamedTensor = tensor) -> Any:
                at = tile * number(tiles.keys) + row
                if problem.keys % tiles.keys:
                    # What is beyond the last key has weight zero, whatever stands there.
                    at = tirx.min(at, number(problem.keys - 1))
                return tensor.address(b=self.batch, h=head, s=at)

            statements.append(self._copy(tensor, address, to, stride, tiles.keys))
        return sequence(statements)

    def copy_ahead(self, begin: Any, end: Any) -> list[tirx.Stmt]:
        """The copies that are in flight when the walk along the keys begins, each a group."""
        statements = []
        for ahead in range(self.tiles.stages - 1):
            tile = begin + number(ahead)
            statements += [guarded(tile < end, self.copy_keys(tile)), commit_copies()]
        return statements

    def _copy(
        self, tensor: NamedTensor, address: Any, start: Any, stride: int, rows: int
    ) -> tirx.Stmt:
        """Copies rows of a tensor to shared memory, in pieces of up to 16 bytes."""
        extent, size = tensor.size("d"), tensor.element_bytes
        piece = math.gcd(extent, _COPY_BYTES // size)
        pieces = extent // piece

        def one(at: Any) -> tirx.Stmt:
            row, column = tirx.floordiv(at, number(pieces)), tirx.floormod(at, number(pieces))
            column = column * number(piece)
            to, source = start + row * number(stride) + column, address(row) + column
            if piece * size < _LEAST_COPY_BYTES:
                value = tirx.BufferLoad(tensor.buffer, [source])
                return tirx.BufferStore(self.shared, value, [to])
            return copy_asynchronously((self.shared, to), (tensor.buffer, source), piece * size)

        return self._by_all_threads(rows * pieces, one)

    def _by_all_threads(self, count: int, body: Any) -> tirx.Stmt:
        """``body`` for ``count`` numbers, dealt to the threads of the block."""
        threads = self.tiles.warps * WARP

        def one(i: Any) -> tirx.Stmt:
            at = i * number(threads) + self.thread
            return guarded(at < number(count) if count % threads else None, body(at))

        times = -(-count // threads)
        # Written out, their addresses would all be computed ahead, and take registers.
        kind = tirx.ForKind.UNROLLED if times <= _MOST_UNROLLED else tirx.ForKind.SERIAL
        return repeated(times, INDEX, one, kind)
