"""Matmuls of one processing element (PE), dense and sparse: the local phase of distributed
ones.
"""

import re
import statistics
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
from scipy.special import bdtr

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.wafer.published.family import (
    Family,
    Parameters,
    Prediction,
    Terms,
    check_bytes,
    element_bytes,
    fit_terms,
    grid_of,
    in_cycles,
    linear_family,
    machine_of,
)
from tvm_ext.hardware.wafer.published.rows import PublishedRow


@dataclass(frozen=True)
class _DenseTile:
    m: int
    n: int
    k: int


def _recognises_gemm(row: PublishedRow) -> bool:
    kernel = row.kernel.lower()
    distributed = re.search(r"summa|cannon|mesh|sparse|spmm|\bcopy\b|total", kernel)
    return bool(re.search(r"\bgemm\b|\bmatmul\b|matrix product", kernel)) and not distributed


def _terms_gemm(row: PublishedRow) -> Terms:
    if not re.search(r"local|tile|compute", row.kernel.lower()):
        raise NotApplicable(
            "only the local phase of a GEMM was published with numbers, not all of it"
        )
    machine = machine_of(row)
    rows, columns = grid_of(row, machine)
    if element_bytes(row) != 4:
        raise NotApplicable(f"only fp32 tiles were published, not {row.dtype}")
    tile = _tile_gemm(row, rows, columns)
    check_bytes(4 * (tile.m * tile.k + tile.k * tile.n + tile.m * tile.n), machine)
    instructions = tile.k * tile.n
    passed_on = instructions * max(0, rows - 2) / rows
    counts = {"instruction": instructions, "element": instructions * tile.m}
    return Terms(counts, known=passed_on)


def _tile_gemm(row: PublishedRow, rows: int, columns: int) -> _DenseTile:
    """As the row states it, else from the sizes: M over the rows, K over the columns of PEs."""
    stated = row.parameters.get("tile")
    if isinstance(stated, dict) and all(_is_count(stated.get(name)) for name in "MNK"):
        return _DenseTile(stated["M"], stated["N"], stated["K"])
    if row.m is None or row.n is None or row.k is None:
        raise NotApplicable("the row has neither a tile nor M, N and K")
    return _DenseTile(ceil(row.m / rows), row.n, ceil(row.k / columns))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


GEMM_TILE = linear_family(
    name="gemm_tile",
    title="GEMM, local tile",
    recognises=_recognises_gemm,
    terms=_terms_gemm,
    of="mean over PEs",
    size=lambda row: _tile_gemm(row, *grid_of(row, machine_of(row))),
    parameters={
        "instruction": "cycles for each vector instruction",
        "element": "cycles for each element of it",
    },
)


# Sparse times dense matrix, the local phase: CSR, CSC, COO and ELLPACK, the slowest PE.
#
# A PE has ``rows x columns`` cells of A at random places, the density ``d`` of which are stored,
# and does one vector instruction of length ``N`` for each stored cell (repository
# pr0f3ss/SpMM_Cerebras, src/grid_*)::
#
#     cycles = stored (nonzero + element N) + line lines + start
#
# ``lines`` are the rows (CSR, ELLPACK) or the columns (CSC) that it loops over; COO has none.
# What the slowest PE has stored depends on the format:
#
# - CSR and CSC: its own non-zeros. Their number is binomial, the most of ``P`` PEs is on average
#   ``sum over k of 1 - F(k)^P`` with the distribution function ``F``.
# - COO: all PEs store as many as the one with the most.
# - ELLPACK: all rows are as long as the longest row of all PEs, taken at its median. That length is
#   known to the compiler: it unrolls the loop over a row of 10 or fewer, which saves ``unrolled``
#   cycles an entry.
#
# The four formats share their parameters. These come from the means over PEs of CSR and CSC,
# which no load balance has a part in; ``unrolled`` from ELLPACK. The maxima and COO are
# predictions.


_FORMATS = {"ELLPACK": r"\bell(pack)?\b", "CSR": r"\bcsr\b", "CSC": r"\bcsc\b", "COO": r"\bcoo\b"}

# Between the longest row that is faster by the loop's cost (10) and the shortest that is not (11).
LONGEST_UNROLLED_ROW = 10


@dataclass(frozen=True)
class _SparseTile:
    """What one PE has: cells of A, columns ``n`` of B, and how many PEs there are."""

    format: str
    rows: int
    columns: int
    n: int
    density: float
    processing_elements: int

    @property
    def mean(self) -> float:
        """Non-zeros of a PE."""
        return self.rows * self.columns * self.density

    @property
    def most(self) -> float:
        """Expected non-zeros of the PE with the most."""
        return expected_maximum(self.rows * self.columns, self.density, self.processing_elements)

    @property
    def longest_row(self) -> int:
        """Median of the most non-zeros in a row of a PE."""
        return median_maximum(self.columns, self.density, self.rows * self.processing_elements)


def expected_maximum(trials: int, share: float, draws: int) -> float:
    """Mean of the largest of ``draws`` independent binomial numbers."""
    return float(np.sum(1 - bdtr(np.arange(trials), trials, share) ** draws))


def median_maximum(trials: int, share: float, draws: int) -> int:
    """Median of the largest of ``draws`` independent binomial numbers."""
    below = bdtr(np.arange(trials + 1), trials, share) ** draws
    return int(np.searchsorted(below, 0.5))


def _recognises_sparse(row: PublishedRow) -> bool:
    kernel = row.kernel.lower()
    return bool(re.search(r"\bspm[mv]\b|\bsparse\b", kernel)) or _format(row) is not None


def _predict_sparse(row: PublishedRow, parameters: Parameters) -> Prediction:
    tile = _tile_sparse(row)
    if tile.format == "ELLPACK":
        cycles = _terms_sparse(tile, tile.rows * tile.longest_row).cycles(parameters)
        return Prediction(cycles, "slowest PE")
    cycles = _terms_sparse(tile, tile.most).cycles(parameters)
    if tile.format == "COO":
        return Prediction(cycles, "slowest PE")
    mean = _terms_sparse(tile, tile.mean).cycles(parameters)
    return Prediction(cycles, "slowest PE", mean_cycles=mean)


def _terms_sparse(tile: _SparseTile, stored: float) -> Terms:
    lines = {"CSR": tile.rows, "ELLPACK": tile.rows, "CSC": tile.columns, "COO": 0}
    unrolled = tile.format == "ELLPACK" and stored <= tile.rows * LONGEST_UNROLLED_ROW
    return Terms(
        {
            "nonzero": stored,
            "element": stored * tile.n,
            "line": lines[tile.format],
            "start": 1,
            "unrolled": -stored if unrolled else 0,
        }
    )


def _fit_sparse(rows: Sequence[PublishedRow]) -> dict[str, float]:
    tiles = [
        (_tile_sparse(row), in_cycles(row, row.value)) for row in rows if row.value is not None
    ]
    means = [
        (_terms_sparse(tile, tile.mean), cycles)
        for tile, cycles in tiles
        if tile.format in ("CSR", "CSC")
    ]
    shared = fit_terms(means, ["nonzero", "element", "line", "start"])
    shared["unrolled"] = _saved_by_unrolling(shared, tiles)
    return shared


def _saved_by_unrolling(
    parameters: Parameters, tiles: Sequence[tuple[_SparseTile, float]]
) -> float:
    """Cycles an entry: the median, since some matrices have a longer row than expected."""
    saved = []
    for tile, cycles in tiles:
        terms = (
            _terms_sparse(tile, tile.rows * tile.longest_row)
            if tile.format == "ELLPACK"
            else Terms()
        )
        entries = -terms.counts.get("unrolled", 0)
        if entries:
            saved.append((terms.cycles({**parameters, "unrolled": 0.0}) - cycles) / entries)
    if not saved:
        raise NotApplicable("no ELLPACK row is short enough to be unrolled")
    return statistics.median(saved)


def _tile_sparse(row: PublishedRow) -> _SparseTile:
    format_name = _format(row)
    if format_name is None:
        raise NotApplicable(
            "the kernel's text names no format: CSR, CSC, COO and ELLPACK are known"
        )
    if element_bytes(row) != 4:
        raise NotApplicable(f"only fp32 was published, not {row.dtype}")
    machine = machine_of(row)
    grid_rows, grid_columns = grid_of(row, machine)
    if row.m is None or row.n is None or row.k is None:
        raise NotApplicable("the row has no M, N and K")
    rows, columns = ceil(row.m / grid_rows), ceil(row.k / grid_columns)
    check_bytes(4 * row.n * (rows + columns), machine)
    processing_elements = grid_rows * grid_columns
    return _SparseTile(format_name, rows, columns, row.n, _density(row), processing_elements)


def _format(row: PublishedRow) -> str | None:
    kernel = row.kernel.lower()
    return next((name for name, text in _FORMATS.items() if re.search(text, kernel)), None)


def _density(row: PublishedRow) -> float:
    density = row.parameters.get("density")
    if isinstance(density, bool) or not isinstance(density, (int, float)):
        raise NotApplicable('the row\'s parameters have no density, such as {"density": 0.05}')
    if not 0 < density <= 1:
        raise NotApplicable(f"the density is {density}: it is a share, above 0 and at most 1")
    return float(density)


def _size_sparse(row: PublishedRow) -> Hashable:
    tile = _tile_sparse(row)
    return tile.rows, tile.columns, tile.n


SPARSE = Family(
    name="sparse",
    title="sparse times dense",
    recognises=_recognises_sparse,
    predict=_predict_sparse,
    fit=_fit_sparse,
    size=_size_sparse,
    parameters={
        "nonzero": "cycles for each stored cell",
        "element": "cycles for each element of its vector instruction",
        "line": "cycles for each row or column",
        "start": "cycles for each run",
        "unrolled": "cycles saved for each stored cell of rows that are unrolled",
    },
    compares_slowest=True,
    variant=lambda row: _format(row) or "",
)
