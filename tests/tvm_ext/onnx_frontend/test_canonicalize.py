"""Concat of many inputs: what becomes of it, and the numbers."""

import numpy as np
import onnx_ir as ir
import pytest
from small_models import model, node, value

import tvm_ext
from tvm_ext.onnx_frontend.canonicalize import canonicalize


def joined(count: int, size: int | str):
    """x[size, 2] after ``count`` factors, one after the other."""
    nodes = [node("Mul", ["x", f"w{n}"], [f"p{n}"]) for n in range(count)]
    nodes.append(node("Concat", [f"p{n}" for n in range(count)], ["y"], name="all", axis=0))
    weights = {f"w{n}": np.full((), n + 1, "float32") for n in range(count)}
    return model(nodes, [value("x", [size, 2])], [value("y", [None, 2])], **weights)


@pytest.mark.parametrize(("size", "inputs"), [("N", [4, *[8] * 8]), (3, [60])])
def test_only_many_of_symbolic_sizes_are_joined_by_groups(size, inputs) -> None:
    made = ir.serde.deserialize_model(joined(60, size))
    for each in made.graph:
        if each.op_type == "Mul":
            each.outputs[0].shape = ir.Shape([size, 2])
    canonicalize(made)
    found = [len(each.inputs) for each in made.graph if each.op_type == "Concat"]
    assert sorted(found) == inputs


def test_numbers() -> None:
    made = tvm_ext.compile(joined(19, "N"), opt_level="O1")
    x = np.arange(10, dtype="float32").reshape(5, 2)
    wanted = np.concatenate([x * (n + 1) for n in range(19)])
    np.testing.assert_array_equal(made.run({"x": x})["y"], wanted)
