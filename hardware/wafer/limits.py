"""Hard limits of a mesh: what does not fit cannot run, at whatever cost."""

from tvm_ext.hardware.mesh_description import MeshDescription
from tvm_ext.hardware.wafer.errors import MeshLimitError


def check_limits(
    mesh: MeshDescription, rows: int, columns: int, bytes_per_pe: float, colours: int
) -> None:
    """Raises MeshLimitError, which names the limit, unless a mapping fits.

    Parameters
    ----------
    mesh
        What the mapping is for.
    rows, columns
        The rectangle of PEs that it uses.
    bytes_per_pe
        Data of the PE that holds the most, buffers of messages under way included.
    colours
        Static routes of the router that has the most.
    """
    refusal = limit_refusal(mesh, rows, columns, bytes_per_pe, colours)
    if refusal is not None:
        raise MeshLimitError(refusal)


def limit_refusal(
    mesh: MeshDescription, rows: int, columns: int, bytes_per_pe: float, colours: int
) -> str | None:
    """The same as one line of text; None if the mapping fits. The rectangle comes first."""
    if rows < 1 or columns < 1:
        return f"a rectangle of {rows}x{columns} PEs was asked for; expected 1x1 or more"
    if rows > mesh.rows or columns > mesh.columns:
        return (
            f"rectangle: {rows}x{columns} PEs, and '{mesh.name}' has {mesh.rows}x{mesh.columns}; "
            "expected a smaller grid"
        )
    if bytes_per_pe > mesh.usable_bytes:
        return (
            f"SRAM: {bytes_per_pe:,.0f} bytes a PE, and '{mesh.name}' has {mesh.usable_bytes:,} "
            f"besides code and stack; expected smaller tiles or more PEs"
        )
    if colours > mesh.usable_colours:
        return (
            f"colours: {colours} routes in one router, and '{mesh.name}' has "
            f"{mesh.usable_colours} for programs; expected a pattern with fewer"
        )
    return None
