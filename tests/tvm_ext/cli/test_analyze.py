"""``tvm-ext analyze``: tables and JSON of what is known of a model's values."""

import onnx
import pytest
from commands import as_json, refused, succeed
from small_models import mlp

ALL = ["ranges", "constants", "equal", "shapes", "precision", "liveness", "memory", "effects"]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    file = tmp_path_factory.mktemp("analyze") / "mlp.onnx"
    onnx.save(mlp(), file)
    return file


def test_all_analyses_by_node(path):
    found = as_json("analyze", path)
    assert found["analyses"] == ALL
    (main,) = found["functions"]
    by_node = {one["node"]: one["facts"] for one in main["values"] if one["operator"]}
    assert by_node["relu"]["ranges"]["low"] == 0
    assert by_node["relu"]["ranges"]["high"] == "inf"
    assert by_node["first"]["liveness"] == {"is_needed": True, "until": "relu", "bindings": 1}
    assert by_node["second"]["shapes"]["sizes"] == ["N", 3]
    assert by_node["first"]["effects"]["may_be_removed"]
    assert main["peak"]["bytes"] > 0


def test_promised_inputs_bound_values_and_errors(path):
    found = as_json("analyze", path, "--analysis", "ranges,precision", "--input-range", "x=-1:1")
    facts = found["functions"][0]["values"][0]["facts"]
    assert set(facts) == {"ranges", "precision"}
    assert 1 < facts["ranges"]["high"] < 6
    assert 0 < facts["precision"]["absolute"] < 100


def test_tables_fit_a_hundred_columns(path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    text = succeed("analyze", path, "--input-shape", "x=2,6", "--input-range", "x=0:1")
    assert all(len(line) <= 100 for line in text.splitlines())
    assert "relu" in text
    assert "main: peak" in text
    assert len(text) < len(succeed("analyze", path, "--verbose", "--input-range", "x=0:1"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--analysis", "rangs"], "nearest known: 'ranges'"),
        (["--input-range", "x"], "expected NAME=LOW:HIGH"),
        (["--input-range", "x=0:1", "--input-range", "x=0:2"], "once for each input"),
        (["--input-range", "x=1:0"], "expected the lower"),
        (["--input-range", "z=0:1"], "which is no input"),
    ],
)
def test_refusals(path, arguments, said):
    assert said in refused("analyze", path, *arguments)


def test_a_compiled_model_is_refused(tmp_path):
    assert "expected an ONNX model" in refused("analyze", tmp_path / "a.tvmx")
