"""GridSample at points inside of an image, at its borders and outside of it."""

import numpy as np
import pytest
from combinations import pairwise
from one_model import in_one_model
from operator_models import check_operator
from small_models import model, node, rand, value

import tvm_ext
from tvm_ext.errors import ModelError

# On the borders of what is aligned and what is not, and beyond: for any size of an image.
PLACES = [-1, 1, -1.0001, np.nan, 0, 3e30, -1.3, -1.02, 1.02, 1.3, 2.4, -5]


def grid_of(points: tuple[int, ...]) -> np.ndarray:
    """Points around and inside of an image with as many axes as ``points`` has."""
    grid = np.random.default_rng(5).uniform(-1.6, 1.6, (2, *points, len(points)))
    grid.reshape(-1)[: len(PLACES)] = PLACES
    return grid.astype(np.float32)


@pytest.mark.extended
@in_one_model
@pairwise(
    mode=["linear", "nearest", "cubic"],
    padding=["zeros", "border", "reflection"],
    aligned=[0, 1],
    image=[(7, 6), (1, 4)],
    points=[(5, 9), (4, 4)],
)
def test_images(mode: str, padding: str, aligned: int, image: tuple, points: tuple) -> None:
    check_operator(
        "GridSample",
        {"x": rand(2, 3, *image), "grid": grid_of(points)},
        mode=mode,
        padding_mode=padding,
        align_corners=aligned,
    )


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_volumes(mode: str, padding: str) -> None:
    check_operator(
        "GridSample",
        {"x": rand(2, 2, 4, 5, 3), "grid": grid_of((3, 2, 5))},
        mode=mode,
        padding_mode=padding,
    )


@in_one_model
def test_an_infinite_border_stays_out_of_what_is_outside() -> None:
    image = np.full((1, 1, 2, 2), np.inf, np.float32)
    grid = np.full((1, 3, 7, 2), 5, np.float32)
    (found,) = check_operator("GridSample", {"x": image, "grid": grid})
    assert not found.any()


@pytest.mark.parametrize(
    ("attribute", "found"),
    [({"mode": "lanczos"}, "its mode is lanczos"), ({"padding_mode": "wrap"}, "mode is wrap")],
)
def test_what_onnx_does_not_name_is_refused(attribute: dict, found: str) -> None:
    inputs = [value("x", [1, 1, 3, 3]), value("grid", [1, 2, 2, 2])]
    proto = model(
        [node("GridSample", ["x", "grid"], ["y"], **attribute)], inputs, [value("y", None)]
    )
    with pytest.raises(ModelError, match=found):
        tvm_ext.compile(proto)
