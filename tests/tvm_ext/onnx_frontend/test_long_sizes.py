"""Sizes whose expressions grow from layer to layer."""

import numpy as np
import onnx
import pytest
from operator_models import by_runtime
from small_models import model, node, rand, value
from tvm import tirx
from unoptimised import HOST

import tvm_ext
from tvm_ext.onnx_frontend import import_model


def layers(count: int) -> onnx.ModelProto:
    """Each cuts a tensor in two at a computed place, joins the parts anew, and cuts that."""
    nodes, last = [], "x"
    for n in range(count):
        nodes += [
            node("Shape", [last], [f"size{n}"], end=1),
            node("Div", [f"size{n}", "two"], [f"half{n}"]),
            node("Sub", [f"half{n}", "seven"], [f"place{n}"]),
            node("Slice", [last, "zero", f"place{n}", "zero"], [f"first{n}"]),
            node("Slice", [last, f"place{n}", f"size{n}", "zero"], [f"second{n}"]),
            node("Relu", [f"first{n}"], [f"relu{n}"]),
            node("Concat", [f"second{n}", f"relu{n}"], [f"joined{n}"], axis=0),
            node("Slice", [f"joined{n}", "one", f"size{n}", "zero"], [f"cut{n}"]),
            node("Sigmoid", [f"cut{n}"], [f"sigmoid{n}"]),
            node("Mul", [f"cut{n}", f"sigmoid{n}"], [f"layer{n}"]),
        ]
        last = f"layer{n}"
    stored = {"zero": [0], "one": [1], "two": [2], "seven": [7]}
    arrays = {name: np.array(array, np.int64) for name, array in stored.items()}
    output = [onnx.ValueInfoProto(name=last)]
    return model(nodes, [value("x", ["N", 3])], output, opset=18, **arrays)


@pytest.mark.parametrize("rows", [60, 17, 9])
def test_layers_of_slices(rows: int) -> None:
    proto, feeds = layers(3), {"x": rand(rows, 3)}
    (wanted,) = by_runtime(proto, feeds)
    (got,) = tvm_ext.compile(proto, HOST, opt_level="O0").run(feeds).values()
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_sizes_stay_variables_however_many_layers_there_are() -> None:
    size = import_model(layers(15)).mod["main"].ret_ty.shape
    assert size is None or isinstance(size.values[0], tirx.Var)


def test_equal_expressions_become_one_dimension() -> None:
    """Two slices of the same computed place are added without a check of their sizes."""
    proto = layers(1)
    del proto.graph.output[:]
    nodes = [
        node("Slice", ["x", "one", "place0", "zero"], ["a"]),
        node("Relu", ["x"], ["positive"]),
        node("Slice", ["positive", "one", "place0", "zero"], ["b"]),
        node("Add", ["a", "b"], ["y"]),
    ]
    proto.graph.node.extend(nodes)
    proto.graph.output.append(onnx.ValueInfoProto(name="y"))
    text = import_model(proto).mod.script()
    assert text.count("R.shape_to_tensor") == 1
    assert "broadcast" not in text
    assert "agreed" not in text


def test_windows_that_are_rounded_up_behind_each_other() -> None:
    pool = {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}
    nodes = [
        node("MaxPool", ["x"], ["p"], **pool),
        node("Sigmoid", ["p"], ["q"]),
        node("MaxPool", ["q"], ["r"], **pool),
        node("Sigmoid", ["r"], ["s"]),
        node("Add", ["r", "s"], ["y"]),
    ]
    proto = model(nodes, [value("x", ["N", 2, "H", "W"])], [value("y", [None] * 4)])
    compiled = tvm_ext.compile(proto)
    for sides in ((7, 9), (8, 13)):
        x = {"x": rand(1, 2, *sides)}
        np.testing.assert_allclose(compiled.run(x)["y"], by_runtime(proto, x)[0], atol=1e-6)
