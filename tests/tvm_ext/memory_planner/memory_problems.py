"""Buffers for the tests of the planner: random ones, and the instances of MiniMalloc."""

import csv
import itertools
from pathlib import Path

from hypothesis import strategies as st

from tvm_ext.memory_planner import Buffer

MINIMALLOC = Path(__file__).with_name("minimalloc.csv")
# Bytes of a unit of the file, and the arena that is enough for each of its instances.
UNIT, CAPACITY = 1024, 1024 * 1024


def minimalloc(instance: str) -> list[Buffer]:
    """The buffers of one instance, "A" to "K"."""
    with MINIMALLOC.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["instance"] == instance]
    return [
        Buffer(str(place), int(row["size"]) * UNIT, int(row["lower"]), int(row["upper"]) - 1)
        for place, row in enumerate(rows)
    ]


@st.composite
def buffer_lists(draw: st.DrawFn, most: int = 30, alignments: tuple[int, ...] = (64,)):
    """Lists of up to ``most`` buffers, some of no bytes, in a schedule of about as many places."""
    count = draw(st.integers(0, most))
    buffers = []
    for index in range(count):
        first = draw(st.integers(0, most))
        length = draw(st.integers(0, most // 2))
        size = draw(st.integers(0, 12)) * draw(st.sampled_from((1, 32, 64)))
        alignment = draw(st.sampled_from(alignments))
        buffers.append(Buffer(f"b{index}", size, first, first + length, alignment))
    return buffers


def smallest_arena(buffers: list[Buffer]) -> int:
    """The smallest arena, by trying all orders of stacking: for a few buffers only."""
    used = [buffer for buffer in buffers if buffer.size]
    return min(map(_stacked, itertools.permutations(used)), default=0)


def _stacked(order: tuple[Buffer, ...]) -> int:
    """The height when each buffer lies on top of all those before it that it meets."""
    tops: list[int] = []
    for place, buffer in enumerate(order):
        below = [
            tops[other]
            for other in range(place)
            if order[other].first <= buffer.last and buffer.first <= order[other].last
        ]
        start = -(-max(below, default=0) // buffer.alignment) * buffer.alignment
        tops.append(start + buffer.padded_size)
    return max(tops, default=0)
