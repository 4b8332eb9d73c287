"""NaN that is stored in a model: a value like others, refused where products add it up."""

import numpy as np
import pytest
from control_flow_models import assert_same
from onnx import TensorProto
from small_models import model, node, rand, value

import tvm_ext
from tvm_ext.errors import ModelError

HOLES = np.array([[np.nan, 1, 2], [3, np.nan, 5]], np.float32)


@pytest.mark.extended
def test_nan_is_looked_for_replaced_and_passed_on():
    """As imputers that keep the samples they were fitted with."""
    nodes = [
        node("IsNaN", ["holes"], ["missing"]),
        node("Where", ["missing", "x", "holes"], ["filled"]),
        node("Gather", ["holes", "i"], ["chosen"]),
        node("Sub", ["chosen", "x"], ["difference"]),
        node("Equal", ["holes", "holes"], ["is_number"]),
        node("MatMul", ["filled", "w"], ["y"]),
    ]
    outputs = [value("y", None), value("difference", None)]
    outputs.append(value("is_number", None, TensorProto.BOOL))
    inputs = [value("x", ["n", 3]), value("i", ["n"], TensorProto.INT64)]
    proto = model(nodes, inputs, outputs, holes=HOLES, w=rand(3, 4))
    assert_same(proto, {"x": rand(2, 3), "i": np.array([1, 0])})


@pytest.mark.parametrize("moved", [False, True])
def test_nan_in_the_weights_of_a_product_is_refused(moved):
    nodes = [node("Transpose", ["w"], ["t"])] if moved else []
    nodes.append(node("MatMul", ["x", "t" if moved else "w"], ["y"]))
    weight = HOLES if moved else np.ascontiguousarray(HOLES.T)
    proto = model(nodes, [value("x", [4, 3])], [value("y", None)], w=weight)
    with pytest.raises(ModelError, match="'w' holds 2 NaN of 6"):
        tvm_ext.compile(proto)
