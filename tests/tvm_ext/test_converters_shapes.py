"""Shape and index operators whose sizes are stored in the model or computed in the run."""

import numpy as np
import onnx
import pytest
from operator_models import by_reference, check_operator
from small_models import model, node, rand, value

import tvm_ext

X = rand(2, 3, 4)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@pytest.mark.parametrize("stored", [("shape",), ()])
def test_expand_keeps_a_larger_size_of_the_input(stored: tuple) -> None:
    check_operator("Expand", {"x": rand(3, 1), "shape": ints(2, 1, 6)}, stored=stored)


@pytest.mark.parametrize("stored", [("shape",), ()])
@pytest.mark.parametrize("shape", [(4, -1), (0, 0, 2, 2), (-1,), (1, 2, 12)])
def test_reshape(shape: tuple, stored: tuple) -> None:
    check_operator("Reshape", {"x": X, "shape": ints(*shape)}, stored=stored)


@pytest.mark.parametrize("stored", [("pads", "fill"), ("pads",), ()])
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_pad(mode: str, stored: tuple) -> None:
    arrays = {"x": X, "pads": ints(0, 1, 2, 1, 1, 3), "fill": np.array(5, np.float32)}
    check_operator("Pad", arrays, stored=stored, mode=mode)


@pytest.mark.parametrize("stored", [("pads", "axes"), ("axes",), ()])
def test_pad_of_some_axes_by_less_than_nothing(stored: tuple) -> None:
    arrays = {"x": X, "pads": ints(-1, 2, 1, -2), "fill": None, "axes": ints(-1, 1)}
    check_operator("Pad", arrays, stored=stored, reference=_padded)


def _padded(_model: object, _feeds: object) -> list[np.ndarray]:
    return [np.pad(X, ((0, 0), (2, 0), (0, 1)))[:, : 3 + 2 - 2, 1:]]


@pytest.mark.parametrize("stored", [("shape",), ()])
def test_center_crop_pad(stored: tuple) -> None:
    arrays = {"x": X, "shape": ints(6, 1)}
    check_operator("CenterCropPad", arrays, stored=stored, axes=[1, 2], reference=by_reference)


@pytest.mark.parametrize("stored", [("parts",), ()])
def test_split(stored: tuple) -> None:
    check_operator("Split", {"x": X, "parts": ints(1, 0, 3)}, 3, stored, axis=-1)


@pytest.mark.parametrize("stored", [("axis",), ()])
@pytest.mark.parametrize("flags", [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_running_sums(axis: int, flags: tuple, stored: tuple) -> None:
    attributes = {"exclusive": flags[0], "reverse": flags[1]}
    check_operator("CumSum", {"x": X, "axis": np.array(axis)}, stored=stored, **attributes)


@pytest.mark.parametrize("fmod", [0, 1])
def test_modulo_zero_does_not_end_the_process(fmod: int) -> None:
    low = np.iinfo(np.int32).min
    a, b = np.array([7, -7, low, 5], np.int32), np.array([0, 3, -1, -3], np.int32)
    proto = model(
        [node("Mod", ["a", "b"], ["y"], fmod=fmod)],
        [value("a", [4], onnx.TensorProto.INT32), value("b", [4], onnx.TensorProto.INT32)],
        [value("y", [4], onnx.TensorProto.INT32)],
    )
    found = tvm_ext.compile(proto).run({"a": a, "b": b})["y"]
    np.testing.assert_array_equal(found, [0, -1 if fmod else 2, 0, 2 if fmod else -1])


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_space_to_depth(mode: str) -> None:
    check_operator(
        "SpaceToDepth",
        {"x": rand(1, 2, 4, 6)},
        opset=onnx.defs.onnx_opset_version(),
        reference=by_reference,
        blocksize=2,
        mode=mode,
    )


@pytest.mark.parametrize("attributes", [{}, {"auto_pad": "SAME_UPPER"}])
def test_transposed_convolution_to_a_given_size(attributes: dict) -> None:
    arrays = {"x": rand(1, 2, 4, 5), "w": rand(2, 3, 3, 3)}
    check_operator(
        "ConvTranspose", arrays, strides=[3, 2], output_shape=[11, 9], tolerance=1e-4, **attributes
    )


@pytest.mark.parametrize("storage_order", [0, 1])
def test_places_of_the_largest_values(storage_order: int) -> None:
    check_operator(
        "MaxPool",
        {"x": rand(2, 3, 7, 6)},
        2,
        kernel_shape=[3, 2],
        strides=[2, 1],
        pads=[1, 0, 1, 1],
        dilations=[1, 2],
        storage_order=storage_order,
    )


@pytest.mark.parametrize("stored", [("image", "block"), ()])
def test_columns_to_an_image(stored: tuple) -> None:
    arrays = {"x": rand(1, 2 * 6, 12), "image": ints(5, 5), "block": ints(2, 3)}
    check_operator("Col2Im", arrays, stored=stored)


def test_determinants() -> None:
    check_operator("Det", {"x": rand(2, 3, 4, 4)}, tolerance=1e-4)


def test_an_earlier_operator_and_sizes_of_the_run_in_one_kernel() -> None:
    """FuseOps moved such a kernel in front of the sizes that it uses."""
    proto = model(
        [
            node("Relu", ["x"], ["r"]),
            node("Expand", ["r", "s"], ["e"]),
            node("Relu", ["z"], ["q"]),
            node("Add", ["q", "e"], ["y"]),
        ],
        [value("x", [3, 1]), value("z", [1]), value("s", [2], onnx.TensorProto.INT64)],
        [value("y", None)],
    )
    x, z = rand(3, 1), rand(1)
    found = tvm_ext.compile(proto, opt_level="O3").run({"x": x, "z": z, "s": ints(1, 5)})["y"]
    np.testing.assert_allclose(found, np.maximum(x, 0) + np.maximum(z, 0) + np.zeros((3, 5)))


def test_batch_statistics() -> None:
    channels = {name: rand(3, seed=k) + 2 for k, name in enumerate(["s", "b", "m", "v"])}
    check_operator(
        "BatchNormalization",
        {"x": X, **channels},
        3,
        reference=by_reference,
        training_mode=1,
        tolerance=1e-4,
    )
