"""Winograd convolutions of images of any size: numbers beside guarded memory, loops, refusals."""

import numpy as np
import pytest
import tvm
from lowering import loops_of
from machines import MACHINE
from symbolic_extents import built, call, random, size
from thoroughness import some_of
from tvm import te, tirx, topi

from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.relay_passes.winograd_transforms import WinogradForm
from tvm_ext.tir_schedules.apply_template import ScheduledKernel, apply_template
from tvm_ext.tir_schedules.cpu.winograd import Winograd

# Smaller than a tile, whole tiles, and tiles that the image ends in, in one row and in many.
IMAGES = ((1, 1), (2, 3), (4, 4), (5, 9), (8, 8), (7, 13), (3, 41), (14, 14))

FORMS = {
    "3x3": WinogradForm((4, 4), (3, 3)),
    "5x5": WinogradForm((2, 2), (5, 5)),
    "row of 7": WinogradForm((1, 2), (1, 7)),
    "column of 3": WinogradForm((4, 1), (3, 1)),
}


def _kernel(
    form: WinogradForm, inputs: int, outputs: int, kept: int, padding: tuple[int, ...]
) -> tirx.PrimFunc:
    """With a bias, the sum with another image, and a rectifier."""
    x = te.placeholder((size("batch"), size("height"), size("width"), inputs), "float32", "x")
    u = te.placeholder((form.positions, inputs, outputs), "float32", "u")
    bias = te.placeholder((kept,), "float32", "bias")
    y = form.convolution(x, u, padding, kept)
    other = te.placeholder(y.shape, "float32", "other")
    result = topi.nn.relu(topi.add(topi.add(y, bias), other))
    return te.create_prim_func([x, u, bias, other, result])


def _same(form: WinogradForm) -> tuple[int, ...]:
    down, across = (taps // 2 for taps in form.taps)
    return down, across, down, across


def _scheduled(func: tirx.PrimFunc, machine: CpuDescription) -> tirx.PrimFunc:
    found = apply_template(Winograd(), func, machine)
    assert isinstance(found, ScheduledKernel), found
    return found.func


def _direct(x: np.ndarray, weights: np.ndarray, padding: tuple[int, ...]) -> np.ndarray:
    top, left, bottom, right = padding
    padded = np.pad(x, [(0, 0), (top, bottom), (left, right), (0, 0)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, weights.shape[:2], (1, 2))
    return np.einsum("nhwcij,ijck->nhwk", windows, weights)


def _check(
    form: WinogradForm,
    machine: CpuDescription,
    inputs: int = 20,
    outputs: int = 32,
    kept: int = 27,
    padding: tuple[int, ...] | None = None,
) -> None:
    padding = padding or _same(form)
    function = built(_scheduled(_kernel(form, inputs, outputs, kept, padding), machine))
    weights, bias = random(*form.taps, inputs, kept), random(kept)
    transformed = form.transformed_weights(weights, outputs)
    for batch in (1, 3):
        for image in IMAGES:
            if any(
                side + padding[i] + padding[i + 2] < form.taps[i] for i, side in enumerate(image)
            ):
                continue
            x = random(batch, *image, inputs)
            y = _direct(x, weights, padding)
            other = random(*y.shape)
            found = call(function, [x, transformed, bias, other], y.shape)
            wanted = np.maximum(y + bias + other, 0)
            np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4 * np.abs(y).max())


@pytest.mark.extended
@pytest.mark.parametrize(
    ("name", "cores"), [*((name, 2) for name in FORMS), *((name, 1) for name in some_of(FORMS))]
)
def test_each_form(name: str, cores: int) -> None:
    _check(FORMS[name], host_description().with_cores(cores))


@pytest.mark.parametrize("padding", [(0, 0, 0, 0), (0, 1, 2, 0)])
def test_other_padding(padding: tuple[int, ...]) -> None:
    _check(FORMS["3x3"], host_description(), padding=padding)


@pytest.mark.parametrize(("side", "padding"), [(1, (2, 0, 1, 0)), (3, (2, 0, 2, 0))])
def test_known_sides_that_no_tile_covers_at_both_ends(side: int, padding: tuple[int, ...]) -> None:
    """The first and the last inputs of a tile are beyond the image in each of its tiles."""
    form = FORMS["column of 3"]
    shape = [tirx.const(extent, "int64") for extent in (1, side, 5, 4)]
    x = te.placeholder(shape, "float32", "x")
    u = te.placeholder([tirx.const(n, "int64") for n in (form.positions, 4, 8)], "float32", "u")
    y = form.convolution(x, u, padding, 8)
    function = built(_scheduled(te.create_prim_func([x, u, y]), host_description()))
    image, weights = random(1, side, 5, 4), random(3, 1, 4, 8)
    wanted = _direct(image, weights, padding)
    found = call(function, [image, form.transformed_weights(weights, 8)], wanted.shape)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4)


@pytest.mark.extended
def test_few_channels() -> None:
    _check(FORMS["3x3"], host_description(), inputs=3, outputs=16, kept=1)


@pytest.mark.extended
def test_weights_that_no_l2_holds() -> None:
    """Each stage is shared out by threads, one after the other."""
    machine = host_description().model_copy(update={"l2_bytes": 1 << 14}).with_cores(2)
    _check(FORMS["3x3"], machine, inputs=96, outputs=64, kept=60)
    loops = loops_of(_scheduled(_kernel(FORMS["3x3"], 96, 64, 60, (1, 1, 1, 1)), machine))
    assert [loop.path for loop in loops if loop.kind == "parallel"] == [("serial",)] * 3


def test_blocks_of_tiles_pass_through_all_stages() -> None:
    loops = loops_of(_scheduled(_kernel(FORMS["3x3"], 20, 32, 27, (1, 1, 1, 1)), MACHINE))
    assert [loop.path for loop in loops if loop.kind == "parallel"] == [()]
    assert {loop.extent for loop in loops if loop.kind == "vectorized"} == {16, 32}


@pytest.mark.extended
def test_sums_that_are_a_result_too_are_written() -> None:
    form, padding = FORMS["3x3"], (1, 1, 1, 1)
    x = te.placeholder((1, size("height"), size("width"), 8), "float32", "x")
    u = te.placeholder((form.positions, 8, 16), "float32", "u")
    y = form.convolution(x, u, padding, 16)
    func = te.create_prim_func([x, u, y, topi.nn.relu(y)])
    function = built(_scheduled(func, host_description()))
    image, weights = random(1, 6, 9, 8), random(3, 3, 8, 16)
    nothing = np.full((1, 6, 9, 16), np.nan, "float32")
    arrays = [image, form.transformed_weights(weights, 16), nothing, nothing]
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    function(*tensors)
    wanted = _direct(image, weights, padding)
    np.testing.assert_allclose(tensors[2].numpy(), wanted, rtol=0, atol=1e-4)
    np.testing.assert_allclose(tensors[3].numpy(), np.maximum(wanted, 0), rtol=0, atol=1e-4)


def test_symbolic_channels_are_refused() -> None:
    form = FORMS["3x3"]
    x = te.placeholder((1, size("height"), size("width"), size("channels")), "float32", "x")
    u = te.placeholder((form.positions, size("channels"), 32), "float32", "u")
    func = te.create_prim_func([x, u, form.convolution(x, u, (1, 1, 1, 1), 32)])
    assert "the number of channels is not known" in str(apply_template(Winograd(), func, MACHINE))
