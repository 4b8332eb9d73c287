"""Activations against ONNX Runtime."""

import numpy as np
import pytest
from one_model import in_one_model
from onnx import helper
from operator_models import assert_as_runtime, element_type, relax_operators
from small_models import model, value


@in_one_model
@pytest.mark.parametrize(("dtype", "rtol"), [("float32", 1e-6), ("float16", 4e-3)])
def test_hard_swish(dtype, rtol):
    x = np.linspace(-5, 5, 41).astype(dtype)
    elements = element_type(x)
    node = helper.make_node("HardSwish", ["x"], ["y"])
    proto = model([node], [value("x", [41], elements)], [value("y", [41], elements)])
    assert_as_runtime(proto, rtol, x=x)
    assert "relax.divide" not in relax_operators(proto)
