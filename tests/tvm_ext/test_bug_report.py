"""A report of a defect: what it holds, what it leaves out, and that it fails as the model does."""

import json
import zipfile

import numpy as np
import onnx
import pytest
from commands import succeed
from onnx import TensorProto, numpy_helper
from small_models import model, node, value

from tvm_ext.bug_report import write_bug_report
from tvm_ext.errors import ModelError, OutputPathError
from tvm_ext.onnx_frontend.weights import without_weights

SECRET = np.random.default_rng(0).standard_normal((30, 50)).astype("float32")


def reshaping(to):
    """A product with weights, reshaped."""
    nodes = [
        node("MatMul", ["x", "w"], ["m"], name="product"),
        node("Reshape", ["m", "to"], ["y"], name="reshape"),
    ]
    made = model(nodes, [value("x", [2, 30])], [value("y", None)], w=SECRET, to=np.array(to))
    made.doc_string = "private words"
    return made


@pytest.fixture
def failing(tmp_path):
    onnx.save(reshaping([7, 5, 13]), tmp_path / "failing.onnx")
    return tmp_path / "failing.onnx"


def test_a_report_holds_what_reproduces_the_failure_and_no_weights(failing, tmp_path):
    found = write_bug_report(failing, tmp_path / "report.zip", opt_level="O0")
    assert "Reshape node 'reshape'" in found.failure
    assert found.reproduces
    with zipfile.ZipFile(tmp_path / "report.zip") as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    assert {"README.txt", "facts.json", "traceback.txt", "model.onnx"} <= set(held)
    assert all(entry.partition(": ")[0] in held for entry in found.holds)
    facts = json.loads(held["facts.json"])
    assert facts["message"] == found.failure
    assert facts["options"]["opt_level"] == "O0"
    assert facts["versions"]["tvm"]
    assert b"Traceback" in held["traceback.txt"]
    weights = {t.name: t for t in onnx.load_from_string(held["model.onnx"]).graph.initializer}
    assert (numpy_helper.to_array(weights["w"]) == 1).all()
    np.testing.assert_array_equal(numpy_helper.to_array(weights["to"]), [7, 5, 13])
    assert b"private words" not in held["model.onnx"]
    assert SECRET.tobytes()[:64] not in b"".join(held.values())


@pytest.mark.extended
def test_a_model_that_does_not_fail_is_reported_with_its_last_module(tmp_path):
    onnx.save(reshaping([50, 2]), tmp_path / "sound.onnx")
    found = write_bug_report(tmp_path / "sound.onnx", tmp_path / "report.zip", opt_level="O0")
    assert found.failure == ""
    with zipfile.ZipFile(tmp_path / "report.zip") as archive:
        modules = [name for name in archive.namelist() if name.startswith("ir/")]
        assert modules
        assert SECRET.tobytes()[:64] not in b"".join(map(archive.read, modules))


def test_nothing_is_overwritten_and_nothing_written_for_no_model(failing, tmp_path):
    before = failing.read_bytes()
    with pytest.raises(OutputPathError, match="exists already"):
        write_bug_report(failing, failing)
    assert failing.read_bytes() == before
    with pytest.raises(ModelError, match="no such file"):
        write_bug_report(tmp_path / "absent.onnx", tmp_path / "report.zip")
    assert not (tmp_path / "report.zip").exists()


def test_what_is_no_model_is_reported_without_one(tmp_path):
    (tmp_path / "text.onnx").write_text("only words\n" * 20)
    found = write_bug_report(tmp_path / "text.onnx", tmp_path / "report.zip")
    assert "not an ONNX model" in found.failure
    assert found.reproduces is None
    assert any(entry.startswith("no_model.txt") for entry in found.holds)


def test_weights_in_attributes_and_bodies_are_replaced(tmp_path):
    body = onnx.helper.make_graph(
        [
            node("Constant", [], ["c"], value=numpy_helper.from_array(SECRET)),
            node("Neg", ["c"], ["t"]),
        ],
        "then",
        [],
        [value("t", [30, 50])],
    )
    scores = node(
        "LinearRegressor",
        ["x"],
        ["s"],
        domain="ai.onnx.ml",
        coefficients=SECRET.reshape(-1)[:90].tolist(),
        targets=3,
    )
    nodes = [node("If", ["c"], ["y"], then_branch=body, else_branch=body), scores]
    inputs = [value("c", [], TensorProto.BOOL), value("x", [2, 30])]
    made = model(nodes, inputs, [value("y", None), value("s", None)])
    onnx.save(made, tmp_path / "m.onnx")
    stripped = without_weights(tmp_path / "m.onnx")
    assert SECRET.tobytes()[:64] not in stripped.SerializeToString()
    (coefficients,) = (a for a in stripped.graph.node[1].attribute if a.name == "coefficients")
    assert set(coefficients.floats) == {1.0}
    assert len(coefficients.floats) == 90


def test_the_command_says_what_it_wrote(failing, tmp_path):
    printed = succeed("report-bug", failing, "-o", tmp_path / "r.zip", "-O", "0")
    assert "Reshape node 'reshape'" in printed
    assert "fails in the same way" in printed
    assert "model.onnx" in printed
