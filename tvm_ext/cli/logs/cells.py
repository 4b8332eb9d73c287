"""Texts in the tables of these commands."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tvm_ext.report.units import ABSENT, format_percent, format_seconds, plain

if TYPE_CHECKING:
    from rich.text import Text

_LONGEST_ORIGIN = 40


def text(words: str) -> "Text":
    """Words from a file: no markup, no escape sequences."""
    from rich.text import Text

    return Text(plain(words))


def seconds_cell(seconds: float | None, is_modelled: bool = False) -> str:
    """A time; that of a model is marked as such."""
    return _marked(format_seconds(seconds), is_modelled) if seconds is not None else ABSENT


def gain_cell(gain: float | None, is_modelled: bool = False) -> str:
    """How many times as fast; that of a model is marked as such."""
    return _marked(f"{gain:.2f}x", is_modelled) if gain is not None else ABSENT


def _marked(value: str, is_modelled: bool) -> str:
    return f"{value} (modelled)" if is_modelled else value


def origin_cell(origins: Sequence[str]) -> str:
    """The first of the model's nodes, shortened, and how many more there are."""
    if not origins:
        return ABSENT
    first = origins[0]
    if len(first) > _LONGEST_ORIGIN:
        first = first[: _LONGEST_ORIGIN - 3] + "..."
    return first if len(origins) == 1 else f"{first} +{len(origins) - 1}"


def counts_cell(counts: Mapping[str, int]) -> str:
    """Counts by name, such as "2 build, 1 wrong"."""
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "0"


def spread_cell(spread: float) -> str:
    """A relative spread in percent."""
    return format_percent(spread) if spread else ABSENT
