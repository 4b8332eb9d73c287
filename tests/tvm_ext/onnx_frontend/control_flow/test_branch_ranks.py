"""If whose branches give results of different rank: squeezed where a size is 1, or as it is."""

import numpy as np
import onnx
import pytest
from combinations import pairwise
from control_flow_models import assert_same, loop_body
from one_model import in_one_model
from onnx import TensorProto, helper
from small_models import model, node, rand, value
from unoptimised import HOST

import tvm_ext
from tvm_ext.errors import RunError
from tvm_ext.onnx_frontend import import_model

ONE, OTHER = rand(4, 1, 3), rand(4, 5, 3)
NAMED = ["N", "M", 3]
SIZE = [node("Shape", ["x"], ["sizes"]), node("Gather", ["sizes", "second"], ["size"])]
NUMBERS = {"second": np.array(1), "one": np.array(1), "axes": np.array([1])}
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


def squeezed_if(
    condition: str, result: str, source: str = "x", axes: str = "axes", name: str = "choice"
) -> onnx.NodeProto:
    """``result`` is ``source`` without ``axes`` where ``condition`` holds, else ``source``."""
    return node(
        "If",
        [condition],
        [result],
        then_branch=branch("Squeeze", source, axes),
        else_branch=branch("Identity", source),
        name=name,
    )


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
    ends = {"two": np.array(2), "end": np.array([2])}
    return model(nodes, [value("x", shape)], [value("z", None)], **NUMBERS, **ends)


@pytest.mark.slow
@pairwise(swapped=[False, True], condition=CONDITIONS, x=[ONE, OTHER])
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


@pytest.mark.slow
@in_one_model
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_size_with_a_name_is_squeezed_where_it_is_1(condition, swapped):
    proto = squeeze_or_not(condition, NAMED, swapped)
    assert_same(proto, {"x": ONE}, {"x": OTHER}, {"x": ONE})
    assert import_model(proto).outputs[0].shape == ("...",)


def with_readers(*readers: onnx.NodeProto, results: str = "z", **weights) -> onnx.ModelProto:
    """``y = x.squeeze(1)`` where the size is 1, and nodes that read it."""
    nodes = [
        *CONDITIONS["a size"],
        squeezed_if("c", "y"),
        *readers,
    ]
    outputs = [value(name, None) for name in results.split()]
    return model(nodes, [value("x", NAMED)], outputs, **NUMBERS, **weights)


ROWS = node("Reshape", ["y", "rows"], ["flat"])
AXES = {"rows": np.array([-1, 3]), "w": rand(3, 2, seed=1)}


def functions_of(proto: onnx.ModelProto) -> dict[str, str]:
    return {
        str(gv.name_hint): func.script(show_meta=False)
        for gv, func in import_model(proto).mod.functions.items()
    }


@pytest.mark.extended
def test_what_reads_a_value_of_two_ranks_moves_into_the_branches_and_nothing_else():
    readers = [node("Exp", ["y"], ["e"]), node("Reshape", ["e", "rows"], ["flat"])]
    readers += [node("Sin", ["x"], ["s"]), node("MatMul", ["flat", "w"], ["z"])]
    proto = with_readers(*readers, results="z s", **AXES)
    assert_same(proto, {"x": ONE}, {"x": OTHER})
    found = functions_of(proto)
    assert "R.exp" not in found["main"]
    assert all(word in found["main"] for word in ("R.matmul", "R.sin"))
    assert ["R.exp" in text for name, text in found.items() if name.startswith("choice")].count(
        True
    ) == 2


@pytest.mark.extended
def test_a_value_of_two_ranks_is_an_output_and_is_read_as_well():
    proto = with_readers(ROWS, node("MatMul", ["flat", "w"], ["z"]), results="z y", **AXES)
    assert_same(proto, {"x": ONE}, {"x": OTHER})


@pytest.mark.extended
def test_a_reader_that_takes_one_rank_only_is_an_error_of_the_run_that_has_the_other(tmp_path):
    readers = [
        node("Transpose", ["y"], ["t"], perm=[1, 0], name="turn"),
        node("Relu", ["t"], ["z"]),
    ]
    for level in ("O0", "O3"):
        compiled = tvm_ext.compile(with_readers(*readers), HOST, opt_level=level)
        compiled.save(tmp_path / "m.tvmx")
        for ready in (compiled, tvm_ext.load(tmp_path / "m.tvmx")):
            for _ in range(2):
                wanted = np.maximum(ONE.squeeze(1).T, 0)
                np.testing.assert_allclose(ready.run({"x": ONE})["z"], wanted)
                reason = "If node 'choice' chose its else branch, where Transpose node 'turn'"
                with pytest.raises(RunError, match=reason) as raised:
                    ready.run({"x": OTHER})
                assert "\n" not in str(raised.value)


@pytest.mark.extended
def test_readers_of_two_ifs_of_the_same_condition_have_two_cases_not_four():
    second = squeezed_if("c", "y2", "x2", name="second")
    readers = [node("Neg", ["x"], ["x2"]), second, node("Mul", ["y", "y2"], ["z"])]
    proto = with_readers(*readers)
    assert_same(proto, {"x": ONE}, {"x": OTHER})
    text = "".join(functions_of(proto).values())
    assert text.count("R.multiply") == 2


def test_two_ifs_of_other_conditions_have_four_cases():
    second = squeezed_if("c2", "y2", "y", axes="first", name="second")
    asked = [
        node("Gather", ["sizes", "zero"], ["rows"]),
        node("Equal", ["rows", "one"], ["c2"]),
    ]
    readers = [*asked, second, node("Exp", ["y2"], ["z"])]
    weights = {"zero": np.array(0), "first": np.array([0])}
    feeds = [{"x": rand(n, m, 3)} for n in (1, 4) for m in (1, 5)]
    assert_same(with_readers(*readers, **weights), *feeds, levels=["O0"])


@pytest.mark.extended
def test_a_sum_over_an_axis_from_the_end_of_either_rank():
    readers = [node("ReduceSum", ["y", "last"], ["s"], keepdims=0), node("Relu", ["s"], ["z"])]
    assert_same(with_readers(*readers, last=np.array([-1])), {"x": ONE}, {"x": OTHER})


def test_an_if_in_a_branch_gives_two_ranks():
    inner = squeezed_if("c", "part", name="inner")
    outer = node(
        "If",
        ["b"],
        ["y"],
        then_branch=helper.make_graph([inner], "branch", [], [value("part", None)]),
        else_branch=branch("Neg", "x"),
        name="outer",
    )
    nodes = [*CONDITIONS["a size"], outer, node("Exp", ["y"], ["z"])]
    inputs = [value("x", NAMED), value("b", [], TensorProto.BOOL)]
    proto = model(nodes, inputs, [value("z", None)], **NUMBERS)
    feeds = [{"x": x, "b": np.array(b)} for x in (ONE, OTHER) for b in (True, False)]
    assert_same(proto, *feeds, levels=["O0"])


@pytest.mark.extended
def test_a_loop_squeezes_inside_and_goes_on_with_one_rank():
    steps = [
        squeezed_if("c", "y"),
        ROWS,
        node("Add", ["s", "flat"], ["s2"]),
    ]
    loop = node("Loop", ["m", "", "start"], ["z"], body=loop_body(steps, ["s"], "s2"), name="loop")
    nodes = [*CONDITIONS["a size"], node("Reshape", ["x", "rows"], ["start"]), loop]
    inputs = [value("x", NAMED), value("m", [], TensorProto.INT64)]
    proto = model(nodes, inputs, [value("z", None)], **NUMBERS, rows=AXES["rows"])
    feeds = [{"x": x, "m": np.array(m)} for x in (ONE, OTHER) for m in (1, 3)]
    assert_same(proto, *feeds, levels=["O0"])


def test_sizes_with_names_that_cannot_be_1_leave_the_branch_without_squeeze():
    nodes = [
        node("Concat", ["x", "x"], ["twice"], axis=1),
        node("Shape", ["twice"], ["sizes"]),
        node("Gather", ["sizes", "axis"], ["size"]),
        node("Equal", ["size", "axis"], ["c"]),
        squeezed_if("c", "y", "twice"),
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


@pytest.mark.extended
def test_one_element_that_a_loop_gives_an_axis_has_it_from_the_beginning():
    steps = [
        node("Add", ["s", "one"], ["more"]),
        node("ReduceSum", ["more"], ["total"], keepdims=0),
        node("Unsqueeze", ["total", "zeroth"], ["s2"]),
    ]
    loop = node("Loop", ["m", "", "start"], ["z"], body=loop_body(steps, ["s"], "s2"), name="loop")
    numbers = {"one": np.array(1, np.float32), "zeroth": np.array([0])}
    inputs = [value("start", []), value("m", [], TensorProto.INT64)]
    proto = model([loop], inputs, [value("z", None)], opset=18, **numbers)
    assert_same(proto, {"start": np.array(2, np.float32), "m": np.array(3)}, levels=["O0"])


@pytest.mark.extended
def test_what_a_loop_writes_and_never_reads_may_begin_as_anything():
    """As exporters of Paddle write a variable that a loop alone defines."""
    steps = [
        node("Add", ["s", "x"], ["s2"]),
        node("Concat", ["s2", "x"], ["last2"], axis=0),
    ]
    body = loop_body(steps, ["s", "last"], "s2 last2")
    loop = node("Loop", ["m", "", "x", "nothing"], ["z", "w"], body=body, name="loop")
    proto = model(
        [loop],
        [value("x", ["N", 3])],
        [value("z", None), value("w", None)],
        nothing=np.zeros((), np.float32),
        m=np.array(3),
    )
    for rows in (1, 4):
        assert_same(proto, {"x": rand(rows, 3)}, levels=["O0"])
