"""Layers of com.microsoft that compute with integers, beside ONNX Runtime."""

import numpy as np
import pytest
from microsoft_models import bytes_of, compared, microsoft_model, weights_of
from one_model import in_one_model, run_model
from onnx import TensorProto
from random_numbers import RANDOM
from small_models import rand

from tvm_ext.check.reference import run_reference

U8, F = TensorProto.UINT8, TensorProto.FLOAT
BATCH, ROWS, HEADS, DEPTH = 2, 5, 3, 8
WIDTH = HEADS * DEPTH


def attention(**given: np.ndarray | None) -> dict[str, np.ndarray]:
    """Inputs of QAttention; those that are None are left out."""
    inputs = {
        "x": bytes_of(BATCH, ROWS, WIDTH),
        "w": weights_of(WIDTH, 3 * WIDTH),
        "b": rand(3 * WIDTH),
        "as": np.float32(0.02),
        "ws": np.float32(0.01),
        "mask": None,
        "az": np.uint8(121),
        "wz": np.int8(0),
        "past": None,
    }
    inputs |= given
    blank = {name: "_" * place for place, name in enumerate(inputs, 1)}
    return {
        (blank[name] if array is None else name): np.array(0) if array is None else array
        for name, array in inputs.items()
    }


LENGTHS = np.array([3, 5], np.int32)
ATTENTION = {
    "plain": (attention(), {}),
    "by column": (
        attention(ws=rand(3 * WIDTH) ** 2 + np.float32(0.01), wz=np.zeros(3 * WIDTH, np.int8)),
        {},
    ),
    "causal": (attention(), {"unidirectional": 1}),
    "mask of lengths": (attention(mask=LENGTHS), {}),
    "mask of keys": (attention(mask=(np.arange(ROWS) < LENGTHS[:, None]).astype(np.int32)), {}),
    "past": (attention(past=rand(2, BATCH, HEADS, 4, DEPTH)), {"unidirectional": 1}),
}


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("case", ATTENTION)
def test_q_attention(case):
    inputs, attributes = ATTENTION[case]
    outputs = {"y": F, "present": F} if case == "past" else {"y": F}
    proto, fed = microsoft_model("QAttention", inputs, outputs, num_heads=HEADS, **attributes)
    for found, wanted in compared(proto, fed):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
        assert np.abs(wanted).max() > 0.1


@in_one_model
@pytest.mark.parametrize("masked", [False, True])
def test_q_embed_layer_normalization(masked):
    ids = RANDOM.integers(0, 9, (BATCH, ROWS)).astype(np.int32)
    mask = (np.arange(ROWS) < LENGTHS[:, None]).astype(np.int32)
    inputs = {"x ids": ids, "x segments": ids % 2}
    inputs |= {"word": bytes_of(9, 16), "position": bytes_of(8, 16), "segment": bytes_of(2, 16)}
    inputs |= {"gamma": bytes_of(16), "beta": bytes_of(16)}
    inputs |= {"x mask": mask} if masked else {"_": np.array(0)}
    tables = ("word", "position", "segment", "gamma", "beta")
    inputs |= {f"{name} scale": np.float32(0.01 + 0.01 * i) for i, name in enumerate(tables)}
    inputs |= {f"{name} zero": np.uint8(100 + i) for i, name in enumerate(tables)}
    outputs = {"y": F, "counts": TensorProto.INT32}
    proto, fed = microsoft_model("QEmbedLayerNormalization", inputs, outputs)
    for found, wanted in compared(proto, fed):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


RESULT = {"ys": np.float32(0.0473), "yz": np.uint8(128)}
FILTERS = {
    "w": weights_of(6, 4, 3, 3),
    "ws": rand(6) ** 2 * np.float32(0.02) + np.float32(0.01),
    "wz": np.zeros(6, np.int8),
}


def scaled(*shape: int) -> dict[str, np.ndarray]:
    """An image of integers with its scale."""
    return {"x": bytes_of(*shape), "as": np.float32(0.03), "az": np.uint8(120)}


CHANNELS_LAST = {
    "QLinearConv": (
        scaled(2, 7, 9, 4) | FILTERS | RESULT | {"b": bytes_of(6).astype(np.int32)},
        {"pads": [1, 1, 1, 1], "strides": [2, 1], "kernel_shape": [3, 3], "channels_last": 1},
    ),
    "QLinearAveragePool": (
        scaled(1, 8, 6, 5) | RESULT,
        {"kernel_shape": [3, 2], "strides": [2, 2], "channels_last": 1},
    ),
    "QLinearGlobalAveragePool": (scaled(2, 5, 4, 7) | RESULT, {"channels_last": 1}),
    "NhwcMaxPool": ({"x": bytes_of(1, 9, 8, 5)}, {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
}


@in_one_model
@pytest.mark.parametrize("operator", CHANNELS_LAST)
def test_channels_last(operator):
    inputs, attributes = CHANNELS_LAST[operator]
    proto, fed = microsoft_model(operator, inputs, {"y": U8}, **attributes)
    ((found, wanted),) = compared(proto, fed)
    steps = np.abs(found.astype(int) - wanted.astype(int))
    assert steps.max() <= 1
    assert np.count_nonzero(steps) <= 0.02 * steps.size
    assert len(np.unique(wanted)) > 8


@in_one_model
@pytest.mark.parametrize(("written_for", "opset"), [(12, 11), (12, 17), (13, 17)])
@pytest.mark.parametrize("axis", [1, 2, -1])
def test_softmax_is_over_the_axes_that_its_opset_says(written_for, opset, axis):
    inputs = {"x": bytes_of(2, 3, 16), "s": np.float32(0.05), "z": np.uint8(9)}
    inputs |= {"ys": np.float32(1 / 256), "yz": np.uint8(0)}
    attributes = {"axis": axis, "opset": written_for}
    proto, fed = microsoft_model("QLinearSoftmax", inputs, {"y": U8}, opset, **attributes)
    ((found, wanted),) = compared(proto, fed)
    assert np.abs(found.astype(int) - wanted.astype(int)).max() <= 1
    assert len(np.unique(wanted)) > 3


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_softmax_with_the_endless_scale_of_a_mask(dtype):
    zero = np.array(-128 if dtype == "int8" else 0, dtype)
    inputs = {"x": bytes_of(2, 3, 16, dtype=dtype), "s": np.float32(np.inf), "z": zero}
    inputs |= {"ys": np.float32(1 / 256), "yz": zero}
    written = TensorProto.INT8 if dtype == "int8" else U8
    proto, fed = microsoft_model("QLinearSoftmax", inputs, {"y": written}, axis=-1, opset=13)
    ((found, wanted),) = compared(proto, fed)
    np.testing.assert_array_equal(found, wanted)


def lstm(
    batch: int, directions: int, hidden: int, by_column: bool, zero_point: int | None = None
) -> dict[str, np.ndarray]:
    """Weights are uint8 with a zero point, else int8."""
    width = 4 * hidden
    shape = (directions, width) if by_column else (directions,)
    scale = np.full(shape, 0.004, np.float32) * (1 + rand(*shape) ** 2)
    is_signed = zero_point is None
    zero = np.full(shape, zero_point or 0, np.int8 if is_signed else np.uint8)
    drawn = weights_of if is_signed else bytes_of
    weights = {
        "w": drawn(directions, 6, width),
        "r": drawn(directions, hidden, width),
        "b": rand(directions, 2 * width),
    }
    rest = {"_" * place: np.array(0) for place in range(1, 5)}
    given = {"ws": scale, "wz": zero, "rs": scale, "rz": zero}
    x = np.clip(rand(7, batch, 6), -1.5, 1.5)
    # The same range in each sequence, since the input has one scale for all.
    x[0, :, :2] = -1.5, 1.5
    return {"x": x} | weights | rest | given


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize(
    ("batch", "directions", "hidden", "by_column", "zero_point", "zero_scale"),
    [
        (1, 1, 8, False, None, False),
        (1, 1, 40, True, None, False),
        (1, 2, 24, True, None, False),
        (3, 1, 24, False, None, False),
        # Units of a step are shared by threads, and more sequences than go together.
        (7, 1, 600, True, None, False),
        # Differences of bytes that a byte holds, and that none holds.
        (1, 1, 24, False, 128, False),
        (1, 2, 24, True, 90, False),
        # The floats do not say which integers they were.
        (1, 1, 24, True, None, True),
    ],
)
def test_dynamic_quantize_lstm(batch, directions, hidden, by_column, zero_point, zero_scale):
    direction = {1: "forward", 2: "bidirectional"}[directions]
    attributes = {"hidden_size": hidden, "direction": direction}
    inputs = lstm(batch, directions, hidden, by_column, zero_point)
    if zero_scale:
        inputs["rs"] = np.where(np.arange(4 * hidden) % 3 == 0, 0, inputs["rs"])
    outputs = {"y": F, "last_h": F, "last_c": F}
    proto, fed = microsoft_model("DynamicQuantizeLSTM", inputs, outputs, **attributes)
    found = run_model(proto, fed)
    # ONNX Runtime rounds the states of sequences that share a thread together: one at a time.
    wanted = []
    for one in np.split(fed["x"], batch, 1):
        proto, _ = microsoft_model(
            "DynamicQuantizeLSTM", inputs | {"x": one}, outputs, **attributes
        )
        wanted.append(run_reference(proto, {"x": one}).values())
    for name, *parts in zip(outputs, *wanted, strict=True):
        np.testing.assert_allclose(found[name], np.concatenate(parts, -2), atol=1e-5)
        assert np.abs(found[name]).max() > 0.1
