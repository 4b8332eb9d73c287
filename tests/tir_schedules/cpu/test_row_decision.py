"""Stretches of rows and of elements: nothing is left out, nothing is done twice."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tvm_ext.tir_schedules.cpu.row_decision import stretches, stretches_across


def elements(parts: list[tuple[int, int, int]]) -> list[int]:
    return [start + i for start, count, width in parts for i in range(count * width)]


@given(length=st.integers(1, 300), widths=st.lists(st.integers(1, 64), max_size=3))
@settings(max_examples=15, deadline=None)
def test_every_element_once(length: int, widths: list[int]) -> None:
    assert elements(stretches(length, widths)) == list(range(length))


@given(
    length=st.integers(1, 3000),
    groups=st.integers(1, 9),
    registers=st.sampled_from([1, 2, 8, 128]),
    chunks=st.sampled_from([1, 4, 16]),
)
@settings(max_examples=15, deadline=None)
def test_every_row_once(length: int, groups: int, registers: int, chunks: int) -> None:
    parts = stretches_across(length, groups, 16, registers, chunks)
    assert elements(parts) == list(range(length))
    assert parts[0][2] <= 16 * registers or length < 16 * registers


def test_tiles_are_even() -> None:
    # Five vectors in two tiles of up to four: three and two, not four and one.
    assert stretches_across(80, 1, 16, 4, 1) == [(0, 1, 48), (48, 1, 32)]


def test_threads_share_equal_tiles() -> None:
    # Nine vectors for four threads: two for each, and a rest.
    assert stretches_across(144, 1, 16, 8, 4) == [(0, 4, 32), (128, 1, 16)]
