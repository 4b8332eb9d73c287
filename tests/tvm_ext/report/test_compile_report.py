"""Compile report: records, derived figures, JSON, text and the HTML page."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from page_parser import Page

from tvm_ext.configs.atomic_file import OutputPathError
from tvm_ext.errors import TvmExtError
from tvm_ext.report import (
    CompileReport,
    Decision,
    GraphRecord,
    KernelRecord,
    MemoryRecord,
    ModuleCounts,
    PassRecord,
    PhaseRecord,
    ReportError,
)
from tvm_ext.report.records import NodePrecision, PrecisionRecord
from tvm_ext.report.terminal_tables import plain_text
from tvm_ext.report.text import renderable

HOSTILE = "<script>alert(1)</script>"
COUNTS = ModuleCounts(operators=1234, kernels=56, intermediate_bytes=7 << 20)


def _kernel(name: str, calls: int = 1, seconds: float = 1e-4, source: str = "template", **other):
    fields = {
        "name": name,
        "calls": calls,
        "origins": [f"{name}/Conv + {name}/Relu"] * calls,
        "schedule": "register tile",
        "source": source,
        "reason": "6 x 16 accumulators fit the registers",
        "refusals": ["record: none for this shape"],
        "flops": 2.3e8,
        "bytes": 4.1e6,
        "estimated_seconds": seconds,
    }
    return KernelRecord(**{**fields, **other})


def _report(kernels: int = 55) -> CompileReport:
    """Return a report as a residual network of ``kernels`` kernels would give it."""
    applied = Decision("ConvBatchNormFold", True, "conv1 + bn1", "folded into the weights")
    refused = Decision("ConvBatchNormFold", False, "conv2 + bn2", "conv2 has 2 users")
    return CompileReport(
        model="models/resnet50.onnx",
        opt_level="O2",
        target={"name": "cpu", "cores": 8, "l2": {"bytes": 1048576}},
        versions={"apache-tvm": "0.27.0.post1"},
        inputs=["data: float32[1, 3, 224, 224]"],
        outputs=["probabilities: float32[1, 1000]"],
        phases=[PhaseRecord("import", 1.25), PhaseRecord("schedule", 2.5)],
        graph=GraphRecord(
            onnx_nodes={"Conv": 53, "BatchNormalization": 53, "Relu": 49, "Gemm": 1},
            prepared_nodes={"Conv": 53, "Relu": 49, "Gemm": 1},
            relax_before={"relax.nn.conv2d": 53, "relax.add": 70},
            relax_after={"relax.nn.conv2d": 53, "relax.add": 53},
            kernels_before_fusion=175,
            kernels=82,
        ),
        passes=[
            PassRecord(
                "ConvBatchNormFold", "graph", 0.4, True, 1, 1, "", [applied, refused], COUNTS
            ),
            PassRecord("LayoutPlan", "graph", 0.0, False, 0, 0, "disabled by --disable-pass"),
            PassRecord("GemmFusion", "graph", 0.1, False, 0, 0, "", [], ModuleCounts(987, 1, 2048)),
        ],
        kernels=[_kernel(f"fused_conv{i}", 1 + i % 2, (i + 1) * 1e-5) for i in range(kernels)],
        memory=MemoryRecord(9_633_792, 121_110_528, 102_228_128),
        warnings=["opset 8 was converted to 17"],
    )


# Derived figures


def test_totals_count_every_call():
    report = _report(3)
    assert report.total_seconds == 3.75
    assert report.kernel_calls == 4
    assert report.estimated_seconds == pytest.approx(1e-5 + 2 * 2e-5 + 3e-5)
    assert report.kernels_by_cost[0].name == "fused_conv1"


def test_kernels_per_anchor_counts_prepared_convolutions_and_matmuls():
    graph = GraphRecord(
        onnx_nodes={"Conv": 9}, prepared_nodes={"Conv": 2, "MatMul": 2, "Relu": 7}, kernels=6
    )
    assert graph.kernels_per_anchor == 1.5
    assert GraphRecord(kernels=3).kernels_per_anchor is None


def test_memory_saved_share_is_zero_when_planning_did_not_help():
    assert MemoryRecord(25, 100).saved_share == 0.75
    assert MemoryRecord(120, 100).saved_share == 0.0
    assert MemoryRecord().saved_share == 0.0


@pytest.mark.extended
def test_arrays_of_kernels_are_shown_where_there_are_some():
    report = _report(1)
    assert "Kernels' arrays" not in str(report)
    assert "kernel_bytes" not in report.to_dict()["memory"]
    report.memory = replace(report.memory, kernel_bytes=3 << 20, kernel_thread_bytes=1 << 20)
    assert "Kernels' arrays    3.00 MiB, and 1.00 MiB for each further thread" in str(report)
    assert CompileReport.from_json(report.to_json()) == report
    assert "Arrays of kernels" in report.to_html()


def test_arrays_of_kernels_are_a_part_of_the_planned_bytes():
    memory = MemoryRecord(25, 100, lower_bound_bytes=20).with_arrays(7)
    assert (memory.planned_peak_bytes, memory.unplanned_bytes) == (32, 107)
    assert (memory.lower_bound_bytes, memory.workspace_bytes, memory.values_bytes) == (27, 7, 25)
    assert MemoryRecord(25).with_arrays(0) == MemoryRecord(25)
    assert MemoryRecord(None, None).with_arrays(7).values_bytes is None
    report = _report(1)
    report.memory = memory
    assert "7 B of both for kernels' arrays" in str(report)
    assert CompileReport.from_json(report.to_json()) == report


def test_model_name_drops_folders_of_either_kind():
    assert CompileReport("a/b/net.onnx", "O1").model_name == "net.onnx"
    assert CompileReport("a\\b\\net.onnx", "O1").model_name == "net.onnx"


# JSON


@pytest.mark.parametrize("report", [_report(), CompileReport("", "O0")], ids=["full", "empty"])
def test_json_round_trip_is_exact(report):
    again = CompileReport.from_json(report.to_json())
    assert again == report
    assert again.to_json() == report.to_json()


def test_json_names_its_schema():
    assert json.loads(_report(1).to_json(indent=None))["schema"] == 1


def test_json_of_another_schema_is_refused_by_its_number():
    text = json.dumps({**_report(1).to_dict(), "schema": 7})
    with pytest.raises(ReportError, match="schema 7, expected schema 1"):
        CompileReport.from_json(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        json.dumps({"schema": 1}),
        json.dumps({**_report(1).to_dict(), "surprise": 1}),
        json.dumps({**_report(1).to_dict(), "phases": [{"name": "import", "seconds": "soon"}]}),
        json.dumps({**_report(1).to_dict(), "phases": [{"name": "import", "seconds": "1.5"}]}),
    ],
    ids=["empty", "cut", "list", "fields missing", "field unknown", "not a number", "text"],
)
def test_json_that_is_not_a_report_is_one_line_of_error(text):
    with pytest.raises(TvmExtError, match="not a compile report") as caught:
        CompileReport.from_json(text)
    assert "\n" not in str(caught.value)


def test_json_refuses_numbers_that_json_does_not_have():
    report = _report(0)
    report.kernels = [_kernel("k", seconds=float("nan"))]
    with pytest.raises(ReportError, match="without a JSON form"):
        report.to_json()


# Text


def test_text_has_totals_and_the_costliest_kernels():
    text = _report().to_text(width=100)
    assert str(_report()) == text
    assert re.search(r"Compile time +3\.75 s", text)
    assert "175 → 82" in text
    assert re.search(r"Total +3\.75 s +100\.0 %", text)
    assert re.search(r"Total +82 +22\.96 ms +100\.0 %", text)
    assert "modelled" in text
    assert "45 more" in text
    assert "fused_conv53" in text
    assert "fused_conv0/" not in text
    assert "opset 8" in text


@pytest.mark.parametrize("width", [60, 100, 140])
def test_text_keeps_to_the_width(width):
    assert max(map(len, _report().to_text(width).splitlines())) <= width


def test_text_shows_names_as_they_are_and_no_escape_sequence():
    report = CompileReport("m", "O1", warnings=["[red]loud[/red] \x1b[31mred\u202e"])
    text = report.to_text()
    assert "[red]loud[/red] \\x1b[31mred\\u202e" in text
    assert "\x1b" not in text


# HTML


@pytest.mark.slow
@pytest.mark.parametrize("kernels", [3, 55, 400])
def test_html_contains_every_kernel_and_closes_every_tag(kernels):
    report = _report(kernels)
    page = Page(report.to_html())
    assert page.open == []
    for kernel in report.kernels:
        assert f"{kernel.name}/Conv" in page.text
        assert re.search(rf"\b{kernel.name}\b(?!/)", page.text)


def test_html_names_no_address_outside_itself():
    html = _report().to_html()
    page = Page(html)
    assert page.addresses
    assert all(address.startswith("#") for address in page.addresses)
    assert not {"link", "img", "iframe", "object"} & set(page.tags)
    assert not re.search(r"url\(|@import|(src|href)\s*=\s*[\"']?https?:", html)


def test_html_links_lead_to_a_heading():
    html = _report().to_html()
    for address in Page(html).addresses:
        assert f'id="{address[1:]}"' in html


def test_html_escapes_every_name():
    kernel = _kernel(HOSTILE, origins=[HOSTILE, f'"{HOSTILE}'], schedule=HOSTILE, source=HOSTILE)
    kernel = replace(kernel, reason=HOSTILE, refusals=[HOSTILE])
    decisions = [Decision(HOSTILE, taken, HOSTILE, HOSTILE) for taken in (True, False)]
    names = {HOSTILE: 1}
    report = CompileReport(
        HOSTILE,
        HOSTILE,
        target={"name": HOSTILE, HOSTILE: [HOSTILE]},
        versions={HOSTILE: HOSTILE},
        inputs=[HOSTILE],
        outputs=[HOSTILE],
        phases=[PhaseRecord(HOSTILE, 1.0)],
        graph=GraphRecord(names, names, names, names),
        passes=[PassRecord(HOSTILE, HOSTILE, 1.0, True, 1, 1, HOSTILE, decisions)],
        kernels=[kernel],
        warnings=[HOSTILE],
    )
    page = Page(report.to_html())
    assert page.tags.count("script") == 1
    assert page.open == []
    assert page.text.count(HOSTILE) > 20


def test_html_shows_both_kinds_of_decision_and_the_reason_of_a_skip():
    text = Page(_report().to_html()).text
    assert "folded into the weights" in text
    assert "conv2 has 2 users" in text
    assert "skipped: disabled by --disable-pass" in text


def test_html_marks_the_estimated_latency_as_modelled():
    text = " ".join(Page(_report().to_html()).text.split())
    assert re.search(r"Estimated latency 2\d\.\d ms modelled", text)


def test_html_of_a_fixed_report_is_reproducible():
    assert _report().to_html() == _report().to_html()


def test_empty_report_renders():
    report = CompileReport("", "O0")
    page = Page(report.to_html())
    assert page.open == []
    for sentence in ("No kernel was", "No pass was", "No operator was", "No phase was"):
        assert sentence in page.text
    assert "Kernel calls" in report.to_text()


def test_kernels_without_estimates_or_origins_render():
    report = CompileReport("m", "O0", phases=[PhaseRecord("import", 0.0)])
    report.kernels = [_kernel("reshape", seconds=0.0, origins=[], flops=0.0, bytes=0.0)]
    assert "reshape" in Page(report.to_html()).text
    assert "reshape" in report.to_text()


def test_what_a_pass_left_behind_is_counted():
    report = _report()
    page = " ".join(Page(report.to_html()).text.split())
    assert "1 refused 1,234 56 7.00 MiB" in page
    assert re.search(r" 1,234 +56 +7.00 MiB\n", report.to_text())
    # What did not change the module has no figures of its own.
    assert "987" not in page + report.to_text()


@pytest.mark.extended
def test_reports_that_were_saved_before_modules_were_counted_are_read():
    values = _report().to_dict()
    assert [record.pop("after", None) is not None for record in values["passes"]] == [
        True,
        False,
        True,
    ]
    read = CompileReport.from_json(json.dumps(values))
    assert read.passes[0].after is None
    assert read.to_dict() == values
    assert "changed" in read.to_text()
    assert Page(read.to_html()).open == []


def test_saved_page_replaces_the_old_one_and_leaves_nothing_else(tmp_path: Path):
    path = tmp_path / "report.html"
    path.write_text("old")
    _report(1).save_html(path)
    assert path.read_text(encoding="utf-8") == _report(1).to_html()
    assert list(tmp_path.iterdir()) == [path]


def test_page_that_cannot_be_saved_is_an_error_and_leaves_the_old_one(tmp_path: Path):
    with pytest.raises(OutputPathError, match="cannot write"):
        _report(1).save_html(tmp_path / "missing" / "report.html")
    taken = tmp_path / "report.html"
    taken.mkdir()
    with pytest.raises(OutputPathError, match="cannot write"):
        _report(1).save_html(taken)
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(OutputPathError, match="cannot write"):
        _report(1).save_html(file / "report.html")
    assert sorted(tmp_path.iterdir()) == [file, taken]


def test_page_folds_names_of_kernels_and_passes_without_changes():
    html = _report(2).to_html()
    summaries = re.findall(r"<summary>(.*?)</summary>", html, re.DOTALL)
    assert not any("<code>" in summary for summary in summaries)
    outside = re.sub(r"<details.*?</details>", "", html, flags=re.DOTALL)
    assert "<code>fused_conv0</code>" in html
    assert "<code>" not in outside
    assert "LayoutPlan" not in outside
    assert any(summary.startswith("2 passes changed nothing") for summary in summaries)


def test_page_marks_only_the_schedules_from_an_unusual_source():
    kernels = [_kernel(f"k{i}", source="generic" if i == 0 else "template") for i in range(5)]
    text = " ".join(Page(replace(_report(0), kernels=kernels).to_html()).text.split())
    assert text.count("register tile generic") == 1
    assert "register tile template" not in text
    assert "only schedules from another source than template are marked" in text
    same = " ".join(Page(_report(5).to_html()).text.split())
    assert "All schedules are from one source: template." in same


def test_page_has_no_columns_of_what_is_not_known():
    unknown = {"flops": None, "bytes": None, "estimated_seconds": None}
    kernels = [_kernel(f"k{i}", **unknown) for i in range(3)]
    text = Page(replace(_report(0), kernels=kernels).to_html()).text
    assert "Calls" in text
    assert not any(name in text for name in ("Work, 1 call", "Moved, 1 call", "Time, 1 run"))


def test_precision_that_was_chosen_for_an_error():
    nodes = [
        NodePrecision("first", "bfloat16", "", 2e-3),
        NodePrecision("second", "float32", "ArgMax 'y' jumps", None),
    ]
    report = _report()
    report.precision = PrecisionRecord(1e-2, 2e-3, 5e-4, 3, "", nodes)
    assert CompileReport.from_json(report.to_json()) == report
    figure = "1 of 2 products in bfloat16, error at most 2.0e-03 (5.0e-04 on samples)"
    assert figure in report.to_html()
    text = plain_text(renderable(report), 120)
    assert figure in text
    assert "ArgMax 'y' jumps" in text
    assert "first" not in text
    report.precision = None
    assert "bfloat16" not in report.to_html()
