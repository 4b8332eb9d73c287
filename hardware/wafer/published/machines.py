"""The machine that a row was measured on."""

import re
from functools import cache

from tvm_ext.hardware.mesh_description import MeshDescription
from tvm_ext.hardware.targets import resolve_target
from tvm_ext.hardware.wafer.published.errors import NotCovered
from tvm_ext.hardware.wafer.published.rows import PublishedRow

_GENERATIONS = {"2": "wse2", "3": "wse3"}


def machine_of(row: PublishedRow) -> MeshDescription:
    """The description of the row's architecture; of the first one where it names two.

    Raises NotCovered for an architecture without a description.
    """
    found = re.search(r"wse[\s_-]*(\d)", row.arch, re.IGNORECASE)
    if found is None or found[1] not in _GENERATIONS:
        raise NotCovered(f"the architecture '{row.arch}' has no description: WSE-2 and WSE-3 have")
    return _description(_GENERATIONS[found[1]])


@cache
def _description(name: str) -> MeshDescription:
    machine = resolve_target(name)
    if not isinstance(machine, MeshDescription):
        raise TypeError(f"configs/targets/{name}.toml is no mesh")
    return machine


def grid_of(row: PublishedRow, machine: MeshDescription) -> tuple[int, int]:
    """Rows and columns of PEs. Raises NotCovered without them or beyond the whole fabric.

    Sources differ in which side they call rows: the fabric counts either way around. A published
    run (SC22) used more columns than the vendor's tools give to a program, so its limit is not
    taken.
    """
    if row.grid_rows is None or row.grid_cols is None:
        raise NotCovered("the row has no grid_rows and grid_cols")
    grid = row.grid_rows, row.grid_cols
    longer, shorter = max(grid), min(grid)
    fabric = machine.fabric_rows, machine.fabric_columns
    if longer > max(fabric) or shorter > min(fabric):
        raise NotCovered(
            f"a grid of {grid[0]}x{grid[1]} PEs is larger than the fabric of {machine.name}, "
            f"{fabric[0]}x{fabric[1]}"
        )
    return grid


def check_bytes(needed: float, machine: MeshDescription) -> None:
    """Raises NotCovered where the arrays of one PE are larger than its memory."""
    if needed > machine.sram_bytes:
        raise NotCovered(
            f"the arrays of one PE take {needed:,.0f} bytes, and a PE of {machine.name} has "
            f"{machine.sram_bytes:,}"
        )


def element_bytes(row: PublishedRow) -> int:
    """Bytes of one element of the row's type; 4 where it names none."""
    if not row.dtype:
        return 4
    found = re.search(r"(8|16|32|64)$", row.dtype)
    if found is None:
        raise NotCovered(f"the type '{row.dtype}' is not known: fp16 and fp32 are")
    return int(found[1]) // 8
