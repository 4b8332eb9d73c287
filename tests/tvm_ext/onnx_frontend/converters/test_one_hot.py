"""OneHot as the specification says, with values and depth stored or from the run."""

import numpy as np
import pytest
from combinations import pairwise
from one_model import in_one_model
from operator_models import array_info, run_at_levels
from small_models import model, node


def hot(indices: np.ndarray, depth: int, axis: int, values: np.ndarray) -> np.ndarray:
    """As the specification of OneHot says, one element at a time."""
    rows = [[values[int(p == i or p == i + depth)] for p in range(depth)] for i in indices.ravel()]
    table = np.array(rows, values.dtype).reshape(*indices.shape, depth)
    return np.moveaxis(table, -1, axis)


@pytest.mark.extended
@in_one_model
@pairwise(
    depth_shape=[[], [1]],
    axis=[-1, 0, 1],
    typed=[
        (np.array([[0, 2, -1], [3, -3, 9]], np.int64), np.array([0, 1], np.float32)),
        (np.array([[0, 2, 1]], np.int32), np.array([-1, 5], np.int64)),
        (np.array([[0, 2, 1]], np.float32), np.array([0, 1], np.float64)),
        (np.array([[0, 2, 1]], np.uint8), np.array([0, 1], np.int32)),
    ],
)
def test_one_hot(depth_shape: list, axis: int, typed: tuple[np.ndarray, np.ndarray]) -> None:
    indices, values = typed
    proto = model(
        [node("OneHot", ["i", "depth", "values"], ["y"], axis=axis)],
        [array_info("i", list(indices.shape), indices.dtype)],
        [array_info("y", None, values.dtype)],
        depth=np.array(3, np.int64).reshape(depth_shape),
        values=values,
    )
    for outputs in run_at_levels(proto, i=indices):
        wanted = hot(indices, 3, axis, values)
        assert outputs["y"].dtype == wanted.dtype
        np.testing.assert_array_equal(outputs["y"], wanted)


def test_one_hot_of_values_in_the_run() -> None:
    indices, values = np.array([1, -1], np.int64), np.array([2, 7], np.float32)
    proto = model(
        [node("OneHot", ["i", "depth", "values"], ["y"])],
        [array_info("i", [2], np.int64), array_info("values", [2])],
        [array_info("y", [2, 3])],
        depth=np.array([3], np.int64),
    )
    for outputs in run_at_levels(proto, i=indices, values=values):
        np.testing.assert_array_equal(outputs["y"], hot(indices, 3, -1, values))


def test_one_hot_of_a_depth_in_the_run() -> None:
    indices, values = np.array([0, -1], np.int64), np.array([0, 1], np.float32)
    proto = model(
        [node("OneHot", ["i", "depth", "values"], ["y"])],
        [array_info("i", [2], np.int64), array_info("depth", [1], np.int64)],
        [array_info("y", None)],
        values=values,
    )
    for depth in (3, 5):
        for outputs in run_at_levels(proto, i=indices, depth=np.array([depth])):
            np.testing.assert_array_equal(outputs["y"], hot(indices, depth, -1, values))
