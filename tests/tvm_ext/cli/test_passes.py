"""``tvm-ext passes``: the levels, the registered passes, and explanations."""

import json

import pytest
from commands import as_json, invoke, refused, succeed
from rich.console import Group

import tvm_ext
from tvm_ext.cli.pass_tables import explain, explanation_parts
from tvm_ext.passes import registry
from tvm_ext.relay_passes.graph_pass import graph_pass
from tvm_ext.report import CompileReport, Decision, KernelRecord, PassRecord
from tvm_ext.report.terminal_tables import plain_text


def test_list_has_levels_in_order_and_all_passes():
    listed = as_json("passes", "list")
    assert list(listed["levels"]) == ["O0", "O1", "O2", "O3"]
    assert "LayoutPlanning" in listed["levels"]["O3"]["graph"]
    assert "LayoutPlanning" not in listed["levels"]["O2"]["graph"]
    by_name = {entry["name"]: entry for entry in listed["passes"]}
    assert by_name["ConvBnReluFold"]["source"] == "built-in"
    assert by_name["FoldConstant"]["source"] == "tvm"
    assert all(entry["summary"] for entry in listed["passes"])


@pytest.mark.extended
def test_list_of_one_level():
    assert list(as_json("passes", "list", "-O2")["levels"]) == ["O2"]
    assert list(as_json("passes", "list", "O2")["levels"]) == ["O2"]
    text = succeed("passes", "list", "--opt-level", "0")
    assert "O0:" in text
    assert "O1:" not in text


@pytest.fixture
def user_pass():
    @graph_pass
    class Untouched:
        """Leaves the module as it is."""

        limit: int = 3
        names: tuple = ("a", 1)
        measure: object = print

        def transform_module(self, mod, ctx):
            print("noise of a pass")
            return mod

    tvm_ext.register_pass(Untouched, name="Untouched", before="PropagateSpans")
    yield "Untouched"
    registry.remove("Untouched")


@pytest.mark.extended
def test_a_users_pass_is_listed_where_it_runs_with_its_options(user_pass):
    listed = as_json("passes", "list")
    (entry,) = (entry for entry in listed["passes"] if entry["name"] == user_pass)
    assert entry["source"] == "user"
    assert entry["options"] == {"limit": 3, "names": ["a", 1], "measure": "print"}
    order = listed["levels"]["O1"]["graph"]
    assert order.index(user_pass) == order.index("PropagateSpans") - 1
    assert "limit=3" in succeed("passes", "list", "-v")


@pytest.mark.extended
def test_what_a_pass_prints_does_not_reach_the_json(user_pass, tiny_model_path):
    arguments = ("compile", tiny_model_path, "--json", "--pass-config", "Untouched.limit=4")
    result = invoke(*arguments)
    assert result.exit_code == 0
    json.loads(result.stdout)
    assert "noise of a pass" in result.stderr


def test_a_wrong_option_is_refused(user_pass, tiny_model_path):
    for given, words in (("limit=x", "expected int"), ("limt=4", "nearest known: 'limit'")):
        arguments = ("compile", tiny_model_path, "--pass-config", f"Untouched.{given}")
        assert words in refused(*arguments)


@pytest.mark.slow
def test_explain_a_model(tiny_model_path):
    explained = as_json("passes", "explain", tiny_model_path, "-O1")
    assert explained["model"] == "tiny"
    assert explained["opt_level"] == "O1"
    assert "ConvBnReluFold" in [record["name"] for record in explained["passes"]]
    assert all(kernel["schedule"] and kernel["reason"] for kernel in explained["kernels"])
    text = succeed("passes", "explain", tiny_model_path, "-O1")
    assert "LegalizeOps" in text
    assert "ConvBnReluFold  no change" in succeed("passes", "explain", tiny_model_path, "-O1", "-v")
    assert "conv1" in text


@pytest.mark.extended
def test_explain_a_saved_model(tiny_model_path, tmp_path):
    succeed("compile", tiny_model_path, "-q", "-o", tmp_path / "m.tvmx")
    assert "conv1" in succeed("passes", "explain", tmp_path / "m.tvmx")


@pytest.mark.extended
def test_explain_one_pass_of_a_model(tiny_model_path):
    options = ("--pass", "GemmFusion", "--json")
    explained = json.loads(succeed("passes", "explain", tiny_model_path, *options))
    assert [record["name"] for record in explained["passes"]] == ["GemmFusion"]
    assert explained["kernels"] == []


def test_explain_a_pass_by_its_name():
    text = succeed("passes", "explain", "LayoutPlanning")
    assert "Leaves alone:" in text
    doc = as_json("passes", "explain", "LayoutPlanning")["doc"]
    assert " ".join(doc.split()) in " ".join(text.split())


def report_with_decisions():
    done = Decision("Fold", True, "conv1 + bn1", "folded")
    refused = Decision("Fold", False, "conv2\x1b[31m", "a second reader")
    return CompileReport(
        model="m",
        opt_level="O3",
        passes=[
            PassRecord("Fold", "graph", 0.1, True, 1, 1, "", [done, refused]),
            PassRecord("Other", "graph", 0.1, False, 0, 0, "disabled", []),
        ],
        kernels=[
            KernelRecord("k", 2, ["conv1"], "tile", "template", "fits", ["no room"], 1, 1, 1e-6),
            KernelRecord("l", 1, ["add"], "rows", "template", "fits", [], 1, 1, 1e-6),
        ],
    )


def test_explanation_keeps_what_was_done_and_what_was_left_alone():
    fold, other = explain(report_with_decisions())["passes"]
    assert fold["applied"] == [{"where": "conv1 + bn1", "reason": "folded"}]
    assert [item["reason"] for item in fold["refused"]] == ["a second reader"]
    assert other["skipped"] == "disabled"


def test_explanation_of_refusals_only():
    explained = explain(report_with_decisions(), refused_only=True)
    assert [record["name"] for record in explained["passes"]] == ["Fold"]
    assert explained["passes"][0]["applied"] == []
    assert [kernel["name"] for kernel in explained["kernels"]] == ["k"]


def explained(report, *names, verbose=False):
    parts = explanation_parts(explain(report, frozenset(names)), verbose)
    return plain_text(Group(*parts), 80)


def test_explanation_as_text():
    text = explained(report_with_decisions())
    assert "Fold\n  + folded\n      conv1 + bn1\n  - a second reader\n" in text
    assert "\n      conv2\\x1b[31m\n" in text
    assert "Skipped: Other" in text
    assert "\ntile (template): fits\n    conv1  2 calls  2.00 µs\n  - no room\n" in text
    assert "Other  disabled" in explained(report_with_decisions(), verbose=True)
    assert "Nothing of that kind" in explained(report_with_decisions(), "Gone")


def test_places_with_one_reason_stand_together():
    reason = "its input is used twice"
    refused = [Decision("Fold", False, f"/layer.{n}/conv", reason) for n in range(30)]
    report = CompileReport(
        model="m",
        opt_level="O3",
        passes=[PassRecord("Fold", "graph", 0.1, False, 0, 30, "", refused)],
        kernels=[
            KernelRecord(name, 1, [], "tile", "template", "fits", ["a: no", "b: no"], 1, 1, 1e-6)
            for name in ("k", "l")
        ],
    )
    text = explained(report)
    assert text.count(reason) == text.count("tile (template)") == 1
    assert "      /layer.0/conv, /layer.1/conv, /layer.2/conv, /layer.3/conv +26\n" in text
    assert "  - a, b: no\n" in text
    assert "/layer.29/conv" in explained(report, verbose=True)
