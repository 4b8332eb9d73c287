"""How templates cut the loops of contractions with symbolic extents into tiles."""

from collections.abc import Sequence
from dataclasses import dataclass

import tvm

from tvm_ext.tir_schedules.analysis.buffer_access import LoopAxis
from tvm_ext.tir_schedules.cpu.dot_product import DotProduct
from tvm_ext.tir_schedules.cpu.implicit_padding import ImplicitPadding

# Rows of a tile, at most, that read an operand in long pieces: more use what they read so often
# that the time is that of multiplying.
MOST_FAR_ROWS = 4

# Numbers of tiles that are tried.
_TRIED_COUNTS = 4

# Of the columns, that part at most is computed twice by wide tiles.
_MOST_REPEATED = 1 / 8


@dataclass(frozen=True)
class Panel:
    """Columns of an operand that are copied next to each other.

    Attributes
    ----------
    element : Expr
        The operand as it is in the product: read, or computed from what is read.
    rows : LoopAxis
        The loop over rows of tiles, all of which pass before the next columns are copied.
    tiles : int
        Tiles along the columns whose columns are copied together.
    least_rows : int
        Of a loop over rows for which the copy is made; where there are fewer, tiles read the
        operand itself.
    """

    element: tvm.ir.Expr
    rows: LoopAxis
    tiles: int
    least_rows: int = 1


@dataclass(frozen=True)
class CommonFactor:
    """A factor that several steps of the sum share, which is multiplied with what these add up to.

    Attributes
    ----------
    factor : Expr
        It moves with the columns and with outer loops of the sum: the scale of a block of weights.
    product : Expr
        What is left of the contraction's product.
    most_sums : int
        Sums of a tile, at most, for which registers hold those of a block as well. Larger tiles
        multiply each product.
    enough_sums : int
        Sums that are added to in turn, at least, so that no addition waits for the one before.
    """

    factor: tvm.ir.Expr
    product: tvm.ir.Expr
    most_sums: int
    enough_sums: int


@dataclass(frozen=True)
class FarRows:
    """An operand of many columns that lies row by row, as the user gave it or a kernel wrote it.

    A tile of few rows uses each element so seldom that the time is that of reading, which is least
    where the next line is the next in memory. The sums of one row are so many that they lie in L1,
    and some rows of the operand at a time are read along it. Those of two to four rows fill the
    registers, as to load and store them takes longer than reading.

    Attributes
    ----------
    load : TensorLoad
        An element of it, as the product reads it.
    in_l1, in_registers : int
        Sums of a tile, at most.
    lanes : int
        Of the sums in L1, those that are added to at a time.
    least_tiles : int
        Along the columns.
    """

    load: tvm.ir.TensorLoad
    in_l1: int
    in_registers: int
    lanes: int
    least_tiles: int

    def column_sizes(self, columns: LoopAxis, rows: int, usual: int) -> tuple[int, ...]:
        """Sums along the columns of a tile of ``rows``, where they are more than ``usual``."""
        sizes = self._lines(columns) if rows == 1 else self._registers(columns, rows)
        return next(((size,) for size in sizes if size > usual and self._fits(columns, size)), ())

    def _lines(self, columns: LoopAxis) -> Sequence[int]:
        length = columns.length
        if length is None:
            return (self.in_l1,)
        fewest = max(self.least_tiles, -(-length // self.in_l1))
        # Of more tiles, the last one may repeat less, or the only one be no longer than the loop.
        counts = range(fewest, fewest + _TRIED_COUNTS)
        return [-(-length // (tiles * self.lanes)) * self.lanes for tiles in counts]

    def _registers(self, columns: LoopAxis, rows: int) -> Sequence[int]:
        # Powers of two: LLVM leaves other long vectors in memory.
        most = self.in_registers >> (rows - 1).bit_length()
        return [most >> n for n in range(most.bit_length())]

    def _fits(self, columns: LoopAxis, size: int) -> bool:
        length = columns.length
        if length is None:
            return True
        tiles = -(-length // size)
        repeated = tiles * size - length
        return size <= length and repeated <= _MOST_REPEATED * length


@dataclass(frozen=True)
class SymbolicTile:
    """How the loops are cut.

    Attributes
    ----------
    columns : LoopAxis
        Its sums fill the vectors.
    column_sizes : tuple[int, ...]
        Sums of a tile along it, the largest first: the first that the loop is as long as is used.
    rows : LoopAxis or None
        The other loop of a tile; None where a vector serves only one sum.
    row_sizes : tuple[int, ...]
        The same along it.
    columns_first : bool
        Whether all other tiles pass before the columns advance.
    row_block : int
        Tiles along the rows for which all columns pass before the next ones, with
        ``columns_first``; 0 where all rows pass.
    panel : Panel or None
        The operand whose columns are copied before all rows of tiles pass.
    padded : bool
        Whether the operands have whole tiles of columns, of which the last sums are not wanted.
    row_parts : tuple[LoopAxis, ...]
        The loops of the contraction, the outermost first, that ``rows`` counts all iterations of:
        pixels of all lines of an image. Empty where ``rows`` is a loop of the contraction itself.
    implicit_padding : ImplicitPadding or None
        The operand that is a pixel or padding; there is no panel then.
    dot_product : DotProduct or None
        What adds to the sums, where that is not a multiplication and an addition.
    stream : TensorLoad or None
        Of an operand that tiles read from its beginning to its end, the first element of a row of
        it, which the innermost loop of the sum need not move. The processor is told ahead.
    common_factor : CommonFactor or None
        Of weights in blocks. The innermost loop of the sum, over the numbers in a word, is written
        out then: what takes a number out of its word is constant for each place.
    far_rows : FarRows or None
        What tiles of few rows read in wide pieces.
    vector_sums : int
        Sums of a vector, where tiles of few vectors may add each sum up in several parts; else 0.
    """

    columns: LoopAxis
    column_sizes: tuple[int, ...]
    rows: LoopAxis | None
    row_sizes: tuple[int, ...]
    columns_first: bool = False
    row_block: int = 0
    panel: Panel | None = None
    padded: bool = False
    row_parts: tuple[LoopAxis, ...] = ()
    implicit_padding: ImplicitPadding | None = None
    dot_product: DotProduct | None = None
    stream: tvm.ir.TensorLoad | None = None
    common_factor: CommonFactor | None = None
    far_rows: FarRows | None = None
    vector_sums: int = 0
