"""Numbers with units: the right unit, the right number of decimals, names made printable."""

import pytest

from tvm_ext.report.units import (
    bytes_scale,
    flops_scale,
    format_bytes,
    format_count,
    format_percent,
    format_seconds,
    plain,
    seconds_scale,
)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.0, "0 s"),
        (3e-10, "0.30 ns"),
        (4.2e-6, "4.20 µs"),
        (9.99996e-4, "1.00 ms"),
        (0.0123, "12.3 ms"),
        (0.9999996, "1.00 s"),
        (14.62, "14.6 s"),
        (4321.0, "4,321 s"),
    ],
)
def test_seconds(seconds, expected):
    assert format_seconds(seconds) == expected


@pytest.mark.parametrize(
    ("size", "expected"),
    [(0, "0 B"), (1000, "1,000 B"), (1536, "1.50 KiB"), (102_228_128, "97.5 MiB")],
)
def test_bytes(size, expected):
    assert format_bytes(size) == expected


def test_a_column_shares_one_unit_and_never_shows_zero_for_something():
    scale = seconds_scale(0.1834)
    assert scale(0.1834) == "183 ms"
    assert scale(0.0004) == "<1 ms"
    assert scale(0.0) == "0 ms"
    assert bytes_scale(2.0**20).number(512 * 1024) == "0.50"
    assert flops_scale(2.36e8)(2.36e8) == "236 MFLOP"


def test_percent_and_count():
    assert format_percent(0.4384) == "43.8 %"
    assert format_percent(0.0001) == "<0.1 %"
    assert format_count(1, "pass", "passes") == "1 pass"
    assert format_count(1200, "pass", "passes") == "1,200 passes"


def test_plain_keeps_letters_of_any_language_and_escapes_the_rest():
    assert plain("conv_é_層 1") == "conv_é_層 1"
    assert plain("a\nb\x1b[0m\u202e\ud800") == "a\\nb\\x1b[0m\\u202e\\ud800"
