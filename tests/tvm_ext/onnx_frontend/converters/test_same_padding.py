"""``auto_pad`` of windows over sizes that are known, open, or open but for what matters."""

import itertools
from typing import Any

import numpy as np
import onnx
import pytest
from combinations import pairwise
from one_model import in_one_model, program, run_model
from operator_models import by_runtime, check_operator
from small_models import model, node, rand, value

from tvm_ext.errors import ModelError
from tvm_ext.onnx_frontend import import_model

SIDES = ((7, 9), (8, 6), (5, 5))
MODES = ("SAME_UPPER", "SAME_LOWER", "VALID")


def compiled_once(proto: onnx.ModelProto, feeds: list[dict[str, np.ndarray]]) -> None:
    compiled = program(proto, "O0")
    for feed in feeds:
        got, wanted = list(compiled.run(feed).values()), by_runtime(proto, feed)
        for ours, theirs in zip(got, wanted, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def images(channels: int = 2) -> list[dict[str, np.ndarray]]:
    return [{"x": rand(2, channels, *sides)} for sides in SIDES]


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize(
    ("operator", "mode", "attributes"),
    [
        *(
            pytest.param(operator, mode, {"kernel_shape": [3, 4]}, marks=marks)
            for (row, operator), (column, mode) in itertools.product(
                enumerate(("MaxPool", "AveragePool", "LpPool")), enumerate(MODES)
            )
            # Each operator with two modes, and each mode with two operators.
            for marks in [[pytest.mark.slow] if (row + column) % 3 == 1 else []]
        ),
        ("AveragePool", "SAME_UPPER", {"kernel_shape": [3, 3], "count_include_pad": 1}),
    ],
)
def test_pools_of_symbolic_sizes(operator: str, mode: str, attributes: dict[str, Any]) -> None:
    pool = node(operator, ["x"], ["y"], auto_pad=mode, strides=[2, 3], **attributes)
    proto = model([pool], [value("x", ["N", 2, "H", "W"])], [value("y", None)], opset=18)
    compiled_once(proto, images())


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
def test_a_mean_of_padded_volumes_at_the_default_level(mode: str) -> None:
    """LLVM's vectors of what is padded along rows asked their first lane which image they read."""
    pool = node("AveragePool", ["x"], ["y"], auto_pad=mode, strides=[2] * 3, kernel_shape=[1, 5, 5])
    proto = model([pool], [value("x", [2, 2, "H", "W", "D"])], [value("y", None)], opset=22)
    feed = {"x": rand(2, 2, 5, 7, 6)}
    got = next(iter(run_model(proto, feed).values()))
    np.testing.assert_allclose(got, by_runtime(proto, feed)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.extended
@pytest.mark.parametrize("opset", [8, 18])
def test_the_padding_of_symbolic_sizes_needs_no_new_operator(opset: int) -> None:
    """Opsets below 11 have no Pad that takes widths as an input."""
    pool = node("MaxPool", ["x"], ["y"], auto_pad="SAME_UPPER", strides=[2, 2], kernel_shape=[3, 3])
    proto = model([pool], [value("x", ["N", 2, "H", "W"])], [value("y", None)], opset=opset)
    compiled_once(proto, images())


@pytest.mark.extended
@in_one_model
@pairwise(mode=MODES, strides=[[1, 1], [2, 3], [4, 4]])
def test_convolutions_of_symbolic_sizes(mode: str, strides: list[int]) -> None:
    convolution = node("Conv", ["x", "w"], ["y"], auto_pad=mode, strides=strides)
    inputs = [value("x", ["N", 2, "H", "W"])]
    proto = model([convolution], inputs, [value("y", None)], opset=18, w=rand(3, 2, 3, 2))
    compiled_once(proto, images())


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
def test_integer_convolutions_of_symbolic_sizes_are_padded_with_the_zero_point(mode: str) -> None:
    convolution = node("ConvInteger", ["x", "w", "z"], ["y"], auto_pad=mode, strides=[2, 2])
    draw = np.random.default_rng(0)
    weights = draw.integers(0, 255, (3, 2, 3, 3), np.uint8)
    inputs = [value("x", ["N", 2, "H", "W"], onnx.TensorProto.UINT8)]
    outputs = [value("y", None, onnx.TensorProto.INT32)]
    zero = np.array(7, np.uint8)
    proto = model([convolution], inputs, outputs, opset=18, w=weights, z=zero)
    feeds = [{"x": draw.integers(0, 255, (2, 2, *sides), np.uint8)} for sides in SIDES]
    compiled_once(proto, feeds)


def test_what_the_batch_alone_leaves_open_is_padded_by_numbers() -> None:
    pool = node("MaxPool", ["x"], ["y"], auto_pad="SAME_UPPER", strides=[2, 2], kernel_shape=[3, 3])
    proto = model([pool], [value("x", ["N", 2, 7, 9])], [value("y", None)], opset=18)
    text = import_model(proto).mod.script()
    assert "padding=[1, 1, 1, 1]" in text
    assert "def pad" not in text


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("ceil", [0, 1])
def test_places_of_the_largest_at_symbolic_sizes(ceil: int) -> None:
    pool = node("MaxPool", ["x"], ["y", "i"], strides=[2, 3], kernel_shape=[3, 2], ceil_mode=ceil)
    outputs = [value("y", None), value("i", None, onnx.TensorProto.INT64)]
    proto = model([pool], [value("x", ["N", 2, "H", "W"])], outputs, opset=18)
    compiled_once(proto, images())


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("length", [4, "L"])
@pytest.mark.parametrize("operator", ["AveragePool", "LpPool", "MaxPool"])
def test_a_window_behind_the_input_is_left_out(operator: str, length: int | str) -> None:
    """ONNX's inference counts it, and ONNX Runtime does not compute it."""
    attributes = {"kernel_shape": [3], "strides": [3], "pads": [1, 2], "ceil_mode": 1}
    pool = node(operator, ["x"], ["y"], **attributes)
    proto = model([pool], [value("x", [1, 1, length])], [value("y", None)], opset=22)
    compiled_once(proto, [{"x": rand(1, 1, 4)}])


@pytest.mark.extended
def test_a_transposed_convolution_of_a_given_shape_and_a_dynamic_batch() -> None:
    attributes = {"output_shape": [14, 18], "strides": [2, 2], "auto_pad": "SAME_UPPER"}
    up = node("ConvTranspose", ["x", "w"], ["y"], **attributes)
    proto = model([up], [value("x", ["N", 2, 7, 9])], [value("y", None)], w=rand(2, 3, 3, 3))
    compiled_once(proto, [{"x": rand(batch, 2, 7, 9)} for batch in (1, 3)])


@pytest.mark.extended
def test_regions_of_an_image_of_symbolic_sizes() -> None:
    pool = {"output_height": 3, "output_width": 2, "sampling_ratio": 2, "spatial_scale": 0.5}
    nodes = [node("RoiAlign", ["x", "regions", "batches"], ["y"], **pool)]
    inputs = [
        value("x", [1, 2, "H", "W"]),
        value("regions", ["R", 4]),
        value("batches", ["R"], onnx.TensorProto.INT64),
    ]
    proto = model(nodes, inputs, [value("y", None)], opset=16)
    regions = np.array([[0, 1, 8, 9], [2, 2, 30, 7], [1, 0, 3, 3]], np.float32)
    batches = np.zeros(3, np.int64)
    feeds = [{"x": rand(1, 2, *sides), "regions": regions, "batches": batches} for sides in SIDES]
    compiled_once(proto, feeds)


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("attributes", [{}, {"auto_pad": "SAME_UPPER"}])
def test_transposed_convolution_to_a_given_size(attributes: dict) -> None:
    arrays = {"x": rand(1, 2, 4, 5), "w": rand(2, 3, 3, 3)}
    check_operator(
        "ConvTranspose", arrays, strides=[3, 2], output_shape=[11, 9], tolerance=1e-4, **attributes
    )


def test_a_transposed_convolution_that_pads_away_more_than_there_is() -> None:
    with pytest.raises(ModelError, match=r"its pads leave a size of -2 for axis 2"):
        check_operator(
            "ConvTranspose",
            {"x": rand(1, 4, 1), "w": rand(4, 2, 3)},
            reference=lambda model, feeds: [],
            strides=[3],
            dilations=[3],
            pads=[4, 5],
        )
