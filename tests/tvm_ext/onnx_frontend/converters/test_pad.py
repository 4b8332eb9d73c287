"""Pad and CenterCropPad with sizes that are stored in the model or computed in the run."""

import numpy as np
import pytest
from operator_models import by_reference, check_operator
from small_models import rand

X = rand(2, 3, 4)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


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
