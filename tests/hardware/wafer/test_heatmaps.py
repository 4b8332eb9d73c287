"""Words over links, against those of the simulator, and bytes of the PEs."""

import numpy as np
import pytest
from communication_cases import mesh

from tvm_ext.hardware.wafer.heatmaps import EAST, NORTH, SOUTH, WEST, link_map, memory_map
from tvm_ext.hardware.wafer.program import Layout, Steps, Transfer, WaferProgram
from tvm_ext.hardware.wafer.reduces import k_tree_groups
from tvm_ext.hardware.wafer.simulator import communication_patterns as programs
from tvm_ext.hardware.wafer.simulator.engine import simulate

WORDS = 5
LINES = {
    "chain": (lambda extent: programs.chain(WORDS, extent), 0),
    "tree": (lambda extent: programs.tree(WORDS, extent), 0),
    "star": (lambda extent: programs.star(WORDS, extent), 0),
    "two_phase": (lambda extent: programs.two_phase(WORDS, extent, 3), 3),
    "k_tree": (lambda extent: programs.k_tree(WORDS, extent, k_tree_groups(extent, 2)), 2),
    "multicast_row": (lambda extent: programs.multicast(WORDS, extent), 0),
    "shift_row": (lambda extent: programs.interleaved_shift(WORDS, extent), 0),
}


def program(rows, columns, *items):
    return WaferProgram("k", rows, columns, items)


@pytest.mark.parametrize("pattern", LINES)
@pytest.mark.parametrize("extent", [3, 4, 7, 12, 19])
def test_links_of_a_line_are_those_of_the_simulator(pattern, extent):
    make, group = LINES[pattern]
    transfer = Transfer("t", pattern, float(WORDS), extent, group=group)
    found = link_map(program(1, extent, transfer))
    np.testing.assert_array_equal(found, simulate(mesh(), make(extent)).link_wavelets)


def test_a_multicast_to_a_grid_is_that_of_the_simulator():
    found = link_map(program(3, 4, Transfer("t", "multicast", float(WORDS), 6)))
    expected = simulate(mesh(), programs.multicast_2d(WORDS, 3, 4)).link_wavelets
    np.testing.assert_array_equal(found, expected)


def test_a_halo_of_one_is_that_of_the_simulator():
    transfer = Transfer("t", "halo", 4.0 * WORDS, 1, 1.0, 1.0, 4)
    expected = simulate(mesh(), programs.halo(WORDS, WORDS, 3, 4)).link_wavelets
    np.testing.assert_array_equal(link_map(program(3, 4, transfer)), expected)


def test_a_sum_along_columns_goes_north_in_all_of_them():
    found = link_map(program(6, 2, Transfer("t", "chain", 3.0, 6, axis="column")))
    assert found[..., NORTH].tolist() == [[0, 0], *[[3, 3]] * 5]
    assert found[..., [EAST, SOUTH, WEST]].sum() == 0


def test_steps_have_a_sender_each():
    once = Transfer("t", "multicast_row", 6.0, 4)
    found = link_map(program(2, 4, Steps(4, True, (once,))))
    # PE k sends in step k: the link behind it carries the words of k + 1 senders to the east.
    assert found[0, :, EAST].tolist() == [6, 12, 18, 0]
    assert found[0, :, WEST].tolist() == [0, 18, 12, 6]


def test_groups_of_a_line_lie_beside_each_other():
    found = link_map(program(1, 6, Transfer("t", "chain", 2.0, 3)))
    assert found[0, :, WEST].tolist() == [0, 2, 2, 0, 2, 2]


def test_what_shifts_share_and_bring_first_counts():
    transfer = Transfer("t", "shift_row", 2.0, 4, load=3.0, first_distance=2.0, first_load=5.0)
    found = link_map(program(1, 4, Steps(10, True, (transfer,))))
    assert found.max() == 2 * 3 * 10 + 2 * 5


def test_the_last_pes_have_what_is_left_over():
    cut = Layout("a", (10, 7), ("row", "column"), (4, 4), 2, 3, 2)
    one = Layout("b", (6,), ("-",), (6,), 4, 1, 2)
    kernel = WaferProgram("k", 4, 3, (), buffers={"x": 100}, homes={0: cut, 1: one})
    found = memory_map(kernel)
    expected = np.full((4, 3), 100.0)
    expected[:3, :2] += 2 * np.outer([4, 4, 2], [4, 3])
    expected[:1, :2] += 24
    np.testing.assert_allclose(found, expected)


def test_pieces_of_two_dimensions_on_one_axis():
    cut = Layout("a", (2, 5), ("row", "row"), (1, 2), 4, 6, 1)
    found = memory_map(WaferProgram("k", 6, 1, (), homes={0: cut}))
    assert found.ravel().tolist() == [8, 8, 4, 8, 8, 4]
