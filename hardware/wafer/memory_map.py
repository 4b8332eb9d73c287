"""Bytes in the PEs of a mesh while a program runs."""

import numpy as np

from tvm_ext.hardware.wafer.program import Layout, MeshProgram


def memory_map(program: MeshProgram) -> np.ndarray:
    """Bytes of each PE for data, [rows, columns], float64: shards of tensors, and buffers.

    The last PEs of a tensor have what is left over of it. Buffers are as large in all PEs.
    """
    grid = (program.rows, program.columns)
    total = np.full(grid, float(sum(program.buffers.values())))
    for layout in program.homes.values():
        along_rows, along_columns = (
            _filled(layout, axis, extent, limit)
            for axis, extent, limit in (
                ("row", layout.rows, grid[0]),
                ("column", layout.columns, grid[1]),
            )
        )
        total += layout.shard_bytes * np.outer(along_rows, along_columns)
    return total


def _filled(layout: Layout, axis: str, extent: int, count: int) -> np.ndarray:
    """For each of ``count`` rows or columns, the part of a full shard that it has."""
    shares = np.ones(extent if axis not in layout.axes else 1)
    for size, piece, along in zip(layout.shape, layout.pieces, layout.axes, strict=True):
        if along == axis:
            starts = np.arange(0, size, piece)
            shares = np.outer(shares, np.minimum(piece, size - starts) / piece).ravel()
    found = np.zeros(count)
    found[: len(shares)] = shares[:count]
    return found
