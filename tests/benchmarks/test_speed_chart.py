"""The README's picture: which models it shows, and what it refuses to draw."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def chart(monkeypatch):
    """The module ``speed_chart``, imported as its script imports its own."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.delitem(sys.modules, "speed_chart", raising=False)
    import speed_chart

    return speed_chart


def model(name, onnxruntime, openvino, wrong=()):
    programs = ("tvm_ext", "onnxruntime", "openvino")
    return {
        "name": name,
        "programs": {program: {"wrong": program in wrong} for program in programs},
        "ratios": {"onnxruntime": onnxruntime, "openvino": openvino},
    }


def test_models_of_the_largest_ratios_come_first_and_wrong_ones_are_left_out(chart):
    models = [model("slow", 1.1, 0.9), model("fast", 3.0, 2.0)]
    models += [model("ours wrong", 9.0, 9.0, ["tvm_ext"]), model("theirs", 9.0, 9.0, ["openvino"])]
    assert chart.ratios_of({"models": models}, "new.json") == [
        ("fast", {"onnxruntime": 3.0, "openvino": 2.0}),
        ("slow", {"onnxruntime": 1.1, "openvino": 0.9}),
    ]


@pytest.mark.parametrize(
    ("results", "words"),
    [
        ([], "no list of models"),
        ({"models": []}, "no model with right answers of onnxruntime and openvino"),
    ],
)
def test_what_cannot_be_drawn(chart, results, words):
    with pytest.raises(chart.ResultsError, match=words):
        chart.ratios_of(results, "new.json")


def test_the_picture_of_the_readme_has_its_results(chart, tmp_path):
    pytest.importorskip("matplotlib")
    results = json.loads((ROOT / "docs/images/speed.json").read_text())
    rows = chart.ratios_of(results, "speed.json")
    chart.draw_chart(results, rows, tmp_path / "speed.svg")
    assert len(rows) >= 8
    assert "<svg" in (tmp_path / "speed.svg").read_text()
