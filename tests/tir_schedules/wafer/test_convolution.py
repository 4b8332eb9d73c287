"""Convolutions on a mesh: right numbers however they are laid out, and the messages of each way."""

from functools import partial

import pytest
import wafer_kernels
from decision_cases import check_random_numbers, knobs_of
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import CONVOLUTIONS, MOVES, REDUCTIONS, nhwc
from lowering import f32, kernel_of
from thoroughness import ALL_CASES, DRAWS, one_in
from tvm import relax, tirx
from wafer_kernels import MESH, refusal

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.wafer.program import BlockWork, Steps, Transfer, WaferProgram
from tvm_ext.tir_schedules.analysis.buffer_access import CONSTANTS_ATTRIBUTE
from tvm_ext.tir_schedules.apply_template import apply_template
from tvm_ext.tir_schedules.schedule_kernels import schedule_kernel
from tvm_ext.tir_schedules.template import FixedDecisions
from tvm_ext.tir_schedules.wafer.convolution import WaferConvolution
from tvm_ext.tir_schedules.wafer.result_tiles import PartitionedLoop, aligned_count, axis_pairs

nn, op = relax.op.nn, relax.op
TEMPLATE = WaferConvolution()
program = partial(wafer_kernels.program, TEMPLATE)
POOLS = {
    name: REDUCTIONS[name]
    for name in ("max pool", "max pool nhwc", "avg pool ceil", "avg pool padded")
}
HEIGHT, WIDTH, CHANNELS = 1, 2, 3


def convolution(
    size: int = 16, channels: int = 4, filters: int = 8, window: int = 3, **kwargs: object
) -> tirx.PrimFunc:
    """Channels last, with weights and bias that are constants."""
    common = {"padding": (window // 2, window // 2)} | kwargs
    func = kernel_of(
        partial(nhwc, **common),
        f32(1, size, size, channels),
        f32(window, window, channels, filters),
        f32(filters),
    )
    return func.with_attr(CONSTANTS_ATTRIBUTE, [1, 2])


def axes(func: tirx.PrimFunc, row: int, column: int) -> int:
    """The number of a pair of the result's loops."""
    shape = [int(size) for size in func.params[-1].shape]
    return axis_pairs(shape).index((row, column))


def transfers(found: WaferProgram) -> list[Transfer]:
    return [leaf for leaf, _ in found.leaves() if isinstance(leaf, Transfer)]


def updates(found: WaferProgram) -> tuple[BlockWork, int]:
    """The products that are added up, and in how many steps."""
    return next(
        (leaf, times)
        for leaf, times in found.leaves()
        if isinstance(leaf, BlockWork) and "update" in leaf.name
    )


@pytest.mark.extended
@pytest.mark.parametrize("name", one_in(3, [*CONVOLUTIONS, *POOLS]))
def test_every_way_to_lay_a_kernel_out_computes_the_same(name):
    case = (CONVOLUTIONS | POOLS)[name]
    func = kernel_of(case.expression, *case.inputs)
    check_random_numbers(TEMPLATE, {name: func}, machine=MESH.with_grid(5, 4))


@settings(max_examples=5 * DRAWS, deadline=None)
@given(
    size=st.integers(5, 14),
    channels=st.integers(1, 9),
    filters=st.integers(1, 9),
    window=st.sampled_from([1, 2, 3, 5]),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 2),
    seed=st.integers(0, 99),
)
def test_random_convolutions_compute_the_same(
    size, channels, filters, window, stride, dilation, seed
):
    if dilation * (window - 1) >= size + 2 * (window // 2):
        return
    func = convolution(
        size, channels, filters, window, strides=(stride, stride), dilation=(dilation, dilation)
    )
    check_random_numbers(
        TEMPLATE, {"random": func}, count=2 + ALL_CASES, seed=seed, machine=MESH.with_grid(4, 3)
    )


def test_a_tile_takes_the_edges_of_its_neighbours():
    func = convolution()
    found = program(
        func, MESH, axes=axes(func, HEIGHT, WIDTH), rows=4, columns=4, third=1, vector=CHANNELS
    )
    assert (found.rows, found.columns) == (4, 4)
    (halo,) = transfers(found)
    # 6x6 pixels around 4x4, four channels each, over two sides of two axes.
    assert (halo.pattern, halo.words, halo.distance, halo.group) == ("halo", 80, 1, 4)
    work, steps = updates(found)
    # 4x4 pixels, 3x3 taps, four channels in; an instruction makes eight channels out.
    assert (steps, work.instructions, work.length) == (1, 4 * 4 * 9 * 4, 8)
    assert work.flops == 2 * work.elements
    assert found.shards["x0"] == 4 * 4 * 4 * 4
    # The weights are all in each PE, and nothing is sent for them.
    assert found.shards["x1"] == 3 * 3 * 4 * 8 * 4
    assert found.buffers["pad_temp"] == 6 * 6 * 4 * 4


def test_pixels_of_one_row_share_their_weights_in_steps():
    func = convolution(channels=8)
    decisions = {"axes": axes(func, HEIGHT, WIDTH), "rows": 4, "columns": 4, "third": 1}
    whole = program(func, MESH, **decisions)
    found = program(func, MESH, **decisions, steps=4, weights_in_steps=1, overlapped=1)
    halo, weights = sorted(transfers(found), key=lambda one: one.pattern)
    assert halo.words == (6 * 6 - 4 * 4) * 2
    # Two of eight channels a step; each PE of a column has the weights of one step.
    assert (weights.pattern, weights.words) == ("multicast_column", 3 * 3 * 2 * 8)
    assert weights.extent == 4
    assert whole.shards["x1"] == 4 * found.shards["x1"] == 3 * 3 * 8 * 8 * 4
    (steps,) = [item for item in found.items if isinstance(item, Steps)]
    assert (steps.times, steps.overlapped) == (4, True)
    assert updates(found)[0].elements * 4 == updates(whole)[0].elements


def test_filters_of_one_row_share_the_input_in_steps():
    func = convolution(size=18, channels=8, padding=(0, 0))
    decisions = {"axes": axes(func, HEIGHT, CHANNELS), "rows": 4, "columns": 4}
    whole = program(func, MESH, **decisions)
    found = program(func, MESH, **decisions, steps=4, input_in_steps=1, weights_in_steps=0)
    (sent,), (streamed,) = transfers(whole), transfers(found)
    # Six rows of 18 pixels for four rows of 16: at once, or two of eight channels a step.
    assert (sent.pattern, sent.words, sent.extent) == ("multicast_row", 6 * 18 * 8, 4)
    assert (streamed.pattern, streamed.words) == ("multicast_row", 6 * 18 * 2)
    assert whole.shards["x0"] == 4 * found.shards["x0"] == 4 * 18 * 8 * 4
    # Two of the eight filters are in a PE.
    assert found.shards["x1"] == 3 * 3 * 8 * 2 * 4


def test_a_third_loop_makes_groups_that_share_the_input():
    func = convolution(filters=12)
    found = program(func, MESH, axes=axes(func, HEIGHT, WIDTH), rows=4, columns=8, third=3, steps=1)
    assert (found.rows, found.columns) == (12, 8)
    (sent,) = transfers(found)
    assert (sent.pattern, sent.extent) == ("multicast_column", 3)
    assert found.shards["x1"] == 3 * 3 * 4 * 4 * 4


def test_channels_of_a_depthwise_window_need_nothing_of_each_other():
    case = CONVOLUTIONS["conv nhwc depthwise stride"]
    func = kernel_of(case.expression, *case.inputs).with_attr(CONSTANTS_ATTRIBUTE, [1, 2])
    found = program(func, MESH, axes=axes(func, WIDTH, CHANNELS), rows=3, columns=10)
    (halo,) = transfers(found)
    # Four channels of nine rows: five pixels of each, of which a PE has two, as it advances by.
    assert (halo.pattern, halo.words, halo.group) == ("halo", 4 * 9 * (5 - 2), 2)


def test_strided_tiles_begin_where_shards_do():
    func = convolution(size=34, window=3, padding=(0, 0), strides=(2, 2))
    found = program(func, MESH, axes=axes(func, HEIGHT, WIDTH), rows=8, columns=1, third=1)
    (halo,) = transfers(found)
    # 16 rows of results, two to a PE: five rows for them, four to the next.
    assert found.shards["x0"] == 4 * 34 * 4 * 4
    assert halo.words == (5 * 33 - 4 * 33) * 4


def test_what_is_multiplied_behind_the_sum_is_cut_as_the_result():
    case = CONVOLUTIONS["squeeze and excite"]
    func = kernel_of(case.expression, *case.inputs)
    found = program(func, MESH, axes=axes(func, HEIGHT, CHANNELS), rows=7, columns=8, third=1)
    assert found.shards["x2"] == 13 * 3 * 4
    names = {leaf.name for leaf, _ in found.leaves() if isinstance(leaf, BlockWork)}
    assert any("multiply" in name for name in names)


def test_large_weights_come_in_steps_by_the_default_heuristic():
    func = convolution(size=16, channels=128, filters=128)
    machine = MESH
    knobs = knobs_of(TEMPLATE, func, machine)
    found = program(func, machine)
    assert knobs["steps"].default > 1
    assert found.bytes_per_pe <= machine.usable_bytes
    small = convolution(size=16, channels=4, filters=8)
    assert knobs_of(TEMPLATE, small, machine)["steps"].default == 1


def test_the_default_heuristic_fills_the_mesh_where_vectors_stay_long():
    found = program(convolution(size=64, channels=16, filters=64), MESH)
    assert (found.rows, found.columns) == (16, 16)
    # Four channels would be four instructions for each tap: the tiles stay as wide as the image.
    narrow = program(convolution(size=64, channels=4, filters=4), MESH)
    assert updates(narrow)[0].length == 64


def test_an_inner_product_is_a_product_and_a_sum_along_the_channels():
    func = convolution(size=4, channels=24, filters=4, window=1)
    loops = len(func.params[-1].shape)
    found = program(func, MESH, axes=axes(func, HEIGHT, WIDTH), third=4, vector=loops)
    work, _ = updates(found)
    assert (work.instructions, work.length, work.scalar_operations) == (2, 24, 24)


def test_decisions_beyond_the_options_are_refused():
    func = convolution()
    found = apply_template(TEMPLATE, func, MESH, FixedDecisions({"rows": 17}))
    assert isinstance(found, NotApplicable)
    assert "rows=17" in found.reason


@pytest.mark.parametrize(
    ("func", "reason"),
    [
        (kernel_of(op.matmul, f32(8, 9), f32(9, 10)), "0 tensors are read by windows"),
        (kernel_of(nn.softmax, f32(8, 9)), "2 blocks sum"),
        (kernel_of(op.exp, f32(8, 9)), "0 blocks sum"),
        (
            kernel_of(REDUCTIONS["global pool"].expression, *REDUCTIONS["global pool"].inputs),
            "its window is the whole input",
        ),
        (kernel_of(MOVES["pad"].expression, *MOVES["pad"].inputs), "0 blocks sum"),
    ],
)
def test_other_kernels_are_left_alone(func, reason):
    assert reason in refusal(TEMPLATE, func, MESH)


def test_it_is_what_a_convolution_is_scheduled_by():
    _, choice = schedule_kernel(convolution(), MESH)
    assert choice.schedule == "wafer convolution"


@pytest.mark.parametrize(
    ("size", "advance", "count", "expected"),
    [
        (64, 8, 8, 8),
        # Two rows more than the PEs advance by, which are a piece of their own.
        (66, 8, 8, 9),
        # No number of equal pieces begins where the PEs do.
        (33, 8, 4, 4),
        # Channels of a group, which all of its PEs need.
        (32, 0, 8, 8),
    ],
)
def test_pieces_begin_where_the_needs_of_pes_do(size, advance, count, expected):
    assert aligned_count(size, advance, PartitionedLoop(0, "row", count)) == expected
