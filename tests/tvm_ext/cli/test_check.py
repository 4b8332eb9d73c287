"""``tvm-ext check``: exit code 0 when the numbers agree, 1 when they differ."""

import json

import numpy as np
import onnx
import pytest
from broken_passes import one_percent_more
from commands import as_json, invoke, succeed
from onnx import TensorProto, helper

import tvm_ext
from tvm_ext.passes import registry


@pytest.fixture(scope="module")
def compiled_path(tiny_model_path, tmp_path_factory):
    path = tmp_path_factory.mktemp("compiled") / "tiny.tvmx"
    succeed("compile", tiny_model_path, "-o", path, "-q")
    return path


def test_a_model_that_agrees(tiny_model_path):
    printed = succeed("check", tiny_model_path, "--input-shape", "x=2,3,8,8", "--seed", 3)
    assert "agrees" in printed


@pytest.mark.slow
def test_sizes_of_made_up_inputs(tiny_model_path):
    dynamic = ("check", tiny_model_path, "--input-shape", "x=N,3,8,8", "-O", "O1")
    succeed(*dynamic, "--size", "N=3")
    refused = invoke(*dynamic, "--size", "M=3")
    assert (refused.exit_code, "'M'" in refused.stderr) == (2, True)


@pytest.mark.extended
def test_a_model_that_computes_nothing_says_so(tmp_path):
    nodes = [helper.make_node("Shape", ["x"], ["y"])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    y = helper.make_tensor_value_info("y", TensorProto.INT64, [2])
    onnx.save(helper.make_model(helper.make_graph(nodes, "sizes", [x], [y])), tmp_path / "m.onnx")
    assert "No kernel ran" in succeed("check", tmp_path / "m.onnx")
    assert as_json("check", tmp_path / "m.onnx")["is_vacuous"] is True


@pytest.mark.extended
def test_inputs_of_a_file(tiny_model_path, tmp_path):
    np.savez(tmp_path / "in.npz", x=np.ones((5, 3, 8, 8), np.float32))
    printed = as_json("check", tiny_model_path, "--inputs", tmp_path / "in.npz")
    assert printed["ok"] is True
    np.savez(tmp_path / "in.npz", x=np.ones((5, 3, 8, 9), np.float32))
    assert invoke("check", tiny_model_path, "--inputs", tmp_path / "in.npz").exit_code == 2


@pytest.mark.extended
def test_a_saved_model_against_its_own_and_another(
    compiled_path, tiny_model_path, other_tiny_model_path
):
    succeed("check", compiled_path, "--against", tiny_model_path)
    differs = invoke("check", compiled_path, "--against", other_tiny_model_path)
    assert differs.exit_code == 1
    assert "differs" in differs.stdout
    assert differs.stderr == ""
    differs = invoke("check", compiled_path, "--against", other_tiny_model_path, "--json")
    assert differs.exit_code == 1
    assert json.loads(differs.stdout)["ok"] is False


def test_a_given_tolerance_replaces_the_default(compiled_path, other_tiny_model_path):
    arguments = ("check", compiled_path, "--against", other_tiny_model_path, "--rtol", 100)
    succeed(*arguments)


@pytest.fixture
def wrong_tanh():
    """Every tanh is one percent too large."""

    def wrong(mod):
        return one_percent_more(mod, "tanh", "tanh")

    tvm_ext.register_pass(wrong, name="wrong_tanh", level="schedule")
    yield
    registry.remove("wrong_tanh")


@pytest.mark.slow
def test_every_value_node_by_node(abs_model_path, wrong_tanh):
    found = invoke("check", abs_model_path, "--all-values", "-O", "O0")
    assert found.exit_code == 1
    lines = found.stdout.splitlines()
    assert [line.split()[0] for line in lines if line.endswith("ok")] == ["abs1", "abs2"]
    assert [line.split()[:2] for line in lines if line.endswith("FIRST")] == [["tanh", "(Tanh)"]]
    assert "1 of 3 values are beyond their tolerance" in found.stdout
    found = json.loads(invoke("check", abs_model_path, "--all-values", "-O", 0, "--json").stdout)
    assert [one["node"] for one in found["values"]["values"]] == ["abs1", "abs2", "tanh"]
    assert found["values"]["first"]["difference"]["name"] == "y"
    assert found["values"]["first"]["difference"]["max_rel"] == pytest.approx(0.01, rel=1e-3)


@pytest.mark.extended
def test_every_value_of_a_model_that_agrees(abs_model_path):
    assert "All 3 values agree" in succeed("check", abs_model_path, "--all-values", "-O", "O0")


@pytest.mark.extended
def test_a_model_that_differs_is_reduced(abs_model_path, wrong_tanh, tmp_path):
    out = tmp_path / "out.onnx"
    found = invoke("check", abs_model_path, "--reduce", out, "-O", "O0")
    assert (found.exit_code, found.stderr) == (1, "")
    assert "Reduced from 3 nodes to 1 (Tanh) with the same kind of failure" in found.stdout
    last = found.stdout.splitlines()[-1]
    assert last == f"  tvm-ext check {out} --inputs {tmp_path / 'out.npz'}"
    assert invoke("check", out, "--inputs", tmp_path / "out.npz", "-O", "O0").exit_code == 1


def test_a_model_that_agrees_is_not_reduced(abs_model_path, tmp_path):
    found = as_json("check", abs_model_path, "--reduce", tmp_path / "out.onnx", "-O", "O0")
    assert (found["ok"], found["model"], found["check"]["ok"]) == (True, None, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.extended
def test_a_model_that_is_refused_is_reduced_and_refused(tmp_path):
    nodes = [
        helper.make_node("Abs", ["x"], ["a"], name="abs"),
        helper.make_node("Foreign", ["a"], ["y"], name="foreign", domain="elsewhere"),
        helper.make_node("Abs", ["y"], ["z"], name="behind"),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "xz")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("elsewhere", 1)]
    graph = helper.make_graph(nodes, "foreign", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), tmp_path / "m.onnx")
    found = invoke("check", tmp_path / "m.onnx", "--reduce", tmp_path / "out.onnx", "--json")
    assert found.exit_code == 2
    assert "elsewhere::Foreign (nodes: foreign)" in found.stderr
    assert json.loads(found.stdout)["operators"] == {"Abs": 1, "elsewhere::Foreign": 1}
