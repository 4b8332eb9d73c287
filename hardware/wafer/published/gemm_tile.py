"""Dense matrix product of one processing element (PE): the local phase of a distributed GEMM.

``C[M, N] += A[M, K] B[K, N]`` on the tile of a PE is ``K N`` vector instructions of length ``M``, a
column of A times an element of B::

    cycles = K N (instruction + element M) + K N (rows - 2) / rows

The last term is the mean over PEs of one word a cycle: the PEs of all rows but the first and the
last pass B on to the south within the timed part (repository pr0f3ss/SpMM_Cerebras, src/gemm). An
element takes about two cycles, a bank conflict: both operands are strided.
"""

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import ceil

from tvm_ext.hardware.wafer.published.errors import NotCovered
from tvm_ext.hardware.wafer.published.family import Family, Prediction, in_cycles
from tvm_ext.hardware.wafer.published.linear import Parameters, Terms, fit_terms
from tvm_ext.hardware.wafer.published.machines import (
    check_bytes,
    element_bytes,
    grid_of,
    machine_of,
)
from tvm_ext.hardware.wafer.published.rows import PublishedRow


@dataclass(frozen=True)
class _Tile:
    m: int
    n: int
    k: int


def _recognises(row: PublishedRow) -> bool:
    kernel = row.kernel.lower()
    distributed = re.search(r"summa|cannon|mesh|sparse|spmm|\bcopy\b|total", kernel)
    return bool(re.search(r"\bgemm\b|\bmatmul\b|matrix product", kernel)) and not distributed


def _predict(row: PublishedRow, parameters: Parameters) -> Prediction:
    return Prediction(_terms(row).cycles(parameters), "mean over PEs")


def _fit(rows: Sequence[PublishedRow]) -> dict[str, float]:
    observed = [(_terms(row), in_cycles(row, row.value)) for row in rows if row.value is not None]
    return fit_terms(observed, list(GEMM_TILE.parameters))


def _terms(row: PublishedRow) -> Terms:
    if not re.search(r"local|tile|compute", row.kernel.lower()):
        raise NotCovered("only the local phase of a GEMM was published with numbers, not all of it")
    machine = machine_of(row)
    rows, columns = grid_of(row, machine)
    if element_bytes(row) != 4:
        raise NotCovered(f"only fp32 tiles were published, not {row.dtype}")
    tile = _tile(row, rows, columns)
    check_bytes(4 * (tile.m * tile.k + tile.k * tile.n + tile.m * tile.n), machine)
    instructions = tile.k * tile.n
    passed_on = instructions * max(0, rows - 2) / rows
    counts = {"instruction": instructions, "element": instructions * tile.m}
    return Terms(counts, known=passed_on)


def _tile(row: PublishedRow, rows: int, columns: int) -> _Tile:
    """As the row states it, else from the sizes: M over the rows, K over the columns of PEs."""
    stated = row.parameters.get("tile")
    if isinstance(stated, dict) and all(_is_count(stated.get(name)) for name in "MNK"):
        return _Tile(stated["M"], stated["N"], stated["K"])
    if row.m is None or row.n is None or row.k is None:
        raise NotCovered("the row has neither a tile nor M, N and K")
    return _Tile(ceil(row.m / rows), row.n, ceil(row.k / columns))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _size(row: PublishedRow) -> Hashable:
    return _tile(row, *grid_of(row, machine_of(row)))


GEMM_TILE = Family(
    name="gemm_tile",
    title="GEMM, local tile",
    recognises=_recognises,
    predict=_predict,
    fit=_fit,
    size=_size,
    parameters={
        "instruction": "cycles for each vector instruction",
        "element": "cycles for each element of it",
    },
)
