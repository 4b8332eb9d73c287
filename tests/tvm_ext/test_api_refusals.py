"""Shapes, arrays, targets and paths that do not fit a model: one line that says what to do."""

import numpy as np
import pytest
from small_models import model as model_of
from small_models import node
from small_models import value as tensor

import tvm_ext
from tvm_ext.errors import InputError, ModelError, TargetError, TvmExtError


def relu_model(shape=(2, 3)):
    return model_of([node("Relu", ["x"], ["y"])], [tensor("x", shape)], [tensor("y", shape)])


def refused(action, kind, *words):
    """Checks the type and the form of the error that ``action`` raises."""
    with pytest.raises(kind) as caught:
        action()
    message = str(caught.value)
    assert message
    assert len(message.splitlines()) == 1
    for word in words:
        assert word in message


def refused_model(model, *words, kind, **options):
    refused(lambda: tvm_ext.compile(model, **options), kind, *words)


# Shapes given for the inputs ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({"x": [2]}, "rank 2"),
        ({"z": [2, 3]}, "no input 'z'; known: x"),
        ({"x": [2, 4]}, "which is 3 in the model"),
        ({"x": [0, 3]}, "expected a positive integer"),
        ({"x": [-1, 3]}, "expected a positive integer"),
        ({"x": [2.5, 3]}, "expected a positive integer"),
        ({"x": [1 << 40, 3]}, "expected at most"),
        ({"x": 3}, "expected sizes by input name"),
        ([2, 3], "expected sizes by input name"),
    ],
)
def test_input_shapes_that_do_not_fit(shapes, words):
    refused_model(relu_model(("N", 3)), words, kind=InputError, input_shapes=shapes)


def test_unknown_input_names_the_nearest():
    model = model_of([node("Relu", ["image"], ["y"])], [tensor("image", [2])], [tensor("y", [2])])
    words = ("'imgae'", "nearest known: 'image'")
    refused_model(model, *words, kind=InputError, input_shapes={"imgae": [2]})


def test_one_symbol_with_two_sizes_that_have_to_agree():
    model = model_of(
        [node("Add", ["a", "b"], ["y"])],
        [tensor("a", ["N"]), tensor("b", ["N"])],
        [tensor("y", ["N"])],
    )
    refused_model(
        model, "Add node", "float32[3]", kind=ModelError, input_shapes={"a": [2], "b": [3]}
    )


def test_input_without_shape():
    model = model_of([node("Relu", ["x"], ["y"])], [tensor("x", None)], [tensor("y", None)])
    refused_model(model, "has no shape", kind=InputError)
    compiled = tvm_ext.compile(model, input_shapes={"x": [2]})
    assert compiled.run({"x": np.array([-1, 2], np.float32)})["y"].tolist() == [0, 2]


# Running -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compiled():
    return tvm_ext.compile(relu_model())


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({}, "'x' is missing"),
        ({"x": np.ones((2, 3), np.float32), "z": 1}, "the model has no input 'z'"),
        ({"x": np.ones((2, 3))}, ".astype('float32')"),
        ({"x": np.ones((2, 3, 1), np.float32)}, "expected rank 2"),
        ({"x": np.ones((2, 4), np.float32)}, "expected size 3 on axis 1"),
        ({"x": np.ones((0, 3), np.float32)}, "expected size 2 on axis 0"),
        ({"x": "text"}, "expected x: float32"),
        ({"x": None}, "expected x: float32"),
        ({"x": [[1, 2, 3], [4, 5]]}, "cannot be read as an array"),
    ],
)
def test_inputs_of_a_run_that_do_not_fit(compiled, inputs, words):
    refused(lambda: compiled.run(inputs), InputError, words)


def test_inputs_that_are_no_mapping(compiled):
    refused(lambda: compiled.run(np.ones((2, 3), np.float32)), InputError, "expected a mapping")


def test_unknown_target():
    refused_model(relu_model(), "cpuu", kind=TargetError, target="cpuu")


def test_failed_save_leaves_nothing(compiled, tmp_path):
    refused(lambda: compiled.save(tmp_path / "absent" / "model.tvmx"), TvmExtError, "absent")
    refused(lambda: compiled.save(tmp_path), TvmExtError, "folder")
    assert list(tmp_path.iterdir()) == []
