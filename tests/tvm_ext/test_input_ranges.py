"""Sizes of inputs that a run decides: named, within a range, or both."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from operator_models import by_runtime
from small_models import model, node, rand, value
from unoptimised import HOST

import tvm_ext
from tvm_ext.check.inputs import random_inputs
from tvm_ext.errors import InputError
from tvm_ext.onnx_frontend import import_model
from tvm_ext.tensor_spec import SizeRange, SymbolicSize, parse_size


def blurred(*sizes: object) -> onnx.ModelProto:
    nodes = [
        node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"]),
        node("AveragePool", ["r"], ["y"], kernel_shape=[2, 2], strides=[2, 2]),
    ]
    weights = {"w": rand(4, 3, 3, 3)}
    return model(nodes, [value("x", list(sizes))], [value("y", [None] * 4)], **weights)


def added(first: str, second: str) -> onnx.ModelProto:
    inputs = [value("a", [first, 4]), value("b", [second, 4])]
    return model([node("Add", ["a", "b"], ["y"])], inputs, [value("y", [None, 4])])


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("7", 7),
        ("N", SymbolicSize("N")),
        ("?", SymbolicSize()),
        ("8:32", SymbolicSize("", SizeRange(8, 32))),
        ("N : 1 : 8", SymbolicSize("N", SizeRange(1, 8))),
        ("5:5", SymbolicSize("", SizeRange(5, 5))),
    ],
)
def test_forms_of_a_size(text: str, size: object) -> None:
    assert parse_size(text) == size


@pytest.mark.extended
@pytest.mark.parametrize("fixed", [False, True])
def test_one_compilation_serves_a_range(fixed: bool) -> None:
    """A size that the model fixes can be opened as well."""
    proto = blurred(1, 3, 16, 16) if fixed else blurred("n", 3, "h", "w")
    compiled = tvm_ext.compile(proto, HOST, input_shapes={"x": ["N", 3, "8:32", "8:24"]})
    assert compiled.inputs[0].ranges == (None, None, SizeRange(8, 32), SizeRange(8, 24))
    assert compiled.inputs[0].shape[0] == "N"
    for shape in [(1, 3, 16, 16), (2, 3, 32, 8), (3, 3, 9, 24)]:
        feeds = {"x": rand(*shape)}
        wanted = by_runtime(blurred(*shape), feeds)[0]
        np.testing.assert_allclose(compiled.run(feeds)["y"], wanted, rtol=1e-5, atol=1e-5)
    with pytest.raises(InputError, match="expected a size from 8 to 24 on axis 3"):
        compiled.run({"x": rand(1, 3, 16, 25)})


def test_ranges_are_saved(tmp_path) -> None:
    compiled = tvm_ext.compile(
        blurred("n", 3, "h", "w"), HOST, input_shapes={"x": [1, 3, "h:8:9", "?"]}
    )
    compiled.save(tmp_path / "m.tvmx")
    loaded = tvm_ext.load(tmp_path / "m.tvmx")
    assert loaded.inputs == compiled.inputs
    with pytest.raises(InputError, match="from 8 to 9"):
        loaded.run({"x": rand(1, 3, 10, 8)})


@pytest.mark.slow
def test_storage_is_planned_for_the_largest_size() -> None:
    # Kernels of symbolic sizes are not seen to work in place.
    options = {"opt_level": "O1", "pass_config": {"ShareStorage": {"in_place": False}}}
    bounded, largest, free = (
        tvm_ext.compile(blurred("n", 3, "h", "w"), HOST, input_shapes=shapes, **options).report
        for shapes in (
            {"x": ["1:2", 3, "8:32", "8:32"]},
            {"x": [2, 3, 32, 32]},
            None,
        )
    )
    assert bounded.memory.planned_peak_bytes == largest.memory.planned_peak_bytes
    assert not bounded.memory.dynamic
    assert free.memory.dynamic


@pytest.mark.extended
def test_a_name_ties_inputs() -> None:
    compiled = tvm_ext.compile(added("n", "m"), HOST, input_shapes={"a": ["k", 4], "b": ["k", 4]})
    assert [spec.shape for spec in compiled.inputs] == [("k", 4), ("k", 4)]
    renamed = import_model(added("n", "n"), {"a": ["k:2:5", 4]})
    assert [spec.shape for spec in renamed.inputs] == [("k", 4), ("k", 4)]
    assert [spec.ranges for spec in renamed.inputs] == [(SizeRange(2, 5), None)] * 2


@pytest.mark.parametrize(
    ("shapes", "reason"),
    [
        ({"a": ["1:2:3", 4]}, "is not a size"),
        ({"a": ["9:2", 4]}, "is not a size"),
        ({"a": ["k:1:2", 4], "b": ["k:1:3", 4]}, "was given the ranges 1:2 and 1:3"),
        ({"a": ["1:99999999999", 4]}, "expected at most"),
    ],
)
def test_refusals(shapes: dict, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        import_model(added("n", "m"), shapes)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"a": [3, 4], "b": ["k", 4]}, [(3, 4), ("k", 4)]),
        ({"a": ["2:5", 4], "b": ["7:9", 4]}, [("n", 4), ("n_of_b_0", 4)]),
        ({"a": ["?", 4], "b": [1, 4]}, [("n", 4), (1, 4)]),
    ],
)
def test_one_name_with_several_sizes_is_several_dimensions(given: dict, kept: list) -> None:
    imported = import_model(added("n", "n"), given)
    assert [spec.shape for spec in imported.inputs] == kept
    (warning,) = imported.warnings
    assert "'n' was given the size" in warning


@pytest.mark.extended
def test_a_feature_map_and_a_table_of_one_name() -> None:
    nodes = [node("Relu", ["x"], ["y"]), node("Neg", ["t"], ["z"])]
    inputs = [value("x", ["batch", 3, "height", "width"]), value("t", ["height", 4])]
    proto = model(nodes, inputs, [value("y", None), value("z", None)])
    feed = {"x": np.ones((1, 3, 6, 5), np.float32), "t": np.ones((9, 4), np.float32)}
    sizes = {"x": [1, 3, 6, 5], "t": [9, 4]}
    compiled = tvm_ext.compile(proto, HOST, input_shapes=sizes)
    assert [array.shape for array in compiled.run(feed).values()] == [(1, 3, 6, 5), (9, 4)]
    assert (
        "'height' was given the size 6, and 9 on axis 0 of input 't'" in compiled.report.warnings[0]
    )


def test_random_inputs_keep_to_the_range() -> None:
    specs = import_model(blurred("n", 3, "h", "w"), {"x": ["2:3", 3, "4:9", "80:90"]}).inputs
    assert random_inputs(specs)["x"].shape == (2, 3, 9, 80)


@pytest.mark.parametrize(
    ("given", "allowed"),
    [
        (["N", 3, "H", "W"], "'N', 3, 'H' (5:), 'W' (3:)"),
        (["N", 3, "2:64", "W"], "'N', 3, 'H' (5:64), 'W' (3:)"),
    ],
)
def test_images_into_which_no_window_fits(given: list, allowed: str) -> None:
    """Two rows of a convolution, of which a pool makes one; along the other axis one is enough."""
    nodes = [
        node("Conv", ["x", "w"], ["c"], strides=[2, 1]),
        node("MaxPool", ["c"], ["y"], kernel_shape=[2, 1], strides=[2, 1]),
    ]
    sizes = [value("x", ["N", 3, "H", "W"])]
    proto = model(nodes, sizes, [value("y", [None] * 4)], w=rand(4, 3, 3, 3))
    imported = import_model(proto, input_shapes={"x": given})
    assert imported.inputs[0].describe() == f"x: float32[{allowed}]"


@pytest.mark.extended
def test_a_run_with_an_image_into_which_no_window_fits(tmp_path: Path) -> None:
    proto = model(
        [node("MaxPool", ["x"], ["y"], kernel_shape=[3, 3], strides=[2, 2])],
        [value("x", ["N", 1, "H", "W"])],
        [value("y", [None] * 4)],
    )
    saved = tmp_path / "pool.tvmx"
    tvm_ext.compile(proto, HOST).save(saved)
    compiled = tvm_ext.load(saved)
    assert compiled.run({"x": rand(2, 1, 3, 4)})["y"].shape == (2, 1, 1, 1)
    with pytest.raises(InputError, match="expected a size of at least 3 on axis 2"):
        compiled.run({"x": rand(1, 1, 2, 5)})
