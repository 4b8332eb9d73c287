"""The search for the cause of a difference names the pass, the kernel or the node at fault."""

import numpy as np
import pytest
import tvm
from broken_passes import PLAIN_TANH, break_relu, model, one_percent_more, scaled
from onnx import TensorProto, helper, numpy_helper
from tvm import relax
from unoptimised import HOST

import tvm_ext
import tvm_ext.check.bisect
import tvm_ext.onnx_frontend
from tvm_ext.check.bisect import last_agreement
from tvm_ext.check.check import check_model
from tvm_ext.check.reference import run_reference


@pytest.mark.extended
def test_a_users_graph_pass_is_named_with_the_node_and_the_remedy(user_pass):
    user_pass(break_relu, before="DecomposeOpsForInference")
    result = check_model(model(), HOST, bisect=True)
    assert [output.ok for output in result.outputs] == [False, True]
    found = result.bisection
    assert found.step.names == ("break_relu",)
    assert (found.step.stage, found.step.source) == ("graph", "user")
    assert found.step.before.ok
    assert not found.step.after.ok
    assert found.remedies == ["break_relu"]
    assert (found.node.node, found.node.op_type, found.node.opt_level) == ("relu", "Relu", "O0")
    assert found.node.own_fault
    assert found.node.inputs["c"] < 1e-5
    assert found.preparation is None
    assert found.reference_spread < 1e-5
    text = result.to_text()
    assert "pass 'break_relu' (user, level graph)" in text
    assert "--disable-pass break_relu" in text
    assert result.to_dict()["bisection"]["node"]["node"] == "relu"


@pytest.mark.slow
def test_a_pass_that_cannot_run_beside_exposed_values_leaves_a_note_and_no_node(user_pass):
    def picky(mod: tvm.IRModule) -> tvm.IRModule:
        if len(mod["main"].ret_ty.fields) > 2:
            raise ValueError("two outputs at most")
        return one_percent_more(mod, "tanh", "tanh")

    user_pass(picky, level="tile")
    found = check_model(model(), HOST, bisect=True, disabled_passes=PLAIN_TANH).bisection
    assert (found.step.names, found.node) == (("picky",), None)
    assert any("two outputs at most" in note for note in found.notes)


@pytest.mark.slow
def test_a_pass_that_only_breaks_what_is_fused_is_named_although_no_node_reproduces(user_pass):
    def break_fused(mod: tvm.IRModule) -> tvm.IRModule:
        return one_percent_more(mod, "fused_conv2d", "max")

    user_pass(break_fused, level="schedule")
    found = check_model(model(), HOST, bisect=True, disabled_passes=["LayoutPlanning"]).bisection
    assert found.step.names == ("break_fused",)
    assert "conv" in found.step.kernel_nodes
    assert found.node is None
    assert any("agrees at O0" in note for note in found.notes)


@pytest.mark.slow
def test_a_tile_pass_is_named_with_the_kernel_whose_schedule_it_breaks(user_pass):
    def break_tile(mod: tvm.IRModule) -> tvm.IRModule:
        return one_percent_more(mod, "tanh", "tanh")

    user_pass(break_tile, level="tile")
    result = check_model(model(), HOST, bisect=True, disabled_passes=PLAIN_TANH)
    assert [output.ok for output in result.outputs] == [True, False]
    step = result.bisection.step
    assert (step.names, step.stage) == (("break_tile",), "tile")
    assert (step.kernel, step.kernel_nodes) == ("tir_tanh", ("tanh",))
    assert result.bisection.node.node == "tanh"
    assert "schedule of kernel tir_tanh (nodes tanh)" in step.sentence()
    # As it is where the reference is not stable: the test of rounding.
    assert rounding_notes(result) == []


@pytest.mark.extended
def test_our_own_schedule_of_one_kernel_is_named(monkeypatch):
    from tvm_ext.tir_schedules import schedule_kernels as select

    real = select.schedule_kernel

    def wrong(func, machine, *others):
        scheduled, choice = real(func, machine, *others)
        return scaled(scheduled, "tanh") if "T.tanh" in func.script() else scheduled, choice

    monkeypatch.setattr(select, "schedule_kernel", wrong)
    step = check_model(model(), HOST, bisect=True, disabled_passes=PLAIN_TANH).bisection.step
    assert (step.names, step.kernel) == (("ScheduleKernels",), "tir_tanh")
    assert step.kernel_nodes == ("tanh",)
    assert "first step that differs: the schedule of kernel tir_tanh" in step.sentence()


def test_a_wrong_converter_is_a_node_and_no_pass(monkeypatch):
    from tvm_ext.onnx_frontend.importer import _OriginImporter

    real = _OriginImporter._convert_operator

    def wrong(self, op_name, inputs, attrs, opset):
        result = real(self, op_name, inputs, attrs, opset)
        return relax.op.negative(self.bb.normalize(result)) if op_name == "MatMul" else result

    monkeypatch.setattr(_OriginImporter, "_convert_operator", wrong)
    found = check_model(model(), HOST, bisect=True).bisection
    assert found.step is None
    assert "the imported graph already differs without any pass: no pass is at fault" in found.notes
    assert found.node.node == "project"
    assert found.node.own_fault


@pytest.mark.extended
def test_a_preparation_that_changes_numbers_is_named(monkeypatch):
    real = tvm_ext.onnx_frontend.prepare

    def wrong(model, label):
        prepared = real(model, label)
        for tensor in prepared.graph.initializer:
            if tensor.name == "m":
                changed = numpy_helper.from_array(numpy_helper.to_array(tensor) * 1.1, "m")
                tensor.CopyFrom(changed)
        return prepared

    monkeypatch.setattr(tvm_ext.onnx_frontend, "prepare", wrong)
    found = check_model(model(), HOST, bisect=True).bisection
    assert found.preparation.name == "y"
    assert (found.step, found.node) == (None, None)
    assert "before any pass" in found.sentences()[0]


@pytest.mark.extended
def test_a_model_that_agrees_is_not_bisected():
    result = check_model(model(), HOST, bisect=True, opt_level=1)
    assert result.ok
    assert result.bisection is None
    assert result.opt_level == "O1"


@pytest.mark.parametrize("first_bad", [1, 2, 5, 9])
def test_the_search_finds_where_agreement_ends(first_bad):
    asked = []

    def agrees(position):
        asked.append(position)
        return position < first_bad

    assert last_agreement(10, agrees) == (first_bad - 1, first_bad)
    assert len(asked) == len(set(asked)) <= 4


def test_the_search_steps_around_positions_that_cannot_tell():
    answers = [True, True, None, None, False, None, False]
    assert last_agreement(7, answers.__getitem__) == (1, 4)
    assert last_agreement(3, lambda position: None) == (0, 2)
    assert last_agreement(2, lambda position: pytest.fail("nothing to ask")) == (0, 1)


def test_the_search_ends_where_agreement_ends_even_if_it_ends_twice():
    answers = [True, False, True, True, False, False]
    low, high = last_agreement(6, answers.__getitem__)
    assert (answers[low], answers[high], high - low) == (True, False, 1)


@pytest.mark.extended
def test_a_difference_like_the_references_own_is_called_rounding(monkeypatch, user_pass):
    def break_tile(mod: tvm.IRModule) -> tvm.IRModule:
        return one_percent_more(mod, "tanh", "tanh")

    def unstable(source, inputs, threads=None, optimise=True):
        outputs = run_reference(source, inputs, threads, optimise)
        return {name: values * np.float32(1.02) for name, values in outputs.items()}

    user_pass(break_tile, level="tile")
    monkeypatch.setattr(tvm_ext.check.bisect, "run_reference", unstable)
    result = check_model(model(), HOST, bisect=True, disabled_passes=PLAIN_TANH)
    assert result.bisection.reference_spread == pytest.approx(0.02, rel=1e-3)
    assert len(rounding_notes(result)) == 1


def rounding_notes(result) -> list[str]:
    return [note for note in result.bisection.notes if "may be rounding" in note]


@pytest.mark.extended
def test_of_a_model_with_host_steps_the_node_is_named(user_pass):
    floats = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="relu"),
        helper.make_node("SplitToSequence", ["r"], ["q"], name="split"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 2])
    graph = helper.make_graph(nodes, "lists", [x], [helper.make_value_info("q", floats)])
    user_pass(break_relu, before="DecomposeOpsForInference")
    found = check_model(helper.make_model(graph, ir_version=9), HOST, bisect=True).bisection
    assert (found.node.node, found.node.own_fault, found.step) == ("relu", True, None)
    assert "no pass is looked for" in found.notes[0]
