"""Sequences and optionals, which are resolved while a model is read."""

import numpy as np
import onnx
import pytest
from control_flow_models import assert_as_reference
from onnx import TensorProto, helper
from small_models import model, node, rand, value
from unoptimised import HOST

import tvm_ext
from tvm_ext.errors import ModelError
from tvm_ext.onnx_frontend import import_model, prepare_model

INT64, BOOL = TensorProto.INT64, TensorProto.BOOL


@pytest.mark.extended
def test_sequences_of_known_length_leave_no_trace():
    nodes = [
        node("SplitToSequence", ["x"], ["q"], axis=0),
        node("SequenceAt", ["q", "one"], ["a"]),
        node("SequenceInsert", ["q", "a"], ["q2"]),
        node("SequenceErase", ["q2", "zero"], ["q3"]),
        node("ConcatFromSequence", ["q3"], ["y"], axis=0),
        node("SequenceLength", ["q3"], ["n"]),
    ]
    outputs = [value("y", None), value("n", [], INT64)]
    stored = {"one": np.array(1), "zero": np.array(0)}
    proto = model(nodes, [value("x", [4, 3])], outputs, **stored)
    left = {n.op_type for n in prepare_model(proto)[2].graph.node}
    assert not any("Sequence" in name for name in left)
    assert_as_reference(proto, {"x": rand(4, 3)})


@pytest.mark.extended
@pytest.mark.parametrize("opset", [12, 17])
def test_a_sequence_stacked_along_a_new_axis(opset):
    nodes = [
        node("SequenceConstruct", ["x", "w"], ["q"]),
        node("ConcatFromSequence", ["q"], ["y"], axis=-1, new_axis=1),
    ]
    proto = model(nodes, [value("x", [2, 3])], [value("y", None)], opset=opset, w=rand(2, 3))
    assert_as_reference(proto, {"x": rand(2, 3, seed=1)}, levels=["O0"])


def test_a_position_outside_is_refused():
    nodes = [
        node("SplitToSequence", ["x"], ["q"]),
        node("SequenceAt", ["q", "i"], ["y"], name="at"),
    ]
    with pytest.raises(ModelError, match="position 9 in a sequence of 4"):
        import_model(model(nodes, [value("x", [4, 3])], [value("y", None)], i=np.array(9)))


def test_a_loop_that_collects_a_sequence():
    body = helper.make_graph(
        [
            node("Add", ["x", "x"], ["t"]),
            node("SequenceInsert", ["q", "t"], ["q2"]),
            node("Identity", ["c"], ["c2"]),
        ],
        "body",
        [
            value("i", [], INT64),
            value("c", [], BOOL),
            helper.make_tensor_sequence_value_info("q", TensorProto.FLOAT, None),
        ],
        [
            value("c2", [], BOOL),
            helper.make_tensor_sequence_value_info("q2", TensorProto.FLOAT, None),
        ],
    )
    nodes = [
        node("SequenceEmpty", [], ["q0"]),
        node("Loop", ["n", "", "q0"], ["q3"], body=body),
        node("ConcatFromSequence", ["q3"], ["y"], axis=0),
    ]
    proto = model(nodes, [value("x", [2, 3])], [value("y", None)], n=np.array(3))
    assert_as_reference(proto, {"x": rand(2, 3)}, levels=["O0"])


def repeated_rows() -> onnx.ModelProto:
    """``torch.repeat_interleave`` as exporters write it: a loop over pieces of one row each."""
    body = helper.make_graph(
        [
            node("SequenceAt", ["counts", "i"], ["count"]),
            node("SequenceAt", ["rows", "i"], ["row"]),
            node("Unsqueeze", ["row", "one"], ["wide"]),
            node("Concat", ["one", "count", "columns"], ["shape"], axis=0),
            node("Expand", ["wide", "shape"], ["many"]),
            node("Reshape", ["many", "flat"], ["copies"]),
            node("Neg", ["copies"], ["n1"]),
            node("Neg", ["n1"], ["n2"]),
            node("SequenceInsert", ["q", "n2"], ["q2"]),
            node("Identity", ["c"], ["c2"]),
        ],
        "body",
        [
            value("i", [1], INT64),
            value("c", [], BOOL),
            helper.make_tensor_sequence_value_info("q", TensorProto.FLOAT, None),
        ],
        [
            value("c2", [], BOOL),
            helper.make_tensor_sequence_value_info("q2", TensorProto.FLOAT, None),
        ],
    )
    ones = helper.make_tensor("length", INT64, [1], [1])
    nodes = [
        node("Shape", ["d"], ["steps"]),
        node("ConstantOfShape", ["steps"], ["ones"], value=ones),
        node("SplitToSequence", ["d", "ones"], ["counts"], axis=0),
        node("SplitToSequence", ["x", "ones"], ["rows"], axis=-2),
        node("SequenceEmpty", [], ["q0"]),
        node("Loop", ["steps", "", "q0"], ["q3"], body=body),
        node("ConcatFromSequence", ["q3"], ["y"], axis=0),
    ]
    inputs = [value("x", ["rows", 4]), value("d", ["rows"], INT64)]
    stored = {"one": [1], "columns": [4], "flat": [-1, 4]}
    weights = {name: np.array(numbers) for name, numbers in stored.items()}
    return model(nodes, inputs, [value("y", [None, 4])], **weights)


def test_rows_repeated_as_often_as_the_run_says():
    program = tvm_ext.compile(repeated_rows(), target=HOST, opt_level="O0")
    for counts in ([2, 1, 3], [1], [4, 1]):
        x = rand(len(counts), 4)
        found = program.run({"x": x, "d": np.array(counts)})["y"]
        np.testing.assert_array_equal(found, np.repeat(x, counts, axis=0))


def test_optionals_are_a_tensor_or_none():
    float_tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, [2, 3])
    nodes = [
        node("Optional", ["x"], ["o"]),
        node("OptionalHasElement", ["o"], ["has"]),
        node("OptionalGetElement", ["o"], ["y"]),
        node("Optional", [], ["none"], type=float_tensor),
        node("OptionalHasElement", ["none"], ["lacks"]),
    ]
    outputs = [value("y", [2, 3]), value("has", [], BOOL), value("lacks", [], BOOL)]
    proto = model(nodes, [value("x", [2, 3])], outputs, opset=18)
    assert_as_reference(proto, {"x": rand(2, 3)}, levels=["O0"])
