"""Rectangles of a mesh: they fill it, hold what they should, and lie where there is room."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tvm_ext.wafer.stage_memory import PeGrid, Region, cut_region, groups_within, side_by_side

WHOLE = Region(0, 0, 994, 750)


def pes(region):
    return {
        (row, column)
        for row in range(region.row, region.row + region.rows)
        for column in range(region.column, region.column + region.columns)
    }


@settings(max_examples=25, deadline=None)
@given(
    st.tuples(st.integers(4, 20), st.integers(4, 20)),
    st.lists(st.floats(0, 1e6), min_size=1, max_size=16),
)
def test_regions_fill_the_mesh_without_overlap(size, works):
    regions = cut_region(Region(3, 5, *size), works)
    assert len(regions) == len(works)
    together = [place for region in regions for place in pes(region)]
    assert len(together) == len(set(together)) == size[0] * size[1]
    assert set(together) == pes(Region(3, 5, *size))
    assert all(region.rows and region.columns for region in regions)


def test_regions_are_in_proportion_to_the_work():
    first, second, third = cut_region(WHOLE, [100, 200, 700])
    total = WHOLE.rows * WHOLE.columns
    for region, share in ((first, 0.1), (second, 0.2), (third, 0.7)):
        assert region.rows * region.columns / total == pytest.approx(share, abs=0.01)


def test_works_of_nothing_still_get_a_place():
    regions = cut_region(Region(0, 0, 4, 1), [0.0, 0.0, 0.0, 0.0])
    assert [region.row for region in regions] == [0, 1, 2, 3]


def test_groups_are_filled_up_to_the_bound():
    assert groups_within([3, 3, 3, 9, 1], 6) == [(0, 1), (2,), (3,), (4,)]
    assert groups_within([3, 3, 3, 9, 1], 0) == [(0,), (1,), (2,), (3,), (4,)]
    assert groups_within([3, 3], 100) == [(0, 1)]
    assert groups_within([], 1) == []


def test_grids_lie_side_by_side_while_there_is_room():
    found = side_by_side(Region(10, 20, 64, 64), [PeGrid(32, 32, 100, 0)] * 4)
    assert sorted(found) == [(10, 20), (10, 52), (42, 20), (42, 52)]


def test_a_full_region_is_used_again_where_it_holds_least():
    grids = [PeGrid(64, 32, 50, 0), PeGrid(64, 32, 10, 0), PeGrid(64, 20, 20, 0)]
    assert side_by_side(Region(0, 0, 64, 64), grids) == [(0, 0), (0, 32), (0, 32)]


def test_what_a_kernel_needs_besides_keeps_others_away():
    busy, light = PeGrid(64, 32, 1, 100), PeGrid(64, 32, 50, 0)
    assert side_by_side(Region(0, 0, 64, 64), [busy, light])[1] == (0, 32)
    # 100 + 1 + 50 there against 50 + 50.
    assert side_by_side(Region(0, 0, 64, 64), [busy, light, light])[2] == (0, 32)


def test_large_grids_stay_inside():
    for row, column in side_by_side(WHOLE, [PeGrid(976, 5, 9, 9), PeGrid(40, 741, 9, 9)] * 3):
        assert 0 <= row <= 994 - 40
        assert 0 <= column <= 750 - 5
    assert side_by_side(WHOLE, [PeGrid(994, 750, 1, 1)]) == [(0, 0)]
