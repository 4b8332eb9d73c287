"""A profile as one self-contained HTML page.

How it looks is in the templates next to this file. Names come from model files: the templates
escape every value.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm_ext.report.page import KeyFigure, page_environment, parts
from tvm_ext.report.profile import Timed, timed_together
from tvm_ext.report.profile_text import MODELLED, key_figures, not_known
from tvm_ext.report.records import computes
from tvm_ext.report.units import ABSENT, flops_scale, format_bytes, seconds_scale

if TYPE_CHECKING:
    from tvm_ext.report.profile import Profile

# Kernels with a part of their own in the bar above the table.
_PARTS = 8
# Kernels that take so many times less than the slowest still show three digits.
_RANGE = 50


@dataclass(frozen=True)
class TimeRow:
    """One row of a table, with its share of the measured time and the length of its bar, 0 to 1."""

    time: Timed
    share: float
    length: float

    @property
    def seconds(self) -> float:
        """Measured time of one run."""
        return 1e-6 * self.time.microseconds

    @property
    def modelled_seconds(self) -> float | None:
        """Modelled time of one run; None where not known."""
        modelled = self.time.modelled_microseconds
        return None if modelled is None else 1e-6 * modelled

    @property
    def work(self) -> str:
        """Operations and bytes of one run, where they are known."""
        cost = self.time.cost
        if cost is None:
            return ABSENT
        return f"{flops_scale(cost.flops)(cost.flops)}, {format_bytes(cost.bytes)} of tensors"


def render_profile_html(profile: "Profile") -> str:
    """Return the page; it names no resource outside itself and works without JavaScript."""
    kernels = _rows(profile.kernels)
    return (
        page_environment()
        .get_template("profile.html.j2")
        .render(
            profile=profile,
            tiles=_tiles(profile),
            kernels=kernels,
            nodes=_rows(profile.nodes),
            several=any(len(time.origins) > 1 for time in profile.nodes),
            parts=parts(_largest(profile)),
            scale=seconds_scale(max((row.seconds for row in kernels), default=0.0) / _RANGE),
            peaks=_peaks(profile),
            unknown=not_known(profile) if profile.unknown_calls else "",
            absent=ABSENT,
        )
    )


def _rows(times: Sequence[Timed]) -> list[TimeRow]:
    total = sum(time.microseconds for time in times) or 1.0
    longest = max((time.microseconds for time in times), default=0.0) or 1.0
    return [TimeRow(time, time.microseconds / total, time.microseconds / longest) for time in times]


def _tiles(profile: "Profile") -> list[KeyFigure]:
    tiles = []
    for name, value, note in key_figures(profile):
        if note == MODELLED:
            tiles.append(KeyFigure(name, value, "", badge="modelled"))
        elif name != "Peaks":
            tiles.append(KeyFigure(name, value, note))
    return tiles


def _largest(profile: "Profile") -> list[tuple[str, float]]:
    """Name and time of the slowest kernels, and of all others together."""
    found = [(computes(kernel), kernel.microseconds) for kernel in profile.kernels[:_PARTS]]
    rest = profile.kernels[_PARTS:]
    if rest:
        found.append((f"{len(rest):,} more", timed_together(rest).microseconds))
    return found


def _peaks(profile: "Profile") -> str:
    peaks = profile.peaks
    if peaks is None:
        return ABSENT
    flops = flops_scale(peaks.flops)(peaks.flops)
    rates = f"{flops}/s of float32, {1e-9 * peaks.bytes:,.1f} GB/s of main memory"
    return f"{rates}; {profile.peaks_source}"
