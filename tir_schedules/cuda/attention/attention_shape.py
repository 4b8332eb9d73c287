"""How the two kinds of attention kernels lay out a tile, and what that takes.

On tensor cores a warp has rows by the 16, as matrix instructions do. On CUDA cores, for float32,
it has rows by the 4: eight lanes share a row, each with every eighth key of a tile.
"""

from dataclasses import dataclass, replace

from tvm_ext.tir_schedules.cuda.attention.attention_problem import AttentionProblem
from tvm_ext.tir_schedules.cuda.products.contraction_decision import (
    OTHER_REGISTERS,
    ROW_PADDING_BYTES,
)

WARP = 32

# Registers up to which a thread keeps the query: more would leave none for loads ahead.
_KEPT_QUERY_REGISTERS = 190


@dataclass(frozen=True)
class KernelKind:
    """What the instructions of a kernel ask of a tile.

    Attributes
    ----------
    rows : int
        Rows of a warp come in multiples of this.
    depth, width : int
        Elements of a query, and of a value, are filled up to multiples of these.
    lanes : int
        Lanes that share a row.
    row_tiles, keys : tuple[int, ...]
        What a kernel may choose: multiples of ``rows`` for a warp, and keys of a tile.
    """

    rows: int
    depth: int
    width: int
    lanes: int
    row_tiles: tuple[int, ...]
    keys: tuple[int, ...]
    on_tensor_cores: bool


TENSOR_CORES = KernelKind(16, 16, 16, 4, (1, 2), (16, 32, 64, 128), True)
CUDA_CORES = KernelKind(4, 8, 32, 8, (1, 2, 4, 8), (8, 16, 32, 64), False)


@dataclass(frozen=True)
class AttentionTiles:
    """Tiles of an attention kernel.

    Attributes
    ----------
    kind : KernelKind
        What computes them.
    warps : int
        Warps of a block, each with rows of its own.
    row_tiles : int
        Multiples of ``kind.rows`` that a warp has.
    keys : int
        Keys, and values, that are in shared memory at a time, for each stage.
    stages : int
        Tiles of keys and values that are in flight or in use.
    splits : int
        Parts into which the keys are cut; a second kernel combines their results.
    packed : bool
        Whether rows of all heads that share keys are in one tile.
    """

    kind: KernelKind
    warps: int
    row_tiles: int
    keys: int
    stages: int
    splits: int = 1
    packed: bool = False

    @property
    def warp_rows(self) -> int:
        """Rows of the query that a warp has."""
        return self.row_tiles * self.kind.rows

    @property
    def rows(self) -> int:
        """Rows of the query that a block has."""
        return self.warps * self.warp_rows

    @property
    def thread_rows(self) -> int:
        """Rows of which a thread has a part."""
        return self.warp_rows * self.kind.lanes // WARP

    def with_splits(self, splits: int) -> "AttentionTiles":
        """The same with the keys cut into so many parts."""
        return replace(self, splits=splits)


@dataclass(frozen=True)
class TileLayout:
    """The arrays of a kernel: sizes with what fills them up, and places in shared memory.

    Counted in elements. Rows begin an odd multiple of 16 bytes apart: those that eight lanes name
    then lie in different banks.
    """

    problem: AttentionProblem
    tiles: AttentionTiles

    @property
    def depth(self) -> int:
        """Elements of a query and of a key."""
        return _rounded(self.problem.depth, self.tiles.kind.depth)

    @property
    def width(self) -> int:
        """Elements of a value."""
        return _rounded(self.problem.width, self.tiles.kind.width)

    @property
    def _padding(self) -> int:
        return ROW_PADDING_BYTES // self.problem.query.element_bytes

    @property
    def key_stride(self) -> int:
        """Between rows of queries, and of keys."""
        return self.depth + self._padding

    @property
    def value_stride(self) -> int:
        """Between rows of values."""
        return self.width + self._padding

    @property
    def weight_stride(self) -> int:
        """Between rows of weights, which only kernels on CUDA cores have in shared memory."""
        return self.tiles.keys + self._padding

    @property
    def weights_start(self) -> int:
        """Where the weights begin: behind the queries."""
        return self.tiles.rows * self.key_stride

    @property
    def stages_start(self) -> int:
        """Where the stages begin."""
        weights = 0 if self.tiles.kind.on_tensor_cores else self.tiles.rows * self.weight_stride
        return self.weights_start + weights

    @property
    def stage_size(self) -> int:
        """Of one stage: keys, then values."""
        return self.tiles.keys * (self.key_stride + self.value_stride)

    @property
    def shared_elements(self) -> int:
        """Of all shared memory."""
        return self.stages_start + self.tiles.stages * self.stage_size

    @property
    def shared_bytes(self) -> int:
        """The same in bytes."""
        return self.shared_elements * self.problem.query.element_bytes

    @property
    def keeps_query(self) -> bool:
        """Whether the query's fragments stay in registers."""
        if not self.tiles.kind.on_tensor_cores:
            return False
        return self._registers(self.depth // self.tiles.kind.depth) <= _KEPT_QUERY_REGISTERS

    @property
    def registers(self) -> int:
        """Registers of a thread, estimated: results, scores, fragments and the rest."""
        return self._registers(self.depth // self.tiles.kind.depth if self.keeps_query else 1)

    def _registers(self, query_steps: int) -> int:
        tiles, rows = self.tiles, self.tiles.thread_rows
        held = rows * (self.width + tiles.keys) // tiles.kind.lanes + OTHER_REGISTERS
        for mask in self.problem.masks:
            held += tiles.keys // tiles.kind.lanes * mask.element_bytes // 4
        if not tiles.kind.on_tensor_cores:
            # Four neighbours of every operand at a time.
            return held + 4 * (rows + max(tiles.keys // tiles.kind.lanes, self.width // WARP))
        return held + tiles.row_tiles * 4 * (query_steps + 1)


def _rounded(extent: int, unit: int) -> int:
    return -(-extent // unit) * unit
