"""Sum of vectors over a row of processing elements, one-dimensional reduce.

The closed forms are those of ``tvm_ext.hardware.wafer.reduces``. Fitted are the ``start`` of a run
and, for the two-phase reduce, ``first_step``: what a PE of a group's chain adds to a word. With
``B`` words, ``P`` PEs in ``G = ceil(P / S)`` groups and the ramp latency ``T_R``::

    cycles = B [S > 1] + B [G > 1] + (P - 1) + first_step (S - 1) + (2 T_R + 1) (G - 1) + start

One group over all PEs is a plain chain in the published kernel, and here. All published rows are of
the two-phase reduce; P. Luczynski et al., "Near-optimal wafer-scale reduce", HPDC 2024, arXiv
2404.15888, state errors under 4 % for chain, tree and star as well.
"""

import re
from collections.abc import Hashable
from math import ceil

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.wafer import reduces
from tvm_ext.hardware.wafer.published.family import (
    Terms,
    element_bytes,
    grid_of,
    linear_family,
    machine_of,
)
from tvm_ext.hardware.wafer.published.rows import PublishedRow

_TWO_PHASE = r"(two|2)[\s-]*phase"
_ONE_PHASE = {
    r"\bchain\b": reduces.chain,
    r"\btree\b": reduces.tree,
    r"\bstar\b": reduces.star,
}


def _recognises(row: PublishedRow) -> bool:
    kernel = row.kernel.lower()
    return bool(re.search(r"\breduce\b", kernel)) and not re.search(r"all[\s-]*reduce", kernel)


def _terms(row: PublishedRow) -> Terms:
    mesh = machine_of(row)
    words, extent = _words_and_extent(row)
    kernel = row.kernel.lower()
    if re.search(_TWO_PHASE, kernel):
        group = min(_group_size(row), extent)
        form = reduces.two_phase(mesh, words, extent, group, first_step_cycles=0.0)
        return Terms({"first_step": group - 1, "start": 1}, form.cycles)
    for text, closed_form in _ONE_PHASE.items():
        if re.search(text, kernel):
            return Terms({"start": 1}, closed_form(mesh, words, extent).cycles)
    raise NotApplicable(
        "the kernel's text names no algorithm: two-phase, chain, tree, star are known"
    )


def _words_and_extent(row: PublishedRow) -> tuple[int, int]:
    """Words of a vector, and PEs of the row."""
    mesh = machine_of(row)
    grid = grid_of(row, mesh)
    if row.vector_length is None:
        raise NotApplicable("the row has no vector_length")
    if min(grid) != 1:
        raise NotApplicable(
            f"the grid is {grid[0]}x{grid[1]}: only reduces over one row of PEs were published"
        )
    return ceil(row.vector_length * element_bytes(row) / mesh.word_bytes), max(grid)


def _group_size(row: PublishedRow) -> int:
    size = row.parameters.get("group_size")
    if isinstance(size, int) and not isinstance(size, bool) and size > 0:
        return size
    found = re.search(r"\bS\s*=\s*([1-9]\d*)|group size\s*(?:of\s*)?([1-9]\d*)", row.kernel)
    if found is None:
        raise NotApplicable(
            'the row has no group size, such as {"group_size": 8} in its parameters'
        )
    return int(found[1] or found[2])


def _size(row: PublishedRow) -> Hashable:
    terms = _terms(row)
    return terms.known, terms.counts.get("first_step")


REDUCE = linear_family(
    name="reduce",
    title="1-D reduce",
    recognises=_recognises,
    terms=_terms,
    of="root PE",
    size=_size,
    parameters={
        "first_step": "cycles for each step of the first phase",
        "start": "cycles for each run",
    },
)
