"""If, Loop and Scan against ONNX Runtime."""

import numpy as np
import onnx
import pytest
from control_flow_models import assert_as_reference
from one_model import in_one_model
from onnx import TensorProto, helper
from small_models import model, node, value
from unoptimised import HOST

import tvm_ext
from tvm_ext.errors import ModelError
from tvm_ext.onnx_frontend import import_model, prepare_model

runtime = pytest.importorskip("onnxruntime")
BOOL, INT64 = TensorProto.BOOL, TensorProto.INT64
X = np.linspace(0.01, 0.1, 12, dtype=np.float32).reshape(4, 3)
GO_ON = node("Identity", ["going"], ["go_on"])


def branch(nodes: list, *outputs: str) -> onnx.GraphProto:
    return helper.make_graph(nodes, "branch", [], [value(name, None) for name in outputs])


def choice(then: onnx.GraphProto, otherwise: onnx.GraphProto) -> onnx.ModelProto:
    nodes = [
        node("If", ["c"], ["y"], then_branch=then, else_branch=otherwise, name="choice"),
        node("Exp", ["y"], ["z"]),
    ]
    return model(nodes, [value("c", [], BOOL), value("x", ["N", 3])], [value("z", [None, 3])])


def loop(
    nodes: list, outputs: list, trips: str = "m", first: str = "", **weights
) -> onnx.ModelProto:
    """A loop over ``s``, which begins as ``x``."""
    inputs = [value("i", [], INT64), value("going", [], BOOL), value("s", None)]
    body = helper.make_graph(nodes, "body", inputs, [value("go_on", [], BOOL), *outputs])
    names = ["y", "ys"][: len(outputs)]
    given = [value("x", ["N", 3])]
    given += [value("m", [], INT64)] if trips == "m" else []
    given += [value("c", [], BOOL)] if first else []
    results = [
        value(n, None, o.type.tensor_type.elem_type) for n, o in zip(names, outputs, strict=True)
    ]
    nodes = [node("Loop", [trips, first, "x"], names, body=body, name="loop")]
    return model(nodes, given, results, **weights)


SUM = [
    node("Add", ["s", "x"], ["s2"]),
    node("Mul", ["s2", "s2"], ["square"]),
]
SUM_OUTPUTS = [value("s2", None), value("square", None)]


def test_branches_differ_in_a_size_and_read_outer_values():
    then = branch([node("Add", ["x", "x"], ["t"]), node("Relu", ["t"], ["t2"])], "t2")
    otherwise = branch([node("Concat", ["x", "x"], ["e"], axis=0)], "e")
    proto = choice(then, otherwise)
    assert_as_reference(proto, *({"c": np.array(c), "x": X} for c in (True, False)))


def test_branches_of_different_rank():
    then = branch([node("ReduceMax", ["x"], ["t"], keepdims=0)], "t")
    proto = choice(then, branch([node("Neg", ["x"], ["e"])], "e"))
    del proto.graph.output[0].type.tensor_type.shape.dim[:]
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    assert_as_reference(proto, *({"c": np.array(c), "x": X} for c in (True, False)))


def test_a_constant_condition_leaves_one_branch():
    then = branch([node("Neg", ["x"], ["t"])], "t")
    otherwise = branch([node("Abs", ["x"], ["e"])], "e")
    nodes = [node("If", ["c"], ["y"], then_branch=then, else_branch=otherwise)]
    proto = model(nodes, [value("x", [4, 3])], [value("y", [4, 3])], c=np.array(False))
    assert [n.op_type for n in prepare_model(proto)[2].graph.node] == ["Abs"]


def test_main_with_an_if_is_dataflow_so_that_passes_fuse_around_it():
    proto = choice(
        branch([node("Neg", ["x"], ["t"])], "t"), branch([node("Abs", ["x"], ["e"])], "e")
    )
    main = import_model(proto).mod["main"]
    assert [type(block).__name__ for block in main.body.blocks] == ["DataflowBlock"]


@pytest.mark.extended
def test_a_run_time_trip_count_from_none_to_many():
    proto = loop([*SUM, GO_ON], SUM_OUTPUTS)
    assert_as_reference(proto, *({"x": X, "m": np.array(m)} for m in (0, 1, 2, 5, 22)))


@pytest.mark.slow
def test_a_computed_condition_ends_a_loop():
    below = [
        node("ReduceMax", ["s2"], ["top"], keepdims=0),
        node("Less", ["top", "one"], ["go_on"]),
    ]
    proto = loop([*SUM, *below], SUM_OUTPUTS, trips="", first="c", one=np.array(1, np.float32))
    assert_as_reference(proto, *({"x": X, "c": np.array(c)} for c in (True, False)))


@pytest.mark.extended
def test_a_long_loop_of_constant_trip_count_asks_for_no_condition():
    proto = loop([*SUM, GO_ON], SUM_OUTPUTS, trips="n", n=np.array(150))
    assert_as_reference(proto, {"x": X}, levels=["O3"])
    text = import_model(proto).mod.script(show_meta=False)
    assert "if " not in text
    assert "less" not in text
    assert "count" not in text


def test_a_short_loop_is_written_out():
    proto = loop([*SUM, GO_ON], SUM_OUTPUTS, trips="n", n=np.array(3))
    assert "Loop" not in {n.op_type for n in prepare_model(proto)[2].graph.node}
    assert_as_reference(proto, {"x": X})


@pytest.mark.extended
def test_a_carried_value_may_grow():
    grow = [node("Concat", ["s", "x"], ["s2"], axis=0), node("Shape", ["s2"], ["sizes"]), GO_ON]
    proto = loop(grow, [value("s2", None), value("sizes", None, INT64)])
    assert_as_reference(proto, *({"x": X, "m": np.array(m)} for m in (0, 1, 6)))


def test_a_carried_value_of_changing_rank_is_refused():
    nodes = [node("Unsqueeze", ["s", "zero"], ["s2"]), GO_ON]
    with pytest.raises(ModelError, match="2-dimensional float32 and becomes 3-dimensional"):
        import_model(loop(nodes, [value("s2", None)], zero=np.array([0])))


def test_loops_in_loops():
    inner = helper.make_graph(
        [node("Add", ["q", "s"], ["q2"]), node("Identity", ["inner_going"], ["inner_on"])],
        "inner",
        [value("k", [], INT64), value("inner_going", [], BOOL), value("q", None)],
        [value("inner_on", [], BOOL), value("q2", None)],
    )
    nodes = [node("Loop", ["i", "", "x"], ["s2"], body=inner, name="inner"), GO_ON]
    proto = loop(nodes, [value("s2", None)])
    assert_as_reference(proto, *({"x": X, "m": np.array(m)} for m in (0, 1, 5)), levels=["O3"])


@pytest.mark.extended
def test_many_iterations_need_no_deep_stack():
    step = [node("Add", ["s", "one"], ["s2"]), GO_ON]
    proto = loop(step, [value("s2", None)], one=np.array(1, np.float32))
    (found,) = (
        tvm_ext.compile(proto, HOST, opt_level="O0")
        .run({"x": np.zeros((1, 3), np.float32), "m": np.array(100_000)})
        .values()
    )
    np.testing.assert_array_equal(found, np.full((1, 3), 100_000, np.float32))


@pytest.mark.slow
@in_one_model
@pytest.mark.parametrize("length", [3, 150, "T"])
def test_scan_along_other_axes_and_backwards(length):
    body = helper.make_graph(
        [node("Add", ["s", "a"], ["s2"]), node("Mul", ["s2", "b"], ["o"])],
        "body",
        [value("s", [3]), value("a", [3]), value("b", [3])],
        [value("s2", [3]), value("o", [3])],
    )
    scan = node(
        "Scan",
        ["s0", "x", "x2"],
        ["y", "ys"],
        body=body,
        num_scan_inputs=2,
        scan_input_axes=[0, 1],
        scan_input_directions=[1, 0],
        scan_output_axes=[1],
        scan_output_directions=[1],
    )
    inputs = [value("s0", [3]), value("x", [length, 3]), value("x2", [3, length])]
    proto = model([scan], inputs, [value("y", [3]), value("ys", [3, length])])
    size = 7 if length == "T" else length
    x = np.random.default_rng(0).random((size, 3), np.float32)
    feed = {"s0": np.ones(3, np.float32), "x": x / size, "x2": x.T.copy()}
    assert_as_reference(proto, feed, levels=["O3"])
