"""Draws the README's picture: how long other programs take for whole models, ours being 1.

    python benchmarks/speed_chart.py results.json docs/images/speed.svg

``results.json`` is what ``benchmarks/cpu.py --json`` wrote.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from figures import require_matplotlib
from peers import PEERS

from tvm_ext.configs.atomic_file import replacing
from tvm_ext.errors import TvmExtError

# What a user could take instead; Okabe and Ito's colours, told apart with any colour vision.
_SHOWN = {"onnxruntime": "#0072B2", "openvino": "#E69F00"}
_WIDTH, _ROW_INCHES = 7.5, 0.34


class ResultsError(TvmExtError):
    """The file of results cannot be drawn."""


def ratios_of(results: Any, source: str) -> list[tuple[str, dict[str, float]]]:
    """Name of each model and its ratios by peer, the models of the largest ones first.

    Models of which one answer was wrong, or that a program did not run, are left out.

    Raises
    ------
    ResultsError
        ``results`` is no report of ``benchmarks/cpu.py``, or holds no such model.
    """
    models = results.get("models") if isinstance(results, dict) else None
    if not isinstance(models, list):
        raise ResultsError(
            f"{source}: no list of models; expected what `benchmarks/cpu.py --json` writes"
        )
    rows = []
    for model in models:
        programs = model["programs"]
        right = all(name in programs and not programs[name]["wrong"] for name in _SHOWN)
        if right and not programs["tvm_ext"]["wrong"]:
            rows.append((model["name"], {name: model["ratios"][name] for name in _SHOWN}))
    if not rows:
        raise ResultsError(
            f"{source}: no model with right answers of {' and '.join(_SHOWN)}; expected one: "
            "run benchmarks/cpu.py with these peers"
        )
    return sorted(rows, key=lambda row: -min(row[1].values()))


def draw_chart(results: dict[str, Any], rows: Sequence[Any], path: Path) -> None:
    """Writes an SVG with two bars a model, which begin where our own time ends."""
    pyplot = require_matplotlib()
    pyplot.rcParams["svg.hashsalt"] = "tvm-ext"
    figure, axes = pyplot.subplots(
        figsize=(_WIDTH, 1.3 + len(rows) * _ROW_INCHES), layout="constrained"
    )
    for place, (peer, colour) in enumerate(_SHOWN.items()):
        values = [ratios[peer] for _, ratios in rows]
        at = [row + (place - 0.5) * 0.4 for row in range(len(rows))]
        bars = axes.barh(at, values, height=0.4, color=colour, label=PEERS[peer].title)
        axes.bar_label(bars, [f"{value:.2f}" for value in values], padding=3, fontsize=8)
    axes.axvline(1, color="black", linewidth=1.2)
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, 1.12 * max(max(ratios.values()) for _, ratios in rows))
    axes.set_xlabel("time of one run as a multiple of tvm-ext's")
    machine, threads = results["machine"], results["threads"]
    axes.set_title(
        f"float32, {threads} threads, {machine['summary'].removeprefix('this machine: ')}",
        loc="left",
        fontsize=10,
    )
    axes.legend(loc="lower right", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    with replacing(path) as file:
        figure.savefig(file, format="svg", metadata={"Date": None})
    pyplot.close(figure)


def main() -> int:
    """Draws the chart; 2 where the file of results cannot be drawn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, metavar="RESULTS.json")
    parser.add_argument("chart", type=Path, metavar="CHART.svg")
    options = parser.parse_args()
    try:
        results = json.loads(options.results.read_text())
        draw_chart(results, ratios_of(results, str(options.results)), options.chart)
    except (TvmExtError, OSError, json.JSONDecodeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
