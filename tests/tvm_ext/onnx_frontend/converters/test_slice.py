"""Slice on sizes known only in the run: bounds behind the ends, reversed, and empty ranges."""

import numpy as np
import pytest
from one_model import in_one_model, program
from onnx import TensorProto
from operator_models import by_runtime
from small_models import model, node, value
from unoptimised import HOST

import tvm_ext
from tvm_ext.errors import ModelError

SMALLEST, LARGEST = -(1 << 63), (1 << 63) - 2
X = np.arange(21, dtype=np.float32).reshape(7, 3)
BOUNDS = [
    (-1, -(1 << 31), -1),
    (-1, SMALLEST, -1),
    (-1, -(10**9), -1),
    (5, -100, -2),
    (1, -1, 1),
    (-3, 1 << 62, 1),
    (0, 1 << 31, 2),
    (6, 1, -2),
    (5, 2, 1),
    (-2, -5, 1),
    (-2, -5, -1),
    (2, 5, -1),
    (LARGEST, SMALLEST, -3),
    (SMALLEST, LARGEST, 1 << 40),
    (9, 12, 1),
]


def sliced(rows: str | int, start: int, end: int, step: int, fed: tuple[str, ...] = ()):
    """A model that slices an axis, with bounds among its inputs, and what to feed it."""
    bounds = {"s": start, "e": end, "a": -2, "t": step}
    arrays = {name: np.array([bound], np.int64) for name, bound in bounds.items()}
    stored = {name: array for name, array in arrays.items() if name not in fed}
    given = {name: arrays[name] for name in fed}
    nodes = [node("Slice", ["x", "s", "e", "a", "t"], ["y"])]
    inputs = [value("x", [rows, 3]), *(value(name, [1], TensorProto.INT64) for name in fed)]
    return model(nodes, inputs, [value("y", None)], **stored), given


@in_one_model
@pytest.mark.parametrize("rows", ["T", 7])
@pytest.mark.parametrize(("start", "end", "step"), BOUNDS)
def test_as_onnx_runtime(rows, start, end, step):
    proto, _ = sliced(rows, start, end, step)
    compiled = program(proto, "O0")
    for count in (7, 1, 2) if rows == "T" else (7,):
        x = X[:count]
        np.testing.assert_array_equal(compiled.run({"x": x})["y"], by_runtime(proto, {"x": x})[0])


@pytest.mark.extended
def test_the_end_that_tf2onnx_writes_leaves_the_size_as_it_is():
    """It writes 10 ** 9 for the end of an axis, of any size."""
    proto, _ = sliced("T", 0, 10**9, 1)
    ended = program(sliced("T", 1, 10**9, 2)[0], "O0")
    assert program(proto, "O0").report.kernel_calls == 0
    for count in (1, 2, 7):
        np.testing.assert_array_equal(ended.run({"x": X[:count]})["y"], X[1:count:2])


def check_bounds_of_the_run(fed, bounds):
    """One compilation for all of ``bounds``, which differ in what is fed."""
    compiled = program(sliced("T", *bounds[0], fed)[0], "O0")
    for start, end, step in bounds:
        proto, given = sliced("T", start, end, step, fed)
        for count in (7, 1, 2):
            feeds = {"x": X[:count], **given}
            np.testing.assert_array_equal(compiled.run(feeds)["y"], by_runtime(proto, feeds)[0])


@pytest.mark.slow
def test_all_bounds_of_the_run():
    check_bounds_of_the_run(("s", "e", "a", "t"), BOUNDS)


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("step", [2, -3])
def test_starts_and_ends_of_the_run(step):
    check_bounds_of_the_run(("s", "e"), [(start, end, step) for start, end, _ in BOUNDS])


@pytest.mark.extended
def test_steps_of_the_run():
    check_bounds_of_the_run(("t",), [(5, 1, step) for step in (1, -1, -2, SMALLEST, LARGEST)])


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("fed", [(), ("s", "t")])
@pytest.mark.parametrize("step", [1, -1])
def test_nothing_of_an_axis_without_elements(step, fed):
    proto, given = sliced("T", -1, -9 if step < 0 else 9, step, fed)
    compiled = program(proto, "O0")
    assert compiled.run({"x": X[:0], **given})["y"].shape == (0, 3)


def test_two_axes_one_reversed():
    constants = {"s": [-1, 1], "e": [SMALLEST, 9], "a": [1, 0], "t": [-1, 2]}
    stored = {name: np.array(bound, np.int64) for name, bound in constants.items()}
    nodes = [node("Slice", ["x", "s", "e", "a", "t"], ["y"])]
    proto = model(nodes, [value("x", ["A", "B"])], [value("y", None)], **stored)
    x = np.arange(20, dtype=np.float32).reshape(5, 4)
    np.testing.assert_array_equal(tvm_ext.compile(proto, HOST).run({"x": x})["y"], x[1::2, ::-1])


def test_a_sum_behind_a_reversal_up_to_a_billion():
    stored = {"s": [-1], "e": [-(10**9)], "a": [0], "t": [-1]}
    nodes = [
        node("Slice", ["x", "s", "e", "a", "t"], ["turned"]),
        node("ReduceMean", ["turned"], ["y"], axes=[1], keepdims=0),
    ]
    proto = model(
        nodes,
        [value("x", ["A", "B"])],
        [value("y", None)],
        **{name: np.array(bound, np.int64) for name, bound in stored.items()},
    )
    found = tvm_ext.compile(proto, HOST).run({"x": X})["y"]
    np.testing.assert_allclose(found, X[::-1].mean(1))


def test_a_step_of_nothing_is_refused():
    with pytest.raises(ModelError, match="step of 0"):
        tvm_ext.compile(sliced("T", 0, 5, 0)[0], HOST)
