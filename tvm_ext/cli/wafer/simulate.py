"""``tvm-ext wafer simulate``."""

from typing import TYPE_CHECKING, Annotated

import typer

from tvm_ext.cli import options
from tvm_ext.cli.options import WaferTarget

if TYPE_CHECKING:
    from rich.table import Table

    from tvm_ext.wafer.pattern_simulation import PatternResult

EXAMPLE = "Example: tvm-ext wafer simulate two-phase --columns 128 --words 64 --group 12"


def simulate_command(
    pattern: Annotated[
        str,
        typer.Argument(
            metavar="PATTERN",
            help="message, multicast, multicast-2d, summa, star, chain, tree, two-phase, k-tree, "
            "ring, shift, interleaved-shift, halo or transpose.",
        ),
    ],
    columns: Annotated[
        int, typer.Option("--columns", min=1, help="Number of PEs (processing elements) in a row.")
    ],
    words: Annotated[
        int,
        typer.Option(
            "--words", min=1, help="Number of 32-bit words in the vector or tile of one PE."
        ),
    ],
    rows: Annotated[int, typer.Option("--rows", min=1, help="Number of rows of PEs.")] = 1,
    group: Annotated[
        int | None,
        typer.Option(
            "--group",
            min=1,
            help="For two-phase: PEs in a group. For k-tree: number of levels. For halo: how "
            "many PEs far it reaches.",
        ),
    ] = None,
    target: WaferTarget = "wse2",
    json_output: options.Json = False,
) -> None:
    """Simulate a communication pattern wavelet by wavelet, and print its closed form beside it.

    All PEs start in cycle 0, with the data in memory.
    """
    from tvm_ext.cli import output as out
    from tvm_ext.wafer.model_cost import mesh_target
    from tvm_ext.wafer.pattern_simulation import PatternRun, simulate_pattern

    mesh = mesh_target(target)
    run = PatternRun(mesh, rows, columns, words, group)
    found = simulate_pattern(pattern, run)
    if json_output:
        given = {"pattern": pattern, "target": mesh.name, "rows": rows, "columns": columns}
        out.print_json({**given, "words": words, "group": group, **_to_json(found)})
        return
    out.print_rich(_table(found, mesh.seconds(1)))
    row, column, direction, carried = found.busiest_link
    out.print_text(
        f"Busiest link: from PE ({row}, {column}) {direction}, {carried:,} words.\n"
        f"Busiest PE: ({found.busiest_pe[0]}, {found.busiest_pe[1]}), "
        f"{found.busiest_pe[2]:,} words."
    )


def _to_json(result: "PatternResult") -> dict[str, object]:
    row, column, direction, carried = result.busiest_link
    return {
        "simulated_cycles": result.simulated_cycles,
        "modelled_cycles": result.modelled_cycles,
        "difference": result.difference,
        "simulated_colours": result.simulated_colours,
        "modelled_colours": result.modelled_colours,
        "simulated_word_hops": result.word_hops,
        "modelled_word_hops": result.modelled_word_hops,
        "busiest_link": {
            "row": row,
            "column": column,
            "direction": direction,
            "words": carried,
        },
        "busiest_pe": dict(zip(("row", "column", "words"), result.busiest_pe, strict=True)),
    }


def _table(result: "PatternResult", seconds: float) -> "Table":
    """The simulation beside the closed form; ``seconds`` is the length of a cycle."""
    from tvm_ext.report.terminal_tables import FlexibleTable
    from tvm_ext.report.units import seconds_scale

    table = FlexibleTable("", "", ">Simulated", ">Closed form", ">Difference")
    table.add_row("cycles", *_compared(result.simulated_cycles, result.modelled_cycles))
    times = [cycles * seconds for cycles in (result.simulated_cycles, result.modelled_cycles)]
    table.add_row("time", *map(seconds_scale(max(times)), times), "")
    table.add_row("word-hops", *_compared(result.word_hops, result.modelled_word_hops))
    table.add_row("colours", f"{result.simulated_colours}", f"{result.modelled_colours}", "")
    return table


def _compared(simulated: float, modelled: float) -> tuple[str, str, str]:
    difference = f"{100 * (modelled / simulated - 1):+.2f} %" if simulated else ""
    return f"{simulated:,.0f}", f"{modelled:,.0f}", difference
