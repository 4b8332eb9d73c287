"""Names in bodies of If, Loop and Scan that are names outside of them as well."""

import numpy as np
import onnx
import pytest
from control_flow_models import assert_same, body, loop_body
from one_model import in_one_model
from onnx import TensorProto, helper
from small_models import model, node, rand, value

from tvm_ext.onnx_frontend import prepare_model
from tvm_ext.onnx_frontend.load import load_model
from tvm_ext.onnx_frontend.onnx_graph import (
    defined_names,
    free_names,
    graphs_within,
    names_read,
    subgraphs_of,
)

BOOL, INT64 = TensorProto.BOOL, TensorProto.INT64
X = rand(4, 3)
C, X_IN, Y = value("c", [], BOOL), value("x", ["N", 3]), value("y", None)
BOTH = [{"c": np.array(flag), "x": X} for flag in (True, False)]


def if_node(then: onnx.GraphProto, otherwise: onnx.GraphProto, *outputs: str) -> onnx.NodeProto:
    return node("If", ["c"], list(outputs), then_branch=then, else_branch=otherwise, name="choice")


def test_branches_name_their_values_like_each_other_and_like_the_outputs_of_the_if():
    """As Optimum merges a decoder without past and one with past."""
    then = body([node("Neg", ["x"], ["hidden"]), node("Exp", ["hidden"], ["logits"])], "logits")
    steps = [node("Add", ["x", "w"], ["hidden"]), node("Tanh", ["hidden"], ["logits"])]
    nodes = [if_node(then, body(steps, "logits"), "logits"), node("Abs", ["logits"], ["hidden"])]
    outputs = [value("logits", None), value("hidden", None)]
    assert_same(model(nodes, [C, X_IN], outputs, w=rand(3, seed=1)), *BOTH)


def hides_a_later_read(inner: str) -> onnx.ModelProto:
    then = body([node("Neg", ["x"], [inner]), node("Exp", [inner], ["t"])], "t")
    nodes = [
        node("Sin", ["x"], ["a"]),
        if_node(then, body([node("Mul", ["x", "a"], ["e"])], "e"), "b"),
        node("Add", ["a", "b"], ["y"]),
    ]
    return model(nodes, [C, X_IN], [Y])


def hides_before_it_is_defined(inner: str) -> onnx.ModelProto:
    steps = [node("Exp", [inner], ["t"]), node("Neg", ["x"], [inner])]
    then = body(steps if inner == "a" else steps[::-1], "t")
    nodes = [
        node("Sin", ["x"], ["a"]),
        if_node(then, body([node("Abs", ["x"], ["t"])], "t"), "b"),
        node("Add", ["a", "b"], ["y"]),
    ]
    return model(nodes, [C, X_IN], [Y])


def hides_a_stored_value(inner: str) -> onnx.ModelProto:
    then = body([node("Add", ["x", inner], ["t"])], "t", **{inner: rand(3, seed=2)})
    nodes = [
        if_node(then, body([node("Mul", ["x", "a"], ["t"])], "t"), "b"),
        node("Sub", ["b", "a"], ["y"]),
    ]
    return model(nodes, [C, X_IN], [Y], a=rand(3, seed=1))


def hides_twice(inner: str) -> onnx.ModelProto:
    innermost = body([node("Exp", [inner], ["y1"])], "y1")
    other = body([node("Neg", [inner], ["a2"]), node("Abs", ["a2"], ["y2"])], "y2")
    nested = node("If", ["c2"], ["y3"], then_branch=innermost, else_branch=other, name="nested")
    then = body([node("Neg", ["x"], [inner]), node("Not", ["c"], ["c2"]), nested], "y3")
    nodes = [
        node("Sin", ["x"], ["a"]),
        if_node(then, body([node("Mul", ["a", "a"], ["y4"])], "y4"), "y5"),
        node("Add", ["a", "y5"], ["y"]),
    ]
    return model(nodes, [C, X_IN], [Y])


def two_in_a_row(inner: str) -> onnx.ModelProto:
    def choice(given: str, made: str, name: str, inside: str) -> onnx.NodeProto:
        then = body([node("Neg", [given], [inside]), node("Exp", [inside], ["r1"])], "r1")
        otherwise = body([node("Abs", [given], [inside]), node("Sin", [inside], ["r2"])], "r2")
        return node("If", ["c"], [made], then_branch=then, else_branch=otherwise, name=name)

    nodes = [
        choice("x", "v", "first", inner),
        choice("v", "a", "second", inner if inner == "a" else "x2"),
        node("Add", ["v", "a"], ["y"]),
    ]
    return model(nodes, [C, X_IN], [Y])


def in_a_function(inner: str) -> onnx.ModelProto:
    then = body([node("Neg", ["given"], [inner]), node("Exp", [inner], ["r1"])], "r1")
    otherwise = body([node("Mul", ["given", "a"], ["r2"])], "r2")
    inside = [node("Sin", ["given"], ["a"])]
    inside += [if_node(then, otherwise, "b"), node("Add", ["a", "b"], ["result"])]
    opsets = [helper.make_opsetid("", 17)]
    function = helper.make_function("own", "f", ["given", "c"], ["result"], inside, opsets)
    nodes = [node("f", ["x", "c"], ["a"], domain="own"), node("f", ["a", "c"], ["y"], domain="own")]
    proto = model(nodes, [C, X_IN], [Y])
    proto.functions.append(function)
    proto.opset_import.append(helper.make_opsetid("own", 1))
    return proto


HIDING = [
    *(hides_a_later_read, hides_before_it_is_defined, hides_a_stored_value, hides_twice),
    *(two_in_a_row, in_a_function),
]


@in_one_model
@pytest.mark.parametrize("build", HIDING[:-1])
def test_a_name_that_a_body_defines_hides_the_outer_one(build):
    """ONNX Runtime refuses most of them: it gets the same model with a name of its own there."""
    assert_same(build("a"), *BOTH, reference=build("unique"))


def test_a_name_that_a_body_in_a_function_defines_hides_the_outer_one():
    assert_same(in_a_function("a"), *BOTH, reference=in_a_function("unique"))


@pytest.mark.slow
def test_a_loop_names_its_carried_values_like_outer_values():
    steps = [node("Add", ["x", "w"], ["y"]), node("Mul", ["y", "y"], ["squares"])]
    loop = node("Loop", ["m", "", "x"], ["y", "squares"], body=loop_body(steps, ["x"], "y squares"))
    nodes = [node("Exp", ["z"], ["w"]), loop, node("Add", ["y", "x"], ["i"])]
    inputs = [value("m", [], INT64), X_IN, value("z", [3])]
    outputs = [value("y", None), value("squares", None), value("i", None)]
    feeds = [{"m": np.array(n), "x": X, "z": rand(3, seed=1)} for n in (1, 3)]
    assert_same(model(nodes, inputs, outputs), *feeds)


def scanning(element: str, result: str) -> onnx.ModelProto:
    steps = [node("Add", ["s", element], [result]), node("Mul", [result, "w"], ["p"])]
    given = [value("s", [3]), value(element, [3])]
    inner = helper.make_graph(steps, "body", given, [value(result, [3]), value("p", [3])])
    scan = node("Scan", ["a", "x"], ["last", "all"], body=inner, num_scan_inputs=1)
    nodes = [node("ReduceSum", ["x", "first"], ["a"], keepdims=0), scan]
    numbers = {"first": np.array([0]), "w": rand(3, seed=1)}
    return model(nodes, [X_IN], [value("last", None), value("all", None)], **numbers)


def test_a_scan_names_its_elements_like_what_it_scans():
    assert_same(scanning("x", "a"), {"x": X}, {"x": X[:1]}, reference=scanning("e", "s2"))


def passing_on(copy: bool) -> onnx.ModelProto:
    """Branches that give outer values: as they are, or copies, which ONNX Runtime wants."""

    def side(*names: str) -> onnx.GraphProto:
        copies = [node("Identity", [name], [f"{name}_{name}"]) for name in names]
        return body(copies, *(c.output[0] for c in copies)) if copy else body([], *names)

    nodes = [node("Sin", ["x"], ["a"])]
    nodes += [if_node(side("x", "a", "w"), side("a", "x", "w"), "p", "q", "r")]
    outputs = [value(name, None) for name in ("p", "q", "r", "x")]
    return model(nodes, [C, X_IN], [*outputs, C], w=rand(3, seed=1))


def test_branches_pass_on_outer_values_inputs_and_stored_ones():
    assert_same(passing_on(copy=False), *BOTH, reference=passing_on(copy=True))


def passing_on_in_a_loop(*names: str) -> onnx.ModelProto:
    copies = [node("Identity", ["a"], [name]) for name in names if name != "a"]
    steps = loop_body(copies, ["s"], " ".join(names))
    loop = node("Loop", ["m", "", "x"], ["p", "q"], body=steps)
    nodes, inputs = [node("Sin", ["x"], ["a"]), loop], [value("m", [], INT64), value("x", [4, 3])]
    return model(nodes, inputs, [value("p", None), value("q", None)])


@pytest.mark.slow
def test_a_loop_passes_on_one_outer_value_as_state_and_as_element():
    feeds = [{"m": np.array(n), "x": X} for n in (1, 3)]
    copied = passing_on_in_a_loop("b1", "b2")
    assert_same(passing_on_in_a_loop("a", "a"), *feeds, reference=copied)


def test_what_a_node_reads_leaves_out_what_its_bodies_define():
    prepared = prepare_model(hides_before_it_is_defined("a"))[2]
    (choice,) = (n for n in prepared.graph.node if n.op_type == "If")
    assert list(names_read(choice)) == ["c", "x"]


def test_what_is_free_in_a_body():
    inner = body([node("Add", ["inside", "deep"], ["r"])], "r", "passed")
    outer = body(
        [node("Mul", ["stored", "x"], ["inside"]), if_node(inner, inner, "p", "q")],
        "p",
        stored=rand(3),
    )
    assert list(free_names(outer)) == ["x", "c", "deep", "passed"]
    assert list(defined_names(outer)) == ["stored", "inside", "p", "q"]


@pytest.mark.parametrize("build", HIDING)
def test_loading_leaves_each_name_to_one_value(build):
    loaded = load_model(build("a"))
    for nodes in (loaded.graph, *loaded.functions):
        bodies = [
            graph for n in nodes.node for body in subgraphs_of(n) for graph in graphs_within(body)
        ]
        found = [name for graph in bodies for name in defined_names(graph)]
        found += [name for n in nodes.node for name in n.output]
        assert len(found) == len(set(found))
    assert [v.name for v in loaded.graph.input] == ["c", "x"]
    assert [v.name for v in loaded.graph.output] == ["y"]
