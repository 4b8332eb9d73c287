"""The table of operators: of a model, of all that ONNX has, and its page."""

import json
from pathlib import Path

import pytest
from commands import invoke, succeed
from onnx import TensorProto, helper
from small_models import model, node, value

from tvm_ext.errors import ModelError
from tvm_ext.onnx_frontend.operator_table import (
    EXPANDED,
    ON_HOST,
    SUPPORTED,
    UNSUPPORTED,
    OperatorUse,
    all_operators,
    operator_uses,
    operators_page,
)

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "operators.md"


def test_the_page_is_current():
    assert PAGE.read_text() == operators_page()


def test_all_operators_have_their_support():
    found = all_operators()
    assert found["Conv"] == found["LSTM"] == found["ai.onnx.ml::Scaler"] == SUPPORTED
    assert found["NegativeLogLikelihoodLoss"] == EXPANDED
    assert found["com.microsoft::FusedConv"] == EXPANDED
    assert found["StringSplit"] == found["ai.onnx.ml::ZipMap"] == ON_HOST


def sample(*extra):
    nodes = [
        node("Relu", ["x"], ["a"], name="first"),
        node("Celu", ["a"], ["b"], name="middle"),
        node("Relu", ["b"], ["y"], name="second"),
        *extra,
    ]
    return model(nodes, [value("x", [1, 2, 3, 4])], [value("y", [1, 2, 3, 4])])


def test_operators_of_a_model():
    assert operator_uses(sample()) == [
        OperatorUse("Celu", EXPANDED, ("middle",)),
        OperatorUse("Relu", SUPPORTED, ("first", "second")),
    ]


def unknown():
    made = sample(node("Rfft2000", ["x"], ["z"], name="odd", domain="my.domain"))
    made.graph.output.append(value("z", [2]))
    made.opset_import.append(helper.make_opsetid("my.domain", 1))
    return made


def test_unsupported_operators_come_first_and_in_bodies_too():
    assert operator_uses(unknown())[0] == OperatorUse("my.domain::Rfft2000", UNSUPPORTED, ("odd",))
    body = helper.make_graph(
        [node("Rfft2000", ["x"], ["t"], name="inside", domain="my.domain")],
        "then",
        [],
        [value("t", [2])],
    )
    choice = node("If", ["c"], ["y"], name="choose", then_branch=body, else_branch=body)
    made = model([choice], [value("c", [], TensorProto.BOOL), value("x", [2])], [value("y", [2])])
    made.opset_import.append(helper.make_opsetid("my.domain", 1))
    (first, *_) = operator_uses(made)
    assert (first.operator, first.support) == ("my.domain::Rfft2000", UNSUPPORTED)
    assert set(first.nodes) == {"inside"}


def test_a_form_that_cannot_be_converted_is_named():
    nodes = [node("Squeeze", ["x"], ["y"], name="open")]
    inputs = [value("x", ["a", "b", "c", "d"])]
    with pytest.raises(ModelError, match="'open'"):
        operator_uses(model(nodes, inputs, [value("y", None)], 20))


def test_dry_run_prints_the_table_and_compiles_nothing(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(sample().SerializeToString())
    printed = succeed("compile", path, "--dry-run")
    for word in ("Celu", "by expansion", "middle", "first, second"):
        assert word in printed
    assert list(tmp_path.iterdir()) == [path]


def test_dry_run_of_an_unsupported_model_fails(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(unknown().SerializeToString())
    result = invoke("compile", path, "--dry-run", "--json")
    assert result.exit_code == 1
    (first, *_) = json.loads(result.output)["operators"]
    assert first == {"operator": "my.domain::Rfft2000", "support": UNSUPPORTED, "nodes": ["odd"]}
    assert all(one["nodes"] for one in json.loads(result.output)["operators"])
