"""The memory plan of a function, laid out for an SVG drawing: kernel calls across, addresses up."""

import math
from collections.abc import Collection
from dataclasses import dataclass

from tvm_ext.report.memory_plan import FunctionPlan, PlannedTensor
from tvm_ext.report.terminal_tables import shortened
from tvm_ext.report.tuning_curve import Tick
from tvm_ext.report.units import bytes_scale, format_bytes, plain

# The drawing's own units, which are pixels where nothing stretches it.
WIDTH, HEIGHT = 1160.0, 600.0
LEFT, RIGHT_MARGIN, TOP, BOTTOM = 64.0, 14.0, 34.0, 560.0
# In a drawing that is as wide as its calls need.
_CALL_WIDTH = 16.0
_TICKS = 8
# A label needs so much room; a letter of it is so wide.
_LABEL_WIDTH, _LABEL_HEIGHT, _LETTER = 46.0, 13.0, 6.6
_LEAST_HEIGHT = 0.8
# The dashed edge of a narrower rectangle would cover it.
_DASHED_WIDTH = 10.0


@dataclass(frozen=True)
class TensorBox:
    """A value: a rectangle from its first call to its last, and from its first byte to its last.

    ``kind`` is for the style sheet, ``lines`` are written inside of it, and ``title`` has
    the lines that a pointer on it shows.
    """

    x: float
    y: float
    width: float
    height: float
    kind: str
    lines: tuple[str, ...]
    title: tuple[str, ...]


@dataclass(frozen=True)
class MemoryDrawing:
    """What the template draws; ``description`` is the drawing in words.

    ``peak_x`` and ``peak_width`` are the column of the call during which most bytes are in use,
    ``peak_label`` stands above it from ``peak_anchor`` ("start" or "end") on.
    """

    width: float
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    boxes: list[TensorBox]
    peak_x: float
    peak_width: float
    peak_anchor: str
    peak_label: str
    description: str


def draw_memory(plan: FunctionPlan, is_wide: bool = False) -> MemoryDrawing | None:
    """Returns the drawing of a function's arena; None where it has none.

    ``is_wide`` gives each call the width that a label needs, whatever the whole is wide then.
    """
    if not plan.arena_bytes or not plan.calls:
        return None
    count = len(plan.calls)
    width = max(WIDTH, LEFT + RIGHT_MARGIN + _CALL_WIDTH * count) if is_wide else WIDTH
    column = (width - LEFT - RIGHT_MARGIN) / count
    most_own = max(plan.workspace_bytes, default=0)
    row = (BOTTOM - TOP) / (plan.arena_bytes + most_own)
    peak = plan.peak_call
    live = plan.live_bytes[peak]
    written_over = _written_over(plan)
    return MemoryDrawing(
        width=width,
        x_ticks=_call_ticks(count, column),
        y_ticks=_address_ticks(plan.arena_bytes + most_own, row),
        boxes=[
            *(_box(plan, one, written_over, column, row) for one in plan.in_arena),
            *_workspaces(plan, column, row),
        ],
        peak_x=LEFT + column * peak,
        peak_width=max(column, 1.0),
        peak_anchor="end" if peak > count / 2 else "start",
        peak_label=f"peak: call {peak}, {format_bytes(live)}",
        description=(
            f"{count} kernel calls from left to right, {format_bytes(plan.arena_bytes)} of memory "
            f"from bottom to top{_above(most_own)}. Most is in use at call {peak}: "
            f"{format_bytes(live)}."
        ),
    )


def _box(
    plan: FunctionPlan,
    one: PlannedTensor,
    written_over: Collection[tuple[int | None, int]],
    column: float,
    row: float,
) -> TensorBox:
    begin: float = one.first
    end: float = one.last + 1
    # Where a value takes the place of another one, the column of that call is divided.
    if one.in_place_of:
        begin += 0.5
    if (one.offset, one.last) in written_over:
        end -= 0.5
    height = max(_LEAST_HEIGHT, row * one.size)
    width = column * (end - begin)
    kind = "peak" if one.first <= plan.peak_call <= one.last else "other"
    return TensorBox(
        x=LEFT + column * begin,
        y=BOTTOM - row * (one.offset or 0) - height,
        width=width,
        height=height,
        kind=f"{kind} inplace" if one.in_place_of and width >= _DASHED_WIDTH else kind,
        lines=_lines(one, width, height),
        title=_title(plan, one),
    )


def _workspaces(plan: FunctionPlan, column: float, row: float) -> list[TensorBox]:
    """What kernels allocate for themselves, above the arena, each as wide as its call."""
    top = BOTTOM - row * (plan.arena_bytes or 0)
    return [
        TensorBox(
            x=LEFT + column * call,
            y=top - max(_LEAST_HEIGHT, row * nbytes),
            width=column,
            height=max(_LEAST_HEIGHT, row * nbytes),
            kind="own",
            lines=(),
            title=(
                "arrays of the kernel, on all threads",
                f"call {call}, {plain(plan.calls[call])}",
                f"{format_bytes(nbytes)} beside the arena",
            ),
        )
        for call, nbytes in enumerate(plan.workspace_bytes)
        if nbytes
    ]


def _above(nbytes: int) -> str:
    return f", and above it up to {format_bytes(nbytes)} that kernels allocate" if nbytes else ""


def _written_over(plan: FunctionPlan) -> set[tuple[int | None, int]]:
    """Places and calls at which a value is written over another one."""
    return {(one.offset, one.first) for one in plan.in_arena if one.in_place_of}


def _lines(one: PlannedTensor, width: float, height: float) -> tuple[str, ...]:
    if width < _LABEL_WIDTH or height < _LABEL_HEIGHT:
        return ()
    letters = int((width - 6) / _LETTER)
    first = shortened(plain(one.name), letters)
    size = format_bytes(one.size)
    return (first, size) if height >= 2 * _LABEL_HEIGHT and len(size) <= letters else (first,)


def _title(plan: FunctionPlan, one: PlannedTensor) -> tuple[str, ...]:
    """What is known of a value, a line for each."""
    offset = one.offset or 0
    lines = [
        plain(one.name),
        f"{one.type}, {format_bytes(one.size)}",
        f"bytes {offset:,} to {offset + one.size - 1:,}",
        f"first use: call {one.first}, {plain(plan.calls[one.first])}",
        f"last use: call {one.last}, {plain(plan.calls[one.last])}",
    ]
    if one.in_place_of:
        lines.append(f"written over {plain(one.in_place_of)}")
    return tuple(lines)


def _call_ticks(count: int, column: float) -> list[Tick]:
    marks = _TICKS * max(1.0, column * count / WIDTH)
    step = max(1, int(_step(count / marks)))
    return [Tick(LEFT + column * (call + 0.5), str(call)) for call in range(0, count, step)]


def _address_ticks(nbytes: int, row: float) -> list[Tick]:
    scale = bytes_scale(nbytes)
    units = nbytes / scale.factor
    step = _step(units / _TICKS)
    return [
        Tick(BOTTOM - row * number * step * scale.factor, f"{number * step:g} {scale.unit}")
        for number in range(int(units / step) + 1)
    ]


def _step(least: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is not below ``least``."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(one for one in (power, 2 * power, 5 * power, 10 * power) if one >= least)
