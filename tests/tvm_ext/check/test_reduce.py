"""A model that fails is reduced to the nodes that fail alike, in files that show it again."""

import ctypes
import os
from dataclasses import replace

import numpy as np
import onnx
import pytest
from broken_passes import break_relu, model, one_percent_more
from control_flow_models import body, loop_body
from onnx import TensorProto
from small_models import model as made
from small_models import node, rand, value
from unoptimised import HOST

from tvm_ext.check import reduce
from tvm_ext.check.check import check_model
from tvm_ext.check.reduce import minimise, reduce_model
from tvm_ext.configs.progress import listening
from tvm_ext.errors import InputError, ModelError, OutputPathError, TvmExtError
from tvm_ext.onnx_frontend import weights
from tvm_ext.onnx_frontend.host.operators import HOST_OPERATORS
from tvm_ext.onnx_frontend.host.operators.operator import without_attributes
from tvm_ext.tuning.worker import WorkerTimeout

BEFORE = "DecomposeOpsForInference"


def only_if(text: str, act):
    """A pass that acts on modules whose text holds ``text``."""

    def acting(mod):
        return act(mod) if text in mod.script() else mod

    return acting


def dies(mod):
    ctypes.string_at(0)


def refuses(mod):
    raise ValueError(f"no module of {len(mod.script())} letters")


def operators(path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out.onnx"


def test_a_difference_is_reduced_to_the_node_that_computes_it(user_pass, out, tmp_path):
    user_pass(break_relu, before=BEFORE)
    told = []
    with listening(told.append):
        found = reduce_model(model(), out, HOST)
    assert (found.failure.kind, found.failure.outputs) == ("difference", ("y",))
    assert not found.result.ok
    assert (found.nodes, found.operators) == (6, {"Relu": 1})
    assert (found.path, found.inputs) == (out, tmp_path / "out.npz")
    assert sorted(os.listdir(tmp_path)) == ["out.npz", "out.onnx"]
    reduced = onnx.load(out)
    assert [value.name for value in (*reduced.graph.input, *reduced.graph.output)] == ["c", "r"]
    assert not check_model(out, HOST, inputs=found.inputs).ok
    assert f"model {found.candidates}: 1 nodes" in told
    assert "Reduced from 6 nodes to 1" in found.sentences()[0]
    assert found.to_dict()["nodes_left"] == 1


@pytest.mark.extended
def test_a_model_that_agrees_leaves_files_as_they_were(out, tmp_path):
    out.write_text("old")
    found = reduce_model(model(), out, HOST)
    assert (found.failure, found.path, found.candidates) == (None, None, 1)
    assert found.result.ok
    assert os.listdir(tmp_path) == ["out.onnx"]
    assert out.read_text() == "old"


@pytest.mark.extended
def test_a_crash_of_the_process_is_survived_and_kept(user_pass, out):
    user_pass(only_if("R.tanh", dies), name="dies", before=BEFORE)
    found = reduce_model(model(), out, HOST)
    assert (found.failure.kind, found.result) == ("crash", None)
    assert "SIGSEGV" in found.failure.message
    assert operators(out) == ["Tanh"]


def test_a_refusal_stays_the_same_one(user_pass, out):
    user_pass(only_if("R.tanh", refuses), name="refuses", before=BEFORE)
    found = reduce_model(model(), out, HOST)
    assert found.failure.kind == "refusal"
    assert "pass 'refuses' failed" in found.failure.message
    assert operators(out) == ["Tanh"]


@pytest.mark.extended
def test_an_unexpected_error_is_a_defect(monkeypatch, out):
    real = reduce.check_request

    def wrong(request, inputs):
        if "Tanh" in operators(request.source):
            raise KeyError("tanh")
        return real(request, inputs)

    monkeypatch.setattr(reduce, "check_request", wrong)
    onnx.save(model(), out.with_name("whole.onnx"))
    found = reduce_model(out.with_name("whole.onnx"), out, HOST)
    assert found.failure.kind == "defect"
    assert "KeyError" in found.failure.like
    assert operators(out) == ["Tanh"]


def test_a_model_that_hangs_is_given_up_after_its_time(monkeypatch, out):
    class Clock:
        """Does all in this process, and gives up models with a tanh."""

        def call(self, function, *arguments, timeout):
            assert timeout == 5
            source = getattr(arguments[0], "source", None)
            if source is not None and "Tanh" in operators(source):
                raise WorkerTimeout("took longer than 5 s")
            return function(*arguments)

        def stop(self):
            pass

    onnx.save(model(), out.with_name("whole.onnx"))
    monkeypatch.setattr(reduce, "ForkedWorker", Clock)
    found = reduce_model(out.with_name("whole.onnx"), out, HOST, time_limit=5)
    assert found.failure.kind == "timeout"
    assert "--time-limit" in found.failure.message
    assert operators(out) == ["Tanh"]


# As the two of ``test_external_weights_come_along``, which CI runs.
@pytest.mark.slow
def test_nodes_that_only_fail_together_stay_together(user_pass, out):
    def break_fused(mod):
        return one_percent_more(mod, "fused_conv2d", "max")

    user_pass(break_fused, level="schedule")
    found = reduce_model(model(), out, HOST, disabled_passes=["LayoutPlanning"])
    assert operators(out) == ["Conv", "Relu"]
    assert set(found.operators) == {"Conv", "Relu"}


@pytest.mark.slow
def test_sizes_stay_symbolic_where_the_failure_needs_that(user_pass, out):
    nodes = [
        node("MatMul", ["x", "w"], ["m"], name="project"),
        node("Relu", ["m"], ["r"], name="relu"),
        node("Exp", ["r"], ["y"], name="exp"),
    ]
    given = made(nodes, [value("x", ["N", 4])], [value("y", ["N", 3])], w=rand(4, 3))
    user_pass(only_if("TypeVar", break_relu), name="dynamic", before=BEFORE)
    found = reduce_model(given, out, HOST, input_shapes={"x": ["N:2:9", 4]}, sizes={"N": 5})
    assert found.input_shapes == {}
    (read,) = onnx.load(out).graph.input
    assert [dim.dim_param or dim.dim_value for dim in read.type.tensor_type.shape.dim] == ["N", 3]
    assert operators(out) == ["Relu"]
    assert np.load(out.with_suffix(".npz"))["m"].shape == (5, 3)


@pytest.mark.extended
def test_ranges_are_given_again_where_their_input_is_left(user_pass, out):
    given = made([node("Relu", ["x"], ["y"])], [value("x", ["N"])], [value("y", ["N"])])
    user_pass(only_if("TypeVar", break_relu), name="dynamic", before=BEFORE)
    shapes = {"x": ["N:2:9"]}
    found = reduce_model(given, out, HOST, input_shapes=shapes, sizes={"N": 5})
    assert found.input_shapes == shapes
    assert found.sentences()[-1].endswith("--input-shape x=N:2:9")


def choice() -> onnx.ModelProto:
    """A branch of an If multiplies, cuts off and adds."""
    then = body(
        [
            node("Mul", ["d", "d"], ["p"], name="square"),
            node("Sub", ["p", "d"], ["m"], name="sub"),
            node("Relu", ["m"], ["r"], name="relu"),
            node("Add", ["r", "x"], ["then"], name="add"),
        ],
        "then",
    )
    other = body([node("Abs", ["d"], ["other"], name="abs")], "other")
    nodes = [
        node("Exp", ["x"], ["d"], name="exp"),
        node("If", ["c"], ["y"], name="if", then_branch=then, else_branch=other),
    ]
    inputs = [value("x", [2, 3]), value("c", [], TensorProto.BOOL)]
    return made(nodes, inputs, [value("y", [2, 3])])


def repetition() -> onnx.ModelProto:
    """A body of a Loop subtracts, cuts off and adds, as often as an input says."""
    steps = loop_body(
        [
            node("Sub", ["h", "x"], ["m"], name="sub"),
            node("Relu", ["m"], ["r"], name="relu"),
            node("Add", ["r", "x"], ["next"], name="add"),
        ],
        ["h"],
        "next",
    )
    nodes = [
        node("Exp", ["x"], ["d"], name="exp"),
        node("Loop", ["c", "", "d"], ["y"], name="loop", body=steps),
    ]
    inputs = [value("x", [2, 3]), value("c", [], TensorProto.INT64)]
    return made(nodes, inputs, [value("y", [2, 3])])


@pytest.mark.extended
@pytest.mark.parametrize("make", [choice, repetition])
def test_bodies_of_control_flow_are_reduced_too(user_pass, out, make):
    user_pass(break_relu, before=BEFORE)
    inputs = {"x": rand(2, 3), "c": np.array(True if make is choice else 3)}
    found = reduce_model(make(), out, HOST, inputs=inputs)
    assert (found.nodes, operators(out)) == (7 if make is choice else 6, ["Relu"])
    assert not check_model(out, HOST, inputs=found.inputs).ok


@pytest.mark.extended
def test_strings_are_fed_to_what_is_left(monkeypatch, out):
    nodes = [
        node("Gather", ["x", "order"], ["turned"], name="turn"),
        node("StringConcat", ["turned", "x"], ["both"], name="concat"),
        node("Gather", ["both", "order"], ["y"], name="back"),
    ]
    texts = (TensorProto.STRING,)
    ends = [value("x", [2], *texts)], [value("y", [2], *texts)]
    given = made(nodes, *ends, opset=20, order=np.array([1, 0]))
    swapped = without_attributes(lambda values: (np.char.add(*map(str_array, values[::-1])),))
    monkeypatch.setitem(HOST_OPERATORS, "StringConcat", swapped)
    found = reduce_model(given, out, HOST, inputs={"x": np.array(["a", "b"], object)})
    assert found.operators == {"StringConcat": 1}
    assert list(np.load(found.inputs)["turned"]) == ["b", "a"]
    assert not check_model(out, HOST, inputs=found.inputs).ok


def str_array(values: np.ndarray) -> np.ndarray:
    return values.astype(str)


@pytest.mark.extended
@pytest.mark.parametrize("limit", [1, pytest.param(weights.WHOLE_BYTES, marks=pytest.mark.slow)])
def test_external_weights_come_along(user_pass, monkeypatch, out, limit):
    """In the file, or beside it in one of a model that is too large for one."""
    monkeypatch.setattr(weights, "WHOLE_BYTES", limit)
    monkeypatch.setattr(weights, "LARGE_BYTES", 40)
    nodes = [
        node("Exp", ["x"], ["e"], name="exp"),
        node("MatMul", ["e", "w"], ["m"], name="project"),
        node("Relu", ["m"], ["r"], name="relu"),
        node("Tanh", ["r"], ["y"], name="tanh"),
    ]
    given = made(nodes, [value("x", [2, 4])], [value("y", [2, 3])], w=rand(4, 3))
    whole = out.with_name("whole.onnx")
    onnx.save(given, whole, save_as_external_data=True, location="w.bin", size_threshold=0)

    def break_fused(mod):
        return one_percent_more(mod, "fused_matmul", "max")

    user_pass(break_fused, level="schedule")
    found = reduce_model(whole, out, HOST)
    assert sorted(found.operators) == ["MatMul", "Relu"]
    assert out.with_name("out.onnx.data").exists() == (limit == 1)
    assert not check_model(out, HOST, inputs=found.inputs).ok


@pytest.mark.extended
def test_a_failure_that_does_not_come_back_is_told_apart(monkeypatch, out):
    real = reduce.check_request

    def wrong(request, inputs):
        result = real(request, inputs)
        if request.source != out.with_name("whole.onnx"):
            return result
        return replace(result, outputs=tuple(replace(o, ok=False) for o in result.outputs))

    monkeypatch.setattr(reduce, "check_request", wrong)
    onnx.save(model(), out.with_name("whole.onnx"))
    with pytest.raises(TvmExtError, match="a copy of its graph"):
        reduce_model(out.with_name("whole.onnx"), out, HOST)
    assert not out.exists()


@pytest.mark.extended
def test_a_refused_model_that_the_reference_cannot_run_is_cut_from_the_end(user_pass, out):
    nodes = [
        node("Tanh", ["x"], ["t"], name="tanh"),
        node("Relu", ["t"], ["r"], name="relu"),
        node("Foreign", ["r"], ["f"], name="foreign", domain="elsewhere"),
        node("Abs", ["f"], ["y"], name="abs"),
    ]
    outputs = [value("y", [2]), value("r", [2])]
    given = made(nodes, [value("x", [2])], outputs, domains=["elsewhere"])
    found = reduce_model(given, out, HOST)
    assert found.failure.kind == "refusal"
    assert operators(out) == ["Tanh", "Relu", "Foreign"]


@pytest.mark.extended
def test_what_is_no_fault_of_the_model_is_raised(out):
    with pytest.raises(InputError, match="rank"):
        reduce_model(model(), out, HOST, inputs={"x": np.zeros(3, np.float32)})
    with pytest.raises(OutputPathError):
        reduce_model(model(), out / "absent" / "out.onnx", HOST)
    with pytest.raises(ModelError, match="no graph"):
        reduce_model(onnx.ModelProto(), out, HOST)
    assert not out.exists()


# Delta debugging.


def needs(*wanted: int):
    """An attempt that succeeds as long as all of these are there; with what was tried."""
    tried = []

    def attempt(places):
        tried.append(tuple(places))
        return places if set(wanted) <= set(places) else None

    return attempt, tried


@pytest.mark.parametrize("wanted", [(0,), (63,), (40,), (3, 50), (0, 31, 32, 63), (5, 6, 7)])
def test_what_is_needed_is_left_and_nothing_else(wanted):
    attempt, tried = needs(*wanted)
    assert minimise(range(64), attempt) == list(wanted)
    assert len(tried) < 14 * len(wanted) + 8
    assert () not in tried


def test_everything_may_be_needed():
    attempt, _ = needs(*range(7))
    assert minimise(range(7), attempt) == list(range(7))
    assert minimise([4], attempt) == [4]


def test_an_attempt_may_leave_more_out_than_it_was_asked_to():
    def attempt(places):
        return [place for place in places if place % 10 == 3] if 43 in places else None

    assert minimise(range(64), attempt) == [43]
