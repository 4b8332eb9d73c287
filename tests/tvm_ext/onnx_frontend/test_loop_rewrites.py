"""Sequences whose length only the run knows, between the loops that make them and read them."""

import numpy as np
import onnx
import pytest
from control_flow_models import assert_same, loop_body
from one_model import in_one_model
from onnx import TensorProto, helper
from small_models import model, node, rand, value

from tvm_ext.onnx_frontend import prepare_model

X = value("x", ["N", 3])
FEEDS = [{"x": rand(rows, 3)} for rows in (1, 4, 7)]
STORED = {"zero": np.array(0), "one": np.array(1), "axes": np.array([0])}
ROWS = [node("Shape", ["x"], ["sizes"]), node("Gather", ["sizes", "zero"], ["n"], axis=0)]
ROW = [node("Gather", ["x", "i"], ["row"], axis=0), node("Exp", ["row"], ["element"])]
FIRST_ROWS = [
    node("Add", ["i", "one"], ["next"]),
    node("Unsqueeze", ["next", "axes"], ["end"]),
    node("Slice", ["x", "axes", "end", "axes"], ["element"]),
]


def appending(steps: list[onnx.NodeProto], *readers: onnx.NodeProto) -> onnx.ModelProto:
    """A loop over the rows of ``x`` that appends ``element``; ``readers`` make ``y`` of ``all``."""
    insert = node("SequenceInsert", ["list", "element"], ["longer"])
    inner = loop_body([*steps, insert], ["list", "s"], "longer s2")
    inner.node.insert(0, node("Add", ["s", "one"], ["s2"]))
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    inner.input[2].type.CopyFrom(kind)
    inner.output[1].type.CopyFrom(kind)
    inner.input[3].type.tensor_type.elem_type = TensorProto.INT64
    inner.output[2].type.tensor_type.elem_type = TensorProto.INT64
    loop = node("Loop", ["n", "", "empty", "zero"], ["all", "count"], body=inner, name="loop")
    nodes = [*ROWS, node("SequenceEmpty", [], ["empty"]), loop, *readers]
    outputs = [value("y", None), value("count", [], TensorProto.INT64)]
    return model(nodes, [X], outputs, **STORED)


def joined(axis: int, new_axis: int) -> onnx.NodeProto:
    return node("ConcatFromSequence", ["all"], ["y"], axis=axis, new_axis=new_axis)


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize(
    ("axis", "new_axis"),
    [(0, 1), pytest.param(1, 1, marks=pytest.mark.slow), (-1, 1), (0, 0), (-1, 0)],
)
def test_what_a_loop_appends_is_stacked_or_joined(axis, new_axis):
    proto = appending(ROW, joined(axis, new_axis))
    assert_same(proto, *FEEDS, levels=["O0"])
    left = {n.op_type for n in prepare_model(proto).prepared.graph.node}
    assert not any("Sequence" in name for name in left)


def test_elements_of_several_lengths_are_joined():
    assert_same(appending(FIRST_ROWS, joined(0, 0)), *FEEDS)


@pytest.mark.extended
def test_one_element_of_what_a_loop_appended():
    last = node("SequenceAt", ["all", "minus"], ["last"])
    proto = appending(ROW, node("Constant", [], ["minus"], value_int=-1), last)
    proto.graph.node.append(node("Neg", ["last"], ["y"]))
    assert_same(proto, *FEEDS, levels=["O0"])


@pytest.mark.slow
@in_one_model
@pytest.mark.parametrize("keepdims", [0, 1])
def test_a_loop_over_the_parts_of_a_tensor(keepdims):
    steps = [node("SequenceAt", ["parts", "i"], ["part"]), node("Add", ["s", "part"], ["s2"])]
    loop = node("Loop", ["n", "", "start"], ["y", "ys"], body=loop_body(steps, ["s"], "s2 part"))
    split = node("SplitToSequence", ["x"], ["parts"], axis=0, keepdims=keepdims)
    nodes = [split, node("SequenceLength", ["parts"], ["n"]), loop]
    start = np.zeros((1, 3) if keepdims else 3, np.float32)
    proto = model(nodes, [X], [value("y", None), value("ys", None)], start=start)
    assert_same(proto, *FEEDS, levels=["O0"])


def test_a_loop_over_parts_of_several_rows():
    """As ``for part in x.split(3)`` is exported; the last part may be shorter, or the only one."""
    steps = [
        node("SequenceAt", ["parts", "i"], ["part"]),
        node("CumSum", ["part", "zero"], ["element"]),
        node("SequenceInsert", ["list", "element"], ["longer"]),
    ]
    inner = loop_body(steps, ["list"], "longer")
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    for described in (inner.input[2], inner.output[1]):
        described.type.CopyFrom(kind)
    nodes = [
        node("SplitToSequence", ["x", "three"], ["parts"], axis=0),
        node("SequenceLength", ["parts"], ["n"]),
        node("SequenceEmpty", [], ["empty"]),
        node("Loop", ["n", "", "empty"], ["all"], body=inner),
        joined(0, 0),
        node("SequenceAt", ["parts", "minus"], ["last"]),
        node("ConcatFromSequence", ["parts"], ["whole"], axis=0),
    ]
    stored = {"zero": np.array(0), "three": np.array(3), "minus": np.array(-1)}
    outputs = [value("y", None), value("last", None), value("whole", None)]
    outputs.append(value("n", [], TensorProto.INT64))
    proto = model(nodes, [X], outputs, **stored)
    assert_same(proto, *FEEDS, {"x": rand(6, 3)}, levels=["O0"])
    left = {n.op_type for n in prepare_model(proto).prepared.graph.node}
    assert not any("Sequence" in name for name in left)


def test_parts_along_a_later_axis_are_put_together_again():
    nodes = [
        node("Transpose", ["x"], ["t"]),
        node("SplitToSequence", ["t"], ["parts"], axis=1, keepdims=1),
        node("ConcatFromSequence", ["parts"], ["y"], axis=-1),
    ]
    assert_same(model(nodes, [X], [value("y", None)]), *FEEDS, levels=["O0"])


@pytest.mark.slow
def test_rows_summed_bag_by_bag():
    """As torch.export writes an EmbeddingBag: bounds of slices are slices at a carried place."""
    steps = [
        node("Reshape", ["at", "minus"], ["place"]),
        node("Add", ["place", "one"], ["following"]),
        node("Slice", ["bounds", "place", "following"], ["start"]),
        node("Add", ["following", "one"], ["after"]),
        node("Slice", ["bounds", "following", "after"], ["end"]),
        node("Slice", ["x", "start", "end"], ["rows"]),
        node("ReduceSum", ["rows", "axes"], ["element"], keepdims=1),
        node("SequenceInsert", ["list", "element"], ["longer"]),
        node("Add", ["at", "one"], ["at2"]),
        node("Less", ["at2", "bags"], ["more"]),
    ]
    inner = helper.make_graph(
        steps,
        "body",
        [
            value("i", [], TensorProto.INT64),
            value("go", [], TensorProto.BOOL),
            onnx.ValueInfoProto(name="at"),
            onnx.ValueInfoProto(name="list"),
        ],
        [onnx.ValueInfoProto(name=name) for name in ("more", "at2", "longer")],
    )
    nodes = [
        node("Size", ["offsets"], ["bags"]),
        node("Shape", ["x"], ["sizes"]),
        node("Slice", ["sizes", "axes", "axes1"], ["rows_in_all"]),
        node("Concat", ["offsets", "rows_in_all"], ["bounds"], axis=0),
        node("SequenceEmpty", [], ["empty"]),
        node("Less", ["zero", "bags"], ["some"]),
        node("Loop", ["", "some", "zero", "empty"], ["last", "all"], body=inner),
        joined(0, 0),
    ]
    inputs = [X, value("offsets", ["B"], TensorProto.INT64)]
    stored = STORED | {"minus": np.array([-1]), "axes1": np.array([1])}
    proto = model(nodes, inputs, [value("y", None)], **stored)
    feeds = [
        {"x": rand(7, 3), "offsets": np.array([0, 2, 5])},
        {"x": rand(4, 3), "offsets": np.array([0, 1])},
    ]
    assert_same(proto, *feeds)
    left = {n.op_type for n in prepare_model(proto).prepared.graph.node}
    assert not any("Sequence" in name for name in left)


def backtracking(size: object) -> onnx.ModelProto:
    """The best path through ``x`` (Viterbi): a list of pointers, read from behind into another.

    The sizes that the bodies declare for what they carry are those of the run, without a name.
    """
    forward = loop_body(
        [
            node("Slice", ["best", "begin", "end", "begin", "one1"], ["whole"]),
            node("Unsqueeze", ["whole", "axis2"], ["apart"]),
            node("Add", ["apart", "costs"], ["all"]),
            node("ReduceMax", ["all"], ["highest"], axes=[1], keepdims=0),
            node("ArgMax", ["all"], ["from"], axis=1, keepdims=0),
            node("Add", ["highest", "gain"], ["best2"]),
            node("SequenceInsert", ["list", "from"], ["longer"]),
        ],
        ["best", "list"],
        "best2 longer",
    )
    backward = loop_body(
        [
            node("Sub", ["count", "one"], ["last"]),
            node("Sub", ["last", "i"], ["place"]),
            node("SequenceAt", ["pointers", "place"], ["row"]),
            node("Unsqueeze", ["at", "one1"], ["column"]),
            node("GatherElements", ["row", "column"], ["found"], axis=1),
            node("Squeeze", ["found", "one1"], ["at2"]),
            node("SequenceInsert", ["path", "at2"], ["path2"]),
        ],
        ["at", "path"],
        "at2 path2",
    )
    element = {"best": (TensorProto.FLOAT, [None, 3]), "at": (TensorProto.INT64, [None])}
    lists = {"list": [None, 3], "path": [None]}
    for body in (forward, backward):
        for place in (2, 3):
            name = body.input[place].name
            for described in (body.input[place], body.output[place - 1]):
                if name in element:
                    kind = helper.make_tensor_type_proto(*element[name])
                else:
                    shaped = helper.make_tensor_type_proto(TensorProto.INT64, lists[name])
                    kind = helper.make_sequence_type_proto(shaped)
                described.type.CopyFrom(kind)
    nodes = [
        node("SequenceEmpty", [], ["none"], dtype=TensorProto.INT64),
        node("Loop", ["n", "", "x", "none"], ["score", "pointers"], body=forward),
        node("ArgMax", ["score"], ["end_at"], axis=1, keepdims=0),
        node("SequenceConstruct", ["end_at"], ["ends"]),
        node("SequenceLength", ["pointers"], ["count"]),
        node("Loop", ["count", "", "end_at", "ends"], ["start", "path_back"], body=backward),
        node("ConcatFromSequence", ["path_back"], ["y"], axis=1, new_axis=1),
    ]
    stored = {
        **{"one": np.array(1), "one1": np.array([1]), "axis2": np.array([2])},
        **{"begin": np.array([0]), "end": np.array([np.iinfo(np.int64).max])},
        **{"costs": rand(1, 3, 3), "gain": rand(3)},
    }
    inputs = [value("x", [size, 3]), value("n", [], TensorProto.INT64)]
    return model(nodes, inputs, [value("y", None, TensorProto.INT64)], **stored)


@pytest.mark.slow
def test_a_list_is_read_from_behind_into_another_that_has_a_beginning():
    proto = backtracking("N")
    feeds = [{"x": rand(rows, 3), "n": np.array(steps)} for rows, steps in ((2, 5), (1, 1), (3, 0))]
    assert_same(proto, *feeds, levels=["O1"])
    left = {n.op_type for n in prepare_model(proto).prepared.graph.node}
    assert not any("Sequence" in name for name in left)


def test_a_list_of_what_changes_its_size_stays_a_list():
    """The carried value is longer in each iteration: what is appended has no one shape."""
    steps = [
        node("Concat", ["s", "x"], ["s2"], axis=0),
        node("Exp", ["s"], ["element"]),
        node("SequenceInsert", ["list", "element"], ["longer"]),
    ]
    inner = loop_body(steps, ["list", "s"], "longer s2")
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    for described in (inner.input[2], inner.output[1]):
        described.type.CopyFrom(kind)
    for described in (inner.input[3], inner.output[2]):
        described.type.CopyFrom(value("s", [None, 3]).type)
    nodes = [
        *ROWS,
        node("SequenceConstruct", ["x"], ["first"]),
        node("Loop", ["n", "", "first", "x"], ["all", "last"], body=inner),
        node("SequenceAt", ["all", "one"], ["y"]),
    ]
    proto = model(nodes, [X], [value("y", None)], **STORED)
    assert_same(proto, *FEEDS, levels=["O0"])
    left = {n.op_type for n in prepare_model(proto).prepared.graph.node}
    assert "SequenceAt" in left
