"""Gathers and scatters by element and by coordinate: as specified, and never outside their data."""

import numpy as np
import onnx
import pytest
from combinations import pairwise
from one_model import in_one_model, run_model
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from operator_models import by_runtime
from opt_levels import levels_of
from small_models import model, node, rand, value
from unoptimised import HOST

import tvm_ext

X = np.arange(12, dtype=np.float32).reshape(3, 4)
CASES = {
    "GatherElements": ({"axis": 1}, [[0, -1], [3, -4], [2, 1]], [4, 4], None),
    "GatherND": ({}, [[0, 3], [-1, -4]], [3, 4], None),
    "ScatterElements": ({"axis": 0}, [[0, -1, 2], [1, -3, -2]], [3, 3], (2, 3)),
    "ScatterND": ({}, [[0, 3], [-1, -4]], [3, 4], (2,)),
}


def case(operator: str, indices: np.ndarray, stored: bool) -> tuple[onnx.ModelProto, dict]:
    attributes, _, _, update_shape = CASES[operator]
    feeds = {"x": X, "i": indices}
    if update_shape is not None:
        feeds["u"] = 100 + np.arange(np.prod(update_shape), dtype=np.float32).reshape(update_shape)
    weights = [numpy_helper.from_array(feeds.pop("i"), "i")] if stored else []
    inputs = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype), list(array.shape)
        )
        for name, array in feeds.items()
    ]
    names = ["x", "i"] + (["u"] if update_shape is not None else [])
    nodes = [helper.make_node(operator, names, ["y"], **attributes)]
    outputs = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "small", inputs, outputs, weights)
    opsets = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9), feeds


@in_one_model
@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("operator", CASES)
def test_inside_as_the_reference(operator: str, stored: bool) -> None:
    proto, feeds = case(operator, np.array(CASES[operator][1], np.int64), stored)
    (wanted,) = ReferenceEvaluator(proto).run(None, feeds)
    for level in levels_of(proto):
        found = run_model(proto, feeds, level)["y"]
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.extended
@in_one_model
@pairwise(stored=[True, False], far=[3 * 10**9, -3 * 10**9], operator=CASES)
def test_outside_takes_the_nearest_element(operator: str, far: int, stored: bool) -> None:
    indices = np.array(CASES[operator][1], np.int64)
    indices[0, 0] = far
    nearest = indices.copy()
    size = CASES[operator][2][0]
    nearest[0, 0] = size - 1 if far > 0 else -size
    wanted_of, feeds = case(operator, nearest, True)
    (wanted,) = ReferenceEvaluator(wanted_of).run(None, {k: feeds[k] for k in feeds if k != "i"})
    proto, feeds = case(operator, indices, stored)
    found = run_model(proto, feeds)["y"]
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("operator", ["GatherElements", "GatherND"])
def test_indices_beyond_data_of_symbolic_sizes_read_the_nearest_element(operator: str) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    if operator == "GatherElements":
        indices, attributes = np.array([[9, -1], [-9, 1]]), {"axis": 1}
        wanted = [[x[0, 3], x[0, 3]], [x[1, 0], x[1, 1]]]
    else:
        indices, attributes = np.array([[9, -1], [-9, 9]]), {}
        wanted = [x[2, 3], x[0, 3]]
    call = helper.make_node(operator, ["x", "i"], ["y"], **attributes)
    infos = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["a", "b"]),
        helper.make_tensor_value_info("i", TensorProto.INT64, ["n", 2]),
    ]
    graph = helper.make_graph([call], "small", infos, [onnx.ValueInfoProto(name="y")])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    for level in levels_of(proto):
        found = run_model(proto, {"x": x, "i": indices}, level)["y"]
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("axis", [{"axis": 1}, {}])
def test_flags_beyond_the_end_select_nothing(axis, capfd):
    nodes = [node("Compress", ["x", "flags"], ["y"], **axis)]
    inputs = [value("x", ["A", "B"]), value("flags", ["F"], TensorProto.BOOL)]
    proto = model(nodes, inputs, [value("y", None)])
    compiled = tvm_ext.compile(proto, HOST, opt_level="O0")
    x = rand(3, 4)
    for count in (2, 4, 12, 40):
        feeds = {"x": x, "flags": np.arange(count) % 3 != 1}
        np.testing.assert_array_equal(compiled.run(feeds)["y"], by_runtime(proto, feeds)[0])
    assert "segfault" not in capfd.readouterr().err
