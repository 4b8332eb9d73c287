"""Models that onnx's checker or strict inference refuses, and that ONNX Runtime runs."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from operator_models import by_runtime
from small_models import model, node, rand, value
from small_models import model as model_of
from small_models import value as tensor
from unoptimised import HOST

import tvm_ext
from tvm_ext.errors import ModelError

X = np.array([-1, 2], np.float32)


def branch(operator: str, output: onnx.ValueInfoProto) -> onnx.GraphProto:
    return helper.make_graph([node(operator, ["x"], [output.name])], operator, [], [output])


def choice(then_output: onnx.ValueInfoProto, else_output: onnx.ValueInfoProto) -> onnx.ModelProto:
    chosen = node(
        "If", ["c"], ["y"], then_branch=branch("Neg", then_output),
        else_branch=branch("Relu", else_output),
    )  # fmt: skip
    inputs = [tensor("c", [], TensorProto.BOOL), tensor("x", [2])]
    return model_of([chosen], inputs, [tensor("y", None)])


def assert_chooses(proto: onnx.ModelProto) -> None:
    compiled = tvm_ext.compile(proto, HOST)
    assert compiled.run({"c": np.array(True), "x": X})["y"].tolist() == [1, -2]
    assert compiled.run({"c": np.array(False), "x": X})["y"].tolist() == [0, 2]


def test_branch_outputs_without_a_type() -> None:
    untyped = onnx.ValueInfoProto(name="a")
    proto = choice(untyped, onnx.ValueInfoProto(name="b"))
    before = proto.SerializeToString()
    assert_chooses(proto)
    assert proto.SerializeToString() == before


def test_branch_outputs_of_a_wrong_rank() -> None:
    assert_chooses(choice(tensor("a", [2, 2, 1]), tensor("b", [])))


def test_inner_value_of_a_wrong_shape() -> None:
    nodes = [node("Neg", ["x"], ["a"]), node("Relu", ["a"], ["y"])]
    proto = model_of(nodes, [tensor("x", [2])], [tensor("y", [2])])
    proto.graph.value_info.append(tensor("a", [7, 7]))
    assert tvm_ext.compile(proto, HOST).run({"x": X})["y"].tolist() == [1, 0]


@pytest.mark.extended
@pytest.mark.parametrize("written", [[7, 7], [1], []])
def test_output_of_a_wrong_shape(written: list) -> None:
    nodes = [node("Neg", ["x"], ["a"]), node("Relu", ["a"], ["y"])]
    proto = model_of(nodes, [tensor("x", ["n"])], [tensor("y", written), tensor("a", ["n", 2])])
    compiled = tvm_ext.compile(proto, HOST)
    assert compiled.run({"x": X})["y"].tolist() == [1, 0]
    assert "shapes written in the model contradict" in compiled.report.warnings[0]


def test_output_and_inner_value_without_a_type() -> None:
    nodes = [node("Neg", ["x"], ["a"]), node("Relu", ["a"], ["y"])]
    proto = model_of(nodes, [tensor("x", [2])], [onnx.ValueInfoProto(name="y")])
    proto.graph.value_info.append(onnx.ValueInfoProto(name="a"))
    assert tvm_ext.compile(proto, HOST).run({"x": X})["y"].tolist() == [1, 0]


def test_column_plus_row_of_integers() -> None:
    column, row = np.arange(5).reshape(5, 1), np.arange(3)
    nodes = [
        node("Unsqueeze", ["flat", "one"], ["column"]),
        node("Add", ["column", "row"], ["places"]),
        node("Gather", ["x", "places"], ["y"]),
    ]
    stored = {"flat": np.arange(5), "one": np.array([1]), "row": row}
    proto = model_of(nodes, [tensor("x", [7])], [tensor("y", [5, 3])], **stored)
    x = np.linspace(0, 1, 7, dtype=np.float32)
    np.testing.assert_array_equal(tvm_ext.compile(proto, HOST).run({"x": x})["y"], x[column + row])


def test_loop_body_that_declares_a_wrong_shape() -> None:
    body = helper.make_graph(
        [node("Identity", ["go"], ["on"]), node("Neg", ["v"], ["w"])],
        "body",
        [tensor("n", [], TensorProto.INT64), tensor("go", [], TensorProto.BOOL), tensor("v", [2])],
        [tensor("on", [], TensorProto.BOOL), tensor("w", [2, 2])],
    )
    nodes = [node("Loop", ["count", "", "x"], ["y"], name="again", body=body)]
    proto = model_of(nodes, [tensor("x", [2])], [tensor("y", [2])], count=np.array(3))
    x = np.array([1.5, -2], np.float32)
    np.testing.assert_array_equal(tvm_ext.compile(proto, HOST).run({"x": x})["y"], -x)


def test_types_that_do_not_fit_are_still_refused() -> None:
    nodes = [node("Add", ["x", "w"], ["y"])]
    stored = {"w": np.ones(2, np.int64)}
    proto = model_of(nodes, [tensor("x", [2])], [tensor("y", [2])], **stored)
    with pytest.raises(ModelError, match="is not a valid ONNX model"):
        tvm_ext.compile(proto)


def test_shapes_that_do_not_fit_are_still_refused() -> None:
    nodes = [node("MatMul", ["x", "w"], ["y"])]
    stored = {"w": np.ones((3, 4), np.float32)}
    proto = model_of(nodes, [tensor("x", [2, 5])], [tensor("y", [2, 4])], **stored)
    with pytest.raises(ModelError, match="is not a valid ONNX model"):
        tvm_ext.compile(proto)


def test_mean_variance_normalization_without_axes() -> None:
    proto = model_of(
        [node("MeanVarianceNormalization", ["x"], ["y"])],
        [tensor("x", [2, 3, 4, 5])],
        [tensor("y", [2, 3, 4, 5])],
    )
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 5)).astype(np.float32)
    mean, deviation = x.mean((0, 2, 3), keepdims=True), x.std((0, 2, 3), keepdims=True)
    found = tvm_ext.compile(proto, HOST).run({"x": x})["y"]
    np.testing.assert_allclose(found, (x - mean) / deviation, rtol=1e-5, atol=1e-6)


@pytest.mark.extended
def test_a_loop_whose_body_declares_the_sizes_of_its_first_iteration() -> None:
    body = helper.make_graph(
        [
            node("Identity", ["going"], ["goes_on"]),
            node("Concat", ["rows", "x"], ["longer"], axis=0),
        ],
        "body",
        [
            value("i", [], TensorProto.INT64),
            value("going", [], TensorProto.BOOL),
            value("rows", [0, 3]),
        ],
        [value("goes_on", [], TensorProto.BOOL), value("longer", ["many", 3])],
    )
    proto = model(
        [
            node("Loop", ["count", "", "none"], ["all"], body=body),
            node("Shape", ["all"], ["sizes"]),
            node("Unsqueeze", ["all", "axis"], ["y"]),
        ],
        [value("x", [1, 3]), value("count", [], TensorProto.INT64)],
        [value("y", ["a", "b", "c"]), value("sizes", [2], TensorProto.INT64)],
        none=np.zeros((0, 3), np.float32),
        axis=np.array([1]),
    )
    compiled = tvm_ext.compile(proto, HOST, opt_level="O0")
    for count in (1, 4):
        feed = {"x": rand(1, 3), "count": np.array(count)}
        found = list(compiled.run(feed).values())
        assert found[0].shape == (count, 1, 3)
        for ours, theirs in zip(found, by_runtime(proto, feed), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_an_inner_value_that_is_declared_empty() -> None:
    proto = model(
        [node("Relu", ["x"], ["r"]), node("Shape", ["r"], ["sizes"])],
        [value("x", ["rows", 3])],
        [value("sizes", [2], TensorProto.INT64)],
    )
    proto.graph.value_info.append(value("r", [0, 3]))
    found = tvm_ext.compile(proto, HOST, opt_level="O0").run({"x": rand(4, 3)})
    np.testing.assert_array_equal(found["sizes"], [4, 3])
