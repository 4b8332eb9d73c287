"""The campaign over random graphs: what it draws, what it calls a failure, and what it writes."""

import json
import random
from dataclasses import replace
from itertools import pairwise

import campaign
import joined_graphs
import numpy as np
import onnx
import pytest
import trial
from campaign import Campaign
from comparison import session_of
from control_flow import CONTROL_FLOW
from graph_builder import build_graph
from joined_graphs import Differing, joined, try_together
from open_results import watched_values, with_outputs
from special_inputs import KINDS, ORDINARY, draws, moved
from thoroughness import DRAWS
from trial import (
    CONTROL,
    MEMORY_PLANS,
    SOURCES,
    Case,
    Finding,
    Outcome,
    build_case,
    optional_passes,
    try_case,
)

from tvm_ext.errors import ModelError
from tvm_ext.onnx_frontend.onnx_graph import nodes_within
from tvm_ext.passes import share_storage, storage_plan
from tvm_ext.passes.pipeline import REQUIRED


def a_case(seed: str = "0", source: str = "static") -> Case:
    case = build_case(source, seed)
    assert case is not None
    return case


def test_a_case_follows_from_its_source_and_seed():
    for source in ("static", "dynamic", CONTROL):
        one, other = a_case("7", source), a_case("7", source)
        assert (one.model, one.sizes) == (other.model, other.sizes)
        assert one.model != a_case("8", source).model


def test_graphs_of_branches_and_loops_run():
    seen = set()
    for seed in range(8):
        graph = build_graph(random.Random(seed), CONTROL_FLOW)
        seen |= {node.op_type for node in graph.model.graph.node}
        session_of(graph.model).run(None, graph.inputs)
    assert {"If", "Loop"} <= seen


def memory_cases(numbers: range) -> list[Case]:
    drawn = (build_case(MEMORY_PLANS, str(number), poison=True) for number in numbers)
    return [case for case in drawn if case is not None]


@pytest.mark.extended
def test_graphs_for_plans_of_memory_have_all_that_is_hard():
    seen, empty = set(), 0
    for case in memory_cases(range(0, 800, 20)):
        model = onnx.load_from_string(case.model)
        seen |= {node.op_type for node in nodes_within(model.graph)}
        results = session_of(model).run(None, case.inputs)
        empty += any(not value.size for value in results)
    assert {"If", "Loop", "Scan", "Split", "Slice", "Concat", "Reshape", "QuantizeLinear"} <= seen
    assert empty


@pytest.mark.extended
@pytest.mark.parametrize("first", [0, pytest.param(1000, marks=pytest.mark.slow)])
def test_programs_are_right_where_free_memory_is_no_number(first):
    cases = memory_cases(range(first, first + (8 if first == 0 else 50 * DRAWS)))
    outcomes = try_together(cases, 3)
    for case, outcome in zip(cases, outcomes, strict=True):
        alone = outcome if isinstance(outcome, Outcome) else try_case(case, 3, {})
        assert alone.findings == [], case.seed
    assert sum(isinstance(outcome, Outcome) for outcome in outcomes) > 0.8 * len(cases)


@pytest.mark.slow
def test_buffers_that_lie_over_each_other_are_found(monkeypatch):
    plan = storage_plan._offsets

    def at_the_start(groups, sizes, alignment):
        found = plan(groups, sizes, alignment)
        return replace(found, offsets=(0,) * len(found.offsets), size=max(sizes))

    monkeypatch.setattr(storage_plan, "_offsets", at_the_start)
    cases = memory_cases(range(12))
    assert any(isinstance(one, Differing) for one in try_together(cases[:4], 1))
    # One after the other, until one of them shows it.
    findings = (one for case in cases for one in try_case(case, 1, {}).findings)
    assert any(one.kind == "difference" for one in findings)


@pytest.mark.extended
def test_a_last_use_that_is_taken_for_an_earlier_one_is_found(monkeypatch):
    right = share_storage.buffer_lifetimes

    def wrong(mod):
        found = right(mod)
        for lives in found.values():
            for buffer, last in lives.last.items():
                lives.last[buffer] = max(last - 1, lives.first.get(buffer, last))
        return found

    monkeypatch.setattr(share_storage, "buffer_lifetimes", wrong)
    assert any(isinstance(one, Differing) for one in try_together(memory_cases(range(20, 24)), 1))


@pytest.mark.extended
def test_offsets_for_lives_that_are_one_step_short_are_found(monkeypatch):
    right = storage_plan._groups

    def wrong(*given):
        return [replace(one, last=max(one.last - 1, one.first)) for one in right(*given)]

    monkeypatch.setattr(storage_plan, "_groups", wrong)
    assert any(isinstance(one, Differing) for one in try_together(memory_cases(range(20, 24)), 1))


def test_graphs_of_a_family_can_be_one_program():
    cases = memory_cases(range(8))
    forms = {onnx.load_from_string(case.model).opset_import[0].version for case in cases}
    assert len(forms) == 1
    assert len({case.opt_level for case in cases}) == 1


def test_nodes_of_joined_graphs_take_turns():
    models = [onnx.load_from_string(case.model) for case in memory_cases(range(4))]
    whole = joined(models, random.Random(0))
    prefixes = [node.name.partition("_")[0] for node in whole.graph.node]
    assert sum(a != b for a, b in pairwise(prefixes)) > len(models)
    for number, model in enumerate(models):
        own = [node.name for node in whole.graph.node if node.name.startswith(f"g{number}_")]
        assert own == [f"g{number}_{node.name}" for node in model.graph.node]
    assert len(session_of(whole).get_outputs()) == len(whole.graph.output)


@pytest.mark.extended
def test_a_program_is_the_failure_where_each_of_its_graphs_is_right(tmp_path, monkeypatch):
    case = a_case("1")
    finding = Finding("difference among others", "", ORDINARY, "'g0_y' differs", case.inputs)
    wrong = Differing(replace(case, seed="whole"), finding)

    def answer(_, function, *arguments, timeout):
        return [wrong, None] if function is try_together else function(*arguments)

    monkeypatch.setattr(campaign.ForkedWorker, "call", answer)
    given = ["--graphs", "2", "--inputs", "1", "--sources", "static", "--together", "2"]
    assert campaign.main([*given, "--output", str(tmp_path)]) == 1
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [one["kind"] for one in summary["failures"]] == ["difference among others"]
    assert summary["counts"]["graphs tried again alone"] == 2


@pytest.mark.extended
def test_what_an_error_names_is_left_out_alone(monkeypatch):
    cases = memory_cases(range(3))
    compile_case = joined_graphs.compile_case
    tried = []

    def refusing(model, case):
        tried.append(len({node.name.partition("_")[0] for node in model.graph.node}))
        if len(tried) == 1:
            raise ModelError("no kernel for 'g1_Add0'; expected another than g0_Add0")
        return compile_case(model, case)

    monkeypatch.setattr(joined_graphs, "compile_case", refusing)
    outcomes = try_together(cases, 1)
    assert [outcome is None for outcome in outcomes] == [False, True, False]
    assert tried == [3, 2]


def test_graphs_of_nnsmith_run():
    pytest.importorskip("nnsmith", reason="NNSmith is not installed (pip install nnsmith)")
    for seed in "012":
        case = a_case(seed, "nnsmith")
        model = onnx.load_from_string(case.model)
        session_of(model).run(None, case.inputs)


def test_inputs_have_every_kind_and_other_sizes():
    case = next(c for seed in range(9) if (c := build_case("dynamic", str(seed))) and c.sizes)
    model = onnx.load_from_string(case.model)
    found = draws(model, case.inputs, case.sizes, 25, random.Random(0))
    assert len(found) == 25
    assert {one.kind for one in found} == set(KINDS)
    assert any(one.sizes != case.sizes for one in found)
    assert sum(one.kind == ORDINARY for one in found) >= 16
    for one in found:
        values = np.concatenate([a.ravel() for a in one.arrays.values() if a.dtype.kind == "f"])
        assert np.isnan(values).any() == (one.kind == "NaN")
        assert np.isinf(values).any() == (one.kind == "infinities")


def test_moved_inputs_are_a_little_off():
    x = {"x": np.array([1.0, np.inf], np.float32), "n": np.array([3])}
    found = moved(x, 1)
    assert 0 < found["x"][0] - 1 < 1e-5
    assert np.isinf(found["x"][1])
    assert found["n"] is x["n"]


def test_values_whose_result_onnx_leaves_open_are_watched():
    text = """<ir_version: 10, opset_import: ["" : 20]>
    g (float[3] x, float[3] w, float[3] y) => (float[3] z) {
        a = Abs (x)
        b = Max (a, y)
        c = Sub (w, y)
        d = Sub (c, c)
        e = Clip (d)
        i = Cast <to = 7> (e)
        f = Cast <to = 1> (i)
        z = Add (b, f)
    }"""
    model = onnx.parser.parse_model(text)
    assert watched_values(model.graph) == [
        *(("a",), ("c", "c"), ("d",), ("e",), ("w", "y"), ("y",)),
    ]
    values = dict(zip("xwy", np.arange(9, dtype=np.float32).reshape(3, 3), strict=True))
    session = session_of(with_outputs(model, ["a", "c", "d", "e"]))
    assert len(session.run(None, values)) == 5


@pytest.mark.extended
def test_a_right_program_has_no_finding():
    before = dict.fromkeys(optional_passes(), 0)
    outcome = try_case(a_case("1"), 4, before)
    assert outcome.findings == []
    assert outcome.counts["pairs that agree"] > 0
    assert outcome.left_out in before
    assert not REQUIRED & before.keys()


class _Wrong:
    """A compiled model that is off by one."""

    def __init__(self, model):
        self._model, self.report = model, model.report

    def run(self, inputs):
        return {
            name: array + np.ones_like(array) for name, array in self._model.run(inputs).items()
        }


def test_a_wrong_program_is_found(monkeypatch):
    compile = trial.tvm_ext.compile
    monkeypatch.setattr(trial.tvm_ext, "compile", lambda *a, **k: _Wrong(compile(*a, **k)))
    (finding,) = try_case(a_case("1"), 1, {}).findings
    assert (finding.kind, finding.numbers, finding.left_out) == ("difference", ORDINARY, "")
    assert finding.inputs


def test_an_error_that_nothing_expects_is_found(monkeypatch):
    def broken(*_, **__):
        raise KeyError("lost")

    monkeypatch.setattr(trial.tvm_ext, "compile", broken)
    (finding,) = try_case(a_case("1"), 1, {}).findings
    assert (finding.kind, finding.message) == ("defect", "KeyError: 'lost'")


def test_a_failure_can_be_seen_again(tmp_path, capsys):
    found = Campaign(tmp_path, 1, reduce=False, left_out={"FuseTIR": 0})
    case = a_case("1")
    finding = Finding("difference", "FuseTIR", ORDINARY, "'y' differs", case.inputs)
    found.note(case, Outcome(left_out="FuseTIR", findings=[finding]))
    found.write_summary()
    text = (tmp_path / "failure-0001" / "failure.txt").read_text()
    assert "tvm-ext check model.onnx --inputs model.npz --disable-pass FuseTIR" in text
    assert (tmp_path / "failure-0001" / "model.onnx").read_bytes() == case.model
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["failures"][0]["case"] == "static 1"
    assert summary["left_out"] == {"FuseTIR": 1}
    assert "'y' differs" in capsys.readouterr().out


@pytest.mark.extended
def test_a_campaign_writes_a_summary(tmp_path, capsys):
    given = ["--graphs", "2", "--inputs", "2", "--sources", "static,control flow"]
    given += ["--poison", "--together", "2"]
    assert campaign.main([*given, "--output", str(tmp_path)]) == 0
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["graphs"] == 2
    assert summary["pairs"] >= summary["counts"]["pairs that agree"] >= 1
    capsys.readouterr()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--sources", "other"], f"expected some of {', '.join(SOURCES)}"),
        (["--workers", "3"], "1 or 2 workers"),
        (["--graphs", "0"], "at least 1 of each"),
        (["--together", "0"], "at least 1 of each"),
        (["--together", "8", "--leave-out-passes"], "expected one of them"),
    ],
)
def test_wrong_use_is_one_line(given, said, capsys):
    assert campaign.main(given) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
