"""Squeeze without axes of sizes that only the run knows: it takes those that are 1."""

import numpy as np
import onnx
import pytest
from control_flow_models import assert_same
from small_models import model, node, rand, value
from unoptimised import HOST

import tvm_ext
from tvm_ext.errors import ModelError, RunError
from tvm_ext.onnx_frontend import import_model


def squeezed(shape: list, *behind: onnx.NodeProto, opset: int = 17) -> onnx.ModelProto:
    nodes = [node("Squeeze", ["x"], ["s"], name="squeeze"), *behind]
    weights = {"axis": np.array([0])} if behind else {}
    return model(nodes, [value("x", shape)], [value(nodes[-1].output[0], None)], opset, **weights)


BEHIND = (
    node("Exp", ["s"], ["e"]),
    node("Unsqueeze", ["e", "axis"], ["u"]),
    node("ReduceSum", ["u"], ["t"], keepdims=0),
    node("Neg", ["t"], ["y"]),
)


@pytest.mark.parametrize("opset", [11, 17])
def test_a_symbolic_size_is_squeezed_where_it_is_1(opset):
    proto = squeezed(["n", 1, 3], opset=opset)
    assert_same(proto, {"x": rand(4, 1, 3)}, {"x": rand(1, 1, 3)})


@pytest.mark.extended
def test_what_follows_reads_either_rank():
    proto = squeezed(["n", 1, 3], *BEHIND)
    assert_same(proto, {"x": rand(4, 1, 3)}, {"x": rand(1, 1, 3)})


@pytest.mark.extended
def test_two_symbolic_sizes_are_two_choices():
    proto = squeezed(["n", 2, "m"], *BEHIND)
    shapes = [(4, 2, 5), (1, 2, 5), (4, 2, 1), (1, 2, 1)]
    assert_same(proto, *({"x": rand(*shape)} for shape in shapes))


@pytest.mark.extended
def test_one_size_on_two_axes_is_one_choice():
    proto = squeezed(["n", 2, "n"], *BEHIND[:1])
    assert_same(proto, {"x": rand(4, 2, 4)}, {"x": rand(1, 2, 1)})
    names = [str(gv.name_hint) for gv in import_model(proto).mod.functions]
    assert len([name for name in names if name.endswith("_if")]) == 1


def test_a_size_that_is_never_1_is_no_choice():
    nodes = [
        node("Concat", ["x", "x", "z"], ["c"], axis=0),
        node("Squeeze", ["c"], ["y"]),
    ]
    proto = model(nodes, [value("x", ["n", 1])], [value("y", None)], z=rand(2, 1))
    assert len(import_model(proto).mod.functions) == 1
    assert_same(proto, {"x": rand(4, 1)}, {"x": rand(1, 1)})


def test_more_symbolic_sizes_than_can_be_written_out_are_refused():
    proto = squeezed(["a", "b", "c", "d"])
    with pytest.raises(ModelError, match=r"Squeeze node 'squeeze' .*depends on 4 sizes"):
        tvm_ext.compile(proto)


@pytest.mark.slow
def test_two_of_them_that_meet_are_chosen_together():
    """In a batch of 1 both have one axis only, and axis 1 cannot be split: as in ONNX Runtime."""
    nodes = [
        node("Squeeze", ["x"], ["a"], name="first"),
        node("Squeeze", ["z"], ["b"], name="second"),
        node("Split", ["a", "parts"], ["p", "q"], axis=1),
        node("Split", ["b", "parts"], ["r", "s"], axis=1),
        node("Concat", ["q", "r"], ["y"], axis=1),
        node("Add", ["s", "q"], ["w"]),
    ]
    inputs = [value("x", ["n", 1, 3]), value("z", ["n", 1, 3])]
    outputs = [value("y", None), value("w", None)]
    proto = model(nodes, inputs, outputs, parts=np.array([1, 2]))
    assert_same(proto, {"x": rand(4, 1, 3), "z": rand(4, 1, 3)})
    with pytest.raises(RunError, match="cannot be run with the shapes"):
        tvm_ext.compile(proto, HOST, opt_level="O0").run({"x": rand(1, 1, 3), "z": rand(1, 1, 3)})
