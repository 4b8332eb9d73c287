"""Buffers that cannot be and plans that do not hold are refused by name."""

from dataclasses import replace

import pytest

from tvm_ext.errors import TvmExtError
from tvm_ext.memory_planner import Buffer, MemoryPlan, PlanError, check_plan, plan_offsets

TWO = [Buffer("a", 64, 0, 2), Buffer("b", 64, 2, 3)]
GOOD = MemoryPlan((0, 64), 128, 128, "by hand", True)


def test_a_plan_that_holds_passes():
    check_plan(TWO, GOOD)


def test_buffers_at_different_times_may_share_bytes():
    apart = [TWO[0], Buffer("b", 64, 3, 3)]
    check_plan(apart, MemoryPlan((0, 0), 64, 64, "by hand", True))


@pytest.mark.parametrize(
    ("offsets", "size", "expected"),
    [
        (
            (0, 0),
            128,
            r"buffers 'a' and 'b' are both alive at place 2 and overlap \(bytes 0 to 63 and 0 to",
        ),
        ((0, 32), 128, "buffer 'b' of 64 bytes has offset 32 in an arena of 128; expected a multi"),
        ((0, 64), 100, "buffer 'b' of 64 bytes has offset 64 in an arena of 100"),
        ((-64, 64), 128, "buffer 'a' of 64 bytes has offset -64"),
        ((0,), 128, "the plan has 1 offsets for 2 buffers"),
    ],
)
def test_a_plan_that_does_not_hold_is_refused(offsets, size, expected):
    with pytest.raises(PlanError, match=expected):
        check_plan(TWO, replace(GOOD, offsets=offsets, size=size))


@pytest.mark.parametrize(
    ("buffer", "expected"),
    [
        (Buffer("w", -1, 0, 0), "buffer 'w' has a size of -1 bytes; expected 0 or more"),
        (Buffer("w", 1, 0, 0, 0), "buffer 'w' has an alignment of 0 bytes; expected 1 or more"),
        (Buffer("w", 1, 4, 3), "buffer 'w' is alive from 4 to 3; expected an end"),
    ],
)
def test_a_buffer_that_cannot_be_is_refused(buffer, expected):
    with pytest.raises(TvmExtError, match=expected) as raised:
        plan_offsets([buffer])
    assert "\n" not in str(raised.value)
