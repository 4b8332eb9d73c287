"""If whose branches give results of different rank: squeezed where a size is 1, or as it is."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from small_models import model, node, rand, value
from unoptimised import HOST

import tvm_ext
from tvm_ext.errors import RunError
from tvm_ext.onnx_frontend import import_model

ONE, OTHER = rand(4, 1, 3), rand(4, 5, 3)
NAMED = ["N", "M", 3]
SIZE = [node("Shape", ["x"], ["sizes"]), node("Gather", ["sizes", "second"], ["size"])]
# Ways to ask whether the second size is 1: each ends in ``c``.
CONDITIONS = {
    "a size": [*SIZE, node("Equal", ["size", "one"], ["c"])],
    "less than two": [*SIZE, node("Less", ["size", "two"], ["c"])],
    "a list of one size": [
        node("Shape", ["x"], ["sizes"]),
        node("Slice", ["sizes", "axes", "end"], ["size"]),
        node("Equal", ["size", "axes"], ["c"]),
    ],
    "not": [*SIZE, node("Greater", ["size", "one"], ["larger"]), node("Not", ["larger"], ["c"])],
}


def branch(operator: str, *inputs: str) -> onnx.GraphProto:
    nodes = [node(operator, list(inputs), ["part"])]
    return helper.make_graph(nodes, "branch", [], [value("part", None)])


def squeeze_or_not(condition: str, shape: list, swapped: bool = False) -> onnx.ModelProto:
    """``exp(x.squeeze(1))`` as exporters write it; the other way round with a Not."""
    sides = [branch("Squeeze", "x", "axes"), branch("Identity", "x")]
    then, otherwise = sides[::-1] if swapped else sides
    nodes = [
        *CONDITIONS[condition],
        node("Not", ["c"], ["not_c"]),
        node(
            "If",
            ["not_c" if swapped else "c"],
            ["y"],
            then_branch=then,
            else_branch=otherwise,
            name="choice",
        ),
        node("Exp", ["y"], ["z"]),
    ]
    numbers = {"second": np.array(1), "one": np.array(1), "two": np.array(2)}
    lists = {"axes": np.array([1]), "end": np.array([2])}
    return model(nodes, [value("x", shape)], [value("z", None)], **numbers, **lists)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("x", [ONE, OTHER], ids=["one", "other"])
def test_known_sizes_leave_the_branch_that_they_choose(condition, swapped, x):
    proto = squeeze_or_not(condition, NAMED, swapped)
    compiled = tvm_ext.compile(proto, HOST, input_shapes={"x": x.shape}, opt_level="O0")
    assert [str(gv.name_hint) for gv in import_model(proto, {"x": x.shape}).mod.functions] == [
        "main"
    ]
    (z,) = compiled.run({"x": x}).values()
    expected = np.exp(x.squeeze(1) if x is ONE else x)
    assert z.shape == expected.shape
    np.testing.assert_allclose(z, expected, rtol=1e-5)


@pytest.mark.parametrize("level", ["O0", "O3"])
@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_size_with_a_name_is_squeezed_and_the_run_names_the_if_when_it_is_not_1(condition, level):
    for swapped in (False, True):
        compiled = tvm_ext.compile(squeeze_or_not(condition, NAMED, swapped), HOST, opt_level=level)
        (z,) = compiled.run({"x": ONE}).values()
        np.testing.assert_allclose(z, np.exp(ONE.squeeze(1)), rtol=1e-5)
        side, other = ("then", "else") if swapped else ("else", "then")
        reason = f"If node 'choice' chose its {side} branch, which gives a value of rank 3; the "
        reason += f"model is compiled for the {other} branch, which squeezes it to rank 2"
        with pytest.raises(RunError, match=reason) as raised:
            compiled.run({"x": OTHER})
        assert "\n" not in str(raised.value)
        (z,) = compiled.run({"x": ONE}).values()
        np.testing.assert_allclose(z, np.exp(ONE.squeeze(1)), rtol=1e-5)


def test_sizes_with_names_that_cannot_be_1_leave_the_branch_without_squeeze():
    nodes = [
        node("Concat", ["x", "x"], ["twice"], axis=1),
        node("Shape", ["twice"], ["sizes"]),
        node("Gather", ["sizes", "axis"], ["size"]),
        node("Equal", ["size", "axis"], ["c"]),
        node(
            "If",
            ["c"],
            ["y"],
            then_branch=branch("Squeeze", "twice", "axes"),
            else_branch=branch("Identity", "twice"),
        ),
    ]
    axis = {"axis": np.array(1), "axes": np.array([1])}
    compiled = tvm_ext.compile(model(nodes, [value("x", NAMED)], [value("y", None)], **axis), HOST)
    for x in (ONE, OTHER):
        np.testing.assert_array_equal(compiled.run({"x": x})["y"], np.concatenate([x, x], 1))


def test_a_condition_of_one_element_that_the_run_is_given():
    nodes = [
        node(
            "If",
            ["c"],
            ["y"],
            then_branch=branch("Neg", "x"),
            else_branch=branch("Identity", "x"),
        )
    ]
    inputs = [value("c", [1], TensorProto.BOOL), value("x", NAMED)]
    compiled = tvm_ext.compile(model(nodes, inputs, [value("y", None)]), HOST, opt_level="O0")
    for chosen, expected in ((True, -ONE), (False, ONE)):
        np.testing.assert_array_equal(
            compiled.run({"c": np.array([chosen]), "x": ONE})["y"], expected
        )
