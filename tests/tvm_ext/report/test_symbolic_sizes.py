"""A report says what it cannot know of a program whose sizes each run decides."""

import json
import re

import pytest
from commands import succeed
from rich.console import Group
from small_models import mlp
from unoptimised import HOST

import tvm_ext
from tvm_ext.cli.pass_tables import explain, explanation_parts
from tvm_ext.report.compile_report import CompileReport
from tvm_ext.report.terminal_tables import plain_text


@pytest.fixture(scope="module")
def free():
    return tvm_ext.compile(mlp("rows"), HOST).report


def test_no_figure_is_made_up(free):
    assert free.estimated_seconds is None
    assert free.memory.planned_peak_bytes is None
    assert free.memory.unplanned_bytes is None
    text = free.to_text()
    assert text.count("not known (rows is dynamic)") == 3
    data = json.loads(free.to_json())
    assert data["memory"]["planned_peak_bytes"] is None
    assert all(kernel["estimated_seconds"] is None for kernel in data["kernels"])
    assert CompileReport.from_json(free.to_json()) == free
    page = free.to_html()
    assert "not known (rows is dynamic)" in page
    assert "None" not in page
    explained = plain_text(Group(*explanation_parts(explain(free))), 80)
    assert re.search(r"^    second +1 call +–$", explained, re.MULTILINE)  # noqa: RUF001


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


def test_the_command_prints_no_false_figure(tmp_path):
    import onnx

    onnx.save(mlp("rows"), tmp_path / "m.onnx")
    assert "not known (rows is dynamic)" in succeed("compile", tmp_path / "m.onnx", "-O", "0")
