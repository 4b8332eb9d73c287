"""Pad and CenterCropPad with sizes that are stored in the model or computed in the run."""

import numpy as np
import pytest
from one_model import in_one_model
from operator_models import by_reference, check_operator, operator_model
from small_models import rand
from unoptimised import HOST

import tvm_ext

X = rand(2, 3, 4)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@in_one_model
@pytest.mark.parametrize("stored", [("pads", "fill"), ("pads",), ()])
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_pad(mode: str, stored: tuple) -> None:
    arrays = {"x": X, "pads": ints(0, 1, 2, 1, 1, 3), "fill": np.array(5, np.float32)}
    check_operator("Pad", arrays, stored=stored, mode=mode)


@in_one_model
@pytest.mark.parametrize("stored", [("pads", "axes"), ("axes",), ()])
def test_pad_of_some_axes_by_less_than_nothing(stored: tuple) -> None:
    arrays = {"x": X, "pads": ints(-1, 2, 1, -2), "fill": None, "axes": ints(-1, 1)}
    check_operator("Pad", arrays, stored=stored, reference=_padded)


def _padded(_model: object, _feeds: object) -> list[np.ndarray]:
    return [np.pad(X, ((0, 0), (2, 0), (0, 1)))[:, : 3 + 2 - 2, 1:]]


@in_one_model
@pytest.mark.parametrize("stored", [("shape",), ()])
def test_center_crop_pad(stored: tuple) -> None:
    arrays = {"x": X, "shape": ints(6, 1)}
    check_operator("CenterCropPad", arrays, stored=stored, axes=[1, 2], reference=by_reference)


@pytest.mark.extended
@pytest.mark.parametrize("mode", ["edge", "reflect", "wrap"])
def test_images_of_any_size(mode: str) -> None:
    """The places of one axis are computed: the others keep their size."""
    arrays = {"x": X, "pads": ints(0, 0, 1, 0, 0, 1)}
    model, _ = operator_model("Pad", arrays, stored=("pads",), mode=mode)
    for place, name in enumerate("nhw"):
        model.graph.input[0].type.tensor_type.shape.dim[place].dim_param = name
    compiled = tvm_ext.compile(model, HOST)
    (kernel,) = compiled.report.kernels
    assert kernel.schedule == "elementwise"
    for shape in ((1, 1, 2), (2, 3, 5), (1, 4, 33), (0, 2, 4)):
        x = rand(*shape)
        (found,) = compiled.run({"x": x}).values()
        np.testing.assert_array_equal(found, np.pad(x, ((0, 0), (0, 0), (1, 1)), mode))
