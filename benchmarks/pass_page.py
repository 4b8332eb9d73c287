"""The page and the terminal's tables of what each pass is worth."""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from ablation import LAYOUTS, LEVEL, ModelEffects, Variant, Verdict, verdicts
from results import geometric_mean
from rich.table import Table

from tvm_ext.report.units import ABSENT, format_bytes

_SAME = "same"


@dataclass(frozen=True)
class Setup:
    """Where and how the figures were measured.

    Attributes
    ----------
    machine : str
        The machine in a few words.
    threads : int
        How many threads a run may use.
    versions : dict of str to str
        Of tvm-ext and TVM.
    date : str
        The day, as year, month and day.
    alternations : int
        How many ratios each figure is the median of.
    """

    machine: str
    threads: int
    versions: dict[str, str]
    date: str
    alternations: int

    def sentence(self) -> str:
        """The setup in one sentence."""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        threads = f"{self.threads} thread{'' if self.threads == 1 else 's'}"
        return f"{self.machine}, {threads}, {versions}, {self.date}"


def to_dict(setup: Setup, models: Sequence[ModelEffects]) -> dict[str, Any]:
    """JSON values of a whole measurement, with the verdicts."""
    return {
        "schema": 1,
        "setup": asdict(setup),
        "models": [model.to_dict() for model in models],
        "verdicts": [{**asdict(one), "sentence": one.sentence()} for one in verdicts(models)],
    }


def from_dict(data: dict[str, Any]) -> tuple[Setup, list[ModelEffects]]:
    """The measurement that ``to_dict`` wrote; raises KeyError or TypeError for other data."""
    known = {one.name for one in fields(Setup)}
    setup = Setup(**{name: value for name, value in data["setup"].items() if name in known})
    return setup, [ModelEffects.from_dict(one) for one in data["models"]]


def verdict_table(models: Sequence[ModelEffects]) -> Table:
    """For the terminal: what each pass is worth, those that change no model left out."""
    table = Table(
        title=f"without a pass, by {LEVEL} with it: above 1 it pays", title_justify="left"
    )
    table.add_column("pass", no_wrap=True)
    for heading in ("models", "time", "memory"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict")
    for one in verdicts(models):
        if one.acts:
            table.add_row(*_verdict_cells(one), one.sentence())
    return table


def _verdict_cells(one: Verdict) -> tuple[str, str, str, str]:
    return one.name, str(len(one.acts)), _ratio(one.time), _ratio(one.memory)


def page(setup: Setup, models: Sequence[ModelEffects], arguments: Sequence[str]) -> Iterable[str]:
    """The lines of the Markdown page; ``arguments`` are those of the command that wrote it."""
    yield from _introduction(setup, models, arguments)
    yield from _verdicts(models)
    yield from _ablation(models)
    yield from _layouts(models)
    yield from _modules(models)


def _introduction(
    setup: Setup, models: Sequence[ModelEffects], arguments: Sequence[str]
) -> Iterable[str]:
    count = f"{len(models)} model{'' if len(models) == 1 else 's'}"
    yield "# What each pass is worth"
    yield ""
    yield "This page is generated. The command that wrote it is"
    yield ""
    yield "```sh"
    yield shlex.join(["python", "benchmarks/passes.py", *arguments])
    yield "```"
    yield ""
    yield (
        f"Each of {count} was compiled at {LEVEL} with all passes, and once more for each pass of "
        "level `graph` that changes it, with that pass left out (`--disable-pass`). The two "
        "programs took turns in one process. A ratio is the time or the planned memory without the "
        "pass by that with it. Above 1, the pass pays."
    )
    yield ""
    yield (
        f"A time is the median of {setup.alternations} ratios. It counts as a difference if it is "
        "beyond the noise of the model, and both quartiles are on the same side of 1. The noise is "
        "how far two copies of the usual program were apart. A difference below 30 % was measured "
        "twice, and the smaller one counts. If the kernels and the storage "
        "are the same without the pass, the program was not timed again, and the ratio is 1."
    )
    yield ""
    yield f"Machine: {setup.sentence()}."
    yield ""


def _verdicts(models: Sequence[ModelEffects]) -> Iterable[str]:
    found = verdicts(models)
    own = {
        name: sum(one.own_seconds for m in models for one in m.removals if one.name == name)
        for name in (one.name for one in found)
    }
    yield "## Verdicts"
    yield ""
    yield (
        "Means are geometric, over all models. A model that the pass does not change counts as 1. "
        "The last figure is the time that the pass itself takes, summed over all models."
    )
    yield ""
    acting = [one for one in found if one.acts]
    yield from _table(
        ["pass", ">models changed", ">time", ">memory", ">compile ms", "verdict"],
        (
            [f"`{one.name}`", *_verdict_cells(one)[1:], _milli(own[one.name]), one.sentence()]
            for one in acting
        ),
    )
    idle = [f"`{one.name}`" for one in found if not one.acts]
    if idle:
        yield f"None of these models is changed by {', '.join(idle)}."
        yield ""


def _ablation(models: Sequence[ModelEffects]) -> Iterable[str]:
    yield "## Each pass left out"
    yield ""
    yield (
        f'"{_SAME}" is written for programs with the same kernels and the same storage. "Kernel '
        'calls" and "bytes" are those of a run without the pass and with it. "Bytes" are those of '
        'all tensors between kernels. "Pass ms" is the time that all passes of a compilation took.'
    )
    yield ""
    yield from _table(
        ["pass", "model", ">time", ">quartiles", ">memory", ">kernel calls", ">bytes", ">pass ms"],
        _ablation_rows(models),
    )
    refused = [
        f"- `{one.name}`, {model.name}: {one.reason}"
        for model in models
        for one in (*model.removals, *model.layouts)
        if one.figures is None and "changes nothing" not in one.reason
    ]
    if refused:
        yield from ("Programs that were not compiled:", "", *refused, "")


def _ablation_rows(models: Sequence[ModelEffects]) -> Iterable[list[str]]:
    for verdict in verdicts(models):
        if not verdict.acts:
            continue
        for model in models:
            for one in model.removals:
                if one.name == verdict.name and one.figures is not None:
                    yield [f"`{one.name}`", model.name, *_cells(model, one)]
        means = [f"**{_ratio(verdict.time)}**", "", f"**{_ratio(verdict.memory)}**", "", "", ""]
        yield [f"`{verdict.name}`", f"**geometric mean of {len(models)}**", *means]


def _cells(model: ModelEffects, one: Variant) -> list[str]:
    if one.figures is None:
        return [ABSENT] * 6
    usual = model.usual
    quartiles = f"{one.time.low:.2f} to {one.time.high:.2f}" if one.time else ""
    return [
        _ratio(one.time.median) if one.time else _SAME,
        quartiles,
        _ratio(model.memory_ratio(one)),
        f"{one.figures.calls:,} / {usual.calls:,}",
        f"{format_bytes(one.figures.bytes)} / {format_bytes(usual.bytes)}",
        f"{1e3 * one.figures.pass_seconds:.0f} / {1e3 * usual.pass_seconds:.0f}",
    ]


def _layouts(models: Sequence[ModelEffects]) -> Iterable[str]:
    yield "## Layouts"
    yield ""
    yield (
        "`LayoutPlanning` chooses a layout for each convolution. Its option `layout` states one "
        "for all. The ratios are the time in that layout by the time of the plan: below 1, the "
        "plan lost."
    )
    yield ""
    headings = [name.replace("_", " ") for name in LAYOUTS]
    yield from _table(
        ["model", ">planned, ms", *(f">{one}" for one in headings), ">best by planned", ">noise"],
        [*map(_layout_row, models), _layout_means(models)],
    )


def _layout_row(model: ModelEffects) -> list[str]:
    ratios = [_layout_ratio(model, name) for name in LAYOUTS]
    known = [ratio for ratio in ratios if ratio is not None]
    same = {one.name for one in model.layouts if one.figures is not None and one.time is None}
    cells = [
        _SAME if name in same else _ratio(ratio)
        for name, ratio in zip(LAYOUTS, ratios, strict=True)
    ]
    best = _ratio(min([1.0, *known]))
    return [model.name, f"{model.milliseconds:.3g}", *cells, best, f"{100 * model.noise:.0f} %"]


def _layout_means(models: Sequence[ModelEffects]) -> list[str]:
    means = [geometric_mean(_layout_ratio(model, name) for model in models) for name in LAYOUTS]
    return ["**geometric mean**", "", *(f"**{_ratio(mean)}**" for mean in means), "", ""]


def _layout_ratio(model: ModelEffects, layout: str) -> float | None:
    found = next((one for one in model.layouts if one.name == layout), None)
    if found is None or found.figures is None:
        return None
    return found.time.median if found.time else 1.0


def _modules(models: Sequence[ModelEffects]) -> Iterable[str]:
    yield "## The module behind each pass"
    yield ""
    yield (
        "Passes of level `graph` that change the module are listed in their order. Operators are "
        "calls in Relax, and kernels are functions. Bytes are those of all tensors that calls "
        "compute; a size that a run decides counts as 1. Planned memory is that of the program "
        "which the required passes alone make of that module, for the sizes of the run."
    )
    yield ""
    for model in models:
        calls = model.usual.calls
        yield f"### {model.name}"
        yield ""
        by = f", one for {model.nodes / calls:.1f} nodes" if calls else ""
        yield f"The model has {model.nodes:,} ONNX nodes, and a run calls {calls:,} kernels{by}."
        yield ""
        rows = [
            [
                f"`{one.name}`",
                f"{one.operators:,}",
                f"{one.kernels:,}",
                format_bytes(one.bytes),
                ABSENT if one.planned_bytes is None else format_bytes(one.planned_bytes),
                _milli(one.seconds),
            ]
            for one in model.effects
            if one.changed
        ]
        headings = ["behind", ">operators", ">kernels", ">bytes", ">planned memory", ">compile ms"]
        yield from _table(headings, rows)


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterable[str]:
    """A Markdown table; a heading that begins with ">" is of numbers."""
    yield _line([heading.removeprefix(">") for heading in headings])
    yield _line(["---:" if heading.startswith(">") else "---" for heading in headings])
    yield from map(_line, rows)
    yield ""


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def _ratio(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.2f}"


def _milli(seconds: float) -> str:
    return f"{1e3 * seconds:.1f}"
