"""A size that a user leaves open: named, bounded, or both."""

import re
from dataclasses import dataclass

from tvm_ext.errors import InputError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class SizeRange:
    """The sizes that a dimension may have in a run, both ends included."""

    low: int
    high: int

    def __contains__(self, size: int) -> bool:
        return self.low <= size <= self.high

    def __str__(self) -> str:
        return f"{self.low}:{self.high}"


@dataclass(frozen=True)
class OpenSize:
    """A dimension whose size each run decides.

    Attributes
    ----------
    name : str
        Dimensions of the same name have the same size; empty where it shall keep the name that it
        has in the model.
    range : SizeRange or None
        Any size where None.
    """

    name: str = ""
    range: SizeRange | None = None


def parse_size(text: str) -> int | OpenSize:
    """``"224"``, a name ``"N"``, a range ``"224:640"``, a named range ``"N:224:640"`` or ``"?"``.

    Raises
    ------
    InputError
        The text has another form, a size is not positive, or a range is empty.
    """
    parts = [part.strip() for part in text.split(":")]
    name = parts.pop(0) if _NAME.fullmatch(parts[0]) or parts[0] == "?" else ""
    # isdecimal alone would take digits of other scripts.
    if all(part.isascii() and part.isdecimal() and int(part) > 0 for part in parts):
        sizes = [int(part) for part in parts]
        if len(sizes) == 2 and sizes[0] <= sizes[1]:
            return OpenSize(name.replace("?", ""), SizeRange(*sizes))
        if name and not sizes:
            return OpenSize(name.replace("?", ""))
        if len(sizes) == 1 and not name:
            return sizes[0]
    raise InputError(
        f"'{text}' is not a size; expected a positive integer (224), a name (N), a range "
        "(224:640) or a named range (N:1:8): write it so"
    )
