"""Tables for a terminal of any width: one line a row, columns that give way, names that are cut in
the middle.

Names come from model files, so they enter as `ShortName` or `Text`, never as rich markup.
"""

import copy
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from tvm_ext.report.records import NamedKernel, computes
from tvm_ext.report.units import format_count, plain

_LEAST_WIDTH = 8
_FLEXIBLE = ("~", "=")


class ShortName:
    """A name, or other words from a model, that gives up its less telling parts to fit a column.

    ``prefix`` stands before it and is never cut.
    """

    def __init__(self, name: str, prefix: str = "") -> None:
        self._name, self._prefix = plain(name), prefix

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = options.max_width - len(self._prefix)
        yield Text(self._prefix + shortened(self._name, room), no_wrap=True, overflow="ellipsis")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        widest = len(self._prefix) + cell_len(self._name)
        return Measurement(min(_LEAST_WIDTH, widest), widest).with_maximum(options.max_width)


class ShortNames:
    """As many of several names as one line of a column holds, and how many more there are."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = [plain(name) for name in names]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        text = shortened(", ".join(self._names), width) if len(self._names) < 2 else ""
        for count in range(1, len(self._names) + 1):
            more = len(self._names) - count
            counted = f" +{more:,}" if more else ""
            if count == 1:
                text = shortened(self._names[0], max(1, width - len(counted))) + counted
                continue
            longer = ", ".join(self._names[:count]) + counted
            if cell_len(longer) > width:
                break
            text = longer
        yield Text(text, no_wrap=True, overflow="ellipsis")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        widest = cell_len(", ".join(self._names))
        return Measurement(min(_LEAST_WIDTH, widest), widest).with_maximum(options.max_width)


def shortened(name: str, width: int) -> str:
    """Return ``name`` in at most ``width`` columns, for example "…/layer.3/…/MatMul +1".

    Of several fused nodes the first stays, and a count of the others. Of its path the end stays,
    and what has a digit: that is what tells one layer's node from the next one's. What is still too
    long is cut in the middle.
    """
    if cell_len(name) <= width:
        return name
    first, *others = name.split(" + ")
    count = f" +{len(others)}" if others else ""
    room = max(1, width - len(count))
    parts = first.split("/")
    droppable = sorted(range(len(parts) - 1), key=lambda i: (bool(re.search(r"\d", parts[i])), i))
    for index in droppable:
        if cell_len(first) <= room:
            break
        parts[index] = "…"
        first = re.sub(r"…(/…)+", "…", "/".join(parts))
    return cut_middle(first, room) + count


def cut_middle(text: str, width: int) -> str:
    """Return ``text`` in at most ``width`` columns, with "…" for what is left out of its middle.

    The end gets the larger half: it is what tells generated names apart.
    """
    if cell_len(text) <= width:
        return text
    room = max(0, width - 1)
    start = set_cell_size(text, room // 2)
    end = set_cell_size(text[::-1], room - room // 2)[::-1]
    return f"{start}…{end}"


class FlexibleTable(Table):
    """A table that fills the terminal; of narrow ones it leaves columns out.

    Columns are titles with marks: in front, ">" for numbers, "~" for names and "=" for sentences,
    which go on in further lines; names and sentences share by need what the others leave. Behind,
    "@100" for a column that only a terminal of so many characters gets.
    """

    def __init__(self, title: str, *columns: str) -> None:
        super().__init__(
            title=Text(title, style="bold") if title else None,
            title_justify="left",
            box=box.SIMPLE_HEAD,
            expand=any(column[:1] in _FLEXIBLE for column in columns),
            pad_edge=False,
            collapse_padding=True,
        )
        self._least_widths: list[int] = []
        for column in columns:
            name, _, least = column.partition("@")
            self._least_widths.append(int(least or 0))
            self.add_column(
                name.lstrip(">~="),
                justify="right" if name.startswith(">") else "left",
                ratio=1 if name[:1] in _FLEXIBLE else None,
                no_wrap=not name.startswith("="),
                overflow="fold" if name.startswith("=") else "ellipsis",
            )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        fitting = copy.copy(self)
        least_widths = zip(self.columns, self._least_widths, strict=True)
        columns = [column for column, least in least_widths if options.max_width >= least]
        # rich goes by a column's place, which is another one without those left out.
        fitting.columns = [replace(column, _index=i) for i, column in enumerate(columns)]
        _share_out(fitting.columns, console, options)
        return super(FlexibleTable, fitting).__rich_console__(console, options)


def _share_out(columns: list[Column], console: Console, options: ConsoleOptions) -> None:
    """Give names and sentences what the other columns leave: short ones all that they need."""
    needs = [
        max(
            Measurement.get(console, options, cell).maximum
            for cell in (column.header, *column.cells)
        )
        for column in columns
    ]
    pairs = sorted(zip(needs, columns, strict=True), key=lambda pair: pair[0])
    flexible = [(need, column) for need, column in pairs if column.ratio is not None]
    fixed = sum(need for need, column in pairs if column.ratio is None)
    # A space at either edge, and two between columns.
    room = options.max_width - fixed - 2 * len(columns)
    for left, (need, column) in zip(range(len(flexible), 0, -1), flexible, strict=True):
        share = room // left
        column.width = max(_LEAST_WIDTH, share if left == 1 else min(need, share))
        column.ratio = None
        room -= column.width


def names_table(kernels: Iterable[tuple[NamedKernel, str]], hashes: Sequence[str] = ()) -> Table:
    """Return the names of kernels, which other tables leave out, with their whole schedules."""
    columns = ("~Computes", "~Kernel", *(["Hash@100"] if hashes else []), "=Schedule")
    table = FlexibleTable("Names of the kernels, and their schedules", *columns)
    for place, (kernel, schedule) in enumerate(kernels):
        names = (ShortName(computes(kernel)), ShortName(kernel.name))
        table.add_row(*names, *hashes[place : place + 1], Text(plain(schedule)))
    return table


def facts_table(facts: Mapping[str, str]) -> Table:
    """Return what is known, a line or more for each: its name, and the value with "" left out."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        if value:
            table.add_row(name, Text("\n".join(map(plain, value.split("\n")))))
    return table


def marked_line(mark: str, line: str) -> RenderableType:
    """Return the line behind its mark; what does not fit goes on below it."""
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(f"  {mark}", Text(plain(line)))
    return table


def marked_lines(heading: str, lines: Sequence[str], mark: str = "!") -> RenderableType | None:
    """Return the lines behind their marks, below a heading; None where there are none."""
    if not lines:
        return None
    return Group(Text(heading, style="bold"), *(marked_line(mark, line) for line in lines))


def reasons(
    mark: str, places: Iterable[tuple[str, str]], verbose: bool = False
) -> list[RenderableType]:
    """Return each reason behind its mark, with the names of its places below it.

    ``places`` are names with their reasons. The names take one line, or where ``verbose`` one each.
    """
    names: dict[str, list[str]] = {}
    for name, reason in places:
        names.setdefault(reason, []).append(name)
    parts: list[RenderableType] = []
    for reason, listed in names.items():
        below = map(ShortName, listed) if verbose else (ShortNames(listed),)
        parts += [marked_line(mark, reason), Padding(Group(*below), (0, 0, 0, 6), style="dim")]
    return parts


def counted_lines(lines: Sequence[str], name: str) -> RenderableType | None:
    """Return how many there are, and a marked line for each; None for none."""
    return marked_lines(format_count(len(lines), name), lines)


def plain_text(body: RenderableType, width: int) -> str:
    """Return it as plain text without colours, at most ``width`` characters wide."""
    stream = io.StringIO()
    console = Console(file=stream, width=width, color_system=None, legacy_windows=False)
    console.print(body)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"
