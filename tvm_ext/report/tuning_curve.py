"""The tuning curve of one kernel, laid out for an SVG drawing: best time against trial number."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm_ext.report.units import Scale, format_seconds, seconds_scale

if TYPE_CHECKING:
    from tvm_ext.tuning.progress import KernelProgress

# The drawing's own units; the page stretches it to the width it has.
WIDTH, HEIGHT = 360.0, 180.0
LEFT, RIGHT, TOP, BOTTOM = 44.0, 350.0, 24.0, 146.0

# The first candidates of a search may take many times the default: drawn, they would leave no
# room for the improvements that matter.
_HIGHEST_SHOWN = 2.0
# Less would blow the noise of a measurement up to the height of the drawing.
_LEAST_RANGE = 0.1

_LABEL_HEIGHT = 13.0


@dataclass(frozen=True)
class Tick:
    """A mark of an axis: where, and what it says."""

    at: float
    label: str


@dataclass(frozen=True)
class Dot:
    """An improvement."""

    x: float
    y: float
    label: str


@dataclass(frozen=True)
class Curve:
    """What the template draws.

    Attributes
    ----------
    unit : str
        Of the marks of the vertical axis.
    x_ticks, y_ticks : list[Tick]
        Marks of the axes.
    path : str
        The best time as a step line; empty if no candidate has a time.
    dots : list[Dot]
        Its improvements.
    default_y, label_y : float or None
        Height of the default's line, and of the word beside it.
    description : str
        The drawing in words.
    """

    unit: str
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    path: str
    dots: list[Dot]
    default_y: float | None
    label_y: float | None
    description: str


def curve(kernel: "KernelProgress") -> Curve | None:
    """Return the drawing; None where there is no time to draw."""
    points = [(n, seconds) for n, seconds in kernel.curve if math.isfinite(seconds)]
    default = kernel.default_seconds
    references = [*([default] if default else []), *(seconds for _, seconds in points[-1:])]
    if not references:
        return None
    highest = _HIGHEST_SHOWN * max(references)
    shown = [(n, seconds) for n, seconds in points if seconds <= highest]
    low, high = _range([*references, *(seconds for _, seconds in shown)])
    last = max([kernel.trials, 1, *(n for n, _ in points)])

    def x(number: float) -> float:
        return LEFT + (RIGHT - LEFT) * number / last

    def y(seconds: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * (seconds - low) / (high - low)

    scale = seconds_scale(high)
    default_y = y(default) if default else None
    return Curve(
        unit=scale.unit,
        x_ticks=_x_ticks(last, x),
        y_ticks=_y_ticks(low, high, scale, y),
        path=_steps([(x(n), y(seconds)) for n, seconds in shown], cut=shown != points),
        dots=[Dot(x(n), y(s), f"trial {n:,}: {format_seconds(s)}") for n, s in shown],
        default_y=default_y,
        label_y=_label_y(default_y, y(shown[-1][1]) if shown else None),
        description=_description(points, default),
    )


def _range(values: list[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    missing = max(0.0, _LEAST_RANGE * high - (high - low))
    margin = 0.12 * (high - low + missing)
    return max(0.0, low - missing / 2 - margin), high + missing / 2 + margin


def _label_y(default_y: float | None, best_y: float | None) -> float | None:
    """Return where the default's label is out of the way of the best time's line."""
    if default_y is None:
        return None
    in_the_way = best_y is not None and 0 < default_y - best_y < _LABEL_HEIGHT
    return (best_y if best_y is not None and in_the_way else default_y) - 5


def _x_ticks(last: int, place: Callable[[float], float]) -> list[Tick]:
    step = max(1.0, _round_step(last / 5))
    return [Tick(place(n), f"{n:,.0f}") for n in _multiples(step, 0, last)]


def _y_ticks(low: float, high: float, scale: Scale, place: Callable[[float], float]) -> list[Tick]:
    low, high = low / scale.factor, high / scale.factor
    step = _round_step((high - low) / 5)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    numbers = _multiples(step, low, high)
    return [Tick(place(n * scale.factor), f"{n:,.{decimals}f}") for n in numbers]


def _round_step(least: float) -> float:
    """Return 1, 2 or 5 times a power of ten, the next from ``least`` on."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * 0.999)


def _multiples(step: float, low: float, high: float) -> list[float]:
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def _steps(points: list[tuple[float, float]], cut: bool) -> str:
    """Return the path: level until the next improvement, then straight down.

    ``cut`` says that there are slower points before the first, above the drawing.
    """
    if not points:
        return ""
    x, y = points[0]
    commands = [f"M{x:.1f} {TOP:.1f}V{y:.1f}" if cut else f"M{x:.1f} {y:.1f}"]
    commands += [f"H{x:.1f}V{y:.1f}" for x, y in points[1:]]
    return "".join(commands) + f"H{RIGHT:.1f}"


def _description(points: list[tuple[int, float]], default: float | None) -> str:
    known = f"Default {format_seconds(default)}" if default else "Default not measured"
    if not points:
        return f"{known}; no candidate has a time"
    (first, slowest), (last, fastest) = points[0], points[-1]
    return (
        f"{known}; best found {format_seconds(slowest)} at trial {first:,}, "
        f"{format_seconds(fastest)} at trial {last:,}"
    )
