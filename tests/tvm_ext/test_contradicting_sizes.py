"""Dimensions of one name that have several sizes in a run."""

import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
from operator_models import by_runtime
from small_models import model, node, rand, value
from unoptimised import HOST

import tvm_ext
from tvm_ext.errors import InputError
from tvm_ext.model_inputs import ContradictingSizesWarning, shapes_named_apart
from tvm_ext.tensor_spec import SizeRange, TensorSpec


def picture_and_table() -> onnx.ModelProto:
    """Both have a height and a width, and nothing that needs these to be equal."""
    nodes = [
        node("GlobalAveragePool", ["picture"], ["mean"]),
        node("ReduceSum", ["table"], ["sum"], keepdims=0),
        node("Add", ["mean", "sum"], ["y"]),
    ]
    inputs = [
        value("picture", ["batch", 3, "height", "width"]),
        value("table", ["height", "width"]),
    ]
    return model(nodes, inputs, [value("y", None)], opset=18)


def feeds(table: tuple[int, int]) -> dict[str, np.ndarray]:
    return {"picture": rand(2, 3, 6, 5), "table": rand(*table)}


def test_a_run_that_contradicts_a_name_takes_it_for_two_with_one_warning() -> None:
    proto = picture_and_table()
    compiled = tvm_ext.compile(proto, HOST, opt_level="O0")
    with pytest.warns(ContradictingSizesWarning, match="size of 'height' in an earlier input"):
        compiled.run(feeds((4, 7)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for table in ((4, 7), (6, 5), (3, 5)):
            given = feeds(table)
            (got,) = compiled.run(given).values()
            np.testing.assert_allclose(got, by_runtime(proto, given)[0], rtol=1e-5)
        assert compiled.profile(feeds((4, 7)), repeat=1).kernels


def test_sizes_that_operators_need_to_be_equal_are_refused_as_before() -> None:
    nodes = [node("Add", ["a", "b"], ["y"])]
    proto = model(nodes, [value("a", ["N", 3]), value("b", ["N", 3])], [value("y", None)])
    compiled = tvm_ext.compile(proto, HOST, opt_level="O0")
    given = {"a": rand(4, 3), "b": rand(5, 3)}
    with (
        pytest.warns(ContradictingSizesWarning),
        pytest.raises(InputError, match="expected size 4 on axis 0") as caught,
    ):
        compiled.run(given)
    assert "resize it" in str(caught.value)


@pytest.mark.extended
def test_a_model_from_a_file_cannot_be_compiled_once_more(tmp_path: Path) -> None:
    tvm_ext.compile(picture_and_table(), HOST, opt_level="O0").save(tmp_path / "m.tvmx")
    with pytest.raises(InputError, match="compile with input shapes that give"):
        tvm_ext.load(tmp_path / "m.tvmx").run(feeds((4, 7)))


def test_equal_sizes_of_one_name_stay_together() -> None:
    ranges = (None, SizeRange(1, 9))
    specs = [
        TensorSpec("a", "float32", ("N", 3)),
        TensorSpec("b.c", "float32", (4, "N"), ranges),
        TensorSpec("d", "float32", ("N",)),
        TensorSpec("e", "float32", ("N", "M")),
    ]
    sizes = {"a": (2, 3), "b.c": (4, 5), "d": (5,), "e": (2, 5)}
    arrays = {name: np.zeros(shape, np.float32) for name, shape in sizes.items()}
    assert shapes_named_apart(specs, arrays) == {
        "a": ["N", 3],
        "b.c": [4, "N_of_b_c:1:9"],
        "d": ["N_of_b_c"],
        "e": ["N", "M"],
    }
