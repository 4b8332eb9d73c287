"""Models of some nodes of a model compute what these nodes compute in the whole one."""

from itertools import product

import numpy as np
import onnx
import pytest
from control_flow_models import body, loop_body
from host_models import classifier
from onnx import TensorProto, helper
from small_models import model, node, value

from tvm_ext.check.reference import run_reference
from tvm_ext.check.tolerance import compare, plain_arrays
from tvm_ext.onnx_frontend import read_model
from tvm_ext.onnx_frontend.submodel import Submodels, typed_model
from tvm_ext.onnx_frontend.weights import StoredWeights

X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)


def reshaped() -> onnx.ModelProto:
    """Two outputs, a list of sizes from an input's, a node with two results."""
    nodes = [
        node("Shape", ["x"], ["s"], name="shape"),
        node("Gather", ["s", "first"], ["rows"], name="rows"),
        node("Concat", ["rows", "two", "two"], ["sizes"], name="sizes", axis=0),
        node("Exp", ["x"], ["e"], name="exp"),
        node("Reshape", ["e", "sizes"], ["r"], name="reshape"),
        node("Split", ["r"], ["a", "b"], name="split", axis=1, num_outputs=2),
        node("Sub", ["a", "b"], ["y"], name="sub"),
        node("Tanh", ["e"], ["t"], name="tanh"),
        node("Abs", ["y"], ["u"], name="abs"),
    ]
    outputs = [value(name, None) for name in "ytu"]
    stored = {"first": np.array([0]), "two": np.array([2])}
    return model(nodes, [value("x", ["N", 4])], outputs, opset=18, **stored)


def listed() -> onnx.ModelProto:
    """A sequence, and a constant that is a node."""
    one = helper.make_tensor("c", TensorProto.INT64, [], [1])
    nodes = [
        node("Constant", [], ["one"], value=one),
        node("SplitToSequence", ["x"], ["q"], name="split", axis=1),
        node("SequenceAt", ["q", "one"], ["second"], name="at"),
        node("ConcatFromSequence", ["q"], ["all"], name="concat", axis=0),
        node("Mul", ["all", "all"], ["y"], name="mul"),
    ]
    return model(nodes, [value("x", ["N", 4])], [value("y", None), value("second", None)])


def branching() -> onnx.ModelProto:
    """An If whose branches read values of the graph, and a Loop."""
    then = body([node("Mul", ["d", "d"], ["then"], name="square")], "then")
    other = body([node("Add", ["d", "x"], ["other"], name="add")], "other")
    steps = loop_body(
        [node("Add", ["carried", "d"], ["sum"], name="sum"), node("Identity", ["sum"], ["kept"])],
        ["carried"],
        "sum kept",
    )
    nodes = [
        node("Add", ["x", "x"], ["d"], name="double"),
        node("ReduceSum", ["d"], ["total"], name="total", keepdims=0),
        node("Greater", ["total", "limit"], ["high"], name="high"),
        node("If", ["high"], ["chosen"], name="if", then_branch=then, else_branch=other),
        node("Loop", ["three", "", "chosen"], ["last", "sums"], name="loop", body=steps),
    ]
    outputs = [value("last", None), value("sums", None)]
    stored = {"limit": np.float32(1), "three": np.array(3)}
    return model(nodes, [value("x", [3, 4])], outputs, **stored)


def with_values(given: onnx.ModelProto, inputs: dict) -> tuple[onnx.ModelProto, dict]:
    """The model as it is reduced, and everything that ONNX Runtime computes in it."""
    whole = typed_model(read_model(given))
    everything = Submodels(whole, inputs, StoredWeights())
    names = [name for node in everything.nodes for name in node.output]
    exposed = everything.all(names)
    return whole, {**inputs, **run_reference(exposed.model, inputs, optimise=False)}


def assert_same_values(submodel, values: dict) -> None:
    onnx.checker.check_model(submodel.model)
    found = run_reference(submodel.model, submodel.inputs, optimise=False)
    assert found
    wanted = plain_arrays({name: values[name] for name in found})
    assert all(one.ok for one in compare(plain_arrays(found), wanted, 1e-6))


@pytest.mark.extended
@pytest.mark.parametrize("make", [reshaped, listed, branching, lambda: classifier(["a", "b"])])
def test_any_run_of_nodes_computes_what_it_does_in_the_whole_model(make):
    x = X[:, :3] if make not in (reshaped, listed, branching) else X
    whole, values = with_values(make(), {"x": x})
    for frozen, ends_only in product((True, False), repeat=2):
        submodels = Submodels(whole, values, StoredWeights(), frozen, ends_only)
        count = len(submodels.nodes)
        for start, end in product(range(count), range(1, count + 1)):
            if start < end:
                assert_same_values(submodels.of(range(start, end)), values)


def chosen(whole: onnx.ModelProto, *names: str) -> list[int]:
    nodes = (node for node in whole.graph.node if node.op_type != "Constant")
    return [place for place, node in enumerate(nodes) if node.name in names]


def sizes(graph: onnx.GraphProto) -> dict[str, list[int | str]]:
    return {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in graph.input
    }


def test_lists_of_sizes_are_stored_and_other_values_are_fed_with_their_sizes_or_those_of_the_run():
    whole, values = with_values(reshaped(), {"x": X})
    symbolic, frozen = (
        Submodels(whole, values, StoredWeights(), frozen).of(chosen(whole, "reshape", "tanh"))
        for frozen in (False, True)
    )
    assert sizes(symbolic.model.graph) == {"e": ["N", 4]}
    assert sizes(frozen.model.graph) == {"e": [3, 4]}
    for one in (symbolic, frozen):
        assert list(one.inputs) == ["e"]
        assert [tensor.name for tensor in one.model.graph.initializer] == ["sizes"]
        assert [output.name for output in one.model.graph.output] == ["r", "t"]


def test_nodes_that_nothing_is_left_of_go():
    whole, values = with_values(reshaped(), {"x": X})
    submodels = Submodels(whole, values, StoredWeights(), frozen=True)
    names = ("shape", "rows", "sizes", "exp", "tanh")
    assert submodels.of(chosen(whole, *names)).places == tuple(chosen(whole, "exp", "tanh"))
    alone = submodels.of(chosen(whole, "shape"))
    assert [output.name for output in alone.model.graph.output] == ["s"]
    assert submodels.of([]) is None


def test_outputs_that_are_read_as_well_can_be_left_out():
    whole, values = with_values(reshaped(), {"x": X})
    for ends_only, outputs in ((False, ["y", "u"]), (True, ["u"])):
        submodels = Submodels(whole, values, StoredWeights(), True, ends_only)
        found = submodels.of(chosen(whole, "sub", "abs")).model.graph.output
        assert [output.name for output in found] == outputs


def test_what_the_run_has_no_value_for_cannot_be_fed():
    whole = typed_model(read_model(reshaped()))
    submodels = Submodels(whole, {"x": X}, StoredWeights())
    assert submodels.of(chosen(whole, "tanh")) is None
    assert submodels.of(chosen(whole, "exp", "tanh")) is not None


def test_bodies_run_as_they_do_first():
    whole, values = with_values(branching(), {"x": X})
    submodels = Submodels(whole, values, StoredWeights(), frozen=True)
    (branch,), (loop,) = chosen(whole, "if"), chosen(whole, "loop")
    taken = submodels.of_body(branch)
    # The sum of x is 0.
    assert [node.name for node in taken.model.graph.node] == ["add"]
    assert_same_values(taken, {"other": values["chosen"]})
    first = submodels.of_body(loop)
    found = run_reference(first.model, first.inputs)
    np.testing.assert_array_equal(found["sum"], values["sums"][0])
    assert submodels.of_body(chosen(whole, "double")[0]) is None


def test_a_scan_starts_where_it_starts():
    steps = helper.make_graph(
        [node("Add", ["state", "row"], ["next"], name="add"), node("Identity", ["next"], ["o"])],
        "steps",
        [value("state", [4]), value("row", [4])],
        [value("next", [4]), value("o", [4])],
    )
    scan = node("Scan", ["zero", "x"], ["last", "all"], name="scan", body=steps,
                num_scan_inputs=1, scan_input_directions=[1])  # fmt: skip
    outputs = [value("last", [4]), value("all", [3, 4])]
    given = model([scan], [value("x", [3, 4])], outputs, zero=np.zeros(4, np.float32))
    whole, values = with_values(given, {"x": X})
    first = Submodels(whole, values, StoredWeights()).of_body(0)
    np.testing.assert_array_equal(run_reference(first.model, first.inputs)["o"], X[-1])
