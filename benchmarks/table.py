"""The figures as tables for a terminal: ratios first, then times."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from peers import REFERENCE
from results import BEST_OF, OURS_NAME, CaseResult, Measured, RooflineRow, geometric_means
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

ABSENT = "-"
_ROOFLINE_ROWS = 20
_NAME_LENGTH, _NODE_LENGTH = 40, 36
# JSON has them whole.
_REASON_LENGTH = 240

Titles = Mapping[str, str]
"""Peer name to what the table calls it, in the order of the columns."""


def models_table(results: Sequence[CaseResult], titles: Titles) -> RenderableType:
    """Networks: ratio to each peer, then milliseconds, with means and reasons below."""
    return _with_reasons(_comparison("models", results, titles, ()), results, titles)


def kernels_table(group: str, results: Sequence[CaseResult], titles: Titles) -> RenderableType:
    """Single kernels: as ``models_table``, with the share of the machine's peak."""
    own: tuple[_Column, ...] = (
        ("rate", lambda result: _rate(result)),
        ("of peak", lambda result: _share(result)),
    )
    return _with_reasons(_comparison(f"{group} kernels", results, titles, own), results, titles)


def roofline_table(result: CaseResult) -> Table:
    """The kernels of one model by the time that they lose against the machine's peaks."""
    table = Table(title=f"{result.name}: kernels by time above their floor", title_justify="left")
    table.add_column("kernel", no_wrap=True)
    table.add_column("first of its ONNX nodes", no_wrap=True)
    table.add_column("schedule", no_wrap=True)
    for heading in ("calls", "share", "us", "floor us", "x floor", "GFLOP/s", "GB/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in result.roofline[:_ROOFLINE_ROWS]:
        table.add_row(*_roofline_cells(row))
    hidden = len(result.roofline) - _ROOFLINE_ROWS
    if hidden > 0:
        table.caption = f"{hidden} more, which lose less"
    return table


def reason_lines(results: Sequence[CaseResult], titles: Titles) -> list[str]:
    """One line for each peer and reason: why there is no time, or which answers are wrong."""
    names = {OURS_NAME: "tvm-ext", **titles}
    reasons: dict[tuple[str, str], list[str]] = {}
    for result in results:
        for peer, reason in result.reasons.items():
            key = names.get(peer, peer), _cut(reason, _REASON_LENGTH)
            reasons.setdefault(key, []).append(result.name)
        for peer, measured in result.programs.items():
            if measured.wrong:
                reason = f"! differs by {measured.difference:.2g} from ONNX Runtime"
                reasons.setdefault((names.get(peer, peer), reason), []).append(result.name)
    everything = len(results) if len(results) > 1 else 0
    return [
        f"{title}, {'all' if len(where) == everything else ', '.join(where)}: {reason}"
        for (title, reason), where in reasons.items()
    ]


_Column = tuple[str, Callable[[CaseResult], str]]


def _comparison(
    kind: str, results: Sequence[CaseResult], titles: Titles, own: Sequence[_Column]
) -> Table:
    table = Table(
        title=f"{kind}: peer's time by ours, above 1 we are faster; then milliseconds of a run "
        "(99th percentile)",
        title_justify="left",
    )
    means = geometric_means(results, titles)
    best = set(BEST_OF) <= titles.keys()
    columns: list[tuple[str, Callable[[CaseResult], str], str]] = [
        (f"vs {title}", _ratio_of(peer), _number(means[peer], 2)) for peer, title in titles.items()
    ]
    if best:
        columns.append(("vs best", lambda r: _number(r.best_ratio(), 2), _number(means["best"], 2)))
    columns += [(heading, cell, "") for heading, cell in own]
    columns += [
        (f"{title} ms", _milliseconds_of(peer), "")
        for peer, title in {OURS_NAME: "tvm-ext", **titles}.items()
    ]
    columns.append(("spread", _spread, ""))
    columns += [
        (f"{title} differs", _difference_of(peer), "")
        for peer, title in {OURS_NAME: "tvm-ext", **titles}.items()
        if peer != REFERENCE.name
    ]
    table.add_column(kind.removesuffix("s"), no_wrap=True)
    for heading, _, _ in columns:
        # One word a line: figures are narrower than what they stand below.
        table.add_column(heading.replace(" ", "\n"), justify="right", no_wrap=True)
    for result in results:
        table.add_row(_cut(result.name), *(cell(result) for _, cell, _ in columns))
    table.add_section()
    table.add_row("geometric mean", *(mean for _, _, mean in columns))
    return table


def _with_reasons(table: Table, results: Sequence[CaseResult], titles: Titles) -> RenderableType:
    lines = reason_lines(results, titles)
    return Group(table, *(Text(line) for line in lines))


def _ratio_of(peer: str) -> Callable[[CaseResult], str]:
    def cell(result: CaseResult) -> str:
        ratio = result.ratio(peer)
        return _flagged(_number(ratio, 2), result.programs.get(peer))

    return cell


def _milliseconds_of(peer: str) -> Callable[[CaseResult], str]:
    def cell(result: CaseResult) -> str:
        measured = result.programs.get(peer)
        if measured is None:
            return ABSENT
        p99 = measured.p99_milliseconds
        return _significant(measured.milliseconds) + (f" ({_significant(p99)})" if p99 else "")

    return cell


def _spread(result: CaseResult) -> str:
    return ABSENT if result.ours is None else f"{100 * result.ours.spread:.0f} %"


def _difference_of(peer: str) -> Callable[[CaseResult], str]:
    """How far a program's answer is from that of ONNX Runtime, beside its time."""

    def cell(result: CaseResult) -> str:
        measured = result.programs.get(peer)
        if measured is None or measured.difference is None:
            return ABSENT
        return _flagged(f"{measured.difference:.0e}", measured)

    return cell


def _rate(result: CaseResult) -> str:
    if result.kernel is None:
        return ABSENT
    if result.kernel.limit == "flops":
        return f"{result.kernel.gflops:.0f} GFLOP/s"
    return f"{result.kernel.gbs:.1f} GB/s"


def _share(result: CaseResult) -> str:
    return ABSENT if result.kernel is None else f"{100 * result.kernel.share:.0f} %"


def _roofline_cells(row: RooflineRow) -> Iterable[str]:
    floor = row.floor_microseconds
    return (
        _cut(row.kernel),
        _cut(row.origins[0] if row.origins else ABSENT, _NODE_LENGTH),
        row.schedule,
        str(row.calls),
        f"{100 * row.share:.1f} %",
        f"{row.microseconds:.0f}",
        f"{floor:.0f}",
        f"{row.microseconds / floor:.1f}" if floor > 0 else ABSENT,
        f"{row.gflops:.1f}",
        f"{row.gbs:.1f}",
    )


def _cut(text: str, length: int = _NAME_LENGTH) -> str:
    return text if len(text) <= length else f"{text[: length - 3]}..."


def _flagged(text: str, measured: Measured | None) -> str:
    return f"{text} !" if measured is not None and measured.wrong else text


def _number(value: float | None, digits: int) -> str:
    return ABSENT if value is None else f"{value:.{digits}f}"


def _significant(milliseconds: float) -> str:
    """Three digits that matter, without an exponent."""
    if milliseconds >= 100:
        return f"{milliseconds:.0f}"
    return f"{milliseconds:.2f}" if milliseconds >= 1 else f"{milliseconds:.3f}"
