"""The level of passes at which a test of an operator or of control flow compiles its model.

What such a test is about is done before the passes, and comes out the same at any level. So one
third of all models is compiled at O3, the others at O0, and ``make test-all`` takes both for all.
"""

import zlib

import onnx
from thoroughness import ALL_CASES

LEVELS = ("O0", "O3")


def levels_of(proto: onnx.ModelProto, one_of: int = 3) -> tuple[str, ...]:
    """The levels for a model: the same ones in each run; one of so many models is for O3."""
    if ALL_CASES:
        return LEVELS
    number = zlib.crc32(proto.SerializeToString(deterministic=True))
    return (LEVELS[number % one_of == one_of - 1],)
