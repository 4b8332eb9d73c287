"""Node names in a column of a terminal that is too narrow for them."""

import re

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text

from tvm_ext.report.units import plain

_LEAST = 12


class ShortName:
    """A name that gives up its less telling parts to fit."""

    def __init__(self, name: str, prefix: str = "") -> None:
        self._name, self._prefix = plain(name), prefix

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = options.max_width - len(self._prefix)
        yield Text(self._prefix + shortened(self._name, room), no_wrap=True, overflow="ellipsis")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        widest = len(self._prefix) + cell_len(self._name)
        return Measurement(min(_LEAST, widest), widest).with_maximum(options.max_width)


def shortened(name: str, width: int) -> str:
    """Return ``name`` in at most ``width`` columns, for example "…/layer.3/…/MatMul +1".

    Of several fused nodes the first stays, and a count of the others. Of its path the end stays,
    and what has a digit: that is what tells one layer's node from the next one's.
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
    if cell_len(first) > room:
        while first and cell_len(first) > room - 1:
            first = first[1:]
        first = f"…{first}"
    return first + count
