"""Moving a tensor between layouts: against words counted one by one, and cases by hand."""

from collections import Counter
from math import prod

import numpy as np
import pytest
from communication_cases import mesh
from hypothesis import given, settings
from hypothesis import strategies as st

from tvm_ext.hardware.wafer.description import WaferLimitError
from tvm_ext.hardware.wafer.layout_change import NO_CHANGE, layout_change
from tvm_ext.hardware.wafer.program import Layout

SUFFIX = {"r": "row", "c": "column", "-": "-"}


def layout(shape, cuts, pieces, rows=1, columns=1):
    """``cuts``: a letter a dimension."""
    return Layout(
        "t", tuple(shape), tuple(SUFFIX[cut] for cut in cuts), tuple(pieces), 4, rows, columns
    )


def place(found, index):
    """Row and column of one element, counted from its definition."""
    coordinates = {"row": 0, "column": 0}
    for size, position, axis, piece in zip(
        found.shape, index, found.axes, found.pieces, strict=True
    ):
        if axis != "-":
            coordinates[axis] = coordinates[axis] * -(-size // piece) + position // piece
    return coordinates["row"], coordinates["column"]


def counted(have, need, have_at, need_at):
    """The busiest link of the better order, and all links crossed, with each element sent alone."""
    orders, hops = [Counter(), Counter()], 0
    for flat in range(prod(have.shape)):
        source, target = (
            np.add(place(one, np.unravel_index(flat, one.shape)), at)
            for one, at in ((have, have_at), (need, need_at))
        )
        hops += np.abs(source - target).sum()
        for first, links in enumerate(orders):
            at = source.copy()
            for axis in (first, 1 - first):
                while at[axis] != target[axis]:
                    step = 1 if target[axis] > at[axis] else -1
                    links[(*at, axis, step)] += 1
                    at[axis] += step
    return min(max(links.values(), default=0) for links in orders), hops


def cut_layouts(shape):
    """Layouts without copies: no axis but has a dimension, or there is one row and column."""
    cuts = st.lists(st.sampled_from("rc-"), min_size=len(shape), max_size=len(shape))
    pieces = st.tuples(*[st.integers(1, size) for size in shape])
    return st.builds(
        lambda c, p: layout(
            shape,
            c,
            [size if cut == "-" else piece for size, cut, piece in zip(shape, c, p, strict=True)],
        ),
        cuts,
        pieces,
    )


@st.composite
def changes(draw):
    have_shape, need_shape = draw(
        st.sampled_from(
            [
                ((4, 6), (4, 6)),
                ((2, 6, 2), (12, 2)),
                ((3, 8), (3, 2, 4)),
                ((12,), (3, 4)),
                ((5, 7), (5, 7)),
            ]
        )
    )
    at = st.tuples(st.integers(0, 3), st.integers(0, 3))
    return draw(cut_layouts(have_shape)), draw(cut_layouts(need_shape)), draw(at), draw(at)


@settings(max_examples=25, deadline=None)
@given(changes())
def test_links_are_those_of_elements_sent_one_by_one(change):
    have, need, have_at, need_at = change
    found = layout_change(have, need, mesh(), have_at, need_at)
    busiest, hops = counted(*change)
    assert found.link_words == busiest
    assert found.word_hops == hops
    assert (found.cycles > 0) == (hops > 0)
    if hops:
        assert found.words == prod(need.pieces)


def test_nothing_moves_between_equal_layouts():
    rows = layout((8, 4), "r-", (2, 4), 4, 1)
    assert layout_change(rows, rows, mesh()) == NO_CHANGE
    # A view of another shape that is cut in the same places.
    assert layout_change(rows, layout((4, 2, 4), "r--", (1, 2, 4), 4, 1), mesh()) == NO_CHANGE
    moved = layout_change(rows, rows, mesh(), (0, 0), (0, 3))
    assert (moved.distance, moved.word_hops) == (3, 8 * 4 * 3)


def test_a_shift_by_hand():
    rows = layout((8, 4), "r-", (2, 4), 4, 1)
    found = layout_change(rows, rows, mesh(), (0, 0), (0, 3))
    # 8 words over 3 hops, the ramps and one instruction, and the software around the message.
    assert found.words == found.link_words == 8
    assert found.cycles == 8 + 3 + 5 + mesh().transfer_cycles


def test_what_lies_in_every_pe_need_not_move():
    everywhere = layout((6,), "-", (6,), 3, 2)
    assert layout_change(everywhere, layout((6,), "r", (2,), 3, 1), mesh()) == NO_CHANGE
    assert layout_change(everywhere, layout((6,), "-", (6,), 1, 1), mesh()) == NO_CHANGE


def test_a_copy_for_every_pe_is_sent_once_over_each_link():
    one = layout((6,), "-", (6,), 1, 1)
    everywhere = layout((6,), "-", (6,), 3, 4)
    found = layout_change(one, everywhere, mesh())
    # Along the first row, then down all columns.
    assert found.word_hops == 6 * (3 + 4 * 2)
    assert (found.link_words, found.distance) == (6, 5)


def test_the_nearest_copy_is_taken():
    copies = layout((6,), "-", (6,), 1, 4)
    far = layout_change(copies, layout((6,), "-", (6,), 1, 1), mesh(), (0, 0), (0, 6))
    assert far.distance == 3
    assert layout_change(copies, layout((6,), "-", (6,), 1, 1), mesh(), (0, 0), (0, 2)) == NO_CHANGE


def test_words_turn_where_it_loads_the_links_less():
    """All into one column: along the columns first, each of them takes its share."""
    spread = layout((8, 4), "rc", (1, 1), 8, 4)
    one_column = layout((8, 4), "r-", (4, 4), 2, 1)
    assert layout_change(spread, one_column, mesh()).link_words < 4 * (8 - 2)
    transposed = layout((4, 8), "rc", (1, 1), 4, 8), layout((4, 8), "-c", (4, 4), 1, 2)
    found = layout_change(*transposed, mesh())
    assert found == layout_change(spread, one_column, mesh())


def test_one_sender_sends_all_over_its_ramp():
    one = layout((64,), "-", (64,), 1, 1)
    spread = layout((64,), "c", (1,), 1, 64)
    # Half of it would go each way from the middle of the line; the ramp takes all of it.
    found = layout_change(one, spread, mesh(), (0, 32), (0, 0))
    assert found.link_words == 32
    assert found.cycles == 64 + 32 + 5 + mesh().transfer_cycles


def test_narrow_elements_share_a_word():
    rows = layout((8, 4), "r-", (2, 4), 4, 1)
    half = Layout("t", rows.shape, rows.axes, rows.pieces, 2, 4, 1)
    assert layout_change(half, half, mesh(), (0, 0), (1, 0)).words == 4


def test_an_empty_tensor_takes_nothing():
    empty = layout((0, 4), "r-", (1, 4), 1, 1)
    assert layout_change(empty, layout((0,), "c", (1,)), mesh()) == NO_CHANGE


def test_layouts_of_two_tensors_are_refused():
    with pytest.raises(WaferLimitError, match="of 8 elements is to become t of 9"):
        layout_change(layout((8,), "r", (1,)), layout((9,), "r", (1,)), mesh())


def test_many_ways_are_looked_at_in_a_few_lines():
    """Cut in different dimensions on both sides, so that there are as many ways as elements."""
    have = layout((120, 120, 120, 3), "rc--", (1, 1, 120, 3), 120, 120)
    need = layout((120, 120, 120, 3), "--cr", (120, 120, 1, 1), 3, 120)
    found = layout_change(have, need, mesh())
    # All rows are alike: the average way along a row is that of a row of 120 to one of 120.
    mean = np.abs(np.subtract.outer(np.arange(120), np.arange(120))).mean()
    rows = np.abs(np.subtract.outer(np.arange(120), np.arange(3))).mean()
    assert found.word_hops == pytest.approx(120**3 * 3 * (mean + rows), rel=0.02)
