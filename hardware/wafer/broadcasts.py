"""SUMMA's broadcasts: a tile of A to all PEs of its row, a tile of B to all of its column, at once.

R. van de Geijn, J. Watts, "SUMMA: scalable universal matrix multiplication algorithm", Concurrency:
Practice and Experience 9(4), 1997. In step k, PE k of every row sends its tile of A along the row,
and PE k of every column its tile of B along the column.
"""

from tvm_ext.hardware.mesh_description import MeshDescription
from tvm_ext.hardware.wafer.communication import Communication, at_once, on_lines
from tvm_ext.hardware.wafer.messages import multicast


def summa_broadcast(
    mesh: MeshDescription,
    row_words: float,
    column_words: float,
    rows: int,
    columns: int,
    row_root: int = 0,
    column_root: int = 0,
) -> Communication:
    """Both broadcasts of one step.

    With B words along a row and B' along a column, over at most L and L' hops:

        cycles = max(B + L, B' + L') + min(B, B') + 2 T_R + 1

    since the PE that sends both, and PEs that receive both, share their ramps between them.

    Parameters
    ----------
    row_words, column_words
        Words of the tile that goes along a row, and of the one that goes along a column.
    rows, columns
        The grid.
    row_root, column_root
        The column of PEs that sends along the rows, and the row that sends along the columns. A
        sender in the middle has half of the way.

    The colours are those of one step: with one for each sender, a grid of N x N needs N for the
    rows and N for the columns, the O(N) paths of WaferLLM's table; routers that are set anew
    between steps need no more than those of one.
    """
    along_rows = on_lines(multicast(mesh, row_words, columns, row_root), rows)
    along_columns = on_lines(multicast(mesh, column_words, rows, column_root), columns)
    return at_once([along_rows, along_columns])
