"""What benchmarks/cuda.py prints."""

from collections.abc import Sequence
from datetime import date

from rich.table import Table

from gpu.device import Peaks
from gpu.measuring import OURS, Result


def heading(peaks: Peaks) -> str:
    """The device, the date, and what was measured of it."""
    rates = ", ".join(f"{kind} {flops / 1e12:.0f} TFLOP/s" for kind, flops in peaks.flops.items())
    return (
        f"{peaks.name}, {date.today().isoformat()}. Measured peaks: copy "
        f"{peaks.copy_bytes / 1e9:.0f} GB/s, cuBLAS {rates}."
    )


def table(group: str, rows: Sequence[Result], peaks: Peaks) -> Table:
    """Times, shares of the peaks, ratios to the others, and how far the outputs are apart."""
    names = {name for row in rows for name in (*row.seconds, *row.reasons)}
    others = sorted(names - {OURS, "comparison"})
    made = Table(title=group)
    for column in ("case", "type", "ours, us", "of peak", *(f"{name} / ours" for name in others)):
        made.add_column(column, justify="left" if column in ("case", "type") else "right")
    made.add_column("difference")
    for row in rows:
        own = row.seconds.get(OURS)
        cells = [row.name, row.dtype, f"{own * 1e6:.1f}" if own else "missing", _share(row, peaks)]
        cells += [_ratio(row, name) for name in others]
        made.add_row(*cells, _note(row))
    return made


def _note(row: Result) -> str:
    if OURS in row.reasons:
        return row.reasons[OURS]
    if row.difference is None:
        return f"not compared: {row.reasons.get('comparison', 'nothing to compare with')}"
    mark = "WRONG " if row.wrong else ""
    return f"{mark}{row.difference:.0e} ({row.compared_with})"


def _share(row: Result, peaks: Peaks) -> str:
    own = row.seconds.get(OURS)
    peak = peaks.copy_bytes if row.limit == "bytes" else peaks.flops.get(row.dtype)
    if not own or not peak or not row.work:
        return ""
    return f"{100 * row.work / own / peak:.0f} %"


def _ratio(row: Result, name: str) -> str:
    own, other = row.seconds.get(OURS), row.seconds.get(name)
    if other is None:
        return row.reasons.get(name, "")
    ratio = f"{other / own:.2f}" if own else f"{other * 1e6:.1f} us"
    # Calls that cannot be recorded include the time to start them.
    return ratio if row.started[name] == "graph" else f"{ratio} (with launches)"
