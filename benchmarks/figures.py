"""Draws the figures: ratios of models as bars, kernels below the machine's roofs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernel_models import GROUPS
from peers import PEERS
from report import Report, threads_text
from results import CaseResult, geometric_means
from roofline import MachinePeaks

from tvm_ext.configs.atomic_file import replacing
from tvm_ext.errors import TvmExtError

# Okabe and Ito's colours, told apart with any colour vision.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00")
_WIDTH = 10.0
_BAR_INCHES = 0.2
_LIST_ROW_INCHES = 0.175
_PIXELS_AN_INCH = 130


class FigureError(TvmExtError):
    """There is no library to draw with."""


def require_matplotlib() -> Any:
    """The plotting module, set up to draw into files; raises FigureError where it is missing."""
    try:
        import matplotlib
    except ImportError as error:
        raise FigureError(
            f"--plot needs matplotlib, which cannot be imported ({error}); expected the package: "
            "pip install matplotlib"
        ) from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def draw(report: Report, path: Path) -> None:
    """Writes a PNG with the models' ratios, the kernels' roofline plot, or both.

    Raises
    ------
    FigureError, OutputPathError
        There is no matplotlib, or the file cannot be written.
    """
    pyplot = require_matplotlib()
    models = [result for result in report.results if not result.group and result.ours]
    kernels = [result for result in report.results if result.kernel]
    peers = [name for name in PEERS if any(name in result.programs for result in models)]
    heights = []
    if models:
        heights.append(1.2 + (len(models) + 1) * (len(peers) + 0.8) * _BAR_INCHES)
    if kernels:
        heights.append(max(5.5, 1.2 + len(kernels) * _LIST_ROW_INCHES))
    if not heights:
        return
    figure, grid = pyplot.subplots(
        len(heights),
        1,
        figsize=(_WIDTH, sum(heights)),
        height_ratios=heights,
        squeeze=False,
        layout="constrained",
    )
    axes = [row[0] for row in grid]
    if models:
        _draw_ratios(axes[0], models, peers, threads_text(report.machine.cores))
    if kernels:
        _draw_roofline(axes[-1], kernels, report.best_peaks)
    with replacing(path) as file:
        figure.savefig(file, format="png", dpi=_PIXELS_AN_INCH)
    pyplot.close(figure)


def _draw_ratios(axes: Any, results: Sequence[CaseResult], peers: Sequence[str], note: str) -> None:
    """A group of bars a model, one a peer, that begin at 1; the means are at the bottom."""
    means = geometric_means(results, peers)
    names = [*(result.name for result in results), "geometric mean"]
    for place, peer in enumerate(peers):
        values = [*(result.ratio(peer) for result in results), means[peer]]
        known = [(row, value) for row, value in enumerate(values) if value is not None]
        rows = [row + (place - (len(peers) - 1) / 2) * 0.8 / len(peers) for row, _ in known]
        bars = axes.barh(
            rows,
            [value - 1 for _, value in known],
            left=1,
            height=0.8 / len(peers),
            color=_COLOURS[place],
            label=PEERS[peer].title,
        )
        wrong = [row < len(results) and _is_wrong(results[row], peer) for row, _ in known]
        labels = [f"{v:.2f}{' !' if w else ''}" for (_, v), w in zip(known, wrong, strict=True)]
        axes.bar_label(bars, labels, padding=3, fontsize=8)
    axes.axvline(1, color="black", linewidth=1)
    axes.axhline(len(results) - 0.5, color="grey", linewidth=0.5)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xscale("log")
    _room_for_labels(axes)
    axes.set_xlabel("peer's time by tvm-ext's (right of the line: tvm-ext is faster)")
    axes.set_title(f"latency of whole models, float32, {note}", loc="left")
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _is_wrong(result: CaseResult, peer: str) -> bool:
    return result.failed or result.programs[peer].wrong


def _room_for_labels(axes: Any) -> None:
    low, high = axes.get_xlim()
    low, high = min(low, 0.8), max(high, 1.25)
    room = (high / low) ** 0.08
    axes.set_xlim(low / room, high * room)
    ticks = [t for t in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500) if low <= t <= high]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks], minor=False)
    axes.set_xticks([], minor=True)


def _draw_roofline(axes: Any, results: Sequence[CaseResult], peaks: MachinePeaks) -> None:
    """Arithmetic intensity against speed; numbers beside the points, names in a list."""
    drawn = [result for result in results if result.kernel and result.kernel.flops > 0]
    intensities = [r.kernel.flops / r.kernel.bytes for r in drawn if r.kernel]
    ridge = peaks.gflops / peaks.gbs
    ends = (min([*intensities, ridge]) / 2, max([*intensities, ridge]) * 2)
    middle = (ends[0] * ridge) ** 0.5
    corners = [ends[0], ridge, ends[1]]
    axes.plot(corners, [min(peaks.gflops, x * peaks.gbs) for x in corners], color="black")
    axes.annotate(
        f"multiply-add peak {peaks.gflops:.0f} GFLOP/s, {threads_text(peaks.threads)}",
        (ends[1], peaks.gflops),
        xytext=(0, 5),
        textcoords="offset points",
        ha="right",
    )
    axes.annotate(
        f"copy bandwidth\n{peaks.gbs:.1f} GB/s",
        (middle, middle * peaks.gbs),
        xytext=(-8, 0),
        textcoords="offset points",
        ha="right",
    )
    axes.set_xscale("log")
    axes.set_yscale("log")
    for colour, group in zip(_COLOURS, GROUPS, strict=False):
        mine = [r for r in drawn if r.group == group]
        points = [(r.kernel.flops / r.kernel.bytes, r.kernel.gflops) for r in mine if r.kernel]
        if points:
            axes.scatter(*zip(*points, strict=True), s=16, color=colour, label=group, zorder=3)
    _number_points(axes, drawn)
    _list_names(axes, results, drawn)
    axes.set_xlabel("arithmetic intensity, operations a byte (above the roof: data from a cache)")
    axes.set_ylabel("GFLOP/s")
    axes.set_title("tvm-ext's kernels below this machine's measured roofs", loc="left")
    axes.legend(loc="lower left", bbox_to_anchor=(1.01, 0), frameon=False)
    axes.grid(color="0.92")
    axes.set_axisbelow(True)


def _number_points(axes: Any, results: Sequence[CaseResult]) -> None:
    """Numbers to the right of the points, moved down where they would lie on each other."""
    axes.figure.canvas.draw()
    taken: list[tuple[float, float]] = []
    kernels = [(place, r.kernel) for place, r in enumerate(results, 1) if r.kernel]
    for place, kernel in sorted(kernels, key=lambda item: -item[1].gflops):
        point = (kernel.flops / kernel.bytes, kernel.gflops)
        x, y = axes.transData.transform(point)
        offset = 0.0
        while any(abs(x - a) < 18 and abs(y + offset - b) < 12 for a, b in taken):
            offset -= 3
        taken.append((x, y + offset))
        axes.annotate(
            str(place),
            point,
            xytext=(5, offset * 72 / axes.figure.dpi - 3),
            textcoords="offset points",
            fontsize=7,
            zorder=2,
            bbox={"boxstyle": "square,pad=0.1", "color": "white", "alpha": 0.7},
            arrowprops={"arrowstyle": "-", "linewidth": 0.3, "color": "0.5"} if offset else None,
        )


def _list_names(axes: Any, results: Sequence[CaseResult], drawn: Sequence[CaseResult]) -> None:
    """Number, name and share of the peak, right of the plot; data movement has no number."""
    numbers = {id(result): place for place, result in enumerate(drawn, 1)}
    lines = [
        f"{numbers.get(id(r), '')!s:>3} {r.name:32} {100 * r.kernel.share:5.0f} %"
        for r in results
        if r.kernel
    ]
    heading = f"{'':3} {'kernel':32} of peak"
    axes.text(
        1.02,
        1.0,
        "\n".join([heading, *lines]),
        transform=axes.transAxes,
        va="top",
        family="monospace",
        fontsize=7,
        linespacing=1.35,
    )
