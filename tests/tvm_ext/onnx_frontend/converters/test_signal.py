"""DFT, STFT, windows and mel filters against NumPy, onnx.reference and ONNX Runtime."""

from functools import partial

import numpy as np
import onnx
import onnxruntime
import pytest
import small_models
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from one_model import in_one_model, run_model
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from random_numbers import RANDOM
from small_models import node
from thoroughness import DRAWS

import tvm_ext
from tvm_ext.errors import ModelError
from tvm_ext.onnx_frontend import import_model

model = partial(small_models.model, opset=20)


def value(name: str, shape: list | None, dtype: object = np.float32) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape
    )


def check(proto: onnx.ModelProto, wanted: np.ndarray, rtol=1e-5, **inputs: np.ndarray) -> None:
    found = run_model(proto, inputs)["y"]
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=0, atol=rtol * max(1, np.abs(wanted).max()))


def parts(spectrum: np.ndarray, dtype: object = np.float32) -> np.ndarray:
    return np.stack([spectrum.real, spectrum.imag], -1).astype(dtype)


def dft(x: np.ndarray, axis: int, length: int | None, **attributes: int) -> onnx.ModelProto:
    stored = {"axis": np.array(axis)} | ({} if length is None else {"n": np.array(length)})
    nodes = [node("DFT", ["x", "" if length is None else "n", "axis"], ["y"], **attributes)]
    return model(nodes, [value("x", list(x.shape), x.dtype)], [value("y", None, x.dtype)], **stored)


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize(
    ("dtype", "axis", "length"), [(np.float32, 0, None), (np.float64, 1, 5), (np.float32, -2, 16)]
)
def test_dft_of_complex_numbers(dtype: type, axis: int, length: int | None) -> None:
    x = RANDOM.normal(size=(4, 9, 6, 2)).astype(dtype)
    signal = x[..., 0] + 1j * x[..., 1]
    place = axis if axis >= 0 else 2
    check(dft(x, axis, length), parts(np.fft.fft(signal, length, place), dtype), x=x)
    inverse = parts(np.fft.ifft(signal, length, place), dtype)
    check(dft(x, axis, length, inverse=1), inverse, x=x)


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("length", [None, 7, 31])
def test_dft_of_real_numbers_and_back(length: int | None) -> None:
    x = RANDOM.normal(size=(3, 12, 1)).astype(np.float32)
    check(dft(x, 1, length), parts(np.fft.fft(x[..., 0], length, 1)), x=x)
    half = parts(np.fft.rfft(x[..., 0], length, 1))
    check(dft(x, 1, length, onesided=1), half, x=x)
    bins = half[..., 0] + 1j * half[..., 1]
    again = np.fft.irfft(bins, length, 1)[..., None].astype(np.float32)
    check(dft(half, 1, length, inverse=1, onesided=1), again, x=half)


def test_dft_of_half_precision_is_computed_in_single() -> None:
    x = RANDOM.normal(size=(1, 64, 1)).astype(np.float16)
    wanted = parts(np.fft.fft(x[..., 0].astype(np.float64), axis=1), np.float16)
    check(dft(x, 1, None), wanted, rtol=1e-3, x=x)


FORMS = ("forward", "inverse", "of real numbers", "back to real numbers")


def check_long(points: int, form: str) -> None:
    """One of ``FORMS`` of two signals of so many points."""
    x = RANDOM.normal(size=(2, points, 2)).astype(np.float32)
    signal, half = x[..., 0] + 1j * x[..., 1], np.fft.rfft(x[..., 0], axis=1)
    if form == "forward":
        check(dft(x, 1, None), parts(np.fft.fft(signal, axis=1)), x=x)
    elif form == "inverse":
        check(dft(x, 1, None, inverse=1), parts(np.fft.ifft(signal, axis=1)), x=x)
    elif form == "of real numbers":
        check(dft(x[..., :1], 1, None, onesided=1), parts(half), x=x[..., :1])
    else:
        wanted = np.fft.irfft(half, points, 1)[..., None].astype(np.float32)
        proto = dft(parts(half), 1, points, inverse=1, onesided=1)
        check(proto, wanted, x=parts(half))


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("form", [form for form in FORMS if form != "inverse"])
def test_long_transforms_are_split(form: str) -> None:
    check_long(3000, form)


def test_a_long_transform_has_several_matrices() -> None:
    proto = dft(np.zeros((2, 3000, 2), np.float32), 1, None)
    assert import_model(proto).mod.script().count("metadata") > 1


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("points", [1031, pytest.param(2 * 1033, marks=pytest.mark.slow)])
def test_long_transforms_of_primes(points: int, form: str) -> None:
    check_long(points, form)


@pytest.mark.parametrize(("axis", "last"), [(3, 2), (-5, 2), (2, 2), (1, 3)])
def test_dft_of_a_wrong_axis_or_of_three_parts_is_refused(axis: int, last: int) -> None:
    with pytest.raises(ModelError):
        tvm_ext.compile(dft(np.zeros((1, 4, last), np.float32), axis, None))


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize(("axis", "onesided"), [(0, 0), (-2, 1)])
def test_dft_of_an_axis_in_the_run(axis: int, onesided: int) -> None:
    x = RANDOM.normal(size=(5, 3, 8, 1)).astype(np.float32)
    nodes = [node("DFT", ["x", "", "axis"], ["y"], onesided=onesided)]
    inputs = [value("x", [5, 3, 8, 1]), value("axis", [], np.int64)]
    transform = np.fft.rfft if onesided else np.fft.fft
    wanted = parts(transform(x[..., 0], axis=axis if axis >= 0 else 2))
    check(model(nodes, inputs, [value("y", None)]), wanted, x=x, axis=np.array(axis))


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("onesided", [0, 1])
def test_dft_of_a_length_in_the_run(onesided: int) -> None:
    x = RANDOM.normal(size=(5, 8, 1)).astype(np.float32)
    nodes = [node("DFT", ["x", "n"], ["y"], onesided=onesided)]
    inputs = [value("x", [5, 8, 1]), value("n", [], np.int64)]
    proto = model(nodes, inputs, [value("y", None)])
    transform = np.fft.rfft if onesided else np.fft.fft
    for length in (6, 11):
        check(proto, parts(transform(x[..., 0], length)), x=x, n=np.array(length))


@pytest.mark.slow
@in_one_model
@pytest.mark.parametrize("length", [4, 9])
@pytest.mark.parametrize("axis", [0, -2])
def test_dft_of_an_axis_and_a_length_in_the_run(axis: int, length: int) -> None:
    x = RANDOM.normal(size=(5, 8, 1)).astype(np.float32)
    nodes = [node("DFT", ["x", "n", "axis"], ["y"])]
    inputs = [value("x", ["a", "b", 1]), value("n", [], np.int64), value("axis", [], np.int64)]
    wanted = parts(np.fft.fft(x[..., 0], length, axis=axis if axis >= 0 else 1))
    proto = model(nodes, inputs, [value("y", None)])
    check(proto, wanted, x=x, axis=np.array(axis), n=np.array(length))


@pytest.mark.extended
def test_inverse_dft_of_an_axis_in_the_run_beside_one_of_one_bin() -> None:
    x = RANDOM.normal(size=(1, 6, 10, 2)).astype(np.float32)
    nodes = [node("DFT", ["x", "", "axis"], ["y"], onesided=1, inverse=1)]
    inputs = [value("x", [1, 6, 10, 2]), value("axis", [], np.int64)]
    proto = model(nodes, inputs, [value("y", None)])
    for axis in (1, 2):
        wanted = np.fft.irfft(x[..., 0] + 1j * x[..., 1], axis=axis)[..., None]
        check(proto, wanted.astype(np.float32), x=x, axis=np.array(axis))


@pytest.mark.extended
@settings(max_examples=3 * DRAWS, deadline=None)
@given(
    st.integers(1, 40), st.integers(1, 40), st.booleans(), st.booleans(), st.sampled_from([1, 2])
)
def test_any_dft(size: int, length: int, inverse: bool, onesided: bool, channels: int) -> None:
    # Half of the spectrum is that of real numbers, on either side.
    assume(not onesided or channels == (2 if inverse else 1))
    x = np.random.default_rng(size).normal(size=(2, size, channels)).astype(np.float32)
    proto = dft(x, 1, length, inverse=int(inverse), onesided=int(onesided))
    check(proto, ReferenceEvaluator(proto).run(None, {"x": x})[0], x=x)


def stft(samples: int, length: int | None, window: np.ndarray | None, **kwargs) -> onnx.ModelProto:
    stored = {"step": np.array(kwargs.pop("step", 5))}
    stored |= {} if window is None else {"window": window}
    stored |= {} if length is None else {"length": np.array(length)}
    names = ["x", "step", "window" if window is not None else "", "length" if length else ""]
    channels, dtype = kwargs.pop("channels", 1), kwargs.pop("dtype", np.float32)
    return model(
        [node("STFT", names, ["y"], **kwargs)],
        [value("x", [2, samples, channels], dtype)],
        [value("y", None, dtype)],
        opset=17,
        **stored,
    )


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize(
    ("windowed", "onesided", "dtype"), [(True, 1, np.float32), (False, 0, np.float64)]
)
def test_stft_as_onnx_runtime(windowed: bool, onesided: int, dtype: type) -> None:
    window = np.hanning(16).astype(dtype) if windowed else None
    proto = stft(100, 16, window, onesided=onesided, dtype=dtype)
    x = RANDOM.normal(size=(2, 100, 1)).astype(dtype)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    check(proto, session.run(None, {"x": x})[0], x=x)


def test_stft_of_complex_numbers() -> None:
    window = np.hanning(16).astype(np.float32)
    proto = stft(60, None, window, onesided=0, channels=2)
    x = RANDOM.normal(size=(2, 60, 2)).astype(np.float32)
    signal = x[..., 0] + 1j * x[..., 1]
    frames = np.stack([signal[:, t : t + 16] * window for t in range(0, 45, 5)], 1)
    check(proto, parts(np.fft.fft(frames, axis=-1)), x=x)


def test_stft_with_a_stored_window_is_one_matrix_product() -> None:
    module = import_model(stft(100, 16, np.hanning(16).astype(np.float32))).mod
    script = module["main"].script()
    assert script.count("matmul") == 1
    assert "multiply" not in script


@pytest.mark.extended
def test_stft_of_long_frames() -> None:
    window = np.hanning(2048).astype(np.float32)
    x = RANDOM.normal(size=(2, 4096, 1)).astype(np.float32)
    frames = np.stack([x[:, t : t + 2048, 0] * window for t in range(0, 2049, 512)], 1)
    proto = stft(4096, 2048, window, step=512)
    check(proto, parts(np.fft.rfft(frames, axis=-1)), x=x)


@pytest.mark.extended
def test_stft_of_a_signal_whose_length_the_run_knows() -> None:
    window = np.hanning(16).astype(np.float32)
    proto = stft("samples", None, window)
    for samples in (16, 57):
        x = RANDOM.normal(size=(2, samples, 1)).astype(np.float32)
        starts = range(0, samples - 15, 5)
        frames = np.stack([x[:, t : t + 16, 0] * window for t in starts], 1)
        check(proto, parts(np.fft.rfft(frames, axis=-1)), x=x)


@pytest.mark.parametrize(
    ("form", "line"),
    [
        ({"length": 200, "window": None}, "frames of 200 samples do not fit into a signal of 100"),
        ({"length": 8, "window": np.ones(16, np.float32)}, "STFT node .* float32\\[16\\]"),
        ({"length": 8, "window": None, "step": 0}, "frame_step is 0"),
        ({"length": 8, "window": None, "channels": 2}, "complex; expected onesided=0"),
    ],
)
def test_stft_that_is_refused(form: dict, line: str) -> None:
    with pytest.raises(ModelError, match=line):
        tvm_ext.compile(stft(100, **form))


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("operator", ["HannWindow", "HammingWindow", "BlackmanWindow"])
@pytest.mark.parametrize(("periodic", "stored"), [(0, False), (1, False), (1, True)])
def test_windows(operator: str, periodic: int, stored: bool) -> None:
    nodes = [node(operator, ["size"], ["y"], periodic=periodic)]
    inputs = [] if stored else [value("size", [], np.int64)]
    weights = {"size": np.array(10)} if stored else {}
    proto = model(nodes, inputs, [value("y", None)], opset=17, **weights)
    wanted = ReferenceEvaluator(proto).run(None, {} if stored else {"size": np.array(10)})[0]
    check(proto, wanted, **({} if stored else {"size": np.array(10)}))


def test_a_window_of_doubles() -> None:
    nodes = [node("HannWindow", ["size"], ["y"], output_datatype=TensorProto.DOUBLE)]
    proto = model(nodes, [value("size", [1], np.int32)], [value("y", None, np.float64)], opset=17)
    check(proto, np.sin(np.arange(7) * np.pi / 7) ** 2, size=np.array([7], np.int32))


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("stored", [False, True])
def test_mel_filters(stored: bool) -> None:
    given = {
        "bins": np.array(8), "points": np.array(64), "rate": np.array(8000),
        "low": np.array(0, np.float32), "high": np.array(4000, np.float32),
    }  # fmt: skip
    inputs = [] if stored else [value(k, [], v.dtype) for k, v in given.items()]
    nodes = [node("MelWeightMatrix", list(given), ["y"])]
    proto = model(nodes, inputs, [value("y", None)], opset=17, **(given if stored else {}))
    wanted = ReferenceEvaluator(proto).run(None, {} if stored else given)[0]
    assert wanted.shape == (33, 8)
    check(proto, wanted, **({} if stored else given))
