"""Elements as integers that compare as their places in the result do.

Of each element one or two integers are sorted: the first grows from better to worse, and holds the
element's position in its lower half, or is followed by it. So no two are equal, and any way of
sorting is stable. Floating-point numbers in the order of IEEE 754 (section 5.10), but -0 equals 0,
and NaN comes last whatever the order: it compares as better than nothing on a CPU either.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

_HALF = 2**32

# Positions of no element, behind all others.
_NOWHERE = {"int64": 2**63 - 1, "int32": 2**31 - 1}


@dataclass(frozen=True)
class Words:
    """The integers of an element of a type.

    Attributes
    ----------
    dtype : str
        Of the elements.
    ascending : bool
        Whether the smallest is the best.
    """

    dtype: str
    ascending: bool

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Types of the integers, the one that counts most first."""
        return ("int64",) if self.dtype.endswith("32") else ("int64", "int32")

    @property
    def nbytes(self) -> int:
        """Of an element's integers together."""
        return 8 if len(self.dtypes) == 1 else 12

    def of(self, value: Any, position: Any) -> list[Any]:
        """The integers of an element at a position of its row."""
        key = self._key(value)
        if len(self.dtypes) == 1:
            half = tirx.const(_HALF, "int64")
            return [key.astype("int64") * half + position.astype("int64")]
        return [key, position.astype("int32")]

    def position(self, words: Sequence[Any]) -> Any:
        """The position of an element, of type int32."""
        return words[-1].astype("int32")

    def nothing(self) -> list[Any]:
        """What comes behind every element."""
        return [tirx.const(_NOWHERE[dtype], dtype) for dtype in self.dtypes]

    def is_worse(self, left: Sequence[Any], right: Sequence[Any]) -> Any:
        """Whether the first element comes behind the second one."""
        worse = left[-1] > right[-1]
        for a, b in list(zip(left, right, strict=True))[-2::-1]:
            worse = tirx.Or(a > b, tirx.And(a.equal(b), worse))
        return worse

    def _key(self, value: Any) -> Any:
        bits = 32 if self.dtype.endswith("32") else 64
        integer = f"int{bits}"
        if self.dtype.startswith("int"):
            return value if self.ascending else tirx.bitwise_not(value)
        raw = tirx.reinterpret(integer, value)
        highest = tirx.const(2 ** (bits - 1) - 1, integer)
        infinity = tirx.const(0x7F800000 if bits == 32 else 0x7FF << 52, integer)
        size = tirx.bitwise_and(raw, highest)
        zero = tirx.const(0, integer)
        # Negative numbers count backwards.
        key = tirx.Select(raw < zero, tirx.bitwise_xor(raw, highest), raw)
        key = tirx.Select(size.equal(zero), zero, key)
        key = key if self.ascending else tirx.bitwise_not(key)
        return tirx.Select(size > infinity, highest, key)
