"""Numbers with their units, for the text and the HTML form of a report.

A column of numbers shares one unit and one number of decimals, so that its digits line up and a
longer number is a larger one; `Scale` is that choice.
"""

import math
from dataclasses import dataclass

ABSENT = "–"  # noqa: RUF001 (an en dash reads better than a hyphen in a column of numbers)

_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_BYTES = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))
_FLOPS = ((1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1e3, "kFLOP"), (1.0, "FLOP"))
_SIGNIFICANT_DIGITS = 3


@dataclass(frozen=True)
class Scale:
    """One unit and one number of decimals, for a value or for a whole column of values."""

    factor: float
    unit: str
    decimals: int

    def __call__(self, value: float | None) -> str:
        """Return ``value`` (in the base unit) as text with its unit; a dash where it is unknown."""
        return ABSENT if value is None else f"{self.number(value)} {self.unit}"

    def number(self, value: float) -> str:
        """Return ``value`` as text without the unit; "<0.1" for what would round to zero."""
        smallest = 10.0**-self.decimals
        scaled = value / self.factor
        if 0 < scaled < smallest / 2:
            return f"<{smallest:.{self.decimals}f}"
        return f"{scaled:,.{self.decimals}f}"


def seconds_scale(largest: float) -> Scale:
    """Return the scale of times of at most ``largest`` seconds."""
    return _scale(largest, _SECONDS)


def bytes_scale(largest: float) -> Scale:
    """Return the scale of sizes of at most ``largest`` bytes."""
    return _scale(largest, _BYTES)


def flops_scale(largest: float) -> Scale:
    """Return the scale of counts of at most ``largest`` floating-point operations."""
    return _scale(largest, _FLOPS)


def format_seconds(value: float | None) -> str:
    return seconds_scale(value or 0.0)(value)


def format_bytes(value: float) -> str:
    return bytes_scale(value)(value)


def format_percent(share: float) -> str:
    """Return a share of 1 as a percentage; never "0.0 %" for something that is there."""
    return Scale(0.01, "%", 1)(share)


def format_signed_percent(share: float) -> str:
    """Return a change, as a share of 1, as a percentage with its sign."""
    text = format_percent(abs(share))
    return f"-{text}" if share < 0 else f"+{text}"


def format_count(number: int, singular: str, plural: str = "") -> str:
    """Return ``number`` with the noun in the right form, for example "1 pass", "3 passes"."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def plain(text: str) -> str:
    """Return ``text`` with every character that does not print replaced by its escape.

    Names in a report come from model files. An escape sequence in a node name must not reach a
    terminal, and a text-direction mark must not reorder a page.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _scale(largest: float, ladder: tuple[tuple[float, str], ...]) -> Scale:
    if largest <= 0:
        return Scale(*ladder[-1], decimals=0) if ladder[-1][0] >= 1 else Scale(*ladder[0], 0)
    # The margin keeps 0.9999996 s from becoming "1000 ms".
    factor, unit = next((step for step in ladder if largest >= step[0] * 0.9995), ladder[-1])
    if ladder[-1][0] == factor == 1.0:
        return Scale(factor, unit, 0)  # a byte and an operation have no fractions
    digits_before_point = 1 + math.floor(math.log10(max(largest / factor, 1.0)))
    return Scale(factor, unit, max(0, _SIGNIFICANT_DIGITS - digits_before_point))
