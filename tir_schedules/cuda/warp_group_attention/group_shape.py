"""How attention by warp groups cuts rows and keys, and what lies where in shared memory."""

from dataclasses import dataclass

from tvm_ext.tir_schedules.cuda.attention.attention_problem import AttentionProblem
from tvm_ext.tir_schedules.cuda.warp_group_attention.head_boxes import BOX_ELEMENTS
from tvm_ext.tir_schedules.cuda.warp_groups.tensor_map import SWIZZLED_ROW_BYTES
from tvm_ext.tir_schedules.cuda.warp_groups.warp_group_instructions import (
    BASE_ALIGNMENT,
    DEPTH,
    ROWS,
    WARP_GROUP,
)

# Columns of a product come in multiples of this: PTX ISA, "wgmma.mma_async", "Matrix Shape".
_COLUMN_UNIT = 8

_BARRIER_BYTES = 8

# For the addresses of two rows of a mask.
_MASK_REGISTERS = 8


@dataclass(frozen=True)
class GroupAttentionTiles:
    """Tiles of attention by warp groups.

    Attributes
    ----------
    groups : int
        Warp groups that multiply, each with 64 rows of the query; one more copies.
    keys : int
        Keys, and values, of a tile.
    stages : int
        Tiles of keys, and as many of values, that are in flight or in use.
    lasting : bool
        Whether a block takes one tile of rows after the other, as many blocks as fit at a time.
    turns : bool
        Whether groups take turns in starting products, so that one computes its weights while
        another one's products are under way.
    section : int
        Heads of keys whose tiles of rows are worked through together, those with most keys first.
    """

    groups: int
    keys: int
    stages: int
    lasting: bool = False
    turns: bool = False
    section: int = 1

    splits = 1
    packed = False

    @property
    def rows(self) -> int:
        """Rows of the query that a block has at a time."""
        return self.groups * ROWS

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return (self.groups + 1) * WARP_GROUP


@dataclass(frozen=True)
class GroupLayout:
    """Sizes and places in shared memory, in bytes; ``BASE_ALIGNMENT`` are for rounding up."""

    problem: AttentionProblem
    tiles: GroupAttentionTiles

    @property
    def depth(self) -> int:
        """Elements of a query and of a key that are multiplied: those beyond the last are zero."""
        return -(-self.problem.depth // DEPTH) * DEPTH

    @property
    def width(self) -> int:
        """Elements of a value."""
        return -(-self.problem.width // _COLUMN_UNIT) * _COLUMN_UNIT

    @property
    def query_bytes(self) -> int:
        """Of all boxes of the query's tile."""
        return self._boxes(self.problem.depth) * self.query_box_bytes

    @property
    def query_box_bytes(self) -> int:
        """Of one box of the query."""
        return self.tiles.rows * SWIZZLED_ROW_BYTES

    @property
    def box_bytes(self) -> int:
        """Of one box of keys or values."""
        return self.tiles.keys * SWIZZLED_ROW_BYTES

    @property
    def key_bytes(self) -> int:
        """Of a tile of keys."""
        return self._boxes(self.problem.depth) * self.box_bytes

    @property
    def value_bytes(self) -> int:
        """Of a tile of values."""
        return self._boxes(self.problem.width) * self.box_bytes

    @property
    def keys_start(self) -> int:
        """Where the tiles of keys begin."""
        return self.query_bytes

    @property
    def values_start(self) -> int:
        """Where the tiles of values begin."""
        return self.keys_start + self.tiles.stages * self.key_bytes

    @property
    def barriers_start(self) -> int:
        """Where the barriers begin: of the query, of the keys' stages, of the values' stages."""
        return self.values_start + self.tiles.stages * self.value_bytes

    @property
    def shared_bytes(self) -> int:
        """Of a block."""
        barriers = 2 * (1 + 2 * self.tiles.stages)
        return self.barriers_start + barriers * _BARRIER_BYTES + BASE_ALIGNMENT

    @property
    def held_registers(self) -> int:
        """Registers of a thread for scores, weights, results and what is loaded of masks.

        Of a mask all elements for both rows of a thread are loaded ahead, or as many addresses are
        there; of several masks one after the other. Each has places of its own to begin at.
        """
        scores, masks = self.tiles.keys // 2, len(self.problem.masks)
        loaded = scores + _MASK_REGISTERS * masks if masks else 0
        return scores + scores // 2 + self.width // 2 + loaded

    def _boxes(self, elements: int) -> int:
        return -(-elements // BOX_ELEMENTS)


def row_tiles(problem: AttentionProblem, tiles: GroupAttentionTiles) -> int:
    """Tiles of rows of one head."""
    return -(-problem.queries // tiles.rows)


def in_pairs(problem: AttentionProblem, tiles: GroupAttentionTiles) -> bool:
    """Whether blocks that last take tiles of rows two by two: see ``GroupTiles``."""
    return problem.compute.causal is not None and row_tiles(problem, tiles) % 2 == 0


def work_units(problem: AttentionProblem, tiles: GroupAttentionTiles) -> int:
    """Tiles of rows, or pairs of them, that blocks take at a time."""
    count = row_tiles(problem, tiles) * problem.heads * problem.batch
    return count // 2 if tiles.lasting and in_pairs(problem, tiles) else count
