"""Names the nearest known word to one that was not found."""

import difflib
from collections.abc import Iterable


def nearest_hint(word: str, known: Iterable[str]) -> str:
    """``nearest known: 'x'`` when one is close, else ``known: a, b, c``."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1)
    if close:
        return f"nearest known: '{close[0]}'"
    return "known: " + (", ".join(names) or "none")
