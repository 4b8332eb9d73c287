"""The outcome of a check, as data and as text for a terminal."""

import io
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from tvm_ext.check.findings import Bisection
from tvm_ext.check.tolerance import OutputDifference
from tvm_ext.report.units import plain


@dataclass(frozen=True)
class CheckResult:
    """A compiled model beside ONNX Runtime.

    Attributes
    ----------
    model, target, opt_level : str
        What was checked.
    outputs : tuple[OutputDifference, ...]
        One a model output, in their order.
    bisection : Bisection or None
        Where the difference comes from, when that was asked for and there is one.
    """

    model: str
    target: str
    opt_level: str
    outputs: tuple[OutputDifference, ...]
    bisection: Bisection | None = None

    @property
    def ok(self) -> bool:
        """Whether every output is accepted."""
        return all(output.ok for output in self.outputs)

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "model": self.model,
            "target": self.target,
            "opt_level": self.opt_level,
            "ok": self.ok,
            "outputs": [output.to_dict() for output in self.outputs],
            "bisection": self.bisection.to_dict() if self.bisection is not None else None,
        }

    def renderable(self) -> RenderableType:
        """The outcome as one rich renderable."""
        verdict = "agrees with" if self.ok else "differs from"
        title = Text(plain(self.model), style="bold")
        title.append(f"  optimisation {self.opt_level}, target {plain(self.target)}: ", "dim")
        title.append(f"{verdict} ONNX Runtime", style="green" if self.ok else "red")
        parts: list[RenderableType] = [title, self._table()]
        if self.bisection is not None:
            parts += [Text(f"- {plain(line)}") for line in self.bisection.sentences()]
        return Group(*parts)

    def to_text(self, width: int = 100) -> str:
        """The outcome as plain text, at most ``width`` characters wide."""
        stream = io.StringIO()
        console = Console(file=stream, width=width, color_system=None, legacy_windows=False)
        console.print(self.renderable())
        return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"

    def _table(self) -> Table:
        table = Table(box=box.SIMPLE_HEAD)
        for column in ("output", "dtype", "", "what was found"):
            table.add_column(column)
        for column in ("at", "ours", "reference"):
            table.add_column(column, justify="right")
        for output in self.outputs:
            table.add_row(*_cells(output))
        return table


def _cells(output: OutputDifference) -> list[Text]:
    comparable = output.max_abs == output.max_abs
    numbers = (
        [
            str(list(output.worst_index)),
            f"{output.ours_value:.6g}",
            f"{output.reference_value:.6g}",
        ]
        if comparable
        else ["", "", ""]
    )
    verdict = Text("ok", style="green") if output.ok else Text("FAIL", style="red")
    return [
        Text(plain(output.name)),
        Text(output.dtype),
        verdict,
        Text(plain(output.reason)),
        *(Text(number) for number in numbers),
    ]
