"""Closed forms: published cycles, small cases by hand, and what must hold for all of them."""

import pytest
from communication_cases import mesh
from hypothesis import given, settings
from hypothesis import strategies as st

from tvm_ext.hardware.wafer.communication import (
    NOTHING,
    at_once,
    in_sequence,
    message,
    multicast,
    multicast_2d,
    on_lines,
)
from tvm_ext.hardware.wafer.description import WaferLimitError
from tvm_ext.hardware.wafer.exchanges import (
    cannon_shift,
    halo,
    interleaved_shift,
    summa_broadcast,
    transpose,
)
from tvm_ext.hardware.wafer.reduces import (
    best_group,
    chain,
    k_tree,
    k_tree_groups,
    ring,
    star,
    tree,
    two_phase,
)

# Two-phase reduce of 4,096 words over 512 PEs, cycles in the vendor's simulator by size of a group.
# Repository pr0f3ss/SpMM_Cerebras, commit 05f8fdb, by the first author of "Near-optimal wafer-scale
# reduce", HPDC 2024: src/mpi_collectives/reduce_0_pe/reduce_2colors_2phase/results.txt.
PUBLISHED = {2: 10055, 4: 9421, 16: 8989, 32: 8973, 128: 9297, 256: 9800}

LINES = st.integers(2, 700)
WORDS = st.integers(1, 5000)


@pytest.mark.parametrize(("group", "cycles"), PUBLISHED.items())
def test_published_two_phase_reduce(group, cycles):
    assert two_phase(mesh(), 4096, 512, group).cycles == pytest.approx(cycles, rel=0.02)
    fitted = two_phase(mesh(), 4096, 512, group, first_step_cycles=4, start_cycles=69)
    assert fitted.cycles == pytest.approx(cycles, abs=5)


def test_the_best_groups_are_the_published_ones():
    forms = {group: two_phase(mesh(), 4096, 512, group).cycles for group in PUBLISHED}
    assert set(sorted(forms, key=forms.get)[:2]) == {16, 32}
    best = two_phase(mesh(), 4096, 512, best_group(512)).cycles
    assert min(forms.values()) * 0.99 < best <= min(forms.values())


def test_published_forms():
    # P. Luczynski et al., HPDC 2024, with T_R = 2.
    words, extent = 300, 64
    assert message(mesh(), words, extent - 1).cycles == words + extent + 4
    assert multicast(mesh(), words, extent).cycles == words + extent + 4
    assert multicast_2d(mesh(), words, 7, 9).cycles == words + 7 + 9 - 2 + 5
    assert chain(mesh(), words, extent).cycles == words + 6 * 63
    assert tree(mesh(), words, extent).cycles == 6 * words + 63 + 5 * 6
    # With the hop of the nearest, which the published form leaves out.
    assert star(mesh(), words, extent).cycles == words * 63 + 5 + 1
    steps = 2 * 63
    assert ring(mesh(), 640, extent).cycles == steps * 10 + 4 * 64 - 6 + steps * 5


def test_chains_are_best_for_long_vectors_and_trees_for_short_ones():
    machine = mesh()
    long = [form(machine, 40_000, 100).cycles for form in (chain, tree, star)]
    short = [form(machine, 1, 600).cycles for form in (tree, chain)]
    assert min(long) == long[0]
    assert short[0] < short[1] / 3


def test_a_shift_around_meshgemms_ring_does_not_grow_with_the_line():
    # C. He et al., WaferLLM, OSDI 2025: two hops a step, N in Cannon's.
    machine = mesh()
    short, long = (interleaved_shift(machine, 64, extent) for extent in (360, 720))
    assert short.cycles == long.cycles
    assert cannon_shift(machine, 64, 720).cycles - cannon_shift(machine, 64, 360).cycles == 360
    assert interleaved_shift(machine, 64, 3).cycles == 64 + 2 + 5
    assert cannon_shift(machine, 64, 3).cycles == 64 + 2 + 5


def test_summas_broadcasts_share_the_ramps():
    along = summa_broadcast(mesh(), 100, 40, 8, 16)
    # The row's 100 words over 15 hops, with the column's 40 between them.
    assert along.cycles == 100 + 15 + 40 + 5
    assert summa_broadcast(mesh(), 100, 40, 8, 16, row_root=7, column_root=4).cycles == 100 + 8 + 45
    assert along.energy_word_hops == 100 * 15 * 8 + 40 * 7 * 16


def test_halo_of_a_stencil():
    inner = halo(mesh(), 8, 32, 16, 16)
    assert inner.cycles == 2 * 8 + 2 * 32 + 1 + 5
    assert inner.buffer_bytes == 4 * (2 * 8 + 2 * 32)
    # SC22's 25-point stencil takes columns of four PEs in each of the four directions.
    assert halo(mesh(), 1000, 1000, 600, 600, hops=4).contention_words == 16_000
    # Two columns: one neighbour in the row.
    assert halo(mesh(), 8, 32, 16, 2).contention_words == 8 + 2 * 32
    assert halo(mesh(), 8, 32, 1, 16).contention_words == 2 * 8


def test_transposition_is_limited_by_the_corner():
    assert transpose(mesh(), 10, 9).cycles == 8 * 10 + 1 + 8 + 5
    assert transpose(mesh(), 10, 9).colours == 9


def test_relays_of_a_k_tree_fall_with_its_levels():
    machine = mesh()
    one, two, three = (k_tree(machine, 1, 729, levels) for levels in (1, 2, 3))
    # K N^(1/K) / 2 steps up, and the multicast down.
    assert (one.depth, two.depth, three.depth) == (364 + 1, 26 + 1, 12 + 1)
    assert three.cycles < two.cycles < one.cycles / 2
    assert k_tree(machine, 10_000, 729, 1).cycles < k_tree(machine, 10_000, 729, 3).cycles


@pytest.mark.parametrize(("extent", "levels"), [(1, 2), (2, 2), (9, 2), (10, 2), (64, 3), (750, 2)])
def test_every_place_is_in_one_group_of_the_first_level(extent, levels):
    groups = k_tree_groups(extent, levels)
    places = [place for group in (groups[0] if groups else []) for place in group]
    assert places == (list(range(extent)) if extent > 1 else [])
    assert len(groups) <= levels
    for level in groups:
        assert max(map(len, level)) - min(map(len, level)) <= 1


def test_putting_patterns_together():
    machine = mesh()
    short, long = message(machine, 10, 20), message(machine, 100, 2)
    after = in_sequence([short, long])
    assert after.cycles == short.cycles + long.cycles
    assert after.buffer_bytes == long.buffer_bytes
    together = at_once([short, long])
    assert together.cycles == 100 + 10 + 2 + 5
    assert together.buffer_bytes == short.buffer_bytes + long.buffer_bytes
    assert at_once([]) == in_sequence([]) == NOTHING
    lines = on_lines(short, 3)
    assert (lines.cycles, lines.energy_word_hops) == (short.cycles, 3 * short.energy_word_hops)


def test_messages_that_share_a_link_take_turns():
    assert message(mesh(), 100, 5, sharing=3).cycles == 300 + 5 + 5
    assert message(mesh(), 100, 0) == NOTHING


@settings(max_examples=25, deadline=None)
@given(words=WORDS, extent=LINES)
def test_more_words_and_longer_lines_never_take_less(words, extent):
    machine = mesh()
    for form in (multicast, star, chain, tree, cannon_shift, interleaved_shift, transpose):
        found = form(machine, words, extent)
        assert found.cycles >= words + found.distance_hops / extent
        assert found.cycles >= found.energy_word_hops / found.links
        assert form(machine, words + 1, extent).cycles > found.cycles
        assert form(machine, words, extent + 1).cycles >= found.cycles


@pytest.mark.parametrize(
    "form", [multicast, star, chain, tree, ring, k_tree, cannon_shift, interleaved_shift, transpose]
)
def test_a_line_of_one_has_nobody_to_talk_to(form):
    assert form(mesh(), 100, 1) == NOTHING
    with pytest.raises(WaferLimitError, match="extent is 0; expected 1 PE or more"):
        form(mesh(), 100, 0)
    with pytest.raises(WaferLimitError, match="-1 words"):
        form(mesh(), -1, 4)


def test_wrong_groups_levels_and_hops():
    with pytest.raises(WaferLimitError, match="group is 9; expected 1 to the 8 PEs"):
        two_phase(mesh(), 1, 8, 9)
    with pytest.raises(WaferLimitError, match="levels is 0"):
        k_tree(mesh(), 1, 8, 0)
    with pytest.raises(WaferLimitError, match="hops is 0"):
        halo(mesh(), 1, 1, 4, 4, hops=0)
    assert halo(mesh(), 1, 1, 1, 1) == multicast_2d(mesh(), 1, 1, 1) == NOTHING
