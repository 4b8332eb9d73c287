"""Max, Min, Sum and Mean of any number of inputs against ONNX Runtime."""

import numpy as np
import pytest
from one_model import in_one_model
from operator_models import assert_as_runtime, element_type, relax_operators
from small_models import model, node, value

from tvm_ext.onnx_frontend import import_model


def variadic(operator: str, *arrays: np.ndarray) -> tuple:
    names = [f"x{i}" for i in range(len(arrays))]
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    proto = model(
        [node(operator, names, ["y"], name="many")],
        [
            value(name, list(array.shape), element_type(array))
            for name, array in zip(names, arrays, strict=True)
        ],
        [value("y", list(shape), element_type(arrays[0]))],
    )
    return proto, dict(zip(names, arrays, strict=True))


def rand(*shape: int, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    return (np.random.default_rng([seed, *shape]).uniform(-9, 9, shape)).astype(dtype)


@in_one_model
@pytest.mark.parametrize("operator", ["Max", "Min", "Sum", "Mean"])
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_any_number_of_inputs(operator, count):
    proto, inputs = variadic(operator, *(rand(2, 3, seed=i) for i in range(count)))
    assert_as_runtime(proto, **inputs)


@in_one_model
@pytest.mark.parametrize("operator", ["Max", "Min", "Sum", "Mean"])
def test_inputs_are_broadcast(operator):
    proto, inputs = variadic(operator, rand(3), rand(2, 1), rand(1, 2, 3), rand())
    assert_as_runtime(proto, **inputs)


@in_one_model
@pytest.mark.parametrize("operator", ["Max", "Min"])
@pytest.mark.parametrize("dtype", ["int32", "int64", "float64", "uint8"])
def test_largest_and_smallest_of_other_types(operator, dtype):
    arrays = [np.abs(rand(2, 3, seed=i)).astype(dtype) for i in range(3)]
    proto, inputs = variadic(operator, *arrays)
    assert_as_runtime(proto, **inputs)


def test_variadic_operators_are_a_chain_that_passes_can_see():
    proto, _ = variadic("Max", rand(2, 3), rand(2, 3), rand(2, 3))
    assert relax_operators(proto) == {"maximum"}
    assert import_model(proto).mod.script().count("R.maximum") == 2
