"""Slice on sizes known only in the run: bounds behind the ends, reversed, and empty ranges."""

import numpy as np
import pytest
from small_models import model, node, value
from unoptimised import HOST

import tvm_ext

SMALLEST = -(1 << 63)


@pytest.mark.parametrize("rows", ["T", 7])
@pytest.mark.parametrize(
    ("start", "end", "step"),
    [
        (-1, -(1 << 31), -1),
        (-1, SMALLEST, -1),
        (5, -100, -2),
        (1, -1, 1),
        (-3, 1 << 62, 1),
        (0, 1 << 31, 2),
        (6, 1, -2),
        (5, 2, 1),
        (-2, -5, 1),
        (2, 5, -1),
    ],
)
def test_as_numpy(rows, start, end, step):
    bounds = {"s": [start], "e": [end], "a": [-2], "t": [step]}
    constants = {name: np.array(bound, np.int64) for name, bound in bounds.items()}
    nodes = [node("Slice", ["x", "s", "e", "a", "t"], ["y"])]
    proto = model(nodes, [value("x", [rows, 3])], [value("y", None)], **constants)
    x = np.arange(21, dtype=np.float32).reshape(7, 3)
    stop = None if step < 0 and end < -7 else end
    found = tvm_ext.compile(proto, HOST, opt_level="O0").run({"x": x})["y"]
    np.testing.assert_array_equal(found, x[start:stop:step])


def test_two_axes_one_reversed():
    constants = {"s": [-1, 1], "e": [SMALLEST, 9], "a": [1, 0], "t": [-1, 2]}
    stored = {name: np.array(bound, np.int64) for name, bound in constants.items()}
    nodes = [node("Slice", ["x", "s", "e", "a", "t"], ["y"])]
    proto = model(nodes, [value("x", ["A", "B"])], [value("y", None)], **stored)
    x = np.arange(20, dtype=np.float32).reshape(5, 4)
    np.testing.assert_array_equal(tvm_ext.compile(proto, HOST).run({"x": x})["y"], x[1::2, ::-1])
