"""The level of passes at which a test of an operator or of control flow compiles its model.

What such a test is about is done before the passes, and comes out the same at any level. So one
half of all models is compiled at O0, the other one at O3, and ``make test-all`` takes both for all.
"""

import zlib

import onnx
from thoroughness import ALL_CASES

LEVELS = ("O0", "O3")


def levels_of(proto: onnx.ModelProto) -> tuple[str, ...]:
    """The levels for a model: the same ones in each run."""
    if ALL_CASES:
        return LEVELS
    return (LEVELS[zlib.crc32(proto.SerializeToString(deterministic=True)) % 2],)
