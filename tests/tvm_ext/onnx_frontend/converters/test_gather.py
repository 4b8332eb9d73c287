"""Gather against ONNX Runtime."""

import numpy as np
import pytest
from combinations import pairwise
from one_model import in_one_model
from operator_models import assert_as_runtime, element_type
from small_models import model, node, value
from unoptimised import HOST

import tvm_ext


def gather(data: np.ndarray, indices: np.ndarray, axis: int, stored: bool) -> tuple:
    shape = np.take(data, indices, axis).shape
    inputs = [value("data", list(data.shape), element_type(data))]
    if not stored:
        inputs.append(value("indices", list(indices.shape), element_type(indices)))
    proto = model(
        [node("Gather", ["data", "indices"], ["y"], name="gather", axis=axis)],
        inputs,
        [value("y", list(shape), element_type(data))],
        **({"indices": indices} if stored else {}),
    )
    return proto, {"data": data} if stored else {"data": data, "indices": indices}


DATA = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


@in_one_model
@pairwise(
    stored=[True, False],
    axis=[0, 1, 2, -1, -3],
    dtype=["int32", "int64"],
)
def test_gather(axis, stored, dtype):
    size = DATA.shape[axis]
    indices = np.array([[0, size - 1], [-1, -size]], dtype)
    proto, inputs = gather(DATA, indices, axis, stored)
    assert_as_runtime(proto, **inputs)


def test_gather_of_one_and_of_integers():
    proto, inputs = gather(DATA.astype("int64"), np.array(-1), 1, False)
    assert_as_runtime(proto, **inputs)


@pytest.mark.parametrize("level", ["O0", "O3"])
def test_an_index_beyond_the_data_does_not_end_the_process(level):
    proto, inputs = gather(DATA, np.array([0, 1]), 0, False)
    model = tvm_ext.compile(proto, HOST, opt_level=level)
    for index in (2, 10**6, 2**40, -3, -(10**6), -(2**40)):
        (found,) = model.run({**inputs, "indices": np.array([index, 1])}).values()
        np.testing.assert_array_equal(found[0], DATA[1 if index > 0 else 0])
        np.testing.assert_array_equal(found[1], DATA[1])
