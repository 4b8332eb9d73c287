"""``tvm-ext check``: exit code 0 when the numbers agree, 1 when they differ."""

import json

import numpy as np
import onnx
import pytest
from commands import as_json, invoke, succeed
from onnx import TensorProto, helper


@pytest.fixture(scope="module")
def compiled_path(tiny_model_path, tmp_path_factory):
    path = tmp_path_factory.mktemp("compiled") / "tiny.tvmx"
    succeed("compile", tiny_model_path, "-o", path, "-q")
    return path


def test_a_model_that_agrees(tiny_model_path):
    printed = succeed("check", tiny_model_path, "--input-shape", "x=2,3,8,8", "--seed", 3)
    assert "agrees" in printed


def test_sizes_of_made_up_inputs(tiny_model_path):
    dynamic = ("check", tiny_model_path, "--input-shape", "x=N,3,8,8", "-O", "O1")
    succeed(*dynamic, "--size", "N=3")
    refused = invoke(*dynamic, "--size", "M=3")
    assert (refused.exit_code, "'M'" in refused.stderr) == (2, True)


def test_a_model_that_computes_nothing_says_so(tmp_path):
    nodes = [helper.make_node("Shape", ["x"], ["y"])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    y = helper.make_tensor_value_info("y", TensorProto.INT64, [2])
    onnx.save(helper.make_model(helper.make_graph(nodes, "sizes", [x], [y])), tmp_path / "m.onnx")
    assert "No kernel ran" in succeed("check", tmp_path / "m.onnx")
    assert as_json("check", tmp_path / "m.onnx")["is_vacuous"] is True


def test_inputs_of_a_file(tiny_model_path, tmp_path):
    np.savez(tmp_path / "in.npz", x=np.ones((5, 3, 8, 8), np.float32))
    printed = as_json("check", tiny_model_path, "--inputs", tmp_path / "in.npz")
    assert printed["ok"] is True
    np.savez(tmp_path / "in.npz", x=np.ones((5, 3, 8, 9), np.float32))
    assert invoke("check", tiny_model_path, "--inputs", tmp_path / "in.npz").exit_code == 2


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
