"""Which ways to run the rows of a kernel are worth trying, and come to different loops."""

from collections.abc import Iterator
from functools import cached_property

from tvm_ext.tir_schedules.llvm.knobs import distinct
from tvm_ext.tir_schedules.llvm.row_passes import partial_size, passes_of, row_in_output
from tvm_ext.tir_schedules.llvm.row_stretches import stretches, stretches_across
from tvm_ext.tir_schedules.rows.row_hoist import hoisted
from tvm_ext.tir_schedules.rows.row_kernel import (
    RowBlock,
    RowKernel,
    is_reduction_only,
    product,
)
from tvm_ext.tir_schedules.rows.row_strides import dense_suffix, is_dense

# Accumulators of a row, and rows at once; more than so many together do not stay in registers.
_REGISTERS = (1, 2, 4, 8)
_TOGETHER = (1, 2, 4)
_MOST_TOGETHER = 16

# Vectors of neighbouring rows; more than the registers hold wait in cache, for reductions only.
_VECTORS = (1, 2, 4, 8)
_VECTORS_IN_CACHE = (32, 128)


def ways(kernel: RowKernel, lanes: int) -> list[int]:
    """1 for running across the rows, 0 for running along them, where vectors are whole enough.

    Rows that are gathered must be short: each element of a vector is another line of the cache.
    """
    if kernel.count == 1:
        return [0]
    blocks = [block for block in kernel.blocks if block.columns]
    many = kernel.count >= lanes // 2
    if all(is_dense(kernel, block.columns, [block]) for block in blocks):
        return [0, 1] if many and kernel.length <= 2 * lanes else [0]
    if is_dense(kernel, kernel.rows, kernel.blocks):
        return [1] if kernel.count >= lanes or kernel.length < lanes else [0, 1]
    return [0, 1] if many and kernel.length >= lanes // 2 else []


class AcrossOptions:
    """For tiles of neighbouring rows; ``chunks`` is what the closed form hands to threads."""

    def __init__(self, kernel: RowKernel, lanes: int, chunks: int) -> None:
        self.kernel = kernel
        self.lanes = lanes
        self.chunks = chunks

    def registers(self, default: int, most: int) -> Iterator[int]:
        """Vectors of a tile, up to ``most``."""
        wide = _VECTORS_IN_CACHE if is_reduction_only(self.kernel) else ()
        fitting = (n for n in (*_VECTORS, *wide) if n <= most)
        return distinct(fitting, default, lambda n: tuple(self._tiles(n, self.chunks)))

    def shared(self, registers: int, chunks: int) -> int:
        """How many groups of rows, or tiles, threads can share."""
        groups, _ = self._rows
        if groups >= chunks:
            return groups
        _, count, _ = self._tiles(registers, chunks)[0]
        return groups * count

    def _tiles(self, registers: int, chunks: int) -> list[tuple[int, int, int]]:
        groups, length = self._rows
        return stretches_across(length, groups, self.lanes, registers, chunks)

    @cached_property
    def _rows(self) -> tuple[int, int]:
        """Groups of rows, and rows of a group, which lie side by side."""
        first = dense_suffix(self.kernel, self.kernel.rows, self.kernel.blocks)
        extents = [axis.extent for axis in self.kernel.rows]
        return product(extents[:first]), product(extents[first:])


class AlongOptions:
    """For vectors of neighbours in a row."""

    def __init__(self, kernel: RowKernel, lanes: int) -> None:
        self.kernel = kernel
        self.lanes = lanes

    def registers(self, default: int) -> Iterator[int]:
        """Accumulators of a row."""

        def sizes(registers: int) -> tuple[int, ...]:
            return tuple(partial_size(n, self.lanes, registers)[1] for n in self._lengths)

        return distinct(_REGISTERS, default, sizes)

    def together(self, registers: int, default: int) -> Iterator[int]:
        """Rows at once, each with so many accumulators."""
        fitting = (n for n in _TOGETHER if n * registers <= _MOST_TOGETHER)
        return distinct(fitting, default, lambda n: tuple(self._groups(n)))

    def shared(self, together: int) -> int:
        """How many groups of rows threads can share; what is left over is not handed to them."""
        _, count, _ = self._groups(together)[0]
        return count

    def _groups(self, together: int) -> list[tuple[int, int, int]]:
        return stretches(self.kernel.count, [together, 1])

    def in_output(self) -> Iterator[int]:
        """0 for a buffer of its own, where the row that waits fits into the output as well."""
        if row_in_output(self._written) is not None:
            yield 0

    @cached_property
    def _written(self) -> RowKernel:
        """The kernel as it is written: with blocks for what a row has in common."""
        return hoisted(self.kernel)

    @cached_property
    def _lengths(self) -> list[int]:
        """What is accumulated along, for each reduction that has a pass of its own."""
        reducing = [block for before, block in passes_of(self._written) if before is None]
        return [self._inner_length(block) for block in reducing if block.starts]

    def _inner_length(self, block: RowBlock) -> int:
        first = dense_suffix(self._written, block.columns, [block])
        return product(axis.extent for axis in block.columns[first:])
