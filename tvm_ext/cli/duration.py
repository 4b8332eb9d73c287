"""Parses lengths of time."""

import re

from tvm_ext.errors import InputError

_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0}
_PARTS = re.compile(r"([0-9]+(?:\.[0-9]+)?)(h|m|s)")


def parse_duration(option: str, text: str) -> float:
    """ "1h30m", "90s" or "90" (seconds) to seconds above 0; raises InputError for other texts."""
    plain = text.strip().lower()
    whole = f"{plain}s" if re.fullmatch(r"[0-9]+(\.[0-9]+)?", plain) else plain
    parts = _PARTS.findall(whole)
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if "".join(number + unit for number, unit in parts) != whole or seconds <= 0:
        raise InputError(
            f"{option} {text!r} is no length of time; expected for example 90s, 30m or 1h30m: "
            "write it so"
        )
    return seconds
