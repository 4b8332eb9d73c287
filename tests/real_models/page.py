"""Writes docs/reference/models.md: what became of each model of the sweep."""

import statistics
from collections import Counter
from collections.abc import Sequence

from outcome import MATCH, STATUSES, UNJUDGED, ModelOutcome

_HEAD = """# Models

Written by `make models` from what `tests/real_models/run.py` found; do not edit.

Models with random weights, few layers and small widths, as exporters write them. Each file is
compiled in a process of its own at {level} and compared with ONNX Runtime, files of dynamic sizes
at two sizes without a new compilation.

- **difference**: the largest of any output and size, as a share of that output's largest magnitude;
- **ratio**: ONNX Runtime's time by ours at the first sizes, two threads, measured in turns but for
  a second only: it finds what is slow, and is no benchmark ([performance.md](../performance.md));
- **no reference**: ONNX Runtime does not run the file either; **not exported**: the exporter
  refuses the model.
"""


def models_page(outcomes: Sequence[ModelOutcome], untried: int = 0, level: str = "O3") -> str:
    """The page, as Markdown; ``untried`` cases of the catalogue have no outcome yet."""
    lines = [_HEAD.format(level=level), *_counts(outcomes)]
    if untried:
        lines.append(f"**{untried} cases of the catalogue are not tried yet.**\n")
    lines += _causes(outcomes)
    for family in dict.fromkeys(outcome.family for outcome in outcomes):
        lines += [f"## {family}\n", *_TABLE]
        lines += [_row(outcome) for outcome in outcomes if outcome.family == family]
        lines.append("")
    return "\n".join(lines)


_TABLE = (
    "| model | exporter | form | sizes | result | difference | ratio |",
    "| --- | --- | --- | --- | --- | --- | --- |",
)


def _counts(outcomes: Sequence[ModelOutcome]) -> list[str]:
    judged = [outcome for outcome in outcomes if outcome.status not in UNJUDGED]
    matches = sum(outcome.status == MATCH for outcome in judged)
    models = len({outcome.name for outcome in judged})
    counts = Counter(outcome.status for outcome in outcomes)
    share = 100 * matches / max(len(judged), 1)
    lines = [
        f"{models} models in {len(judged)} files that ONNX Runtime runs: **{matches} match "
        f"({share:.1f} %)**. Of all files: "
        + ", ".join(f"{counts[status]} {status}" for status in STATUSES if counts[status])
        + ".\n"
    ]
    ratios = [outcome.ratio for outcome in judged if outcome.ratio]
    if ratios:
        lines.append(f"Geometric mean of the ratios: {statistics.geometric_mean(ratios):.2f}.\n")
    return lines


def _causes(outcomes: Sequence[ModelOutcome]) -> list[str]:
    failed = [o for o in outcomes if o.status not in (MATCH, *UNJUDGED)]
    if not failed:
        return []
    lines = ["## What does not match\n", "| model | exporter | form | result | said |"]
    lines.append("| --- | --- | --- | --- | --- |")
    for o in failed:
        said = _cell(o.reason[:400])
        lines.append(f"| {o.name} | {o.exporter} | {o.form} | {o.status} | {said} |")
    return [*lines, ""]


def _row(outcome: ModelOutcome) -> str:
    sizes = "; ".join(
        ", ".join(f"{name}={size}" for name, size in one.items()) for one in outcome.sizes
    )
    matched = outcome.status == MATCH
    result = outcome.status
    if outcome.status in UNJUDGED:
        result += f": {_cell(outcome.reason[:120])}"
    return (
        f"| {outcome.name} | {outcome.exporter} | {outcome.form} | {sizes} | {result} | "
        f"{f'{outcome.difference:.1e}' if matched else ''} | "
        f"{f'{outcome.ratio:.2f}' if matched and outcome.ratio else ''} |"
    )


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
