"""Transposed convolution."""

import pytest
from one_model import in_one_model
from operator_models import check_operator
from small_models import rand


@in_one_model
@pytest.mark.parametrize("attributes", [{}, {"auto_pad": "SAME_UPPER"}])
def test_transposed_convolution_to_a_given_size(attributes: dict) -> None:
    arrays = {"x": rand(1, 2, 4, 5), "w": rand(2, 3, 3, 3)}
    check_operator(
        "ConvTranspose", arrays, strides=[3, 2], output_shape=[11, 9], tolerance=1e-4, **attributes
    )
