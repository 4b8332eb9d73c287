"""A report says what it cannot know of a program whose sizes each run decides."""

import json
import re

import pytest
from commands import succeed
from rich.console import Group
from small_models import mlp, model, node, value
from unoptimised import HOST

import tvm_ext
from tvm_ext.cli.pass_tables import explain, explanation_parts
from tvm_ext.report.compile_report import CompileReport
from tvm_ext.report.formulas import evaluate
from tvm_ext.report.terminal_tables import plain_text


@pytest.fixture(scope="module")
def free():
    return tvm_ext.compile(mlp("rows"), HOST).report


@pytest.fixture(scope="module")
def of_data():
    """A program whose sizes data decide: as many columns as a row of the input has nonzeros."""
    nodes = [node("NonZero", ["x"], ["places"]), node("Cast", ["places"], ["y"], to=1)]
    shapes = [value("x", ["rows", 6])], [value("y", [2, "found"])]
    return tvm_ext.compile(model(nodes, *shapes), HOST).report


@pytest.mark.extended
def test_figures_are_those_of_usual_sizes(free):
    assert free.estimated_seconds is None
    assert free.memory.planned_peak_bytes is None
    nominal, known = free.nominal, tvm_ext.compile(mlp(1), HOST).report
    assert nominal.sizes == {"rows": 1}
    assert nominal.estimated_seconds == pytest.approx(known.estimated_seconds, rel=0.3)
    assert nominal.flops == pytest.approx(sum(k.calls * k.flops for k in known.kernels), rel=0.3)
    assert nominal.memory_bytes == known.memory.planned_peak_bytes
    assert nominal.memory_formula == f"rows * {nominal.memory_bytes}"
    text, page = free.to_text(), free.to_html()
    assert f"{nominal.memory_bytes} B at rows=1  ({nominal.memory_formula} bytes)" in text
    assert text.count("at rows=1") == 5
    assert "at rows=1" in page
    assert "not known" not in text + page
    assert CompileReport.from_json(free.to_json()) == free


def test_work_is_a_formula_with_figures_at_usual_sizes(free):
    work = free.nominal.work
    for what in ("flops", "bytes"):
        text = getattr(work, f"{what}_formula")
        kernels = [getattr(kernel.nominal, f"{what}_formula") for kernel in free.kernels]
        assert evaluate(text, {"rows": 1}) == getattr(work, what)
        for rows in (1, 7, 300):
            assert evaluate(text, {"rows": rows}) == sum(
                evaluate(kernel, {"rows": rows}) for kernel in kernels
            )
    data = json.loads(free.to_json())
    assert data["nominal"]["work"]["flops_formula"] == work.flops_formula
    assert data["kernels"][0]["nominal"]["bytes"] > 0
    assert set(data["kernels"][0]["symbolic"]) == {"sizes", "flops", "bytes", "versions"}
    formula = work.formula("flops", free.nominal.sizes)
    assert re.fullmatch(r"\d+ \* rows FLOP", formula)
    assert f"at rows=1  ({formula})" in free.to_text()
    page = free.to_html()
    assert f"at rows=1; {formula}" in page
    assert "Kernels by estimated time of one run at rows=1 (modelled)" in free.to_text()


def test_no_figure_is_made_up(of_data):
    assert of_data.estimated_seconds is None
    assert of_data.nominal.memory_bytes is None
    assert of_data.nominal.flops is of_data.nominal.work is None
    assert "work" not in json.loads(of_data.to_json())["nominal"]
    assert "Work of a run" not in of_data.to_text()
    assert of_data.nominal.estimated_seconds is None
    text = of_data.to_text()
    assert "not known (rows is dynamic)" in text
    data = json.loads(of_data.to_json())
    assert data["memory"]["planned_peak_bytes"] is None
    assert any(kernel["estimated_seconds"] is None for kernel in data["kernels"])
    assert CompileReport.from_json(of_data.to_json()) == of_data
    page = of_data.to_html()
    assert "not known (rows is dynamic)" in page
    assert "None" not in page


def test_kernels_of_any_size_have_no_figure_of_one_call(free):
    explained = plain_text(Group(*explanation_parts(explain(free))), 80)
    assert re.search(r"^    second +1 call +–$", explained, re.MULTILINE)  # noqa: RUF001


@pytest.mark.extended
def test_ranges_give_the_memory_of_the_largest_size():
    bounded = tvm_ext.compile(mlp("rows"), HOST, input_shapes={"x": ["rows:1:32", 6]}).report
    assert bounded.memory.planned_peak_bytes is not None
    assert "for the largest sizes" in bounded.to_text()
    assert bounded.estimated_seconds is None


def test_known_sizes_have_figures():
    report = tvm_ext.compile(mlp(4), HOST).report
    assert report.estimated_seconds > 0
    assert report.memory.planned_peak_bytes > 0
    assert "not known" not in report.to_text()


@pytest.mark.slow
def test_the_command_prints_no_false_figure(tmp_path):
    import onnx

    onnx.save(mlp("rows"), tmp_path / "m.onnx")
    assert "at rows=1" in succeed("compile", tmp_path / "m.onnx", "-O", "0")
