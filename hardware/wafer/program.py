"""What a kernel asks of a mesh, in numbers: the work of one PE, and the messages between PEs.

A program is the same for all PEs; how much of it each has to do (the last row may have fewer
elements) is in the shares of its works.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class BlockWork:
    """Vector instructions of one block.

    Attributes
    ----------
    name : str
        Of the block.
    instructions : float
        Vector instructions that a PE with a full tile starts.
    elements : float
        Elements that they go through, all together.
    length : float
        Elements of one instruction.
    scalar_operations : float
        Operations that no vector instruction does (exp, division), on one element each.
    dtype : str
        Of the arithmetic.
    flops : float
        Arithmetic operations of a full tile; a multiply-add is two.
    load_bytes, store_bytes : float
        Of SRAM, by a full tile.
    operands : tuple[str, ...]
        Buffers of the PE that one instruction reads together.
    row_share, column_share : np.ndarray
        For each row and column of the mesh, the part of a full tile that its PEs have; float64.
    """

    name: str
    instructions: float
    elements: float
    length: float
    scalar_operations: float
    dtype: str
    flops: float
    load_bytes: float
    store_bytes: float
    operands: tuple[str, ...]
    row_share: np.ndarray
    column_share: np.ndarray


@dataclass(frozen=True)
class Transfer:
    """Messages of one block, all PEs at the same time.

    Attributes
    ----------
    name : str
        Of the buffer that is filled, or whose partial results are combined.
    pattern : str
        One of the patterns in ``tir_schedules/wafer/annotations.py``.
    words : float
        32-bit words that one PE receives.
    extent : int
        PEs along the line of the pattern.
    distance : float
        Hops of the longest way.
    load : float
        The most such messages that share one link.
    group : int
        PEs of a group, or branches; 0 where the pattern has none.
    senders : int
        PEs of a line that send their part of it, one after the other.
    axis : str
        "row" or "column" for PEs of one row or column whose results are combined, else empty.
    first_distance, first_load : float
        The same for bringing tiles to their first place, before the first step; 0 where they lie
        there.
    """

    name: str
    pattern: str
    words: float
    extent: int
    distance: float = 0.0
    load: float = 1.0
    group: int = 0
    first_distance: float = 0.0
    first_load: float = 0.0
    senders: int = 1
    axis: str = ""


@dataclass(frozen=True)
class Steps:
    """Items that are repeated.

    Attributes
    ----------
    times : int
        How often.
    overlapped : bool
        Whether the messages of a step are under way while the step before computes.
    items : tuple
        What one step does, in order.
    """

    times: int
    overlapped: bool
    items: "tuple[Item, ...]"


Item = BlockWork | Transfer | Steps


@dataclass(frozen=True)
class Layout:
    """Where a tensor lies between kernels.

    Of several dimensions that are cut along one axis, the later ones count places within a piece of
    the earlier ones.

    Attributes
    ----------
    tensor : str
        Its name in the kernel.
    shape : tuple[int, ...]
        Of the tensor.
    axes : tuple[str, ...]
        For each dimension, "row" or "column" if it is cut along it, else "-".
    pieces : tuple[int, ...]
        For each dimension, elements of one shard.
    element_bytes : int
        Of one element.
    rows, columns : int
        Rows and columns of PEs, from the first on, that hold it. Along an axis that no dimension is
        cut along, each of them has a copy.
    """

    tensor: str
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    pieces: tuple[int, ...]
    element_bytes: int
    rows: int
    columns: int

    @property
    def shard_bytes(self) -> int:
        """Bytes of a full shard."""
        return math.prod(self.pieces) * self.element_bytes

    @property
    def elements(self) -> int:
        """Of the whole tensor."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class WaferProgram:
    """A kernel on a mesh.

    Attributes
    ----------
    name : str
        Of the kernel.
    rows, columns : int
        PEs that it uses.
    items : tuple[Item, ...]
        What happens, in order.
    shards : dict[str, int]
        Bytes of each tensor in one PE, between kernels.
    buffers : dict[str, int]
        Bytes of each buffer of one PE while the kernel runs, those of messages under way included.
    homes : dict[int, Layout]
        Where its parameters lie before and after it runs, by position.
    """

    name: str
    rows: int
    columns: int
    items: tuple[Item, ...]
    shards: dict[str, int] = field(default_factory=dict)
    buffers: dict[str, int] = field(default_factory=dict)
    homes: dict[int, Layout] = field(default_factory=dict)

    @property
    def bytes_per_pe(self) -> int:
        """SRAM of one PE that data take."""
        return sum(self.shards.values()) + sum(self.buffers.values())

    def leaves(self) -> Iterator[tuple[BlockWork | Transfer, int]]:
        """Every work and transfer, with how often it happens."""
        return _leaves(self.items, 1)


def _leaves(items: tuple[Item, ...], times: int) -> Iterator[tuple[BlockWork | Transfer, int]]:
    for item in items:
        if isinstance(item, Steps):
            yield from _leaves(item.items, times * item.times)
        else:
            yield item, times
