"""Arrays of a run against what the model expects."""

import numpy as np
import pytest

from tvm_ext.errors import InputError
from tvm_ext.model_inputs import check_inputs
from tvm_ext.tensor_spec import TensorSpec

SPECS = (
    TensorSpec("ids", "int64", ("N", "T")),
    TensorSpec("mask", "bool", ("N", "T")),
    TensorSpec("scale", "float32", ()),
)


def good(**changes) -> dict:
    inputs = {
        "ids": np.arange(6).reshape(2, 3),
        "mask": np.ones((2, 3), bool),
        "scale": np.float32(2),
    }
    return {**inputs, **changes}


def test_arrays_come_in_the_order_of_the_model():
    inputs = good()
    arrays = check_inputs(SPECS, dict(reversed(inputs.items())))
    assert [str(array.dtype) for array in arrays] == ["int64", "bool", "float32"]
    assert [array.shape for array in arrays] == [(2, 3), (2, 3), ()]


def test_dense_arrays_are_passed_on_without_a_copy():
    x = np.zeros((4, 4), np.float32)
    (array,) = check_inputs([TensorSpec("x", "float32", (4, 4))], {"x": x})
    assert np.shares_memory(array, x)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24, dtype="float32").reshape(4, 6).T,
        np.arange(48, dtype="float32").reshape(6, 8)[:, ::2],
        np.asfortranarray(np.arange(24, dtype="float32").reshape(6, 4)),
        np.broadcast_to(np.float32(3), (6, 4)),
        np.arange(24, dtype="float32").reshape(6, 4)[::-1],
    ],
    ids=["transposed", "strided", "fortran", "broadcast", "reversed"],
)
def test_other_memory_orders_become_dense_with_the_same_values(array):
    (dense,) = check_inputs([TensorSpec("x", "float32", (6, 4))], {"x": array})
    assert dense.flags.c_contiguous
    np.testing.assert_array_equal(dense, array)


def test_lists_are_taken_when_their_type_fits():
    (array,) = check_inputs([TensorSpec("x", "float64", (2,))], {"x": [1.5, 2.5]})
    assert array.tolist() == [1.5, 2.5]


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_an_empty_array_has_the_shape_it_has(shape):
    inputs = good(ids=np.zeros(shape, "int64"), mask=np.zeros(shape, bool))
    assert check_inputs(SPECS, inputs)[0].shape == shape


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"idz": np.zeros(1)}, "the model has no input 'idz'; nearest known: 'ids'"),
        ({"ids": np.zeros((2, 3), "int32")}, "'ids' is int32[2, 3], expected ids: int64['N', 'T']"),
        ({"ids": np.zeros((2, 3), ">i8")}, "convert it with .astype('int64')"),
        ({"ids": np.zeros(6, "int64")}, "(rank 1), expected rank 2"),
        ({"scale": np.zeros(1, "float32")}, "(rank 1), expected rank 0"),
        ({"mask": np.ones((2, 4), bool)}, "expected size 3 on axis 1"),
        ({"mask": np.ones((3, 3), bool)}, "expected size 2 on axis 0"),
        ({"ids": None}, "'ids' is object[]"),
        ({"ids": "text"}, "'ids' is <U4[]"),
        ({"ids": [[1, 2], [3]]}, "'ids' cannot be read as an array"),
    ],
)
def test_what_does_not_fit_is_named_in_one_line(changes, words):
    with pytest.raises(InputError) as error:
        check_inputs(SPECS, good(**changes))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_input_is_named():
    inputs = good()
    del inputs["mask"]
    with pytest.raises(InputError, match="'mask' is missing; expected mask: bool"):
        check_inputs(SPECS, inputs)


@pytest.mark.parametrize("inputs", [[np.zeros(1)], np.zeros(1), None])
def test_something_else_than_a_mapping_is_refused(inputs):
    with pytest.raises(InputError, match="expected a mapping of name to array"):
        check_inputs(SPECS, inputs)


def test_a_model_without_inputs_takes_none():
    assert check_inputs([], {}) == []
    with pytest.raises(InputError, match="known: none"):
        check_inputs([], {"x": np.zeros(1)})
