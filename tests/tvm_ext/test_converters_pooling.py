"""Places of a maximum, and columns put together to an image."""

import numpy as np
import pytest
from operator_models import check_operator
from small_models import rand


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


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
